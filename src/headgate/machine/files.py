"""Reads small files of /proc and /sys."""

from __future__ import annotations

from pathlib import Path


def content(path: Path) -> str:
    """The content of a file without surrounding space. Empty if the file is missing or cannot be
    read, as `speed` of an interface that is down.
    """
    try:
        return path.read_text().strip()
    except OSError:
        return ""
