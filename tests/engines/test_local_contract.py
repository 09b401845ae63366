"""The engine `local` keeps the contract: over the cgroups that this machine has, and without any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.cluster import Node
from headgate.engines.base import Engine
from headgate.engines.local import LocalEngine
from headgate.isolation.process import ProcessIsolation
from headgate.testing.engine import EngineContract

GROUP = f"engine-{os.getpid()}"
NODE = Node("here", cores=2, memory_bytes=1 << 32)


def folders_left() -> list[str]:
    # A walk, unlike a glob, does not mind that folders of others vanish meanwhile.
    walk = os.walk("/sys/fs/cgroup")
    return [f"{at}/{name}" for at, names, _ in walk for name in names if name.startswith(f"headgate-{GROUP}")]


class TestWithCgroups(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        isolation = ProcessIsolation(GROUP)
        if isolation.mode == "none":
            pytest.skip(f"cgroups cannot be written here: {isolation.lost()[0]}")
        return LocalEngine(NODE, isolation, tmp_path / "channel.sock")

    def traces(self) -> list[str]:
        return folders_left()


class TestWithoutCgroups(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        return LocalEngine(NODE, ProcessIsolation(GROUP, mode="none"), tmp_path / "channel.sock")

    def traces(self) -> list[str]:
        return folders_left()
