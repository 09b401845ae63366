"""The engine `ssh` keeps the contract, over a real server of ssh on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.staying_open import AgentsContract, StaysOpen, ends
from tests.harness import sshd
from tests.harness.cgroups import cgroups

from headgate.engines.base import Engine
from headgate.engines.ssh.engine import SshEngine

pytestmark = [
    pytest.mark.long,  # all but the login by tests/engines/ray/test_ray_contract.py
    pytest.mark.skipif(sshd.SSHD is None, reason="needs sshd, of openssh-server"),
]


class SshStaysOpen(StaysOpen, SshEngine):
    """What an open costs is a login, and Headgate that is sent."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshStaysOpen]:
    folder = tmp_path_factory.mktemp("ssh")
    with pytest.MonkeyPatch.context() as patch, sshd.serving(folder, HEADGATE_ARBITER="") as path:
        patch.setenv("PATH", str(path), prepend=os.pathsep)
        engine = SshStaysOpen(sshd.HOST, shared_files=True, speeds=folder / "speeds.json")
        yield engine
        engine.end()


class TestSsh(AgentsContract):
    @pytest.fixture
    def engine(self, kept: SshStaysOpen, request: pytest.FixtureRequest) -> Engine:
        return SshEngine(sshd.HOST, shared_files=True) if ends(request) else kept

    def folders(self) -> list[Path]:
        return cgroups(f"headgate-ssh-{socket.gethostname()}-{os.getpid()}-*")
