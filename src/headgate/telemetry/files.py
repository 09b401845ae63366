"""What small files of /proc and /sys say."""

from __future__ import annotations

from pathlib import Path


def content(path: Path) -> str:
    """What is in a file, without space around it; empty where there is none, or it cannot be read (`speed` of an
    interface that is down)."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
