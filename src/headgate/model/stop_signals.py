"""Signals that ask a script to end."""

from __future__ import annotations

import signal

SIGNALS = "a signal that a script can catch, such as SIGINT, SIGUSR1 or 15"
"""Valid values of a job's `stop_signal`, for messages."""
_VALID = frozenset(int(valid_signal) for valid_signal in signal.valid_signals())
_NAMED = frozenset(int(named) for named in signal.Signals)
_NO_STOP = frozenset({"SIGKILL", "SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGCONT", "SIGCHLD"})


def signal_name(given: str | int) -> str:
    """Normalize a signal: a name with or without SIG, or a number. A real-time signal stays a
    number.

    Raises:
        ValueError: The signal does not exist, or a script cannot catch it.
    """
    text = str(given).strip().upper()
    if text.isdecimal():
        number = int(text)
    else:
        known = signal.Signals.__members__
        number = int(known.get(text, known.get(f"SIG{text}", 0)))
    if isinstance(given, bool) or number not in _VALID:
        raise ValueError(f"found {given!r}; expected {SIGNALS}")
    name = signal.Signals(number).name if number in _NAMED else str(number)
    if name in _NO_STOP:
        raise ValueError(f"found {given!r}, which asks no script to end; expected {SIGNALS}")
    return name


def signal_number(name: str | int) -> int:
    """The number of a signal named as by `signal_name`."""
    text = str(name)
    return int(text) if text.isdecimal() else signal.Signals[text].value
