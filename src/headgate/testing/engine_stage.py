"""The base of engine tests: starts tasks, records an engine's reports, and checks that nothing is
left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.engines.base import Engine, Slot
from headgate.isolation.base import Launch
from headgate.machine import processes
from headgate.model.cluster import Place
from headgate.model.endings import Exit
from headgate.model.identifiers import JobId, TaskId, TaskName
from headgate.model.shares import Share, Uncontrolled
from headgate.testing.recorder import RecordingListener
from headgate.testing.wait import until


class EngineStage:
    """The base class of an engine's suite. A twin overrides its methods that use the clock or real
    processes.
    """

    place: Place | None = None
    """The place where the tasks run; None: the machine itself."""
    accounts = False
    """Whether a reservation for one job excludes others."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        raise NotImplementedError(
            "provide a fixture `engine` that returns the engine to hold to its contract"
        )

    @pytest.fixture(autouse=True)
    def _nothing_left(self, engine: Engine, tmp_path: Path) -> Iterator[None]:
        self.set_up(engine, tmp_path)
        yield
        self.tear_down()

    # --- what a twin overrides

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()

    def wait(self, predicate: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Wait until a condition is true.

        Raises:
            TimeoutError: It stayed false.
        """
        until(lambda: bool(predicate()), seconds, what)

    def alive(self, pid: int) -> bool:
        return processes.look(pid) is not None

    def end_first(self, task: TaskId) -> None:
        """Let the first process of a task, and no other, be killed by somebody else."""
        pid = self.told.pid(task)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def traces(self) -> list[str]:
        """A line for each box that is left on the machine."""
        return []

    def boxed(self) -> set[TaskId]:
        """The tasks that have a box."""
        return set(self.tested.boxes())

    def watch_shares(self, task: TaskId) -> Callable[[], list[Share]]:
        """Record the shares that its box gets from now on."""
        box, applied = self.tested.boxes()[task], list[Share]()
        assert box.pid == self.told.pid(task)
        apply = box.apply

        def noting(share: Share) -> tuple[Uncontrolled, ...]:
            applied.append(share)
            return apply(share)

        box.apply = noting  # type: ignore[method-assign]
        return lambda: applied

    def descriptors(self) -> int:
        """Number of open files of this process. What earlier tests left as garbage may go, so that
        it may become less.
        """
        return len(os.listdir("/proc/self/fd"))

    # --- how the tests are written

    def set_up(self, engine: Engine, folder: Path) -> None:
        self.tested = engine
        self._descriptors = self.descriptors()
        self.folder = folder
        self.told = RecordingListener(lambda task: task in self.boxed())
        self._starts: dict[TaskId, int] = {}
        engine.open(self.told)

    def tear_down(self) -> None:
        self.tested.close()
        assert self.told.breaches == []
        for task, starts in self._starts.items():
            assert len(self.told.of(task, "exited")) == starts, (
                f"{task} did not exit once for each start"
            )
        assert self.boxed() == set()
        assert self.traces() == []
        assert self.descriptors() <= self._descriptors, "descriptors were left open"

    def task(self, name: str = "job", index: int = 0) -> TaskId:
        """Id of a task that no other suite on this machine uses."""
        return JobId.of(f"run-{os.getpid()}", name).task(TaskName.of("worker", index))

    def log(self, task: TaskId) -> Path:
        return self.folder / f"{task.job.name}.log"

    def start(
        self,
        argv: tuple[str, ...],
        name: str = "job",
        share: Share | None = None,
        cwd: str = "/",
        index: int = 0,
    ) -> TaskId:
        task = self.task(name, index)
        env = {"PATH": os.environ.get("PATH", os.defpath), "HEADGATE_TASK": task}
        launch = Launch(task=task, argv=argv, env=env, cwd=cwd, threads=1, place=self.place)
        self._starts[task] = self._starts.get(task, 0) + 1
        self.tested.start(launch, share or Share(), str(self.log(task)))
        return task

    def ready(self, task: TaskId, word: str = "ready") -> str:
        """Wait for a line that begins with `word`. Returns its rest."""
        self.wait(lambda: self._line(task, word) is not None, f"{word!r} of {task}")
        return (self._line(task, word) or "").removeprefix(word).strip()

    def _line(self, task: TaskId, word: str) -> str | None:
        return next((line for line in self.told.lines(task) if line.split(" ")[0] == word), None)

    def ended(self, task: TaskId, seconds: float = 60.0) -> Exit:
        """Wait for the end of a task. Returns how it ended."""
        starts = self._starts[task]
        self.wait(
            lambda: len(self.told.of(task, "exited")) >= starts, f"the end of {task}", seconds
        )
        end = self.told.exit(task)
        assert end is not None
        return end

    def echo(self, task: TaskId, message: dict[str, object], count: int = 1) -> None:
        """Send a message to a task that sends it back, and wait for the reply."""
        self.wait(lambda: self.told.messages(task, "hello"), f"a hello of {task}")
        self.tested.send(task, message)
        self.wait(
            lambda: self.echoes(task).count(message) >= count, f"{message} sent back by {task}"
        )

    def echoes(self, task: TaskId) -> list[object]:
        return [message["of"] for message in self.told.messages(task, "echo")]

    def logged(self, task: TaskId) -> int:
        """Bytes in a log and in its rotated part."""
        log = self.log(task)
        return sum(path.stat().st_size for path in self.folder.glob(f"{log.name}*"))

    def reserve(self, *tasks: TaskId, cores: float = 0.0) -> None:
        """Reserve cores for each of a job's tasks, by default all of a node."""
        node = self.tested.cluster().nodes[0]
        slots = {task: Slot(node.name, cores or node.cores) for task in tasks}
        self.tested.reserve(tasks[0].job, 1, slots)

    def release(self, task: TaskId) -> None:
        self.tested.release(task.job, 1, [task])
