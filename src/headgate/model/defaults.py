"""Where a user's settings stand, and what counts where nothing is set."""

from __future__ import annotations

import os
from pathlib import Path

from headgate.model.errors import UsageError

HOME = "~/.local/share/headgate"
"""Headgate's folder."""
POLICY = "headgate"
"""The policy that moves shares between jobs."""
KEEP_RUNS = 200
"""How many runs are kept."""
IDLE_SECONDS = 60.0
"""How long a hub without work waits before it ends."""
HELD_PART = 0.02
"""Fraction of its time for which a job is held to prove whom it slows, unless more is asked for."""
WEB_PORT = 7411
"""Port of the live page."""
MOST_PORT = 65400
"""Highest first port of the live page, which takes a later one if it is not free."""


def settings_path() -> Path:
    """The file of the user's settings, which need not exist."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "headgate" / "config.yaml"


def settings_exist(path: Path) -> bool:
    """Whether the file of the user's settings exists.

    Raises:
        UsageError: Its folder cannot be read.
    """
    try:
        return path.exists()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def variable_of(key: str) -> str:
    """The variable of a setting."""
    return f"HEADGATE_{key.upper()}"
