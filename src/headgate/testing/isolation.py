"""What every isolation must do: a suite to subclass.

class TestMine(IsolationContract):
    @pytest.fixture
    def isolation(self):
        return MyIsolation()
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from headgate.isolation.base import Box, Launch
from headgate.machine import processes
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import UNLIMITED, Share
from headgate.testing import programs
from headgate.testing.isolation_stage import RUN, IsolationStage, Running, descriptors
from headgate.testing.wait import until

__all__ = ["RUN", "IsolationContract", "Running"]

MIB = 1 << 20


class IsolationContract(IsolationStage):
    """The behaviours, numbered. A subclass provides the fixture `isolation`, and declares what it
    cannot do.
    """

    # --- the behaviours

    def test_01_a_task_is_in_its_box_before_its_first_instruction(self) -> None:
        running = self.run(self.launch("where"))
        running.said("ready")
        assert running.box.pid in running.box.pids()
        assert running.said("session") == str(running.box.pid), (
            "it does not lead a session of its own"
        )
        assert running.said("descriptors").split() == ["0", "1", "2"], "it inherited descriptors"
        for controller, folder in running.box.cgroups.items():
            assert f"/{folder.name}\n" in running.text, f"it was outside its {controller} cgroup"

    def test_02_weights_divide_a_core(self) -> None:
        both = [
            self.run(self.launch("spin", task=f"{name}/worker-0"), Share(cpu_weight=weight))
            for name, weight in (("heavy", 90), ("light", 30))
        ]
        boxes = [running.box for running in both]
        for running in both:
            running.box.pin(frozenset({self.a_core()}))
            running.said("ready")

        def heavy_part(seconds: float) -> float:
            heavy, light = self.cores(boxes, seconds)
            return heavy / (heavy + light)

        self.settles(
            heavy_part,
            0.95 * 0.75,
            1.05 * 0.75,
            "the part of a core that a weight of 90 has against 30",
        )

    def test_03_a_cap_holds(self) -> None:
        running = self.run(self.launch("spin", 2), Share(cpu_cap_cores=0.5, cpu_weight=10_000))
        running.said("ready")
        self.capped(running.box, 0.5)

    def test_04_shares_change_while_a_task_runs(self) -> None:
        running = self.run(self.launch("spin", 2), Share(cpu_weight=10_000))
        running.said("ready")
        for cap in (0.05, 0.6):
            assert bool(running.box.apply(Share(cpu_cap_cores=cap))) != self.caps_fractions
            self.elapse(0.5)
            self.capped(running.box, cap)
        if self.caps_fractions:
            assert running.box.apply(Share(cpu_cap_cores=UNLIMITED)) == ()
            self.elapse(0.5)
            self.uses(running.box, 1.1 * cap, 2.1, "once the cap is lifted")

    def test_05_fields_that_are_none_stay(self) -> None:
        running = self.run(self.launch("spin", 2), Share(cpu_cap_cores=0.4, cpu_weight=10_000))
        running.said("ready")
        running.box.apply(Share(memory_bytes=512 * MIB))
        self.capped(running.box, 0.4)

    def test_06_a_task_is_pinned_to_cores(self) -> None:
        running = self.run(self.launch("spin"))
        other = self.run(self.launch("spin", task="other/worker-0"))
        for task_id in (running, other):
            task_id.said("ready")
            task_id.box.pin(frozenset({self.a_core()}))

        def together(seconds: float) -> float:
            return sum(self.cores([running.box, other.box], seconds))

        self.settles(together, 0.2, 1.05, "cores in use by two tasks on one core")
        with pytest.raises(IsolationError):
            running.box.pin(frozenset({100_000}))
        other.box.kill()
        running.box.pin(None)
        running.box.pin(frozenset({self.a_core()}))

    def test_07_a_task_over_its_memory_limit_is_killed_and_it_is_said(self) -> None:
        end = self.run(self.launch("hold", 256 * MIB), Share(memory_bytes=64 * MIB)).ended()
        assert not end.ok
        if not self.limits_tasks:
            assert (end.code, end.over_memory, end.reason) == (1, False, None), (
                "an allocation should have failed"
            )
            return
        assert end.over_memory
        assert end.memory_peak_bytes is not None
        assert 56 * MIB <= end.memory_peak_bytes <= 64 * MIB
        assert end.reason is not None
        assert end.reason.startswith("killed: over its memory limit of 64 MiB (peak ")

    def test_08_so_is_one_whose_child_was_over(self) -> None:
        end = self.run(self.launch("nurse", 256 * MIB), Share(memory_bytes=64 * MIB)).ended()
        assert not end.ok
        assert end.over_memory == self.limits_tasks
        if not self.limits_tasks:
            return
        assert end.reason is not None
        assert "over its memory limit" in end.reason

    def test_09_a_memory_limit_below_what_is_held_is_refused(self) -> None:
        running = self.run(self.launch("hold", 128 * MIB), Share(memory_bytes=256 * MIB))
        running.said("ready")
        if self.limits_tasks:
            with pytest.raises(IsolationError, match="memory limit of 32 MiB"):
                running.box.apply(Share(memory_bytes=32 * MIB))
        else:
            assert running.box.apply(Share(memory_bytes=32 * MIB)) != ()
        assert self.alive(running.box.pid)
        running.box.apply(Share(memory_bytes=512 * MIB))
        running.box.apply(Share(memory_bytes=UNLIMITED))

    def test_10_the_exit_is_told(self) -> None:
        end = self.run(self.launch("leave", 7)).ended()
        assert (end.code, end.signal, end.over_memory, end.reason) == (7, None, False, None)
        assert self.run(self.launch("leave", 0, task="other/worker-0")).ended().ok

    def test_11_terminate_asks_and_kill_ends(self) -> None:
        polite = self.run(self.launch("rest"))
        stubborn = self.run(self.launch("stubborn", task="stubborn/worker-0"))
        for running in (polite, stubborn):
            running.said("ready")
            running.box.terminate()
        assert polite.ended().signal == signal.SIGTERM
        assert self.alive(stubborn.box.pid)
        stubborn.box.kill()
        end = stubborn.ended()
        assert (end.code, end.signal) == (None, signal.SIGKILL)

    def test_12_daemons_are_seen_and_end_with_the_box(self) -> None:
        running = self.run(self.launch("daemon"))
        running.said("ready")
        daemon = int(running.said("daemon"))
        assert daemon in running.box.pids()
        running.box.kill()
        assert not self.alive(daemon)
        assert running.box.pids() == []

    def test_13_a_daemon_outlives_its_task_only_until_the_box_is_closed(self) -> None:
        running = self.run(self.launch("daemon"))
        running.said("ready")
        daemon = int(running.said("daemon"))
        if self.alive(running.box.pid):
            self.end_first(running.box)
        running.ended()
        assert self.alive(daemon)
        running.box.close()
        assert not self.alive(daemon)

    def test_14_what_forks_without_end_is_ended(self) -> None:
        running = self.run(self.launch("breed"))
        running.said("ready")
        until(lambda: len(running.box.pids()) > 3, what="a few daemons")
        running.box.kill()
        assert running.box.pids() == []

    def test_15_boxes_are_apart(self) -> None:
        first = self.run(self.launch("rest"))
        second = self.run(self.launch("daemon", task="job/worker-1"))
        first.said("ready")
        second.said("ready")
        pids = set(second.box.pids())
        assert len(pids) > 1
        assert not set(first.box.pids()) & pids
        first.box.kill()
        first.box.close()
        assert self.alive(second.box.pid)
        assert set(second.box.pids()) == pids

    def test_16_a_program_that_is_missing_is_named(self) -> None:
        for argv, named in (
            (("no-such-program-here",), "no-such-program-here"),
            (("/etc/passwd",), "/etc/passwd"),
        ):
            launch = Launch(
                task=TaskId(f"{RUN}/job/worker-0"),
                argv=argv,
                env={},
                cwd="/",
                threads=1,
                place=self.place,
            )
            with pytest.raises(IsolationError, match=named):
                self.run(launch)
            assert self.traces() == []

    def test_17_nothing_is_raised_for_a_task_that_has_ended(self) -> None:
        running = self.run(self.launch("leave", 0))
        running.ended()
        running.box.apply(Share(cpu_weight=50, cpu_cap_cores=0.5, memory_bytes=64 * MIB))
        running.box.pin(frozenset({self.a_core()}))
        running.box.terminate()
        running.box.kill()
        running.box.close()
        running.box.close()
        running.box.apply(Share(cpu_weight=50))
        running.box.kill()
        assert running.box.pids() == []

    def test_18_boxes_leave_nothing_behind(self) -> None:
        before = descriptors()
        for _ in range(5):
            running = self.run(self.launch("daemon"))
            running.said("ready")
            running.close()
            assert not self.alive(int(running.said("daemon")))
        assert descriptors() <= before
        assert self.traces() == []

    def test_19_what_a_killed_process_left_is_swept(self) -> None:
        record = json.loads(json.dumps(self.orphan(self.launch("daemon"))))
        pid = record["pid"]
        assert self.alive(pid)
        bystander = self.run(self.launch("rest", task="bystander/worker-0"))
        bystander.said("ready")
        self.tested.sweep(record)
        assert not self.alive(pid)
        self.tested.sweep(record)
        assert self.alive(bystander.box.pid)

    def test_20_a_recycled_process_id_is_not_touched(self) -> None:
        running = self.run(self.launch("leave", 0))
        record = running.box.record()
        running.ended()
        running.box.close()
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "input()"],
            stdin=subprocess.PIPE,
            start_new_session=True,
        ) as stranger:
            self.tested.sweep({**record, "pid": stranger.pid})
            assert stranger.poll() is None
            assert processes.look(stranger.pid) is not None
            stranger.communicate(b"\n")
        assert stranger.returncode == 0

    def test_21_a_dry_run_says_what_would_be_started_and_starts_nothing(self) -> None:
        lines = self.tested.describe(
            self.launch("rest"), Share(cpu_weight=50, cpu_cap_cores=0.5, memory_bytes=64 * MIB)
        )
        assert all("\n" not in line for line in lines)
        assert programs.__file__ in lines[-1]
        assert self.traces() == []

    def test_22_what_cannot_be_had_is_said(self) -> None:
        uncontrolled = self.tested.uncontrolled()
        assert all(limit.reason and "\n" not in limit.reason for limit in uncontrolled)
        running = self.run(self.launch("rest"), Share(cpu_weight=50))
        lines = running.box.apply(Share(cpu_cap_cores=0.5, memory_bytes=256 * MIB))
        assert bool(lines) <= bool(uncontrolled), (
            "a share could not be had that was not said to be uncontrolled"
        )

    def test_23_the_exit_tells_the_cpu_time(self) -> None:
        running = self.run(self.launch("spin"))
        running.said("ready")
        self.elapse(0.3)
        begin, used = self.now(), self.cpu_seconds(running.box)
        running.box.kill()
        end, passed = running.ended(), self.now() - begin
        assert end.cpu_seconds is not None
        # Without cgroups the kernel reports current CPU time in whole ticks.
        assert used - 0.05 <= end.cpu_seconds <= used + passed + 0.05

    def test_24_what_is_held_uses_no_core_until_it_is_released(self) -> None:
        running = self.run(self.launch("spin", 2))
        running.said("ready")
        if not self.holds:
            with pytest.raises(IsolationError, match="hold"):
                running.box.hold()
            return
        self.hold(running.box)
        before = self.cpu_seconds(running.box)
        self.elapse(0.3)
        assert self.cpu_seconds(running.box) - before < 0.01
        running.box.release()
        running.box.release()
        self.uses(running.box, 0.1, 2.1, "once it is released")

    def test_25_what_is_held_can_be_ended(self) -> None:
        if not self.holds:
            return
        polite, killed = (
            self.run(self.launch("rest", task=f"{name}/worker-0")) for name in ("polite", "killed")
        )
        for running in (polite, killed):
            running.said("ready")
            self.hold(running.box)
        polite.box.terminate()
        assert polite.ended().signal == signal.SIGTERM
        killed.box.kill()
        assert killed.ended().signal == signal.SIGKILL
        for running in (polite, killed):
            assert not running.box.hold(), "what has ended was held"
        closed = self.run(self.launch("daemon", task="closed/worker-0"))
        closed.said("ready")
        self.hold(closed.box)
        closed.box.close()
        assert not self.alive(closed.box.pid)
        stubborn = self.run(self.launch("stubborn", task="stubborn/worker-0"))
        stubborn.said("ready")
        stubborn.box.terminate()
        assert not stubborn.box.hold(), "what was asked to end was held"

    def test_26_what_a_killed_process_held_is_released_or_swept(self) -> None:
        if not self.holds:
            return
        running = self.run(self.launch("spin"))
        running.said("ready")
        record = json.loads(json.dumps(running.box.record()))
        self.hold(running.box)
        self.tested.release(record)
        self.uses(running.box, 0.1, 2.1, "once it is released by its record")
        self.tested.release(record)
        self.hold(running.box)
        self.tested.sweep(record)
        assert not self.alive(running.box.pid)

    def test_27_a_task_whose_box_cannot_be_noted_is_ended(self) -> None:
        noted = list[dict[str, object]]()

        def refuses(box: Box) -> None:
            noted.append(box.record())
            raise OSError("the disk is full")

        launch = self.launch("spin")
        with open(os.devnull, "wb") as output, pytest.raises(OSError, match="the disk is full"):
            self.tested.start(launch, Share(), output.fileno(), made=refuses)
        assert [record["task"] for record in noted] == [launch.task]
        assert self.traces() == []
