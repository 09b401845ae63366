"""The isolation `container` keeps the contract, in containers of a real Docker Engine."""

from __future__ import annotations

import os

import pytest

from headgate.isolation.base import Isolation
from headgate.isolation.container import ContainerIsolation
from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import GROUP as LABEL
from headgate.testing.isolation import IsolationContract
from headgate.testing.wait import until

GROUP = f"boxed-{os.getpid()}"


class TestContainers(IsolationContract):
    @pytest.fixture
    def isolation(self, daemon: str) -> Isolation:
        self.daemon = Daemon(daemon)
        self.elsewhere = ("headgate.isolation.container", f"ContainerIsolation({GROUP!r}, daemon={daemon!r})")
        return ContainerIsolation(GROUP, daemon=daemon)

    def traces(self) -> list[str]:
        walk = os.walk("/sys/fs/cgroup")
        folders = [f"{at}/{name}" for at, names, _ in walk for name in names if name.startswith(f"headgate-{GROUP}")]
        return [*folders, *(found["id"] for found in self.daemon.find(f"{LABEL}={GROUP}"))]

    def test_13_a_daemon_outlives_its_task_only_until_the_box_is_closed(self) -> None:
        """Docker ends a container with its first process: no daemon outlives it."""
        running = self.run(self.launch("daemon"))
        running.said("ready")
        daemon = int(running.said("daemon"))
        self.end_first(running.box)
        running.ended()
        until(lambda: not self.alive(daemon), what="the end of what its task left")
