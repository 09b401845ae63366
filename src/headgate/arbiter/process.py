"""The arbiter as a process of root: its files, its signals, its end."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headgate.arbiter.boxes import UserBoxes
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon
from headgate.arbiter.events import RulesRead
from headgate.arbiter.store import ArbiterStore
from headgate.arbiter.turn_files import TURNS, TurnFiles
from headgate.arbiter.user_box import HOME
from headgate.machine import arbiter_socket
from headgate.machine.processes import boot_id
from headgate.model import records
from headgate.model.errors import HeadgateError, StorageError, UsageError
from headgate.model.sharing import RULES, SharingRules
from headgate.sampling import machine
from headgate.sampling.gpu import open_nvml

FOLDER = Path("/var/lib/headgate")
STORE = "arbiter.db"


@dataclass(frozen=True, slots=True)
class Places:
    """Where an arbiter has its files.

    Args:
        rules: The administrator's file.
        socket: The socket that hubs find.
        folder: Folder of what it keeps.
    """

    rules: Path = RULES
    socket: Path = arbiter_socket.SOCKET
    folder: Path = FOLDER

    @property
    def home(self) -> str:
        """Name of the cgroup of all users. That of an arbiter for trial is its own."""
        digest = hashlib.sha256(os.fsencode(self.folder.resolve())).hexdigest()[:8]
        return HOME if self.folder == FOLDER else f"{HOME}-{digest}"


def read_rules(path: Path) -> SharingRules:
    """The rules of a file. A process of its own checks them: what that needs would take a third of
    the arbiter's memory for good.

    Raises:
        UsageError: The file cannot be read, or has problems.
    """
    if not path.exists():
        return SharingRules()
    checks = "from headgate.config import arbiterfile; arbiterfile.main()"
    result = subprocess.run(
        [sys.executable, "-P", "-c", checks, path], capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise UsageError(result.stderr.strip())
    return records.read(SharingRules, result.stdout)


def start(places: Places, as_json: bool) -> NoReturn:
    """Become the arbiter's process, which has loaded nothing of the command line.

    Raises:
        UsageError: This is not root.
    """
    if os.geteuid() != 0:
        raise UsageError(
            "the arbiter divides the machine between users, so only root can run it: "
            "sudo headgate arbiter"
        )
    words = (places.rules, places.socket, places.folder, "json" if as_json else "text")
    os.execv(sys.executable, [sys.executable, "-P", "-m", "headgate.arbiter", *map(str, words)])


def serve(places: Places, serves: Callable[[], None], tell: Callable[[str], None]) -> None:
    """Serve hubs until a signal ends it; `SIGHUP` has it read the rules again.

    Args:
        places: Its files.
        serves: Called once the socket is open.
        tell: Takes messages for the administrator.

    Raises:
        UsageError: The file of rules has problems.
        StorageError: What it keeps cannot be read, or another arbiter has it.
    """
    rules = read_rules(places.rules)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as undo:
        try:
            places.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = undo.enter_context((places.folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            places.socket.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        except BlockingIOError:
            raise StorageError(f"another arbiter runs, and has {places.folder}") from None
        except OSError as error:
            raise StorageError(f"cannot use {error.filename}: {error.strerror}") from error
        store = undo.enter_context(closing(ArbiterStore(places.folder / STORE, boot_id())))
        node = machine.detect(places.folder / "node.json", {})
        arbiter = Arbiter(node, rules, time.time(), store.state())
        turns = TurnFiles(places.socket.parent / TURNS)
        boxes = UserBoxes(
            turns,
            arbiter.room.grants.values(),
            open_nvml(),
            home=places.home,
            uids=arbiter.uids,
        )
        undo.callback(boxes.close)
        daemon = ArbiterDaemon(arbiter, store, boxes, tell=tell)
        asyncio.run(_until_ended(daemon, places, serves, tell))


async def _until_ended(
    daemon: ArbiterDaemon, places: Places, serves: Callable[[], None], tell: Callable[[str], None]
) -> None:
    loop, ends = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ends.set)

    def read_again() -> None:
        try:
            rules = read_rules(places.rules)
        except HeadgateError as error:
            tell(f"{error}\nthe former rules hold")
        else:
            daemon.take(RulesRead(rules))
            tell(f"{places.rules} is read again")

    loop.add_signal_handler(signal.SIGHUP, read_again)
    try:
        await daemon.serve(places.socket)
    except OSError as error:
        raise StorageError(f"cannot open {places.socket}: {error.strerror}") from error
    serves()
    await ends.wait()
    await daemon.close()
    places.socket.unlink(missing_ok=True)
