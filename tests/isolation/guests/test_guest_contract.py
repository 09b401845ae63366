"""The isolation `vm` keeps the contract, in guests of user-mode Linux, which boots without KVM in a
second or two.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from headgate.isolation.base import Box, Isolation
from headgate.isolation.vm import VmIsolation
from headgate.isolation.vm.containers import VmContainerIsolation
from headgate.isolation.vm.isolation import PREFIX
from headgate.isolation.vm.machines import EMULATION
from headgate.model.shares import UNLIMITED, Lever, Share, Uncontrolled
from headgate.testing.isolation import MIB, IsolationContract

GROUP = f"test-guests-{os.getpid()}"


class TestGuests(IsolationContract):
    """Processes of a guest have numbers of their own, which mean nothing here, and it has one
    core.
    """

    elsewhere = ("headgate.isolation.vm", f"VmIsolation({GROUP!r})")
    kind = VmIsolation
    cgroup = "/task"

    @pytest.fixture
    def isolation(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Isolation:
        return self.make(monkeypatch, tmp_path)

    def make(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Isolation:
        if shutil.which("linux.uml") is None:
            pytest.skip("user-mode Linux is not installed (apt-get install user-mode-linux)")
        monkeypatch.setenv(EMULATION, "uml")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        self.folders = tmp_path
        isolation = self.kind(GROUP)
        self.holds = self.caps_fractions = isolation.mode != "none"
        return isolation

    def traces(self) -> list[str]:
        walk = os.walk("/sys/fs/cgroup")
        groups = [
            f"{at}/{name}"
            for at, names, _ in walk
            for name in names
            if name.startswith(f"headgate-{GROUP}")
        ]
        return [*groups, *map(str, self.folders.glob(f"{PREFIX}*"))]

    def capped(self, box: Box, cap: float) -> None:
        # With one core it has to wait for others on a machine that is in use.
        self.uses(
            box, 0.3 * cap, 1.05 * cap if self.caps_fractions else 1.05, f"under a cap of {cap:g}"
        )

    def test_01_a_task_is_in_its_box_before_its_first_instruction(self) -> None:
        running = self.run(self.launch("where"))
        running.said("ready")
        assert running.box.pid in running.box.pids()
        assert running.said("descriptors").split() == ["0", "1", "2"], "it inherited descriptors"
        assert running.said("cgroup") == f"0::{self.cgroup}"

    def test_09_a_memory_limit_below_what_is_held_is_refused(self) -> None:
        running = self.run(self.launch("hold", 128 * MIB), Share(memory_bytes=256 * MIB))
        running.said("ready")
        assert running.box.apply(Share(memory_bytes=256 * MIB)) == ()
        for other in (32 * MIB, UNLIMITED):
            (line,) = running.box.apply(Share(memory_bytes=other))
            reason = "a guest's is set when it starts, and stays as it is: 256 MiB"
            assert line == Uncontrolled(Lever.MEMORY, reason)
        assert self.alive(running.box.pid)

    def test_04_shares_change_while_a_task_runs(self) -> None:
        running = self.run(self.launch("spin", 2), Share(cpu_weight=10_000))
        running.said("ready")
        for cap in (0.05, 0.6):
            assert bool(running.box.apply(Share(cpu_cap_cores=cap))) != self.caps_fractions
            self.elapse(0.5)
            self.capped(running.box, cap)
        reason = "its guest cannot use more cores than it has: 1"
        limits = running.box.apply(Share(cpu_cap_cores=2.0))
        assert Uncontrolled(Lever.CPU_CAP, reason) in limits

    def test_12_daemons_are_seen_and_end_with_the_box(self) -> None:
        running = self.run(self.launch("daemon"))
        running.said("ready")
        running.said("daemon")
        assert len(running.box.pids()) > 1
        running.box.kill()
        assert running.box.pids() == []

    def test_13_a_daemon_outlives_its_task_only_until_the_box_is_closed(self) -> None:
        running = self.run(self.launch("daemon"))
        running.said("daemon")
        pids = running.box.pids()
        self.end_first(running.box)
        running.ended()
        running.box.close()
        assert not any(map(self.alive, pids))

    def test_14_what_forks_without_end_is_ended(self) -> None:
        running = self.run(self.launch("breed"))
        running.said("ready")
        self.elapse(0.5)
        running.box.kill()
        assert running.box.pids() == []

    def test_18_boxes_leave_nothing_behind(self) -> None:
        running = self.run(self.launch("daemon"))
        running.said("ready")
        pids = running.box.pids()
        running.close()
        assert not any(map(self.alive, pids))
        assert self.traces() == []


class TestContainersInGuests(TestGuests):
    """The first process of a task is number 2, and its cgroup the root of what it sees."""

    elsewhere = ("headgate.isolation.vm.containers", f"VmContainerIsolation({GROUP!r})")
    kind = VmContainerIsolation
    cgroup = "/"

    @pytest.fixture
    def isolation(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Isolation:
        if shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip("runc is not installed (apt-get install runc)")
        return self.make(monkeypatch, tmp_path)
