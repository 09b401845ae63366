"""Engines with agents that stay open over many tests: opening is most of what they would take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from tests.harness.cgroups import cgroups

from headgate.engines.base import Listener
from headgate.engines.remote.engine import AgentsEngine
from headgate.isolation.base import Launch
from headgate.model.endings import Exit
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason
from headgate.model.shares import Share
from headgate.testing.engine import EngineContract
from headgate.testing.wait import until


class Forwarding(Listener):
    """Tells whoever listens now."""

    def __init__(self) -> None:
        self.to: Listener | None = None
        self.ends = 0
        """Exits that were told."""

    def started(self, task: TaskId, pid: int) -> None:
        if self.to is not None:
            self.to.started(task, pid)

    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        if self.to is not None:
            self.to.output(task, lines)

    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        if self.to is not None:
            self.to.message(task, message)

    def exited(self, task: TaskId, exit: Exit) -> None:
        if self.to is not None:
            self.to.exited(task, exit)
        self.ends += 1

    def warned(self, task: TaskId | None, what: Reason | str) -> None:
        if self.to is not None:
            self.to.warned(task, what)


class StaysOpen(AgentsEngine):
    """Put before the engine's class. `end` closes it for good."""

    _forwarding: Forwarding | None = None

    def open(self, listener: Listener) -> None:
        if self._forwarding is None:
            self._forwarding, self._begun = Forwarding(), list[TaskId]()
        self._forwarding.to = listener
        if not self._open:
            super().open(self._forwarding)

    def start(self, launch: Launch, share: Share, log: str) -> None:
        super().start(launch, share, log)
        self._begun.append(launch.task)

    def close(self) -> None:
        assert self._forwarding is not None
        forwarding = self._forwarding
        for task in self._begun:
            self.stop(task, 0)
        until(lambda: forwarding.ends == len(self._begun), 60, "the end of all tasks")
        self._begun.clear()
        forwarding.ends, forwarding.to = 0, None

    def end(self) -> None:
        super().close()


def ends(request: pytest.FixtureRequest) -> bool:
    """Whether a test ends the engine, which then has to be one of its own."""
    return request.function.__name__ in (
        "test_26_close_ends_everything_and_leaves_nothing",
        "test_27_a_start_just_before_close_is_answered_too",
    )


class AgentsContract(EngineContract):
    """The contract of an engine whose agents are on this machine."""

    def folders(self) -> list[Path]:
        """The cgroups of groups of boxes that agents of this process have made."""
        raise NotImplementedError

    def wait(self, predicate: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        # what it waits for passes through four processes
        try:
            until(lambda: bool(predicate()), max(seconds, 60.0), what)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the engine told: {self.told.calls}") from error

    def traces(self) -> list[str]:
        return sorted(self.boxed())

    def boxed(self) -> set[TaskId]:
        """By their cgroups: the tasks are on this machine here, but their engine need not be."""
        return {
            TaskId(box.name.replace(":", "/"))
            for folder in self.folders()
            for box in cgroups("*:*", folder)
        }

    def descriptors(self) -> int:
        """Those of an engine that stays open are left out."""
        return 0 if isinstance(self.tested, StaysOpen) else super().descriptors()

    def watch_shares(self, task: TaskId) -> Callable[[], list[Share]]:
        """The weights that the task's cgroup is seen to have, one after the other."""
        pid = self.told.pid(task)
        seen: list[Share] = []

        def look() -> list[Share]:
            weight = _weight(pid or 0)
            if weight != 100.0 and (not seen or seen[-1].cpu_weight != weight):
                seen.append(Share(cpu_weight=weight))
            return seen

        return look


def _weight(pid: int) -> float:
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for file, scale in (("cpu.shares", 100 / 1024), ("cpu.weight", 1.0)):
            for base in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup"):
                found = Path(base + path, file)
                if ("cpu" in controllers.split(",") or not controllers) and found.exists():
                    return round(int(found.read_text()) * scale)
    return 100.0
