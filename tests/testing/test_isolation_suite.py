"""The suite of an isolation: the twin in memory passes it, and a twin that is broken in one way
does not.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.isolation.base import NEVER, Box, Holder, Isolation, Launch, ignore
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.shares import UNLIMITED, Share, Uncontrolled
from headgate.testing.isolation import IsolationContract, Running
from headgate.testing.memory_isolation import MemoryBox, MemoryIsolation


def twin(isolation: Isolation) -> MemoryIsolation:
    assert isinstance(isolation, MemoryIsolation)
    return isolation


def its(box: Box) -> MemoryBox:
    assert isinstance(box, MemoryBox)
    return box


class TwinContract(IsolationContract):
    """What the suite asks of the machine, asked of the twin."""

    def now(self) -> float:
        return twin(self.tested).now

    def elapse(self, seconds: float) -> None:
        twin(self.tested).advance(seconds)

    def alive(self, pid: int) -> bool:
        return twin(self.tested).alive(pid)

    def cpu_seconds(self, box: Box) -> float:
        return its(box).cpu_seconds

    def idle_seconds(self) -> float:
        return 2 * self.now()

    def a_core(self) -> int:
        return 0

    def orphan(self, launch: Launch) -> dict[str, object]:
        with open(os.devnull, "w") as nowhere:
            return self.tested.start(launch, Share(), nowhere.fileno()).record()

    def traces(self) -> list[str]:
        return sorted(twin(self.tested).boxes)

    def end_first(self, box: Box) -> None:
        its(box).finish(Exit(code=None, signal=9))


class TestTheTwin(TwinContract):
    @pytest.fixture
    def isolation(self) -> Isolation:
        return MemoryIsolation()


# --- twins with one defect each


class IgnoresWeights(MemoryBox):
    def weight(self) -> float:
        return 100.0


class IgnoresCaps(MemoryBox):
    def most_cores(self) -> float:
        return 1.0


class KeepsTheFirstShare(MemoryBox):
    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        return ()


class ForgetsWhatIsNotNamed(MemoryBox):
    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        self.share = Share(cpu_cap_cores=UNLIMITED, memory_bytes=UNLIMITED).merged(share)
        return ()


class IgnoresPins(MemoryBox):
    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        return ()


class DoesNotSayWhyItWasKilled(MemoryBox):
    def reap(self) -> Exit:
        end = super().reap()
        return Exit(code=end.code, signal=end.signal, memory_peak_bytes=end.memory_peak_bytes)


class AcceptsAnyMemoryLimit(MemoryBox):
    def held(self) -> int:
        return 0


class KillsTheFirstProcessOnly(MemoryBox):
    def kill(self) -> None:
        self._end(self.rows[0], signal.SIGKILL)


class OverlooksDaemons(MemoryBox):
    def pids(self) -> list[int]:
        return super().pids()[:1]


class TerminatesByForce(MemoryBox):
    def terminate(self) -> None:
        self.kill()


class LeaksADescriptor(MemoryBox):
    def close(self) -> None:
        if not self.closed:
            os.dup(1)
        super().close()


class StaysWhenClosed(MemoryBox):
    def close(self) -> None:
        super().close()
        self.isolation.boxes[self.task] = self


class BreaksWhenClosedTwice(MemoryBox):
    def close(self) -> None:
        if self.closed:
            raise IsolationError("it is closed")
        super().close()


class SharesOneBox(MemoryBox):
    def kill(self) -> None:
        for box in self.isolation.boxes.values():
            for row in box.rows:
                box._end(row, signal.SIGKILL)


class LosesTheExitCode(MemoryBox):
    def reap(self) -> Exit:
        super().reap()
        return Exit(code=0)


class LosesTheCpuTime(MemoryBox):
    def reap(self) -> Exit:
        return replace(super().reap(), cpu_seconds=0.0)


class LeavesItsSession(MemoryBox):
    def _say(self, *lines: str) -> None:
        super()._say(*(line.replace(f"session {self.pid}", "session 1") for line in lines))


class PassesDescriptorsOn(MemoryBox):
    def _say(self, *lines: str) -> None:
        super()._say(*(line.replace("descriptors 0 1 2", "descriptors 0 1 2 3") for line in lines))


class HoldsNothing(MemoryBox):
    def hold(self, by: Holder = Holder.PROOF) -> bool:
        return True


class HearsNothingWhileHeld(MemoryBox):
    def terminate(self) -> None:
        if not self.held_still:
            super().terminate()


class ReleasesNothing(MemoryIsolation):
    def release(self, record: Mapping[str, object]) -> None:
        return


class SweepsNothing(MemoryIsolation):
    def sweep(self, record: Mapping[str, object]) -> None:
        return


class SweepsEverything(MemoryIsolation):
    def sweep(self, record: Mapping[str, object]) -> None:
        for box in list(self.boxes.values()):
            box.close()


class SweepsByNumberAlone(MemoryIsolation):
    def sweep(self, record: Mapping[str, object]) -> None:
        super().sweep(record)
        pid = record["pid"]
        assert isinstance(pid, int)
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, 9)


class StartsWhatIsMissing(MemoryIsolation):
    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> MemoryBox:
        box = self.make_box(launch, share, output_fd)
        self.boxes[launch.task] = box
        box.begin()
        return box


class BeginsBeforeItIsNoted(MemoryIsolation):
    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> MemoryBox:
        box = super().start(launch, share, output_fd, stopped)
        made(box)
        return box


class StartsOnADryRun(MemoryIsolation):
    def describe(self, launch: Launch, share: Share) -> list[str]:
        self.start(launch, share, 1)
        return list(super().describe(launch, share))


def with_boxes(kind: type[MemoryBox]) -> Callable[[], MemoryIsolation]:
    class Broken(MemoryIsolation):
        def make_box(self, launch: Launch, share: Share, output_fd: int) -> MemoryBox:
            return kind(self, launch, share, output_fd)

    return Broken


DEFECTS: dict[str, tuple[Callable[[], MemoryIsolation], str]] = {
    "outside its session": (with_boxes(LeavesItsSession), "test_01"),
    "inherited descriptors": (with_boxes(PassesDescriptorsOn), "test_01"),
    "weights ignored": (with_boxes(IgnoresWeights), "test_02"),
    "caps ignored": (with_boxes(IgnoresCaps), "test_03"),
    "shares never change": (with_boxes(KeepsTheFirstShare), "test_04"),
    "a change forgets the rest": (with_boxes(ForgetsWhatIsNotNamed), "test_05"),
    "pins ignored": (with_boxes(IgnoresPins), "test_06"),
    "no reason for the kill": (with_boxes(DoesNotSayWhyItWasKilled), "test_07"),
    "a limit below what is held": (with_boxes(AcceptsAnyMemoryLimit), "test_09"),
    "exit code lost": (with_boxes(LosesTheExitCode), "test_10"),
    "SIGTERM is SIGKILL": (with_boxes(TerminatesByForce), "test_11"),
    "daemons survive": (with_boxes(KillsTheFirstProcessOnly), "test_12"),
    "daemons overlooked": (with_boxes(OverlooksDaemons), "test_12"),
    "one box for all": (with_boxes(SharesOneBox), "test_15"),
    "missing programs start": (StartsWhatIsMissing, "test_16"),
    "what is not noted begins": (BeginsBeforeItIsNoted, "test_27"),
    "closed once only": (with_boxes(BreaksWhenClosedTwice), "test_17"),
    "descriptors leak": (with_boxes(LeaksADescriptor), "test_18"),
    "boxes stay": (with_boxes(StaysWhenClosed), "test_18"),
    "nothing is swept": (SweepsNothing, "test_19"),
    "everything is swept": (SweepsEverything, "test_19"),
    "a recycled process id is killed": (SweepsByNumberAlone, "test_20"),
    "a dry run starts": (StartsOnADryRun, "test_21"),
    "CPU time lost": (with_boxes(LosesTheCpuTime), "test_23"),
    "what is held runs": (with_boxes(HoldsNothing), "test_24"),
    "what is held cannot be asked to end": (with_boxes(HearsNothingWhileHeld), "test_25"),
    "what was held stays so": (ReleasesNothing, "test_26"),
}


TESTS = sorted(name for name in vars(IsolationContract) if name.startswith("test_"))


def fails(make: Callable[[], MemoryIsolation], test: str) -> bool:
    """Whether a twin fails a test of the suite."""
    suite, isolation = TwinContract(), make()
    before = set(os.listdir("/proc/self/fd"))
    suite.set_up(isolation)
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
def test_the_suite_catches(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # whatever a twin says or does, it does at once
    monkeypatch.setattr(Running, "patience_seconds", 0.1)
    make, number = DEFECTS[defect]
    (test,) = (name for name in TESTS if name.startswith(number))
    assert fails(make, test)


def test_a_twin_without_defect_fails_nothing() -> None:
    assert [test for test in TESTS if fails(MemoryIsolation, test)] == []
