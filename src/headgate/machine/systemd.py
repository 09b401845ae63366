"""Programs of systemd."""

from __future__ import annotations

import subprocess
from pathlib import Path

from headgate.machine.files import content
from headgate.model.errors import HeadgateError

_SECONDS = 60.0
_LOOK_SECONDS = 5.0
_FIRST_PROCESS = Path("/proc/1/comm")


def order(*words: str, cure: str = "") -> None:
    """Run a program of systemd.

    Args:
        words: Its command line.
        cure: What to do if it fails.

    Raises:
        HeadgateError: It fails.
    """
    try:
        answer = subprocess.run(
            words, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HeadgateError(f"`{' '.join(words)}` failed: {error}") from error
    if answer.returncode != 0:
        detail = answer.stderr.strip() or f"exit code {answer.returncode}"
        advice = f"; {cure}" if cure else ""
        raise HeadgateError(f"`{' '.join(words)}` failed: {detail}{advice}")


def is_stopping() -> bool:
    """Whether this machine is being shut down, as far as systemd tells."""
    # in the end it becomes this program (cut to 15 letters), which answers nobody
    if content(_FIRST_PROCESS) == "systemd-shutdow":
        return True
    try:
        words = ["systemctl", "is-system-running"]
        answer = subprocess.run(
            words, capture_output=True, text=True, timeout=_LOOK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == "stopping"
