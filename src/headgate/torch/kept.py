"""What a script keeps besides models and optimizers, and what its states are to each other in several workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

EQUAL, MEAN, WORKER = "equal", "mean", "worker"
ACROSS = (EQUAL, MEAN, WORKER)
"""What states are to each other: the same in all workers, parts of a mean, or each worker's own."""


@dataclass(frozen=True)
class Kept:
    """An object that was given to `keep`.

    Args:
        object: It has `state_dict` and `load_state_dict`.
        across: One of `ACROSS`; None: the script does not say.
    """

    object: Any
    across: str | None
