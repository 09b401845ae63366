"""Whether this worker waits in a collective operation of TensorFlow, and at which line of the
script.

TensorFlow tells neither. The calls of each thread do: the innermost is a collective operation, or a
compiled function that contains one.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

_OPERATION = "Collective"
"""Prefix of the names of TensorFlow's collective operations."""


def exchanging() -> str | None:
    """Where the script called the running exchange, such as `train.py, line 7`; empty if that
    cannot be told. None: no exchange goes on.
    """
    if "tensorflow" not in sys.modules:
        return None
    frames = sys._current_frames()
    if not any(_exchanges(frame) for frame in frames.values()):
        return None
    main = threading.main_thread().ident
    return _line(frames.get(main) if main is not None else None)


def _exchanges(frame: FrameType) -> bool:
    """Whether the innermost call of a thread is such an operation, or a function that contains
    one.
    """
    file = frame.f_code.co_filename
    if file.endswith(os.path.join("ops", "gen_collective_ops.py")):
        return True
    if not file.endswith(os.path.join("eager", "execute.py")):
        return False
    name = str(frame.f_locals.get("op_name", ""))
    return name.startswith(_OPERATION) or _has_exchange(name)


@functools.lru_cache(maxsize=256)
def _has_exchange(name: str) -> bool:
    """Whether a function of TensorFlow's, or one that it calls, exchanges something."""
    from tensorflow.python.eager import context

    known: Any = context.context()
    left, seen = [name], {name}
    while left:
        name = left.pop()
        if not known.has_function(name):
            continue
        for node in known.get_function_def(name).node_def:
            if node.op.startswith(_OPERATION):
                return True
            called = {node.op, *_functions(node.attr.values())} - seen
            seen |= called
            left += called
    return False


def _functions(attributes: Iterable[Any]) -> list[str]:
    """The functions that attributes of an operation name."""
    several = [function.name for attribute in attributes for function in attribute.list.func]
    return several + [attribute.func.name for attribute in attributes if attribute.func.name]


def _line(frame: FrameType | None) -> str:
    """The innermost line of the script, or of what stands beside it, that is being done."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]
    folder = os.path.join(os.path.dirname(os.path.abspath(script)), "")
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if file.startswith(folder) and "-packages" not in file[len(folder) :]:
            return f"{os.path.relpath(file, folder)}, line {frame.f_lineno}"
        frame = frame.f_back
    return ""
