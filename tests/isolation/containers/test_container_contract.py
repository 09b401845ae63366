"""The isolation `container` keeps the contract, in containers of a real Docker Engine."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.isolation.base import Isolation, Launch
from headgate.isolation.container import ContainerIsolation
from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import GROUP as LABEL
from headgate.machine import disks
from headgate.machine.cgroup_v1 import THROTTLES
from headgate.model.shares import UNLIMITED, Share
from headgate.testing import programs
from headgate.testing.isolation import MIB, IsolationContract
from headgate.testing.wait import until

GROUP = f"boxed-{os.getpid()}"


class TestContainers(IsolationContract):
    @pytest.fixture
    def isolation(self, daemon: str) -> Isolation:
        self.daemon = Daemon(daemon)
        self.elsewhere = (
            "headgate.isolation.container",
            f"ContainerIsolation({GROUP!r}, daemon={daemon!r})",
        )
        return ContainerIsolation(GROUP, daemon=daemon)

    def launch_in(self, folder: Path, name: str, *arguments: object) -> Launch:
        """As `launch`, with another working directory."""
        return replace(
            self.launch(name, *arguments),
            cwd=str(folder),
            reads=(str(Path(programs.__file__).parent),),
        )

    def traces(self) -> list[str]:
        walk = os.walk("/sys/fs/cgroup")
        folders = [
            f"{at}/{name}"
            for at, names, _ in walk
            for name in names
            if name.startswith(f"headgate-{GROUP}")
        ]
        return [*folders, *(found["id"] for found in self.daemon.find(f"{LABEL}={GROUP}"))]

    def test_13_a_daemon_outlives_its_task_only_until_the_box_is_closed(self) -> None:
        """Docker ends a container with its first process: no daemon outlives it."""
        running = self.run(self.launch("daemon"))
        running.said("ready")
        daemon = int(running.said("daemon"))
        self.end_first(running.box)
        running.ended()
        until(lambda: not self.alive(daemon), what="the end of what its task left")

    @pytest.mark.hardware
    def test_24_a_disk_rate_holds_and_changes_while_a_task_runs(self, tmp_path: Path) -> None:
        if disks.number_of(tmp_path) is None:
            pytest.skip("the folder for temporary files is on no disk of its own")
        data = tmp_path / "data"
        data.write_bytes(os.urandom(2 * MIB))
        os.sync()
        reading = self.run(
            self.launch_in(tmp_path, "read", data), Share(disk_bytes_per_second=MIB / 256)
        )
        assert reading.box.apply(Share(disk_bytes_per_second=MIB)) == ()
        assert 1.5 <= float(reading.said("seconds")) < 100, (
            "512 s at the rate at first, 2 s at the later one"
        )

    @pytest.mark.hardware
    def test_25_a_disk_rate_stays_while_other_limits_change(self, tmp_path: Path) -> None:
        if disks.number_of(tmp_path) is None:
            pytest.skip("the folder for temporary files is on no disk of its own")
        box = self.run(self.launch_in(tmp_path, "rest"), Share(disk_bytes_per_second=8 * MIB)).box

        def rate() -> str:
            v1 = "blkio" in box.cgroups
            return (
                box.cgroups["blkio"] / THROTTLES[1] if v1 else box.cgroups["io"] / "io.max"
            ).read_text()

        assert str(8 * MIB) in rate()
        assert box.apply(Share(disk_bytes_per_second=2 * MIB)) == ()
        assert box.apply(Share(cpu_weight=50)) == ()
        assert str(2 * MIB) in rate()
        box.apply(Share(disk_bytes_per_second=UNLIMITED))
        box.apply(Share(cpu_weight=60))
        assert rate() == ""

    def test_26_tasks_weigh_as_those_in_no_container(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("Docker puts containers of others than root in a group of its own")
        box = self.run(self.launch("rest"), Share(cpu_weight=300)).box
        folder = box.cgroups["cpu"]
        assert folder.parent.parent.name == f"headgate-{GROUP}"
        name = "cpu.shares" if (folder / "cpu.shares").exists() else "cpu.weight"
        self.run(self.launch("rest", task="job/worker-1"))
        group = (folder.parent.parent / name).read_text()
        assert group.strip() == ("2048" if name == "cpu.shares" else "200")
        for weight in (300, 50):
            box.apply(Share(cpu_weight=weight))
            assert (folder.parent / name).read_text() == (folder / name).read_text()
            assert (folder.parent.parent / name).read_text() == group
            disk = box.cgroups.get("blkio", folder).parent / "blkio.bfq.weight"
            assert not disk.exists() or disk.read_text().strip() == str(weight)
