"""Reports the files that a script writes, so that two workers that write the same file are
detected.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import Any, Callable

_ANEW = os.O_TRUNC | os.O_APPEND
_MOST = 1000
"""Most files that are reported."""
_MOST_WAITING = 10_000
"""Most files noted between two reports. A script that reports nothing reports no files."""
_DEVICES = ("/dev/", "/proc/", "/sys/")
_CACHES = ("__pycache__", "torchinductor_")


class WriteWatcher:
    """Notes the files that this process creates, appends to, or renames into place.

    It leaves out files that several processes share by agreement: those opened without truncation
    (maps, locks), devices, and caches.
    """

    def __init__(self) -> None:
        self._process = 0
        self._found: deque[str] = deque(maxlen=_MOST_WAITING)
        self._told: set[str] = set()
        self._own: set[str] = set()

    def watch(self) -> None:
        """Note writes from now on, until `ignore`."""
        if not self._process:
            self._process = os.getpid()
            sys.addaudithook(self._hook)

    def ignore(self) -> None:
        """Stop noting writes: this worker is the only one."""
        self._process = -1
        self._found.clear()

    def wrote(self, file: Any) -> None:
        """Note a file that was written without Python's `open`."""
        if self._process == os.getpid() and isinstance(file, (str, bytes, os.PathLike)):
            self._found.append(os.path.abspath(os.fsdecode(file)))

    def leave_out(self, file: str) -> None:
        """Leave out the next write to a file, which is Headgate's own."""
        if self._process == os.getpid():
            self._own.add(os.path.abspath(file))

    def tell(self, send: Callable[[dict[str, object]], None]) -> None:
        """Send the files noted since the last call, each once."""
        while self._found:
            path = self._found.popleft()
            if path in self._own:
                self._own.discard(path)
                continue
            if path in self._told or len(self._told) >= _MOST:
                continue
            self._told.add(path)
            try:
                if _is_shared(path) or os.path.isdir(path):  # where a file without a name is made
                    continue
                folder = os.stat(os.path.dirname(path))
            except OSError:  # a folder that is gone
                continue
            send({"type": "writes", "path": path, "folder": f"{folder.st_dev}:{folder.st_ino}"})

    def _hook(self, event: str, args: Any) -> None:
        # Called at any moment that a file is opened, maybe while a lock is held: it may only
        # append.
        if (event == "open" and args[2] & _ANEW) or event == "os.rename":
            try:
                self.wrote(args[0] if event == "open" else args[1])
            except Exception:  # noqa: BLE001, S110  # a name that is none: whoever opens it is told
                pass


def _is_shared(path: str) -> bool:
    """Whether a file is no result of the script: a device, a lock, or in a cache."""
    folder = os.getcwd() + os.sep
    parts = (path[len(folder) :] if path.startswith(folder) else path).split(os.sep)
    hidden = any(part.startswith((".", *_CACHES)) for part in parts)
    return hidden or path.startswith(_DEVICES) or path.endswith((".lock", ".pyc"))


file_writes = WriteWatcher()
