"""The engine `local` keeps the contract: over the cgroups that this machine has, without any, and
in a place on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.places import placed

from headgate.engines.base import Engine
from headgate.engines.local import LocalEngine
from headgate.isolation.process import ProcessIsolation
from headgate.model.cluster import Cluster, Node, Place
from headgate.testing.engine import EngineContract

GROUP = f"engine-{os.getpid()}"
NODE = Node("here", cores=2, memory_bytes=1 << 32)


def folders_left() -> list[str]:
    # A walk, unlike a glob, does not mind that folders of others vanish meanwhile.
    walk = os.walk("/sys/fs/cgroup")
    return [
        f"{at}/{name}"
        for at, names, _ in walk
        for name in names
        if name.startswith(f"headgate-{GROUP}")
    ]


class TestWithCgroups(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        isolation = ProcessIsolation(GROUP)
        if isolation.mode == "none":
            pytest.skip(f"cgroups cannot be written here: {isolation.uncontrolled()[0]}")
        return LocalEngine(NODE, isolation, tmp_path / "channel.sock")

    def traces(self) -> list[str]:
        return folders_left()


class TestWithoutCgroups(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        isolation = ProcessIsolation(GROUP, mode="none")
        isolation.waits = True  # so that starts and changes are made in other threads
        return LocalEngine(NODE, isolation, tmp_path / "channel.sock")

    def traces(self) -> list[str]:
        return folders_left()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("place"), "eng") as place:
        yield place


@pytest.mark.hardware
@pytest.mark.long  # tests/isolation/test_places.py has what a place adds
class TestInAPlace(EngineContract):
    @pytest.fixture
    def engine(self, place: Place, tmp_path: Path) -> Engine:
        self.place = place
        nodes = Cluster(
            (replace(NODE, name="a", place=place), replace(NODE, name="b", place=place))
        )
        return LocalEngine(nodes, ProcessIsolation(GROUP), tmp_path / "channel.sock")

    def traces(self) -> list[str]:
        return folders_left()

    def test_29_every_node_is_told(self) -> None:
        assert [node.name for node in self.tested.cluster().nodes] == ["a", "b"]

    def test_30_a_task_runs_where_it_was_sent(self, place: Place) -> None:
        task = self.start(("/bin/sh", "-c", 'echo "name $(cat /proc/sys/kernel/hostname)"'))
        assert self.ended(task).ok
        assert self.ready(task, "name") == place.hostname

    def test_31_a_node_that_is_gone_is_the_reason_of_the_exit(self, place: Place) -> None:
        self.place = replace(place, namespace="/run/netns/no-such-node")
        end = self.ended(self.start(("true",)))
        assert end.reason is not None
        assert end.reason.startswith("could not be started: ")
        assert "node 'eng' cannot be entered: /run/netns/no-such-node" in end.reason
