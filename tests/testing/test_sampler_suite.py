"""The suite of a sampler: the twin in memory passes it, and a twin that is broken in one way does
not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pytest

from headgate.sampling.base import Sampler, Target
from headgate.sampling.columns import Column
from headgate.testing.memory_sampler import InMemoryBox, InMemorySampler
from headgate.testing.sampler import SamplerContract


class TwinContract(SamplerContract):
    """What the suite asks of the machine, asked of the twin."""

    def start(self, name: str) -> Target:
        self.known = (*getattr(self, "known", ()), name)
        self.twin.hold(name, {"memory_bytes": 4096.0})
        self.work()
        return Target(name, InMemoryBox())

    def end(self, target: Target) -> None:
        assert isinstance(target.box, InMemoryBox)
        target.box.living = False

    def work(self) -> None:
        for name in (*getattr(self, "known", ()), "node"):
            self.twin.use(name, {"cpu_cores": 0.5, "disk_read": 1e6})

    @property
    def twin(self) -> InMemorySampler:
        assert isinstance(self.tested, InMemorySampler)
        return self.tested


class TestTheTwin(TwinContract):
    @pytest.fixture
    def sampler(self) -> Sampler:
        return InMemorySampler()


# --- twins with one defect each


class GivesTotals(InMemorySampler):
    def one(self, now: float, target: str) -> dict[Column, float]:
        known = target in self.last
        values = super().one(now, target)
        return (
            values | self.totals.get(target, {})
            if known and values.keys() & {"cpu_cores"}
            else values
        )


class TakesRatesFromNothing(InMemorySampler):
    def one(self, now: float, target: str) -> dict[Column, float]:
        self.last.setdefault(target, (now - 1.0, {}))
        return super().one(now, target)


class DividesByNothing(InMemorySampler):
    def one(self, now: float, target: str) -> dict[Column, float]:
        before, last = self.last.get(target, (now - 1, dict(self.totals.get(target, {}))))
        first = target not in self.last
        self.last[target] = now, dict(self.totals.get(target, {}))
        return (
            {}
            if first
            else {
                "cpu_cores": (self.totals[target]["cpu_cores"] - last["cpu_cores"]) / (now - before)
            }
        )


class NeverForgets(InMemorySampler):
    def forget(self, handed: set[str]) -> None:
        pass


class FailsWhenOneEnded(InMemorySampler):
    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        for target in targets:
            if target.box is not None and not target.box.pids():
                raise ProcessLookupError(target.id)
        return super().read(now, targets)


class StopsAtTheOneThatEnded(InMemorySampler):
    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        gone = [
            n
            for n, target in enumerate(targets)
            if target.box is not None and not target.box.pids()
        ]
        return super().read(now, targets[: gone[0]] if gone else targets)


class InventsColumns(InMemorySampler):
    def one(self, now: float, target: str) -> dict[Column, float]:
        return super().one(now, target) | {cast(Column, "watts"): 3.0}


class GoesNegative(InMemorySampler):
    def one(self, now: float, target: str) -> dict[Column, float]:
        return super().one(now, target) | {"cache_bytes": -1.0}


class GivesNaN(InMemorySampler):
    def one(self, now: float, target: str) -> dict[Column, float]:
        return super().one(now, target) | {"gpu_busy": float("nan")}


class AnswersForStrangers(InMemorySampler):
    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        return {**super().read(now, targets), "stranger": {"memory_bytes": 1.0}}


class LeavesFilesOpen(InMemorySampler):
    def __init__(self) -> None:
        super().__init__()
        self.files: list[int] = []

    def one(self, now: float, target: str) -> dict[Column, float]:
        self.files.append(os.open(os.devnull, os.O_RDONLY))
        return super().one(now, target)


class MixesUpTargets(InMemorySampler):
    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        readings = super().read(now, targets)
        return {target.id: readings[target.id] for target in targets[:1] if target.id in readings}


DEFECTS: list[type[InMemorySampler]] = [
    GivesTotals,
    TakesRatesFromNothing,
    DividesByNothing,
    NeverForgets,
    FailsWhenOneEnded,
    StopsAtTheOneThatEnded,
    InventsColumns,
    GoesNegative,
    GivesNaN,
    AnswersForStrangers,
    LeavesFilesOpen,
    MixesUpTargets,
]

BEHAVIOURS = sorted(name for name in dir(SamplerContract) if name.startswith("test_"))


def failures(make: type[InMemorySampler]) -> Iterator[str]:
    """The behaviours that such a twin does not show."""
    for behaviour in BEHAVIOURS:
        suite, sampler = TwinContract(), make()
        suite.set_up(sampler)
        try:
            getattr(suite, behaviour)()
        except (AssertionError, ArithmeticError, OSError):
            yield behaviour
        finally:
            if isinstance(sampler, LeavesFilesOpen):
                for file in sampler.files:
                    os.close(file)


def test_the_sound_twin_shows_every_behaviour() -> None:
    assert list(failures(InMemorySampler)) == []


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_suite_catches(defect: type[InMemorySampler]) -> None:
    assert list(failures(defect)) != []
