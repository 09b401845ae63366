"""Calls functions at the end of a training script."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Any, Callable

_closing: list[tuple[int, Callable[[], object]]] = []
"""What to call, and the process that asked for it: one that is forked from it does not."""


def at_end(close: Callable[[], object]) -> None:
    """Have `close` called at the end of the interpreter, and also if the script ends its process by
    `os._exit(0)`.

    So other workers learn of either end, and the last reports are sent.
    """
    atexit.register(close)
    _closing.append((os.getpid(), close))
    if len(_closing) == 1:
        _watch_exit()


def _watch_exit() -> None:
    leave: Any = os._exit

    def _exit(status: int) -> None:
        for process, close in _closing if status == 0 else ():
            if process == os.getpid():
                with contextlib.suppress(Exception):
                    close()
        leave(status)

    os._exit = _exit  # type: ignore[assignment]
