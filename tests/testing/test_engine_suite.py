"""The suite of an engine: the twin in memory passes it, and a twin that is broken in one way does
not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from headgate.engines.base import Engine, Slot
from headgate.engines.log import TaskLog
from headgate.isolation.base import Box, Launch
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.identifiers import JobId, TaskId
from headgate.model.shares import Share
from headgate.testing.engine import EngineContract
from headgate.testing.memory_engine import MemoryEngine, MemoryTask
from headgate.testing.memory_isolation import MemoryBox, MemoryIsolation
from headgate.testing.recorder import RecordingListener


class TwinContract(EngineContract):
    """What the suite asks of the machine, asked of the twin."""

    accounts = True

    @property
    def twin(self) -> MemoryEngine:
        assert isinstance(self.tested, MemoryEngine)
        return self.tested

    def now(self) -> float:
        return self.twin.now

    def wait(self, predicate: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        deadline = self.twin.now + seconds
        while not predicate():
            if self.twin.now > deadline:
                raise TimeoutError(f"{what} did not come true within {seconds:g} s")
            self.twin.advance(0.1)

    def alive(self, pid: int) -> bool:
        return self.twin.alive(pid)

    def end_first(self, task: TaskId) -> None:
        self.twin.tasks[task].killed()

    def traces(self) -> list[str]:
        return sorted(self.twin.isolation.boxes)


class TestTheTwin(TwinContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Engine:
        return MemoryEngine()


# --- twins with one defect each


class SaysTheEndTwice(MemoryTask):
    def end(self, exit: Exit) -> None:
        super().end(exit)
        self.engine.listener.exited(self.id, exit)


class SaysTheEndTooEarly(MemoryTask):
    def end(self, exit: Exit) -> None:
        self.engine.listener.exited(self.id, exit)
        self.discard()


class LosesTheExitCode(MemoryTask):
    def end(self, exit: Exit) -> None:
        super().end(Exit(code=0 if exit.ok else 1))


class KeepsDaemons(MemoryTask):
    def discard(self) -> None:
        self.box.close = lambda: None  # type: ignore[method-assign]
        super().discard()


class WaitsForDaemons(MemoryTask):
    def settle(self) -> None:
        if len(self.box.rows) == 1 or not self.box.pids():
            super().settle()


class DropsTheLastLine(MemoryTask):
    def settle(self) -> None:
        self.log.rest()
        super().settle()


class DeliversOutputAfterTheEnd(MemoryTask):
    def end(self, exit: Exit) -> None:
        super().end(exit)
        self.engine.listener.output(self.id, ["a late line"])


class LogsWhatItDelivers(MemoryTask):
    """Thins out the log as it thins out the lines."""

    def say(self, data: bytes) -> None:
        if self.log.write(b"", self.engine.now) or len(self._seen) < 1000:
            self._seen.append(data)
            super().say(data)

    def __init__(self, engine: MemoryEngine, box: MemoryBox, output: int, log: TaskLog) -> None:
        super().__init__(engine, box, output, log)
        self._seen: list[bytes] = []


class TakesCarriageReturnsForText(MemoryTask):
    def say(self, data: bytes) -> None:
        super().say(data.replace(b"\r", b" "))


class RepeatsLines(MemoryTask):
    def say(self, data: bytes) -> None:
        if lines := self.log.write(data, self.engine.now):
            self.engine.listener.output(self.id, [*lines, lines[-1]])


class KeepsAllOutput(MemoryTask):
    kept = b""

    def say(self, data: bytes) -> None:
        self.kept += data
        super().say(data)


class AsksBySigtermAlways(MemoryTask):
    def ask(self) -> None:
        self.box.terminate()


class ForgetsThatItHungUp(MemoryTask):
    def ask(self) -> None:
        if any(self.received) or self._name == "parting":
            return
        super().ask()


class AsksEveryTime(MemoryTask):
    def stop(self, grace: float) -> None:
        again = self.kill_at is not None and grace > 0
        super().stop(grace)
        if again:
            self.ask()


class NeverKills(MemoryTask):
    def passed(self) -> None:
        if self.kill_at is None:
            super().passed()


class KillsTooEarly(MemoryTask):
    def stop(self, grace: float) -> None:
        super().stop(grace / 10)


class LetsTheGraceGrow(MemoryTask):
    def stop(self, grace: float) -> None:
        super().stop(grace)
        if grace > 0:
            self.kill_at = self.engine.now + grace


class TerminatesWithoutGrace(MemoryTask):
    def stop(self, grace: float) -> None:
        if grace <= 0:
            self.box.terminate()
        else:
            super().stop(grace)


class AdmitsAnybody(MemoryTask):
    def admits(self, message: Mapping[str, object]) -> bool:
        return True


class ReversesMessages(MemoryTask):
    def transmit(self, data: bytes) -> None:
        self._held = [data, *getattr(self, "_held", [])]

    def settle(self) -> None:
        for data in getattr(self, "_held", []):
            super().transmit(data)
        self._held = []
        super().settle()


class DropsMessagesAtTheEnd(MemoryTask):
    sent = 0

    def tell(self, message: Mapping[str, object]) -> None:
        self.sent += 1
        if self.sent < 1000:
            super().tell(message)


class ReadsOnlyOnce(MemoryTask):
    def transmit(self, data: bytes) -> None:
        super().transmit(data[: 1 << 16])


class TripsOverGarbage(MemoryTask):
    def transmit(self, data: bytes) -> None:
        if data.startswith(b"\xff"):
            self.hang_up()
        super().transmit(data)


class StartsSilently(MemoryEngine):
    def start(self, launch: Launch, share: Share, log: str) -> None:
        told, self.listener.started = self.listener.started, lambda task, pid: None  # type: ignore[method-assign]
        super().start(launch, share, log)
        self.listener.started = told  # type: ignore[method-assign]


class RaisesOnAFailedStart(MemoryEngine):
    def start(self, launch: Launch, share: Share, log: str) -> None:
        if not Path(launch.argv[0]).exists():
            raise FileNotFoundError(launch.argv[0])
        super().start(launch, share, log)


class GivesNoReason(MemoryEngine):
    def start(self, launch: Launch, share: Share, log: str) -> None:
        if not Path(launch.cwd).exists():
            self.listener.exited(launch.task, Exit(code=None, reason="could not be started"))
            return
        super().start(launch, share, log)


class EmptiesTheLog(MemoryEngine):
    def start(self, launch: Launch, share: Share, log: str) -> None:
        Path(log).unlink(missing_ok=True)
        super().start(launch, share, log)


class TripsOverUnknownTasks(MemoryEngine):
    def send(self, task: TaskId, message: Mapping[str, object]) -> None:
        self.tasks[task].receive(message)


class WarnsOfUnknownTasks(MemoryEngine):
    def set_share(self, task: TaskId, share: Share) -> None:
        if task not in self.tasks:
            self.listener.warned(task, "it has ended")
        super().set_share(task, share)


class SendsToThoseNotConnected(MemoryEngine):
    def send(self, task: TaskId, message: Mapping[str, object]) -> None:
        super().send(task, message)
        if task in self.tasks and not self.tasks[task].connected:
            self.listener.warned(task, "it is not connected")


class LetsNobodyWait(MemoryEngine):
    def reserve(self, job: JobId, attempt: int, slots: Mapping[TaskId, Slot]) -> None:
        return


class WaitsInSilence(MemoryEngine):
    def start(self, launch: Launch, share: Share, log: str) -> None:
        listener, self.listener = self.listener, RecordingListener(lambda _: False)
        super().start(launch, share, log)
        self.listener = listener


class ForgetsWhoWaits(MemoryEngine):
    def stop(self, task: TaskId, grace: float) -> None:
        if task in self.tasks:
            super().stop(task, grace)


class KeepsWhatIsReleased(MemoryEngine):
    def release(self, job: JobId, attempt: int, tasks: Collection[TaskId]) -> None:
        return


class ReleasesWithTheLast(MemoryEngine):
    def release(self, job: JobId, attempt: int, tasks: Collection[TaskId]) -> None:
        had = {task for task, kept in self._slots.items() if kept[:2] == (job, attempt)}
        if had <= {*tasks}:
            super().release(job, attempt, tasks)


class ReleasesAll(MemoryEngine):
    def release(self, job: JobId, attempt: int, tasks: Collection[TaskId]) -> None:
        super().release(
            job, attempt, [task for task in self._slots if task.rsplit("/", 1)[0] == job]
        )


class WaitsForTheImpossible(MemoryEngine):
    def start(self, launch: Launch, share: Share, log: str) -> None:
        if launch.task in self._slots and self._slots[launch.task][2].cores > self._node.cores:
            self.listener.warned(launch.task, "it waits")
            return
        super().start(launch, share, log)


class KeepsShares(MemoryEngine):
    def set_share(self, task: TaskId, share: Share) -> None:
        return


class SwallowsRefusals(MemoryEngine):
    def set_share(self, task: TaskId, share: Share) -> None:
        if share.memory_bytes is None:
            super().set_share(task, share)


class ShowsEmptyBoxes(MemoryEngine):
    def boxes(self) -> Mapping[TaskId, Box]:
        return {}


class ClosesByAsking(MemoryEngine):
    def close(self) -> None:
        for task in list(self.tasks.values()):
            task.stop(10)
            task.settle()


class LeavesTheLate(MemoryEngine):
    def close(self) -> None:
        for task in list(self.tasks.values()):
            if "late" not in task.id:
                task.box.kill()
                task.settle()


class LeaksADescriptor(MemoryEngine):
    def close(self) -> None:
        os.dup(1)
        super().close()


class HasNoNodes(MemoryEngine):
    def __init__(self) -> None:
        super().__init__(Node("memory", cores=0, memory_bytes=0))

    def make_isolation(self, node: Node) -> MemoryIsolation:
        return MemoryIsolation()


def with_tasks(kind: type[MemoryTask]) -> Callable[[], MemoryEngine]:
    class Broken(MemoryEngine):
        def make_task(self, box: MemoryBox, output: int, log: str) -> MemoryTask:
            return kind(self, box, output, TaskLog(log))

    return Broken


DEFECTS: dict[str, tuple[Callable[[], MemoryEngine], str]] = {
    "a start is not told": (StartsSilently, "test_01"),
    "an end is told twice": (with_tasks(SaysTheEndTwice), "test_01"),
    "an end is told before the box is gone": (with_tasks(SaysTheEndTooEarly), "test_01"),
    "exit code lost": (with_tasks(LosesTheExitCode), "test_01"),
    "a failed start raises": (RaisesOnAFailedStart, "test_02"),
    "a failed start without reason": (GivesNoReason, "test_02"),
    "the log begins anew": (EmptiesTheLog, "test_03"),
    "a kill looks like an error": (with_tasks(LosesTheExitCode), "test_04"),
    "daemons survive": (with_tasks(KeepsDaemons), "test_05"),
    "daemons hold up the end": (with_tasks(WaitsForDaemons), "test_05"),
    "the last line is lost": (with_tasks(DropsTheLastLine), "test_06"),
    "output after the end": (with_tasks(DeliversOutputAfterTheEnd), "test_06"),
    "carriage returns are text": (with_tasks(TakesCarriageReturnsForText), "test_08"),
    "the log is thinned out": (with_tasks(LogsWhatItDelivers), "test_10"),
    "lines are repeated": (with_tasks(RepeatsLines), "test_10"),
    "output is kept": (with_tasks(KeepsAllOutput), "test_11"),
    "SIGTERM to the connected": (with_tasks(AsksBySigtermAlways), "test_13"),
    "the channel to those that hung up": (with_tasks(ForgetsThatItHungUp), "test_14"),
    "no kill": (with_tasks(NeverKills), "test_15"),
    "a kill too early": (with_tasks(KillsTooEarly), "test_15"),
    "SIGTERM without grace": (with_tasks(TerminatesWithoutGrace), "test_16"),
    "asked twice": (with_tasks(AsksEveryTime), "test_17"),
    "a grace grows": (with_tasks(LetsTheGraceGrow), "test_17"),
    "unknown tasks raise": (TripsOverUnknownTasks, "test_18"),
    "unknown tasks are warned of": (WarnsOfUnknownTasks, "test_18"),
    "shares stay": (KeepsShares, "test_19"),
    "boxes are not shown": (ShowsEmptyBoxes, "test_19"),
    "a refused share is not told": (SwallowsRefusals, "test_20"),
    "dropped messages are warned of": (SendsToThoseNotConnected, "test_22"),
    "messages out of order": (with_tasks(ReversesMessages), "test_23"),
    "last messages lost": (with_tasks(DropsMessagesAtTheEnd), "test_23"),
    "long messages cut": (with_tasks(ReadsOnlyOnce), "test_24"),
    "garbage closes the channel": (with_tasks(TripsOverGarbage), "test_24"),
    "any key will do": (with_tasks(AdmitsAnybody), "test_25"),
    "close asks": (ClosesByAsking, "test_26"),
    "descriptors leak": (LeaksADescriptor, "test_26"),
    "late starts survive close": (LeavesTheLate, "test_27"),
    "nobody waits": (LetsNobodyWait, "test_30"),
    "a wait is not told": (WaitsInSilence, "test_30"),
    "what is released is kept": (KeepsWhatIsReleased, "test_30"),
    "one that waits cannot be stopped": (ForgetsWhoWaits, "test_31"),
    "what one task had is kept": (ReleasesWithTheLast, "test_33"),
    "what the others have is released": (ReleasesAll, "test_33"),
    "the impossible is waited for": (WaitsForTheImpossible, "test_32"),
    "a node without cores": (HasNoNodes, "test_28"),
}

TESTS = sorted(name for name in vars(EngineContract) if name.startswith("test_"))


def fails(make: Callable[[], MemoryEngine], test: str, folder: Path) -> bool:
    """Whether a twin fails a test of the suite."""
    suite = TwinContract()
    before = set(os.listdir("/proc/self/fd"))
    suite.set_up(make(), folder)
    try:
        getattr(suite, test)()
        suite.tear_down()
    except (Exception, pytest.fail.Exception):  # noqa: BLE001 — however a broken twin shows
        return True
    finally:
        for descriptor in set(os.listdir("/proc/self/fd")) - before:
            try:
                os.close(int(descriptor))
            except OSError:  # the one that listed the folder
                continue
    return False


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_suite_catches(defect: str, tmp_path: Path) -> None:
    make, number = DEFECTS[defect]
    (test,) = (name for name in TESTS if name.startswith(number))
    assert fails(make, test, tmp_path)


@pytest.mark.parametrize("test", TESTS)
def test_a_twin_without_defect_fails_nothing(test: str, tmp_path: Path) -> None:
    assert not fails(MemoryEngine, test, tmp_path)
