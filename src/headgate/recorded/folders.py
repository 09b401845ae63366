"""Headgate's folders: its home, those of its hubs, and the sockets of a hub."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import socket
import threading
from pathlib import Path

from headgate.config import settings
from headgate.machine import allocation
from headgate.model import defaults
from headgate.model.errors import StorageError
from headgate.model.paths import exposure, secure

HUB = "HEADGATE_HUB"
STORE = "run.sqlite"
LOCK = "lock"
SUBMISSION = "submission.json"
"""File of a run that goes on if its hub dies: its hub's folder and host, and how it was submitted,
without the environment.
"""
_OWNER = "host"
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]")
_SOCKET_BYTES = 100  # the kernel allows 107
# not TMPDIR: it may be long too, and two terminals with different ones would have two hubs
_SHORT = Path("/tmp")


def home() -> Path:
    """Headgate's folder, made if missing.

    Raises:
        StorageError: It cannot be made or written, belongs to another user, or other users could
            change it.
        UsageError: The user's settings have problems.
    """
    try:
        path = Path(settings.home() or Path(defaults.HOME).expanduser()).absolute()
    except RuntimeError as error:
        raise StorageError(
            "there is no HOME, and this user has none; set HEADGATE_HOME to a folder of your own"
        ) from error
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (path / "runs").mkdir(mode=0o700, exist_ok=True)
        (path / "hub").mkdir(mode=0o700, exist_ok=True)
        (path / "hubs").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot make {path}: {error.strerror}; set HEADGATE_HOME to a folder you can write"
        ) from error
    if path.stat().st_uid != os.geteuid():
        raise StorageError(
            f"{path} belongs to another user; set HEADGATE_HOME to a folder of your own"
        )
    _refuse_exposed(path)
    if os.pathsep in str(path):
        raise StorageError(
            f"the path {path} has a '{os.pathsep}' in it, which would divide it in two on the "
            "PYTHONPATH of tasks; set HEADGATE_HOME to a folder without one"
        )
    # on a disk that is read-only as a whole, runs can still be looked at
    may_write = os.access(path / "runs", os.W_OK | os.X_OK)
    if not may_write and not os.statvfs(path).f_flag & os.ST_RDONLY:
        raise StorageError(
            f"no permission to write in {path}; set HEADGATE_HOME to a folder you can write"
        )
    return path


def is_awaited(run: Path) -> bool:
    """Whether a run goes on if its hub dies: it keeps its submission until its end."""
    return (run / SUBMISSION).exists()


def awaited(folder: Path) -> list[Path]:
    """Runs whose hub, of this folder, is gone: the next one takes them up, the oldest first.

    The caller holds the hub's lock, or takes the answer for a hint.
    """
    runs = list[Path]()
    for run in listing():
        if is_awaited(run) and not is_locked(run / LOCK):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                kept = json.loads((run / SUBMISSION).read_text())
                if (kept["hub"], kept["host"]) == (str(folder), host()):
                    runs.append(run)
    return runs


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file; False if the file does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def listing() -> list[Path]:
    """Every run's folder, oldest first."""
    return sorted(path for path in (home() / "runs").iterdir() if (path / STORE).exists())


def hub() -> Path:
    """The folder of this process's hub, made if missing.

    It is `hub/`, or one below `hubs/` for a part of the machine allotted to this process. Among
    hosts that share the home, the first uses `hub/` and each other one a folder below `hubs/`:
    processes of one host are out of reach for another. `HEADGATE_HUB` tells a hub and its watchdog
    their folder.

    Raises:
        StorageError: It cannot be made.
    """
    if folder_name := os.environ.get(HUB):
        folder = Path(folder_name)
    elif key := allocation.current().key:
        folder = home() / "hubs" / key
    else:
        folder = _of_this_host(home())
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror}") from error
    return folder


def host() -> str:
    """The name of this host."""
    return socket.gethostname() or "localhost"


def _of_this_host(home: Path) -> Path:
    """The hub folder of this host, among hosts that share a home."""
    owner = home / "hub" / _OWNER
    with contextlib.suppress(OSError):  # it exists already, or the disk is full
        if not owner.exists():
            fresh = owner.with_name(f"{_OWNER}.{os.getpid()}.{threading.get_ident()}")
            fresh.write_text(host())
            secure(fresh)  # empty after a power cut, it would be another host's
            try:
                os.link(fresh, owner)  # atomic: only one host succeeds
            finally:
                fresh.unlink()
    try:
        name = owner.read_text()
    except OSError:
        name = host()
    return (
        home / "hub" if name == host() else home / "hubs" / _NOT_A_NAME.sub("_", f"host-{host()}")
    )


def hubs() -> list[Path]:
    """The folders of all present and past hubs."""
    return [home() / "hub", *sorted((home() / "hubs").iterdir())]


def sockets(folder: Path | None = None) -> Path:
    """The socket folder of a hub (None: of this process's hub).

    It is the hub's own folder. If that path is too long for a socket, it is a folder below /tmp
    that exists only while a hub runs (`make_sockets`, `remove_sockets`).

    Raises:
        StorageError: Another user made it.
    """
    folder = folder or hub()
    if len(os.fsencode(folder / "channel.sock")) <= _SOCKET_BYTES:
        return folder
    folder = (
        _SHORT / f"headgate-{os.geteuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}"
    )
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.geteuid()):
        raise StorageError(
            f"{folder} was made by somebody else; remove it, or set HEADGATE_HOME to a shorter path"
        )
    if folder.exists():
        _refuse_exposed(folder)
    return folder


def _refuse_exposed(folder: Path) -> None:
    """Check that no other user could place files there that this user would run.

    Raises:
        StorageError: Others could.
    """
    if (how := exposure(folder)) is not None:
        raise StorageError(
            f"{how}, who could run programs as you by what they put there; `chmod go-w` it, or set "
            "HEADGATE_HOME to a folder that only you can write"
        )


def make_sockets() -> Path:
    """Make the hub's socket folder if missing. The caller holds the hub's lock.

    Raises:
        StorageError: It cannot be made, or another user made it.
    """
    try:
        sockets().mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {error.filename}: {error.strerror}") from error
    return sockets()  # check again: another process may have made it meanwhile


def remove_sockets(folder: Path | None = None) -> None:
    """Remove the sockets of an ended hub (None: of this process's hub) and of its tasks. The caller
    holds that hub's lock.
    """
    hubs_own = folder or hub()
    folder = sockets(hubs_own)
    for path in folder.glob("*.sock"):
        path.unlink(missing_ok=True)
    if folder != hubs_own:
        with contextlib.suppress(OSError):  # it is missing, or has files of others
            folder.rmdir()
