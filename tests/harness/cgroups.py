"""The cgroups of this machine, looked up while others make and remove some."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path


def cgroups(pattern: str, below: Path = Path("/sys/fs/cgroup")) -> list[Path]:
    """Those whose names match a pattern."""
    # A walk, unlike a glob, does not mind that folders vanish meanwhile.
    return [
        Path(at, name) for at, names, _ in os.walk(below) for name in fnmatch.filter(names, pattern)
    ]
