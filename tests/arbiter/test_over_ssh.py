"""A hub on one machine runs jobs on another that users share, over ssh."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.arbiter.shared_machine import MADE_UP, SECONDS, Machine
from tests.arbiter.users import UnixUser, unix_users
from tests.harness import sshd

from headgate.testing.wait import until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the arbiter and users do"),
    pytest.mark.skipif(sshd.SSHD is None, reason="needs sshd, of openssh-server"),
]


def serve(user: UnixUser, machine: Machine) -> None:
    """Start a server of ssh that lets in this user alone, as `far`."""
    folder = user.home / ".ssh"
    folder.mkdir(mode=0o700)
    path = os.pathsep.join([MADE_UP, *filter(None, sys.path)])
    port = sshd.configure(
        folder,
        HEADGATE_ARBITER=str(machine.socket),
        PYTHONPATH=path,
        MADE_UP_GPU_MEMORY=str(user.home),
    )
    for path_of_ssh in (folder, *folder.iterdir()):
        os.chown(path_of_ssh, user.uid, user.gid)
    sshd.start(folder, port, user.start)


def is_of(user: UnixUser, folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return folder.stat().st_uid == user.uid
    return False


@pytest.fixture
def machine() -> Iterator[Machine]:
    with ExitStack() as undo:
        users = undo.enter_context(unix_users(2))
        folder = users[0].home.parent / "arbiter"
        folder.mkdir(mode=0o755)
        served = Machine(folder, users)
        undo.callback(served.end, signal.SIGKILL)
        served.start()
        serve(users[1], served)
        yield served
        for user in users:
            user.end()
        assert served.end() == 0


def test_a_job_over_ssh_waits_for_the_arbiter_there_and_gets_its_gpus(machine: Machine) -> None:
    ada, ben = machine.users
    machine.submit(ada, "a", gpus=4)
    assert len(machine.gpus(ada, "a").split(",")) == 4
    machine.submit(ben, "b", 2, "--engine", "ssh", "--address", "far", HEADGATE_ARBITER="")
    machine.waits(ben, "b")
    machine.let_end(ada, "a")
    assert len(machine.gpus(ben, "b").split(",")) == 2
    assert f"/user-{ben.uid}/hub-" in (ben.home / "b.cgroups").read_text()
    machine.let_end(ben, "b")

    def has_gone() -> bool:
        return not any(is_of(ben, folder) for folder in Path("/tmp").glob("headgate-ssh-*"))

    until(has_gone, SECONDS, "the end of the agent")
