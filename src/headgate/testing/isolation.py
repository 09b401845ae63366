"""What every isolation must do: a suite to subclass.

class TestMine(IsolationContract):
    @pytest.fixture
    def isolation(self):
        return MyIsolation()
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from headgate.cluster import Place
from headgate.errors import IsolationError
from headgate.events import Exit
from headgate.isolation import processes
from headgate.isolation.base import Box, Isolation, Launch
from headgate.isolation.census import TAG
from headgate.shares import UNLIMITED, Share
from headgate.testing import programs
from headgate.testing.wait import until

MIB = 1 << 20
RUN = f"run-{os.getpid()}"
"""Run of the tasks: where no cgroup holds them, those of another suite on this machine would be taken for ours."""

_STARTER = """
import importlib, json, os, signal, sys
from headgate.cluster import Place
from headgate.isolation.base import Launch
from headgate.shares import Share

order = json.loads(sys.argv[1])
isolation = eval(order["expression"], vars(importlib.import_module(order["module"])))
place = order["launch"].pop("place")
argv = tuple(order["launch"].pop("argv"))
launch = Launch(**order["launch"], argv=argv, place=place and Place(**place))
with open(os.devnull, "w") as nowhere:
    record = isolation.start(launch, Share(), nowhere.fileno()).record()
print(json.dumps(record), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


class Running:
    """A task that a test started, and what it printed."""

    def __init__(self, box: Box, output_fd: int) -> None:
        self.box = box
        self._fd = output_fd
        self._text = ""

    @classmethod
    def start(cls, isolation: Isolation, launch: Launch, share: Share) -> Running:
        """Start a task whose output can be read here."""
        reading, writing = os.pipe()
        try:
            return cls(isolation.start(launch, share, writing), reading)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)

    def said(self, word: str, seconds: float = 20.0) -> str:
        """The rest of the line that begins with `word`, waited for.

        Raises:
            TimeoutError: It was not printed.
        """
        deadline = time.monotonic() + seconds
        while True:
            for line in self._text.splitlines():
                if line.split(" ")[0] == word:
                    return line[len(word) + 1 :]
            if not select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"{self.box.task} did not print {word!r} within {seconds:g} s: {self._text!r}")
            part = os.read(self._fd, 1 << 16).decode()
            if not part:
                raise TimeoutError(f"{self.box.task} ended without printing {word!r}: {self._text!r}")
            self._text += part

    @property
    def text(self) -> str:
        return self._text

    def ended(self, seconds: float = 20.0) -> Exit:
        """How it ended, waited for.

        Raises:
            TimeoutError: It did not end.
        """
        if not select.select([self.box.exit_fd], [], [], seconds)[0]:
            raise TimeoutError(f"{self.box.task} did not end within {seconds:g} s")
        return self.box.reap()

    def close(self) -> None:
        self.box.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class IsolationContract:
    """The behaviours, numbered. A subclass provides the fixture `isolation`, and says where it cannot follow.

    What is not about the isolation itself (a clock, who lives, who used how much) is in methods that a twin overrides.
    """

    caps_fractions = True
    """Whether a cap may be a fraction of a core; otherwise it is rounded up to whole ones."""
    limits_tasks = True
    """Whether the memory limit is that of the whole task and ends it; otherwise an allocation fails in a process."""
    place: Place | None = None
    """Where the tasks run; None: on the machine as it is."""
    elsewhere: tuple[str, str]
    """A module, and an expression over its names that makes the isolation in another process."""

    @pytest.fixture
    def isolation(self) -> Isolation:
        raise NotImplementedError("provide a fixture `isolation` that returns the isolation to hold to its contract")

    @pytest.fixture(autouse=True)
    def _nothing_left(self, isolation: Isolation) -> Iterator[None]:
        self.set_up(isolation)
        yield
        self.tear_down()

    # --- what a twin overrides

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def elapse(self, seconds: float) -> None:
        """Let time pass."""
        select.select([], [], [], seconds)

    def alive(self, pid: int) -> bool:
        return processes.look(pid) is not None

    def cpu_seconds(self, box: Box) -> float:
        """CPU time of a task up to now, as the kernel counted it."""
        groups = box.cgroups
        if "cpuacct" in groups:
            return int((groups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        for name in ("unified", "cpu"):
            if name in groups:
                stat = dict(line.split() for line in (groups[name] / "cpu.stat").read_text().splitlines())
                return int(stat["usage_usec"]) / 1e6
        ticks = 0
        for pid in box.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def a_core(self) -> int:
        return min(os.sched_getaffinity(0))

    def orphan(self, launch: Launch) -> dict[str, object]:
        """Start a task from another process, which is then killed; returns the record of its box."""
        order = {"launch": asdict(launch), "module": self.elsewhere[0], "expression": self.elsewhere[1]}
        starter = [sys.executable, "-c", _STARTER, json.dumps(order)]
        answer = subprocess.run(starter, stdout=subprocess.PIPE, check=False)
        assert answer.stdout, "no task was started in the process that was to be killed"
        return dict(json.loads(answer.stdout))

    def traces(self) -> list[str]:
        """What is left on the machine of boxes, a line each."""
        return []

    # --- how the tests are written

    def set_up(self, isolation: Isolation) -> None:
        self.tested = isolation
        self._running: list[Running] = []
        self._descriptors = _descriptors()

    def tear_down(self) -> None:
        for running in self._running:
            running.close()
        assert _descriptors() == self._descriptors, "descriptors were left open"
        assert self.traces() == []

    def launch(self, name: str, *arguments: object, task: str = "job/worker-0") -> Launch:
        task = f"{RUN}/{task}"
        env = {"PATH": os.environ.get("PATH", os.defpath), TAG: task}
        argv = programs.argv(name, *arguments)
        return Launch(task=task, argv=argv, env=env, cwd=os.getcwd(), threads=1, place=self.place)

    def run(self, launch: Launch, share: Share = Share()) -> Running:  # noqa: B008 — it is frozen
        running = Running.start(self.tested, launch, share)
        self._running.append(running)
        return running

    def cores(self, boxes: list[Box], seconds: float) -> list[float]:
        """Mean cores that each box used while so many seconds passed."""
        begin, before = self.now(), [self.cpu_seconds(box) for box in boxes]
        self.elapse(seconds)
        after, end = [self.cpu_seconds(box) for box in boxes], self.now()
        return [(y - x) / (end - begin) for x, y in zip(before, after, strict=True)]

    def settles(self, measure: Callable[[float], float], low: float, high: float, what: str) -> None:
        """Hold one of a few measurements, each over so many seconds, to be from `low` to `high`.

        Others use the machine, too: what a second is too short for shows over more of them.
        """
        seen = []
        for seconds in (1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0):
            seen.append(measure(seconds))
            if low <= seen[-1] <= high:
                return
        raise AssertionError(f"{what}: expected {low:.4g} to {high:.4g}, measured {[round(x, 3) for x in seen]}")

    def uses(self, box: Box, low: float, high: float, when: str) -> None:
        """Hold the cores that a box uses to be from `low` to `high`."""
        self.settles(lambda seconds: self.cores([box], seconds)[0], low, high, f"cores in use {when}")

    def capped(self, box: Box, cap: float) -> None:
        """Hold what a task that could use two cores uses to its cap, within 5 %.

        Of whole cores others may take a part, of a small fraction hardly: there, it is to be had in full.
        """
        low, high = (0.95 * cap, 1.05 * cap) if self.caps_fractions else (0.2, 1.05 * math.ceil(cap))
        self.uses(box, low, high, f"under a cap of {cap:g}")

    # --- the behaviours

    def test_01_a_task_is_in_its_box_before_its_first_instruction(self) -> None:
        running = self.run(self.launch("where"))
        running.said("ready")
        assert running.box.pid in running.box.pids()
        assert running.said("session") == str(running.box.pid), "it does not lead a session of its own"
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

        self.settles(heavy_part, 0.95 * 0.75, 1.05 * 0.75, "the part of a core that a weight of 90 has against 30")

    def test_03_a_cap_holds(self) -> None:
        running = self.run(self.launch("spin", 2), Share(cpu_cap_cores=0.5, cpu_weight=10_000))
        running.said("ready")
        self.capped(running.box, 0.5)

    def test_04_shares_change_while_a_task_runs(self) -> None:
        running = self.run(self.launch("spin", 2), Share(cpu_weight=10_000))
        running.said("ready")
        for cap in (0.3, 0.05, 0.6):
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
        for each in (running, other):
            each.said("ready")
            each.box.pin(frozenset({self.a_core()}))

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
            assert (end.code, end.over_memory, end.reason) == (1, False, None), "an allocation should have failed"
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

    def end_first(self, box: Box) -> None:
        """Let the first process of a task end, and no other."""
        os.kill(box.pid, signal.SIGKILL)

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
        assert not set(first.box.pids()) & set(second.box.pids())
        first.box.kill()
        first.box.close()
        assert self.alive(second.box.pid)
        assert len(second.box.pids()) == 2

    def test_16_a_program_that_is_missing_is_named(self) -> None:
        for argv, named in ((("no-such-program-here",), "no-such-program-here"), (("/etc/passwd",), "/etc/passwd")):
            launch = Launch(task=f"{RUN}/job/worker-0", argv=argv, env={}, cwd="/", threads=1, place=self.place)
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
        before = _descriptors()
        for _ in range(5):
            running = self.run(self.launch("daemon"))
            running.said("ready")
            running.close()
            assert not self.alive(int(running.said("daemon")))
        assert _descriptors() == before
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
            [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
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
        lost = self.tested.lost()
        assert all(line and "\n" not in line for line in lost)
        running = self.run(self.launch("rest"), Share(cpu_weight=50))
        lines = running.box.apply(Share(cpu_cap_cores=0.5, memory_bytes=256 * MIB))
        assert bool(lines) <= bool(lost), "a share could not be had that was not said to be lost"

    def test_23_the_exit_tells_the_cpu_time(self) -> None:
        running = self.run(self.launch("spin"))
        running.said("ready")
        self.elapse(0.3)
        used, begin = self.cpu_seconds(running.box), self.now()
        running.box.kill()
        end, passed = running.ended(), self.now() - begin
        assert end.cpu_seconds is not None
        # Without cgroups the kernel tells what is used now in whole ticks.
        assert used - 0.05 <= end.cpu_seconds <= used + passed + 0.05


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
