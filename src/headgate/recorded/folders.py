"""Where Headgate keeps what it has: its folder, those of its hubs, and the sockets of a hub."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import threading
from pathlib import Path

from headgate.machine import allocation
from headgate.model.errors import StorageError
from headgate.model.paths import exposure

HUB = "HEADGATE_HUB"
_OWNER = "host"
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]")
_SOCKET_BYTES = 100  # the kernel takes 107
# not TMPDIR: it may be long itself, and two terminals with two of them would have two hubs
_SHORT = Path("/tmp")


def home() -> Path:
    """The folder of all that Headgate keeps, made if it is not there.

    Raises:
        StorageError: It cannot be made or written, belongs to somebody else, or could be changed by
            others.
    """
    try:
        path = Path(
            os.environ.get("HEADGATE_HOME") or Path.home() / ".local" / "share" / "headgate"
        ).absolute()
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
    if not os.access(path / "runs", os.W_OK | os.X_OK):
        raise StorageError(
            f"no permission to write in {path}; set HEADGATE_HOME to a folder you can write"
        )
    return path


def hub() -> Path:
    """The folder of this process's hub, made if it is not there: `hub/`, or one below `hubs/` for
    the part of the machine that was allotted to this process and not to others. Of several hosts
    that share the home, the first has `hub/`, and each other one a folder of its own below `hubs/`:
    what lives on one host is out of another's reach. A hub and its guard are told by
    `HEADGATE_HUB`.

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
    """The folder of the hub of this host, of those that share a home."""
    owner = home / "hub" / _OWNER
    with contextlib.suppress(OSError):  # it is there already, or the disk is full
        if not owner.exists():
            fresh = owner.with_name(f"{_OWNER}.{os.getpid()}.{threading.get_ident()}")
            fresh.write_text(host())
            try:
                os.link(fresh, owner)  # whole at once, by one alone
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
    """The folders of all hubs that there are or were."""
    return [home() / "hub", *sorted((home() / "hubs").iterdir())]


def sockets(folder: Path | None = None) -> Path:
    """The folder of the sockets of a hub (None: of this process's): its own or, where that path is
    too long for a socket, one below /tmp that is named after it, which is there only as long as a
    hub is (`make_sockets`, `remove_sockets`).

    Raises:
        StorageError: Somebody else made it.
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
    """
    Raises:
        StorageError: Others could put there what this user then runs.
    """
    if (how := exposure(folder)) is not None:
        raise StorageError(
            f"{how}, who could run programs as you by what they put there; `chmod go-w` it, or set "
            "HEADGATE_HOME to a folder that only you can write"
        )


def make_sockets() -> Path:
    """The folder of the hub's sockets, made where it is not there; only for a process that holds
    the hub's lock.

    Raises:
        StorageError: It cannot be made, or somebody else made it.
    """
    try:
        sockets().mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {error.filename}: {error.strerror}") from error
    return sockets()  # looked at again: whoever made it meanwhile


def remove_sockets(folder: Path | None = None) -> None:
    """Remove the sockets of a hub (None: of this process's) that has ended, and those that its
    tasks left; only for who holds that hub's lock.
    """
    hubs_own = folder or hub()
    folder = sockets(hubs_own)
    for path in folder.glob("*.sock"):
        path.unlink(missing_ok=True)
    if folder != hubs_own:
        with contextlib.suppress(OSError):  # it is not there, or holds what is not ours
            folder.rmdir()
