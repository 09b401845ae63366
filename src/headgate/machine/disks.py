"""Which disk a folder is on, as a cgroup's disk rate names it."""

from __future__ import annotations

import os
from pathlib import Path


def number_of(folder: str | Path) -> str | None:
    """Device number `major:minor` of the whole disk that holds a folder; None where that is no disk
    (tmpfs, overlay, network).
    """
    try:
        device = os.stat(folder).st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        if (block / "partition").exists():
            block = block.parent
        return (block / "dev").read_text().strip()
    except OSError:
        return None
