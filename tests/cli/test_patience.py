"""Commands that take long say so on a terminal, and only there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from itertools import chain, repeat
from threading import Event
from types import SimpleNamespace
from headgate.cli import patience
patience.time = SimpleNamespace(monotonic=chain([0.0], repeat(7.0)).__next__)
patience._PATIENCE_SECONDS = patience._SAYS_SECONDS = {patience}
told = Event()
with patience.telling(lambda: told.set() or "counting 9 sheep"):
    {during}
print("done")
"""


def shown(during: str, patience: float) -> str:
    """What a terminal shows of standard error."""
    ours, theirs = os.openpty()
    script = SCRIPT.format(during=during, patience=patience)
    with subprocess.Popen(
        [sys.executable, "-c", script], stderr=theirs, stdout=subprocess.DEVNULL
    ) as ran:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:
            pass  # the last that had it open has ended
        os.close(ours)
        ran.wait()
    return b"".join(parts).decode()


@pytest.mark.parametrize("end", ["", "raise KeyboardInterrupt"])
def test_a_terminal_is_told_what_is_done_and_the_line_is_gone_afterwards(end: str) -> None:
    text = shown(f"told.wait(); {end}", patience=0.01)
    assert "\rcounting 9 sheep: 7 s" in text
    blank = text.rindex("\r" + " " * len("counting 9 sheep: 7 s") + "\r")
    assert "counting" not in text[blank:]


def test_a_short_one_says_nothing() -> None:
    assert shown("pass", patience=60) == ""


def test_elsewhere_nothing_is_told() -> None:
    script = SCRIPT.format(during="assert not told.wait(0.2)", patience=0.01)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("done\n", "")
