"""The suite of a policy: one that keeps every rule passes it, and one that breaks one rule does
not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import Phase

from headgate.model.identifiers import JobId
from headgate.model.shares import Share
from headgate.policies.base import Arrived, Change, Decision, Left, Policy, Reported, Used
from headgate.testing.policy import PolicyContract


class Racing(Policy):
    """Doubles the weight of the job that reported the lowest loss, and looks again a second
    later.
    """

    name = "racing"

    def __init__(self) -> None:
        self.losses: dict[JobId, float] = {}
        self.granted: dict[JobId, float] = {}

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        for change in changes:
            match change:
                case Arrived(job):
                    self.losses[job] = float("inf")
                    self.granted.pop(job, None)
                case Left(job):
                    self.left(job)
                case Reported(job, loss):
                    self.reported(job, loss)
                case Used():
                    continue
        return self.answer(now, cores)

    def left(self, job: JobId) -> None:
        self.losses.pop(job, None)
        self.granted.pop(job, None)

    def reported(self, job: JobId, loss: float) -> None:
        if job in self.losses and loss == loss:
            self.losses[job] = loss

    def answer(self, now: float, cores: float) -> Decision:
        best = min(self.losses, key=lambda job: (self.losses[job], job), default=None)
        wanted = {job: 200.0 if job == best else 100.0 for job in self.losses}
        changed = {job: weight for job, weight in wanted.items() if self.granted.get(job) != weight}
        self.granted.update(changed)
        return Decision(
            {job: (Share(cpu_weight=weight), "its loss") for job, weight in changed.items()},
            now + 1,
        )


class TestARacingPolicy(PolicyContract):
    @pytest.fixture
    def make(self) -> Callable[[], Policy]:
        return Racing


# --- policies with one defect each


class HasNoName(Racing):
    name = ""


class TripsOverStrangers(Racing):
    def left(self, job: JobId) -> None:
        del self.losses[job]
        self.granted.pop(job, None)


class TripsOverNan(Racing):
    def reported(self, job: JobId, loss: float) -> None:
        if job in self.losses:
            self.losses[job] = round(loss)


class GivesNoReason(Racing):
    def answer(self, now: float, cores: float) -> Decision:
        decision = super().answer(now, cores)
        return Decision({job: (share, "") for job, (share, _) in decision.shares.items()})


class CountsStrangers(Racing):
    def reported(self, job: JobId, loss: float) -> None:
        if loss == loss:
            self.losses[job] = loss


class RemembersWhoLeft(Racing):
    def left(self, job: JobId) -> None:
        self.granted.pop(job, None)


class SaysEverythingAgain(Racing):
    def answer(self, now: float, cores: float) -> Decision:
        self.granted.clear()
        return super().answer(now, cores)


class StarvesTheLosers(Racing):
    def answer(self, now: float, cores: float) -> Decision:
        decision = super().answer(now, cores)
        slow = {
            job: share for job, (share, _) in decision.shares.items() if share.cpu_weight == 100.0
        }
        starved = Share()
        object.__setattr__(starved, "cpu_cap_cores", 0.0)
        return Decision({**decision.shares, **dict.fromkeys(slow, (starved, "it lost"))})


class ThrowsDice(Racing):
    def answer(self, now: float, cores: float) -> Decision:
        if not self.losses:
            return Decision()
        weight = 1.0 + random.random()
        return Decision(dict.fromkeys(self.losses, (Share(cpu_weight=weight), "luck")))


class SharesItsMemory(Racing):
    everybody: dict[JobId, float] = {}

    def __init__(self) -> None:
        super().__init__()
        self.granted = self.everybody


class WakesAtOnce(Racing):
    def answer(self, now: float, cores: float) -> Decision:
        return Decision(super().answer(now, cores).shares, now)


class EmptiesItsInput(Racing):
    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        decision = super().decide(now, cores, changes)
        if isinstance(changes, list):
            changes.clear()
        return decision


class RemembersTheirShares(Racing):
    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        before = dict(self.granted)
        decision = super().decide(now, cores, changes)
        same = {
            job
            for job, (share, _) in decision.shares.items()
            if before.get(job) == share.cpu_weight
        }
        return Decision({job: given for job, given in decision.shares.items() if job not in same})


DEFECTS: dict[str, tuple[type[Policy], str]] = {
    "no name": (HasNoName, "test_01"),
    "unknown jobs raise": (TripsOverStrangers, "test_02"),
    "NaN raises": (TripsOverNan, "test_02"),
    "no reason": (GivesNoReason, "test_02"),
    "unknown jobs count": (CountsStrangers, "test_03"),
    "jobs that left are granted shares": (RemembersWhoLeft, "test_04"),
    "unchanged shares are named": (SaysEverythingAgain, "test_05"),
    "a cap of nothing": (StarvesTheLosers, "test_06"),
    "decisions by chance": (ThrowsDice, "test_07"),
    "two policies share a memory": (SharesItsMemory, "test_08"),
    "woken at once": (WakesAtOnce, "test_09"),
    "the changes are emptied": (EmptiesItsInput, "test_10"),
    "a second coming is not granted": (RemembersTheirShares, "test_11"),
}

TESTS = sorted(name for name in vars(PolicyContract) if name.startswith("test_"))


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_suite_catches(defect: str) -> None:
    make, number = DEFECTS[defect]
    (test,) = (name for name in TESTS if name.startswith(number))
    suite = PolicyContract()
    suite.phases = (Phase.generate,)
    # it ends with the first that fails; which come first depends on the modules that are loaded
    suite.histories = 3000
    suite.set_up(make)
    with pytest.raises((AssertionError, KeyError, ValueError, OverflowError)):
        getattr(suite, test)()
