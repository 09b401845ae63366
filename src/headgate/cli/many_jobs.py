"""How lines name jobs that all fare alike."""

from __future__ import annotations

from collections.abc import Sequence

_FEW = 5
"""At most so many are named one by one."""


def folded(jobs: Sequence[str]) -> Sequence[str]:
    """What begins a line for each job, or one line for all: `a and 41 others`."""
    return jobs if len(jobs) <= _FEW else [f"{jobs[0]} and {len(jobs) - 1:,} others"]
