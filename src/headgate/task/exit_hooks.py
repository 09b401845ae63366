"""Calls functions at the end of a training script."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Any, Callable

_closing: list[Callable[[], object]] = []


def at_end(close: Callable[[], object]) -> None:
    """Have `close` called at the end of the interpreter, and also if the script ends its process by
    `os._exit(0)`.

    So other workers learn of either end, and the last reports are sent.
    """
    atexit.register(close)
    _closing.append(close)
    if len(_closing) == 1:
        _watch_exit()


def _watch_exit() -> None:
    leave: Any = os._exit
    process = os.getpid()

    def _exit(status: int) -> None:
        if status == 0 and os.getpid() == process:  # not in a process that was forked from it
            for close in _closing:
                with contextlib.suppress(Exception):
                    close()
        leave(status)

    os._exit = _exit  # type: ignore[assignment]
