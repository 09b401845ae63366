"""Finds the disk of a folder, for a cgroup's disk rate."""

from __future__ import annotations

import os
from pathlib import Path


def number_of(folder: str | Path) -> str | None:
    """Device number `major:minor` of the whole disk with a folder. None if it is on no disk (tmpfs,
    overlay, network).
    """
    try:
        device = os.stat(folder).st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        if (block / "partition").exists():
            block = block.parent
        return (block / "dev").read_text().strip()
    except OSError:
        return None
