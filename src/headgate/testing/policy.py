"""What every policy must do: a suite to subclass.

class TestMine(PolicyContract):
    @pytest.fixture
    def make(self):
        return MyPolicy
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headgate.forecast.job_tracker import JobTracker
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.model.shares import Share, Unlimited
from headgate.policies.base import (
    Arrived,
    Change,
    Changed,
    Decision,
    Left,
    Placed,
    Policy,
    Predicted,
    Reported,
    Stalled,
    Used,
)

CORES = 4.0
JOBS = (JobId("run/a"), JobId("run/b"), JobId("run/c"))
STRANGER = JobId("run/never-heard-of")


def _predicted(
    job: JobId,
    one: float,
    other: float,
    third: float,
    asymptote: float | None,
    first: float,
    second: float,
) -> Predicted:
    low, work, high = sorted((one, other, third))
    return Predicted(job, work, low, high, asymptote, ((1.0, first), (100.0, first + second)))


_positive = st.floats(1e-3, 100.0)
_job = st.sampled_from((*JOBS, STRANGER))
_loss = st.one_of(st.floats(-10.0, 1e9), st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
_rate = st.just(0.0) | st.floats(0.0, 1e10)
_work = st.floats(0.0, 1e9)
_drop = st.floats(-1e3, 1e9)
_count = st.none() | st.integers(0, 1_000_000)
_cores = st.none() | st.floats(0.1, 64.0)
CHANGES: st.SearchStrategy[Change] = st.one_of(
    st.builds(Arrived, st.sampled_from(JOBS), _positive, _cores),
    st.builds(Changed, _job, _positive, _cores),
    st.builds(Left, _job),
    st.builds(
        Placed, _job, st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 64.0), max_size=3)
    ),
    st.builds(Reported, _job, _loss, _count, _count, _count, st.integers(1, 1000)),
    st.builds(Used, _job, st.floats(0.0, 64.0), st.floats(0.0, 1e12), _rate, _rate),
    st.builds(
        _predicted, _job, _work, _work, _work, st.none() | st.floats(-10.0, 1e9), _drop, _drop
    ),
)
CALLS = st.lists(st.tuples(st.floats(0.0, 100.0), st.lists(CHANGES, max_size=6)), max_size=12)
"""Calls of `decide`: seconds since the last call, and the changes."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `decide`."""

    now: float
    changes: tuple[Change, ...]


class TrackedPolicy:
    """A policy with trackers of its jobs, which are fed as a controller feeds them.

    Args:
        policy: The policy.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._trackers: dict[JobId, JobTracker] = {}

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        """What the policy answers; it is also to be woken when a job may have stalled."""
        if not self.policy.tracks:
            return self.policy.decide(now, cores, changes)
        tracked = [self._take(now, change) for change in changes]
        trackers = self._trackers.items()
        tracked += [Stalled(job) for job, tracker in trackers if tracker.judge_stall(now)]
        decision = self.policy.decide(now, cores, tracked)
        times = [decision.wake_at, *(tracker.stalls_at() for _, tracker in trackers)]
        wake_at = min((time for time in times if time is not None), default=None)
        return replace(decision, wake_at=wake_at)

    def _take(self, now: float, change: Change) -> Change:
        if isinstance(change, Arrived):
            tracker = self._trackers.setdefault(change.job, change.tracker or JobTracker(now))
            tracker.begin_attempt(now, resumes=False)
            return replace(change, tracker=tracker)
        known = self._trackers.get(change.job)
        match change:
            case Reported(_, loss, step, epoch, epochs, count, adversarial) if known is not None:
                progress = Progress(TaskId(), step, epoch, epochs=epochs, count=count)
                known.report(now, loss, progress, adversarial)
            case Used(_, cores, memory, disk, network, seconds, pace) if known is not None:
                known.use(now, cores, memory, disk, network, seconds, pace)
            case Left(done=True):
                self._trackers.pop(change.job, None)
        return change


class PolicyContract:
    """The rules of `Policy`, numbered, checked on histories that hypothesis generates.

    A subclass provides the fixture `make`.
    """

    histories = 100
    """Number of histories for each rule."""
    phases: Sequence[Phase] = tuple(Phase)
    """The phases of hypothesis. Without `Phase.shrink` a failing history is shown as it was
    found.
    """

    @pytest.fixture
    def make(self) -> Callable[[], Policy]:
        raise NotImplementedError(
            "provide a fixture `make` that returns what makes the policy to hold to its contract"
        )

    @pytest.fixture(autouse=True)
    def _make(self, make: Callable[[], Policy]) -> None:
        self.set_up(make)

    # --- how the tests are written

    def set_up(self, make: Callable[[], Policy]) -> None:
        self.make_policy = make

    def each_history(self, check: Callable[[list[Call]], None]) -> None:
        """Check many histories, the same ones on every machine. The shortest that fails is
        shown.
        """

        @settings(
            derandomize=True,
            database=None,
            deadline=None,
            max_examples=self.histories,
            phases=self.phases,
            report_multiple_bugs=False,
        )
        @given(CALLS)
        def hold(calls: list[tuple[float, list[Change]]]) -> None:
            check(_on_a_clock(calls))

        hold()

    def decisions(self, calls: Sequence[Call], policy: Policy | None = None) -> list[Decision]:
        """A new policy's answers to each call."""
        asked = TrackedPolicy(policy or self.make_policy())
        return [asked.decide(call.now, CORES, call.changes) for call in calls]

    # --- the rules

    def test_01_it_has_a_name(self) -> None:
        policy = self.make_policy()
        assert policy.name
        assert policy.name == policy.name.strip()

    def test_02_it_answers_to_any_order_of_changes(self) -> None:
        def check(calls: list[Call]) -> None:
            for decision in self.decisions(calls):
                assert isinstance(decision, Decision)
                for share, reason in decision.shares.values():
                    assert isinstance(share, Share)
                    assert reason, "a share without its reason"

        self.each_history(check)

    def test_03_jobs_it_never_heard_of_change_nothing(self) -> None:
        strange: tuple[Change, ...] = (
            Reported(STRANGER, 0.5, 1, 1, 3, 1),
            Used(STRANGER, 1.0, 1e9),
        )

        def check(calls: list[Call]) -> None:
            known = [
                Call(call.now, tuple(c for c in call.changes if c.job != STRANGER))
                for call in calls
            ]
            with_strangers = [Call(call.now, (*strange, *call.changes)) for call in calls]
            _same(self.decisions(with_strangers), self.decisions(known))

        self.each_history(check)

    def test_04_only_jobs_that_are_present_are_named(self) -> None:
        def check(calls: list[Call]) -> None:
            present: set[JobId] = set()
            for call, decision in zip(calls, self.decisions(calls), strict=True):
                present = _present(present, call.changes)
                assert decision.shares.keys() <= present, "a share for a job that is not there"

        self.each_history(check)

    def test_05_only_shares_that_change_are_named(self) -> None:
        def check(calls: list[Call]) -> None:
            granted: dict[JobId, Share] = {}
            for call, decision in zip(calls, self.decisions(calls), strict=True):
                for change in call.changes:
                    if isinstance(change, Arrived | Left):
                        granted.pop(change.job, None)
                for job, (share, _) in decision.shares.items():
                    before = granted.get(job)
                    assert before is None or before.merged(share) != before, (
                        f"{job} was granted what it has"
                    )
                    granted[job] = (before or Share()).merged(share)

        self.each_history(check)

    def test_06_every_job_is_left_more_than_nothing(self) -> None:
        def check(calls: list[Call]) -> None:
            for decision in self.decisions(calls):
                for share, _ in decision.shares.values():
                    assert share.cpu_weight is None or 1 <= share.cpu_weight <= 10_000
                    for limit in (
                        share.cpu_cap_cores,
                        share.memory_bytes,
                        share.disk_bytes_per_second,
                    ):
                        assert limit is None or isinstance(limit, Unlimited) or limit > 0

        self.each_history(check)

    def test_07_the_same_calls_bring_the_same_decisions(self) -> None:
        self.each_history(lambda calls: _same(self.decisions(calls), self.decisions(calls)))

    def test_08_policies_of_one_kind_do_not_share_what_they_know(self) -> None:
        def check(calls: list[Call]) -> None:
            alone = self.decisions(calls)
            first, second = map(TrackedPolicy, (self.make_policy(), self.make_policy()))
            other = [Call(call.now, tuple(reversed(call.changes))) for call in calls]
            together = []
            for call, different in zip(calls, other, strict=True):
                second.decide(different.now, CORES, different.changes)
                together.append(first.decide(call.now, CORES, call.changes))
            _same(alone, together)

        self.each_history(check)

    def test_09_it_is_asked_again_only_later(self) -> None:
        def check(calls: list[Call]) -> None:
            for call, decision in zip(calls, self.decisions(calls), strict=True):
                assert decision.wake_at is None or decision.wake_at > call.now, (
                    "it asks to be woken without end"
                )

        self.each_history(check)

    def test_10_what_it_was_handed_stays_as_it_was(self) -> None:
        changes: list[Change] = [Arrived(JOBS[0], 1.0), Left(STRANGER), Arrived(JOBS[1], 3.0)]
        before = list(changes)
        self.make_policy().decide(0.0, CORES, changes)
        assert changes == before

    def test_11_a_job_that_comes_again_is_granted_its_share_again(self) -> None:
        policy = self.make_policy()
        (first,) = self.decisions([Call(0.0, (Arrived(JOBS[0], 2.0),))], policy)
        (again,) = self.decisions([Call(1.0, (Left(JOBS[0]), Arrived(JOBS[0], 2.0)))], policy)
        assert again.shares.keys() == first.shares.keys(), (
            "its new tasks would start without a share"
        )


def _on_a_clock(calls: Sequence[tuple[float, Sequence[Change]]]) -> list[Call]:
    now, timed = 0.0, []
    for seconds, changes in calls:
        now += seconds
        timed.append(Call(now, tuple(changes)))
    return timed


def _present(before: set[JobId], changes: Sequence[Change]) -> set[JobId]:
    present = set(before)
    for change in changes:
        if isinstance(change, Arrived):
            present.add(change.job)
        elif isinstance(change, Left):
            present.discard(change.job)
    return present


def _same(one: Sequence[Decision], other: Sequence[Decision]) -> None:
    assert list(one) == list(other), "the same calls brought different decisions"
