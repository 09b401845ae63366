"""Write a page."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from headgate.model.errors import StorageError


def save(text: str, to: Path) -> Path:
    """Write a page. A file is replaced atomically, also behind a link; a device or pipe is written
    into.

    Returns:
        `to`.

    Raises:
        StorageError: It cannot be written.
    """
    # Surrogates come from output that is not UTF-8; a page must be UTF-8.
    data = text.encode(errors="replace")
    file = to.resolve()
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if to.exists() and not to.is_file():
            to.write_bytes(data)
            return to
        beside.write_bytes(data)
        beside.replace(file)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise StorageError(
            f"cannot write {to}: {error.strerror}; name another file with --output"
        ) from error
    return to
