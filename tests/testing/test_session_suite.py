"""The suite of a framework's session: the one in plain Python passes it, and one that is broken in
one way does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate.task import Channel, Stop, TaskEnvironment
from headgate.task.session import StartPoint, TaskSession
from headgate.task.step_timing import Step
from headgate.testing.plain_session import PlainSession
from headgate.testing.session import EPOCHS, LOOPS, STEPS, SessionContract


class PlainContract(SessionContract):
    """A line through noisy points, by gradient descent."""

    made: type[PlainSession] = PlainSession

    def connect(self, environment: TaskEnvironment) -> TaskSession:
        return self.made.connect(environment)

    def train(self, session: TaskSession, at_step: Callable[[], None]) -> list[float]:
        assert isinstance(session, PlainSession)
        random.seed(3)
        weights = session.prepare([0.0, 0.0])
        points = [(x / STEPS, 2.0 * x / STEPS - 0.5) for x in range(STEPS)]
        for _ in range(LOOPS):
            for _ in session.epochs(EPOCHS):
                for x, y in session.batches(random.sample(points, STEPS)):
                    error = weights[0] * x + weights[1] - y + random.gauss(0.0, 0.01)
                    weights[0] -= 0.2 * error * x
                    weights[1] -= 0.2 * error
                    at_step()
                    session.report(error * error)
        return weights

    def threads(self, session: TaskSession) -> int:
        assert isinstance(session, PlainSession)
        return session.threads


class TestInPlainPython(PlainContract):
    pass


# --- sessions with one defect each


class SaysHelloTwice(PlainSession):
    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        super().__init__(environment, channel)
        channel.send({"type": "hello", "framework": "plain"})


class DrawsAtRandom(PlainSession):
    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        super().__init__(environment, channel)
        self.connected = channel.connected

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        super().begin_epoch(epoch, epochs, start)
        if self.connected:
            random.random()


class CountsNoSteps(PlainSession):
    def report(self, loss: float) -> None:
        super().report(loss)
        self._progress.step = 0


class CountsFromTheResume(PlainSession):
    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        super().__init__(environment, channel)
        self.steps = self._progress.step = 0


class TellsNoEpoch(PlainSession):
    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        super().begin_epoch(epoch, epochs, start)
        self._progress.epoch = self._progress.epochs = None


class KeepsLastReports(PlainSession):
    def flush(self, wait: bool = False) -> None:
        pass


class NeverLooks(PlainSession):
    def boundary(self) -> bool:
        return False


class StopsAStepLater(PlainSession):
    late = False

    def boundary(self) -> bool:
        found, self.late = self.late, super().boundary()
        return found and self.late


class StopsWithoutSaving(PlainSession):
    def obey(self, at: Any = None) -> None:
        if self._channel.stopping:
            self.end()
        super().obey(at)


class FailsWhereItIsToStop(PlainSession):
    def end(self) -> None:
        try:
            super().end()
        except Stop:
            raise RuntimeError("stopped") from None


class SavesTwice(PlainSession):
    def save(self, why: str, at: Any = None, after: int | None = None) -> bool:
        return super().save(why, at, after) and super().save(why, at, after)


class StopsWhereACheckpointIsAskedFor(PlainSession):
    def obey(self, at: Any = None) -> None:
        super().obey(at)
        self.end()


class LosesItsPosition(PlainSession):
    def position(self, why: str, at: int | None, after: int | None) -> dict[str, Any]:
        return super().position(why, at and 0, after)


class KnowsNoPosition(PlainSession):
    def position(self, why: str, at: int | None, after: int | None) -> dict[str, Any]:
        return super().position(why, None, after)


class DrawsAnew(PlainSession):
    def rejoin(self) -> None:
        pass


class ForgetsItsLoop(PlainSession):
    def begin(self) -> StartPoint | None:
        start = super().begin()
        return start or StartPoint()


class ForgetsItsWeights(PlainSession):
    def prepare(self, weights: list[float]) -> list[float]:
        self._weights = weights
        return weights


class SavesNoEpochs(PlainSession):
    def state_bytes(self) -> None:  # type: ignore[override]
        return None


class StaysBehind(PlainSession):
    def boundary(self) -> bool:
        return super().boundary() and self._channel.stopping != "orphaned"


class FailsWhereItCannotSave(PlainSession):
    def save(self, why: str, at: Any = None, after: int | None = None) -> bool:
        if not super().save(why, at, after):
            raise RuntimeError("no checkpoint")
        return True


class WritesInPlace(PlainSession):
    """A file of which nobody can say whether it is whole."""

    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        path, size = super().write(folder, place)
        (path / "files.json").unlink()
        return path, size

    def read(self, path: str) -> tuple[Any, Mapping[str, Any]]:
        try:
            return super().read(path)
        except RuntimeError:
            return None, {"step": 0, "samples": 0, "phase": None, "epoch": None, "position": None}


class IgnoresThreads(PlainSession):
    def set_threads(self, threads: int) -> None:
        pass


class PassesTheGate(PlainSession):
    def report(self, loss: float) -> None:
        gate, self._channel.gate = self._channel.gate, None
        super().report(loss)
        self._channel.gate = gate


class TellsNoSpans(PlainSession):
    def measured(self, step: Step) -> None:  # type: ignore[override]
        self.send_profile()


class TellsPartOfAStep(PlainSession):
    def measured(self, step: Step) -> None:  # type: ignore[override]
        super().measured(
            Step(step.number, step.samples, {**step.spans, "unknown": 1.0}, step.begins)
        )


class TellsWhatItCostsAgain(PlainSession):
    def close(self) -> None:
        self.profiled = False
        super().close()


class CannotSayWhatItCosts(PlainSession):
    def profile(self) -> dict[str, Any]:
        raise ValueError("nothing was measured")


class MeasuresAsIfItRan(PlainSession):
    def profile(self) -> dict[str, Any]:
        return {**super().profile(), "source": "run"}


class SavesWhereItMeasures(PlainSession):
    def save(self, why: str, at: Any = None, after: int | None = None) -> bool:
        self.profiling = False
        return super().save(why, at, after)


class MeansOfNobody(PlainSession):
    def mean(self, value: Any) -> Any:
        return 0.0


class RepeatsItself(PlainSession):
    def note(self, text: str) -> None:
        self._channel.send({"type": "note", "text": text})


DEFECTS: list[type[PlainSession]] = [
    each for each in PlainSession.__subclasses__() if each.__module__ == SaysHelloTwice.__module__
]

BEHAVIOURS = sorted(name for name in dir(SessionContract) if name.startswith("test_"))


def failures(made: type[PlainSession], folder: Path) -> Iterator[str]:
    """The behaviours that such a session does not show."""
    for number, behaviour in enumerate(BEHAVIOURS):
        suite = PlainContract()
        suite.made = made
        (folder / str(number)).mkdir()  # a socket's path is short
        suite.set_up(folder / str(number))
        try:
            getattr(suite, behaviour)()
        except (AssertionError, LookupError, RuntimeError, TimeoutError, ValueError):
            yield behaviour


def test_the_sound_session_shows_every_behaviour(tmp_path: Path) -> None:
    assert list(failures(PlainSession, tmp_path)) == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_suite_catches(defect: type[PlainSession], tmp_path: Path) -> None:
    assert next(failures(defect, tmp_path), "")
