"""The base of isolation tests: starts tasks, measures their use, and checks that nothing is
left.
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

from headgate.isolation.base import Box, Isolation, Launch
from headgate.machine import processes
from headgate.machine.process_table import TAG
from headgate.model.cluster import Place
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
from headgate.testing import programs

RUN = f"run-{os.getpid()}"
"""Run of the tasks. Without cgroups, tasks of another suite with the same run would be mistaken for
ours.
"""

COUNTED_CORES = 0.02
"""How far a measurement of one second may be off for two processes under a cap: each uses it in
slices of 5 ms, and is stopped at the next tick, up to 4 ms later.
"""
IDLE_BESIDE_CORES = 0.25
"""Cores that stay idle on a machine that is in use, between the tasks of its programs."""

_STARTER = """
import importlib, json, os, signal, sys
from headgate.model.cluster import Place
from headgate.isolation.base import Launch
from headgate.model.shares import Share

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
    """A task that a test started, and its output."""

    patience_seconds = 60.0
    """Longest wait for a word of it, or for its end."""

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

    def said(self, word: str, seconds: float | None = None) -> str:
        """Wait for a line that begins with `word`. Returns its rest.

        Args:
            seconds: The longest wait; None: `patience_seconds`.

        Raises:
            TimeoutError: It was not printed.
        """
        seconds = self.patience_seconds if seconds is None else seconds
        deadline = time.monotonic() + seconds
        while True:
            for line in self._text.splitlines():
                if line.split(" ")[0] == word:
                    return line[len(word) + 1 :]
            if not select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(
                    f"{self.box.task} did not print {word!r} within {seconds:g} s: {self._text!r}"
                )
            part = os.read(self._fd, 1 << 16).decode()
            if not part:
                raise TimeoutError(
                    f"{self.box.task} ended without printing {word!r}: {self._text!r}"
                )
            self._text += part

    @property
    def text(self) -> str:
        return self._text

    def ended(self, seconds: float | None = None) -> Exit:
        """Wait for the end of the task. Returns how it ended.

        Args:
            seconds: As of `said`.

        Raises:
            TimeoutError: It did not end.
        """
        seconds = self.patience_seconds if seconds is None else seconds
        if not select.select([self.box.exit_fd], [], [], seconds)[0]:
            raise TimeoutError(f"{self.box.task} did not end within {seconds:g} s")
        return self.box.reap()

    def close(self) -> None:
        self.box.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class IsolationStage:
    """The base class of an isolation's suite. A twin overrides its methods that use the clock or
    real processes.
    """

    caps_fractions = True
    """Whether a cap may be a fraction of a core. Otherwise it is rounded up to whole cores."""
    limits_tasks = True
    """Whether the memory limit holds for the whole task and ends it. Otherwise an allocation fails
    in a process.
    """
    holds = True
    """Whether a task can be held."""
    place: Place | None = None
    """The place where the tasks run; None: the machine itself."""
    elsewhere: tuple[str, str]
    """A module, and an expression with its names that makes the isolation in another process."""

    @pytest.fixture
    def isolation(self) -> Isolation:
        raise NotImplementedError(
            "provide a fixture `isolation` that returns the isolation to hold to its contract"
        )

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
        """CPU time of a task so far, as counted by the kernel."""
        groups = box.cgroups
        if "cpuacct" in groups:
            return int((groups["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        for name in ("unified", "cpu"):
            if name in groups:
                stat = dict(
                    line.split() for line in (groups[name] / "cpu.stat").read_text().splitlines()
                )
                return int(stat["usage_usec"]) / 1e6
        ticks = 0
        for pid in box.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def idle_seconds(self) -> float:
        """CPU time of the machine that nobody used."""
        fields = Path("/proc/stat").read_text().splitlines()[0].split()
        return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")

    def a_core(self) -> int:
        return min(os.sched_getaffinity(0))

    def orphan(self, launch: Launch) -> dict[str, object]:
        """Start a task from another process, which is then killed. Returns the record of its
        box.
        """
        order = {
            "launch": asdict(launch),
            "module": self.elsewhere[0],
            "expression": self.elsewhere[1],
        }
        starter = [sys.executable, "-c", _STARTER, json.dumps(order)]
        answer = subprocess.run(starter, stdout=subprocess.PIPE, check=False)
        assert answer.stdout, "no task was started in the process that was to be killed"
        return dict(json.loads(answer.stdout))

    def end_first(self, box: Box) -> None:
        """Let the first process of a task, and no other, end."""
        os.kill(box.pid, signal.SIGKILL)

    def traces(self) -> list[str]:
        """A line for each box that is left on the machine."""
        return []

    # --- how the tests are written

    def set_up(self, isolation: Isolation) -> None:
        self.tested = isolation
        self._running: list[Running] = []
        self._descriptors = descriptors()

    def tear_down(self) -> None:
        for running in self._running:
            running.close()
        assert descriptors() <= self._descriptors, "descriptors were left open"
        assert self.traces() == []

    def launch(self, name: str, *arguments: object, task: str = "job/worker-0") -> Launch:
        id = TaskId(f"{RUN}/{task}")
        env = {"PATH": os.environ.get("PATH", os.defpath), TAG: id}
        argv = programs.argv(name, *arguments)
        return Launch(task=id, argv=argv, env=env, cwd=os.getcwd(), threads=1, place=self.place)

    def run(self, launch: Launch, share: Share = Share()) -> Running:  # noqa: B008 — it is frozen
        running = Running.start(self.tested, launch, share)
        self._running.append(running)
        return running

    def hold(self, box: Box) -> None:
        """Hold a task; once more if other programs kept it from a core for too long to be stopped
        in time.
        """
        deadline = self.now() + 30.0
        while True:
            try:
                assert box.hold()
                return
            except IsolationError:
                if self.now() > deadline:
                    raise
            self.elapse(0.01)

    def cores(self, boxes: list[Box], seconds: float) -> list[float]:
        """Mean number of cores that each box used during `seconds`."""
        begin, before = self.now(), [self.cpu_seconds(box) for box in boxes]
        self.elapse(seconds)
        after, end = [self.cpu_seconds(box) for box in boxes], self.now()
        return [(y - x) / (end - begin) for x, y in zip(before, after, strict=True)]

    def settles(
        self, measure: Callable[[float], float], low: float, high: float, what: str
    ) -> None:
        """Require one of a few measurements to be from `low` to `high`, each over more seconds.

        Other programs use the machine too, so one second may be too short.
        """
        seen = []
        for seconds in (1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0):
            seen.append(measure(seconds))
            if low <= seen[-1] <= high:
                return
        raise AssertionError(
            f"{what}: expected {low:.4g} to {high:.4g}, measured {[round(x, 3) for x in seen]}"
        )

    def uses(self, box: Box, low: float, high: float, when: str) -> None:
        """Require the cores that a box uses to be from `low` to `high`; or less, if other programs
        left no more.
        """
        others_took = []

        def measured(seconds: float) -> float:
            idle, began = self.idle_seconds(), self.now()
            used = self.cores([box], seconds)[0]
            spare = (self.idle_seconds() - idle) / (self.now() - began)
            others_took.append(used <= high and spare < low - used + IDLE_BESIDE_CORES)
            return used

        try:
            self.settles(measured, low, high, f"cores in use {when}")
        except AssertionError:
            if not all(others_took):
                raise

    def capped(self, box: Box, cap: float) -> None:
        """Require that a task which could use two cores uses its cap, within 5 % or what the kernel
        counts too much or too little. Other programs may take a part of whole cores.
        """
        margin = max(0.05 * cap, COUNTED_CORES)
        low, high = (
            (cap - margin, cap + margin) if self.caps_fractions else (0.05, 1.05 * math.ceil(cap))
        )
        self.uses(box, low, high, f"under a cap of {cap:g}")


def descriptors() -> int:
    """Number of open files of this process. What earlier tests left as garbage may go, so that it
    may become less.
    """
    return len(os.listdir("/proc/self/fd"))
