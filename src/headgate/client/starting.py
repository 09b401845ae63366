"""Start a hub if none runs, or wait for a hub that is ending or does not answer."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from headgate.config import settings
from headgate.hub.allocations import allocation_of
from headgate.hub.connection import HubConnection, connect
from headgate.model.errors import HubError, StorageError, writing_cure
from headgate.model.events import CONNECTED_GRACE_SECONDS, GRACE_SECONDS
from headgate.recorded import runs

_log = logging.getLogger(__name__)

START_SECONDS = 60.0
"""Most seconds that a hub takes to start, as on a machine that was just started itself."""
ENDING_SECONDS = CONNECTED_GRACE_SECONDS + GRACE_SECONDS
"""Most seconds for which an ending hub, or the watchdog of a dead one, blocks the next hub."""
REMADE_SECONDS = 3.0
"""Most seconds that a hub takes to make its sockets again after somebody removed them."""
_LOOK_SECONDS = 0.02
_STALE_SECONDS = 86400.0
"""Age at which the unused folder of an allocation's hubs is removed, with its log."""


def clean() -> None:
    """Remove leftovers of this machine's hubs that were killed together with their watchdogs, and
    start a hub if runs wait for one.
    """
    _clean(runs.hub())
    take_up()
    for folder in runs.hubs():
        if not allocation_of(folder):
            continue  # a folder of another machine
        if any((folder / "boxes").glob("*")) or any(runs.sockets(folder).glob("*.sock")):
            _clean(folder)
        elif folder.parent.name == "hubs" and _is_stale(folder):
            shutil.rmtree(folder, ignore_errors=True)


def take_up() -> None:
    """Start a hub if runs wait for one, because theirs died or the machine was started again."""
    if runs.awaited(runs.hub()):
        with suppress(HubError):  # commands then show these runs as interrupted
            connect_or_start().close()


def _clean(folder: Path) -> None:
    try:
        lock = os.open(folder / "hub.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return  # nothing can be removed, and a hub that runs goes on
    try:
        fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as SQLite locks stores
        fcntl.lockf(lock, fcntl.LOCK_UN)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        from headgate.hub.watchdog import (
            leftovers,  # with the sandboxes of tasks: without a hub nobody needs them
        )

        leftovers(folder)
        runs.remove_sockets(folder)
    except BlockingIOError:
        pass  # a hub or a watchdog runs and will clean up
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise
        raise StorageError(
            f"files in {folder} cannot be locked: {error.strerror}; two hubs might run the same "
            "jobs, so set HEADGATE_HOME to a folder on a local disk, or mount this one with locks"
        ) from error
    finally:
        os.close(lock)


def connect_or_start() -> HubConnection:
    """Connect to the running hub, or start one.

    Raises:
        HubError: No hub could be started.
    """
    folder = runs.hub()
    log = folder / "hub.log"
    begun = time.monotonic()
    deadline = begun + START_SECONDS
    process: subprocess.Popen[bytes] | None = None
    while True:
        if (hub := connect()) is not None:
            # the hub outlives this connection and should leave no zombie when it ends
            if process is not None:
                with suppress(RuntimeError):  # the interpreter is shutting down
                    threading.Thread(target=process.wait, name="hub", daemon=True).start()
            return hub
        now, locked = time.monotonic(), runs.is_locked(folder / "hub.lock")
        alive = process is not None and process.poll() is None
        # an ending hub holds the lock while its jobs save; nobody should cut that short
        if locked and not alive:
            deadline = now + START_SECONDS
            if now > begun + ENDING_SECONDS:
                pid = allocation_of(folder).get("pid", "of unknown number")
                raise HubError(
                    f"the hub on {runs.host()} (process {pid}) does not answer: it ends, as soon "
                    "as its jobs have, or its socket is gone and cannot be made again. Try again "
                    "in a moment, or end that process"
                )
        failed = process is not None and (process.poll() or 0) > 0  # killed, it is started again
        if now > deadline or failed:
            raise HubError(f"no hub could be started; its log is {log}{_last_line(log)}")
        # A new hub that finds another hub, or the watchdog of a dead one, ends at once. The next
        # waits until the lock is free.
        if not alive and not locked:
            _log.info("a hub is started in %s", folder)
            process = _started(folder, log)
        time.sleep(_LOOK_SECONDS)


def _started(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    """The process of a new hub.

    Raises:
        HubError: Its log cannot be written.
    """
    try:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise HubError(
            f"no hub can be started: cannot write {log}: {error.strerror}; {writing_cure(error)}, "
            "or set HEADGATE_HOME"
        ) from error
    with os.fdopen(file, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "headgate.hub.server"],
            env={
                **settings.environment(),
                "HEADGATE_HOME": str(runs.home()),  # it keeps it, whatever is set later
                runs.HUB: str(folder),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            start_new_session=True,
        )


def await_guards() -> None:
    """Wait while the watchdog of a dead hub lets its tasks save their state."""
    deadline = time.monotonic() + ENDING_SECONDS
    while _silent() and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def await_answer() -> list[Path]:
    """Wait a moment for live hubs of this host that do not answer: they may be making their sockets
    again.

    Returns:
        The folders of hubs that still do not answer.
    """
    deadline = time.monotonic() + REMADE_SECONDS
    while (silent := _silent()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    return silent


def _silent() -> list[Path]:
    """Folders of this host's hubs that do not answer although the hub or its watchdog lives."""
    return [folder for folder in runs.hubs() if allocation_of(folder) and _is_winding_up(folder)]


def _is_winding_up(folder: Path) -> bool:
    if not runs.is_locked(folder / "hub.lock"):
        return False
    if (hub := connect(folder)) is not None:
        hub.close()
    return hub is None


def _is_stale(folder: Path) -> bool:
    return time.time() - folder.stat().st_mtime > _STALE_SECONDS and not runs.is_locked(
        folder / "hub.lock"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return f" and ends with: {lines[-1]}" if lines else ""
