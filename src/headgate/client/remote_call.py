"""The program that a call of an `Executor` runs: it reads the call, makes it, and writes the
result.

It imports as little as possible, because every call waits for these imports.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

from headgate.model.calls import CALL, RESULT

VALUE, ERROR, LOST = "value", "error", "lost"
"""What the result file holds: the returned value; the exception with its traceback; or why neither
can be sent back.
"""


def write(path: Path, *parts: object) -> None:
    """Write objects to a file, one after the other, atomically.

    Raises:
        Exception: An object cannot be pickled; the exception depends on its type.
    """
    import cloudpickle

    data = b"".join(map(cloudpickle.dumps, parts))
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    fresh.replace(path)


def _outcome(call: Path) -> tuple[str, str, Any]:
    try:
        with call.open("rb") as file:
            paths = pickle.load(file)
            sys.path += [path for path in paths if path not in sys.path]
            function, args, kwargs = pickle.load(file)
        return VALUE, "", function(*args, **kwargs)
    except BaseException as error:  # noqa: BLE001  # the caller raises it
        traceback.print_exc()
        return ERROR, traceback.format_exc(), error


def main() -> int:
    """Make the call that the environment names. Returns the exit status."""
    checkpoints = Path(os.environ["HEADGATE_CHECKPOINTS"])
    away = "HEADGATE_CHECKPOINTS_AWAY" in os.environ
    result = (checkpoints if away else checkpoints.parent) / RESULT
    result.unlink(missing_ok=True)  # of an earlier attempt
    kind, trace, value = _outcome(Path(os.environ.pop(CALL)))
    try:
        write(result, (kind, trace), value)
    except Exception as error:  # noqa: BLE001  # pickling calls what a class defines
        kind_of_outcome = "result" if kind == VALUE else "exception"
        text = f"its {kind_of_outcome}, {type(value).__qualname__}, cannot be pickled: {error}"
        print(text, file=sys.stderr)
        write(result, (LOST, trace), text)
        return 1
    return 0 if kind == VALUE else 1


if __name__ == "__main__":
    sys.exit(main())
