"""Whatever a policy says, shares are shares, no job is below its floor, and few changes come a
minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controller.driver import B_0, Driver, job, running

from headgate.controller.safeguards import Safeguards, of_policy
from headgate.model.actions import Action, SetShare, StartTask, Warn
from headgate.model.endings import Exit
from headgate.model.events import Event, TaskExited, Usage, Wake
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import NOTHING, UNLIMITED, WEIGHT_DEFAULT, Share
from headgate.policies import Arrived, Change, Decision, Left, Placed, Policy, make
from headgate.policies.weights import FLOOR, MOST_CHANGES
from headgate.testing.policy import CALLS, CORES

Say = Callable[[float], Mapping[str, object]]


class Plugin(Policy):
    """A plug-in that says what it is given to say of those that run, whenever it is asked."""

    name = "plugin"

    def __init__(self) -> None:
        self.say: Say = lambda _: {}
        self.there: set[str] = set()

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        for change in changes:
            if isinstance(change, Arrived):
                self.there.add(change.job)
            elif isinstance(change, Left):
                self.there.discard(change.job)
        return Decision(dict(self.say(now)))  # type: ignore[arg-type]

    def weighs(self, **weights: float) -> None:
        """Say from now on what those that are there are to weigh."""
        said = {
            f"r/{name}": (Share(cpu_weight=weight), "as it likes")
            for name, weight in weights.items()
        }
        self.say = lambda _: {job: each for job, each in said.items() if job in self.there}


@dataclass(frozen=True)
class Loose(Share):
    """A share of a plug-in that looks at no value."""

    def __post_init__(self) -> None:
        pass


class Watched(Driver):
    """Keeps what every job has, and when its weight was changed."""

    def __init__(self, policy: Policy, cores: float = 4.0) -> None:
        self.shares: dict[str, Share] = {}
        self.changed: dict[str, list[float]] = {}
        self.warned: list[str] = []
        super().__init__(policy, cores)

    def step(self, now: float, event: Event) -> list[Action]:
        actions = super().step(now, event)
        for action in actions:
            if isinstance(action, Warn):
                self.warned.append(in_words(action.reason))
            elif isinstance(action, StartTask):
                self.shares[action.job] = action.share
                self.changed[action.job] = [now] if action.share != NOTHING else []
            elif isinstance(action, SetShare) and action.share != NOTHING:
                id = action.task.rsplit("/", 1)[0]
                self.shares[id] = self.shares[id].merged(action.share)
                self.changed[id].append(now)
        if isinstance(event, TaskExited):
            for kept in (self.shares, self.changed):
                kept.pop(event.task.rsplit("/", 1)[0], None)
        return actions

    def ask(self, now: float) -> None:
        """Have the policy asked, by what a task that runs used."""
        self.step(now, Usage(TaskId(f"{next(iter(self.shares))}/worker-0"), 1.0, 1e6))

    def weights(self) -> dict[str, float]:
        return {
            id: share.cpu_weight
            for id, share in self.shares.items()
            if share.cpu_weight is not None
        }

    def counted(self) -> dict[str, float]:
        """Weights, the usual one of those that were granted none; of none where that is so of
        all.
        """
        return dict.fromkeys(self.shares, WEIGHT_DEFAULT) | self.weights() if self.weights() else {}

    def lowest(self) -> float:
        """The least part of an equal share that a job has."""
        weights = self.counted()
        return min(weights.values()) * len(weights) / sum(weights.values()) if weights else 1.0

    def low(self) -> set[str]:
        """Those whose weight is below their floor."""
        weights = self.counted()
        least = 0.999 * FLOOR * sum(weights.values()) / max(len(weights), 1)
        return {id for id, weight in weights.items() if weight < least}

    def exhausted(self, now: float) -> set[str]:
        """Those that have been changed as often as they may within the last minute."""
        return {
            id
            for id, times in self.changed.items()
            if sum(at > now - 60 for at in times) >= MOST_CHANGES
        }

    def most_in_a_minute(self) -> int:
        return max(
            (
                sum(start <= at < start + 60 for at in times)
                for times in self.changed.values()
                for start in times
            ),
            default=0,
        )


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            Loose(cpu_weight=math.nan),
            "Share.cpu_weight is nan; expected a positive number, None or UNLIMITED",
        ),
        (
            Loose(cpu_weight=-3.0),
            "Share.cpu_weight is -3.0; expected a positive number, None or UNLIMITED",
        ),
        (
            Loose(cpu_weight=0.0),
            "Share.cpu_weight is 0.0; expected a positive number, None or UNLIMITED",
        ),
        (Loose(cpu_weight=1e6), "Share.cpu_weight is 1000000.0; expected 1 to 10,000"),
        (
            Share(cpu_cap_cores=math.inf),
            "Share.cpu_cap_cores is inf; expected a positive number, None or UNLIMITED",
        ),
        (0.5, "AttributeError(\"'float' object has no attribute 'cpu_weight'\")"),
    ],
)
def test_what_is_no_share_is_dropped_with_one_warning_and_the_rest_is_granted(
    wrong: object, told: str
) -> None:
    policy = Plugin()
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"), job("c"))
    policy.say = lambda _: {
        "r/a": (Share(cpu_weight=300.0), "good"),
        "r/b": (wrong, "bad"),
        "r/c": (Share(cpu_weight=200.0), "good"),
    }
    for now in (1.0, 2.0, 3.0):
        driver.ask(now)
    assert driver.weights() == {"r/a": 300.0, "r/c": 200.0}
    assert driver.warned == [f"policy 'plugin': its share for r/b is dropped: {told}"]


def test_a_share_for_a_job_that_is_gone_is_dropped_with_one_warning() -> None:
    policy = Plugin()
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"))
    policy.say = lambda now: {
        f"r/{name}": (Share(cpu_weight=100.0 + now), "on and on") for name in ("a", "b", "never")
    }
    driver.step(1.0, TaskExited(B_0, Exit(code=0)))
    driver.ask(2.0)
    assert driver.weights() == {"r/a": 102.0}
    assert driver.warned == ["policy 'plugin': its share for r/b is dropped: no such job is there"]


def test_a_policy_that_asks_to_be_woken_at_no_time_is_not() -> None:
    class Asks(Plugin):
        def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
            return Decision(wake_at=math.nan)

    driver = Watched(Asks())
    running(driver, 0.0, job("a"))
    assert driver.wake_at is None


def test_nobody_is_left_less_than_a_twentieth_of_an_equal_share() -> None:
    policy = Plugin()
    policy.weighs(a=1.0, b=10_000.0)
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"))
    assert driver.weights()["r/b"] == 10_000.0
    assert driver.lowest() >= FLOOR
    # A cap is no way round it: a twentieth of 2 cores.
    policy.say = lambda _: {"r/a": (Share(cpu_cap_cores=0.001), "starved")}
    driver.ask(1.0)
    cap = driver.shares["r/a"].cpu_cap_cores
    assert isinstance(cap, float)
    assert cap >= FLOOR * 2.0
    # Nor is a part of a GPU's time, of which an equal share is a half.
    policy.say = lambda _: {
        "r/a": (Share(gpu_fraction=0.001), "starved"),
        "r/b": (Share(gpu_fraction=0.9), "most of it"),
    }
    driver.ask(2.0)
    parts = {name: driver.shares[f"r/{name}"].gpu_fraction for name in "ab"}
    assert parts == {"a": 4 * FLOOR * 0.5, "b": 0.9}


def test_nor_is_who_was_granted_no_weight() -> None:
    policy = Plugin()
    policy.weighs(a=10_000.0)
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"))
    assert driver.weights() == {
        "r/a": 10_000.0,
        "r/b": pytest.approx(4 * FLOOR / 2 / (1 - 4 * FLOOR / 2) * 10_000.0),
    }


def test_who_is_outweighed_by_newcomers_is_lifted() -> None:
    policy = Plugin()
    policy.weighs(a=1.0, b=10.0, c=10_000.0)
    driver = Watched(policy)
    running(driver, 0.0, job("a"))
    assert driver.weights() == {"r/a": 1.0}
    running(driver, 1.0, job("b"))
    running(driver, 2.0, job("c"))
    assert driver.weights()["r/c"] == 10_000.0
    assert driver.lowest() >= FLOOR


def test_who_the_end_of_another_leaves_below_its_floor_is_lifted_as_soon_as_it_may_be() -> None:
    policy = Plugin()
    policy.most_changes = 1
    policy.weighs(a=1.0, b=1.0, c=50.0)
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"), job("c"))
    driver.step(10.0, TaskExited(B_0, Exit(code=0)))
    assert driver.low() == {"r/a"}
    assert driver.wake_at == 60.0
    driver.step(60.0, Wake())
    assert driver.low() == set()


def test_so_is_a_cap() -> None:
    policy = Plugin()
    policy.most_changes = 1
    policy.say = lambda _: {"r/a": (Share(cpu_cap_cores=0.08), "little")}
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"), job("c"))
    driver.ask(0.0)  # now that there are three
    driver.step(10.0, TaskExited(TaskId("r/c/worker-0"), Exit(code=0)))
    assert driver.shares["r/a"].cpu_cap_cores == 0.08  # a twentieth of 2 cores is 0.1
    assert driver.wake_at == 60.0
    policy.say = lambda _: {}
    driver.step(60.0, Wake())
    assert driver.shares["r/a"].cpu_cap_cores == 0.4


@pytest.mark.parametrize(
    ("floor", "most"), [(50.0, -3.0), (math.nan, math.nan), (-1.0, 0.0), (1.0, 2.5)]
)
def test_bounds_that_make_no_sense_end_no_job(floor: float, most: float) -> None:
    policy = Plugin()
    policy.floor, policy.most_changes = floor, most
    policy.weighs(a=1.0, b=300.0)
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"))
    assert driver.weights()["r/a"] == (300.0 if floor >= 1.0 else 1.0)


def test_a_floor_holds_on_each_node_that_a_job_is_on() -> None:
    policy = Plugin()
    safeguards = Safeguards(policy)
    at = {"alone": ("x",), "a": ("y",), "b": ("y", "z"), "c": ("z",)}
    weights = {"alone": 10_000.0, "a": 1.0, "b": 100.0, "c": 9_000.0}
    happened = [
        change
        for id, nodes in at.items()
        for change in (Arrived(JobId(id), 1.0), Placed(JobId(id), dict.fromkeys(nodes, 2.0)))
    ]
    granted, _ = safeguards.hold(
        0.0,
        6.0,
        happened,
        {JobId(id): (Share(cpu_weight=w), "it likes") for id, w in weights.items()},
    )
    has = {id: share.cpu_weight or 0.0 for id, (share, _) in granted.items()}
    assert (has[JobId("alone")], has[JobId("c")]) == (10_000.0, 9_000.0)
    for one, other in (("a", "b"), ("b", "c")):
        assert has[JobId(one)] / (has[JobId(one)] + has[JobId(other)]) >= FLOOR / 2
    assert has[JobId("b")] < 2_000.0  # what somebody has on another node lifts nobody


def test_a_floor_of_cores_holds_between_jobs_with_and_without_gpus_of_one_node() -> None:
    safeguards = Safeguards(Plugin())
    on_gpus = {
        f"g{gpu}": Placed(JobId(f"g{gpu}"), {f"n/gpu{gpu}": 64.0}, on_gpus=True) for gpu in range(8)
    }
    on_cores = {f"c{i}": Placed(JobId(f"c{i}"), {"n": 64.0}) for i in range(20)}
    happened: list[Change] = [Arrived(JobId(id), 1.0) for id in (*on_gpus, *on_cores)]
    weights = dict.fromkeys(on_gpus, 6_400.0) | dict.fromkeys(on_cores, 1.0)
    said = {JobId(id): (Share(cpu_weight=weight), "as it likes") for id, weight in weights.items()}
    granted, _ = safeguards.hold(
        0.0, 64.0, [*happened, *on_gpus.values(), *on_cores.values()], said
    )
    has = {id: share.cpu_weight or 0.0 for id, (share, _) in granted.items()}
    assert min(has.values()) / sum(has.values()) >= FLOOR / 28 * (1.0 - 1e-6)


def test_a_cap_is_lifted_to_a_part_of_the_node_however_many_gpus_a_job_has_there() -> None:
    safeguards = Safeguards(Plugin())
    placed = Placed(JobId("a"), {f"n/gpu{gpu}": 8.0 for gpu in range(8)}, on_gpus=True)
    said = {JobId("a"): (Share(cpu_cap_cores=2.0), Reason(ReasonKind.NO_POLICY))}
    granted, _ = safeguards.hold(0.0, 8.0, [Arrived(JobId("a"), 1.0), placed], said)
    assert granted == said  # a twentieth of 8 cores is 0.4


@pytest.mark.parametrize("most", [1_000.0, 10_000.0, 333.3])
def test_a_floor_of_a_whole_equal_share_makes_all_alike(most: float) -> None:
    policy = Plugin()
    policy.floor = 1.0
    safeguards = Safeguards(policy)
    weights = dict.fromkeys(map(str, range(9)), 1.0) | {"9": most}
    said = {JobId(id): (Share(cpu_weight=weight), "as it likes") for id, weight in weights.items()}
    granted, _ = safeguards.hold(0.0, 4.0, [Arrived(JobId(id), 1.0) for id in weights], said)
    assert {id: share.cpu_weight for id, (share, _) in granted.items()} == dict.fromkeys(
        weights, most
    )


@pytest.mark.parametrize(
    "name",
    ["headgate", "srpt", "las", "themis", "slaq", "flowcon:disk=1e8,itval=5", "flowcon:faithful"],
)
def test_what_headgates_own_policies_say_is_granted_as_they_say_it(name: str) -> None:
    @settings(deadline=None, derandomize=True, database=None, max_examples=15)
    @given(CALLS)
    def hold(calls: list[tuple[float, list[Change]]]) -> None:
        policy, now = make(name), 0.0
        safeguards = Safeguards(policy)
        for seconds, changes in calls:
            now += seconds
            said = policy.decide(now, CORES, changes).shares
            granted = {job: (share, of_policy(why)) for job, (share, why) in said.items()}
            assert safeguards.hold(now, CORES, changes, said) == (granted, {})

    hold()


@pytest.mark.parametrize(
    ("name", "least"), [("srpt:floor=0.01", 0.01), ("srpt", FLOOR), ("equal", 0.0)]
)
def test_how_low_a_job_may_be_is_its_users_word(name: str, least: float) -> None:
    assert make(name).floor == least


def test_priorities_are_the_users_word() -> None:
    driver = Watched(make("equal"))
    running(driver, 0.0, job("a", priority=0.01), job("b", priority=100.0))
    assert driver.weights() == {"r/a": 1.0, "r/b": 10_000.0}


def test_six_changes_a_minute_are_granted_and_the_last_word_when_it_may_be() -> None:
    policy = Plugin()
    driver = Watched(policy)
    running(driver, 0.0, job("a"), job("b"))
    for index in range(100):
        policy.weighs(a=100.0 + index, b=200.0)
        driver.ask(0.6 * index)
    assert driver.most_in_a_minute() <= MOST_CHANGES
    assert driver.weights()["r/a"] < 199.0
    policy.say = lambda _: {}
    while driver.wake_at is not None:
        driver.step(driver.wake_at, Wake())
    assert driver.weights() == {"r/a": 199.0, "r/b": 200.0}
    assert driver.most_in_a_minute() <= MOST_CHANGES


def test_the_published_flowcon_is_held_to_neither() -> None:
    policy = make("flowcon:faithful,itval=1")
    assert (policy.floor, policy.most_changes) == (0.0, math.inf)


def test_a_lifted_cap_is_lifted_once_however_often_it_is_said() -> None:
    policy = Plugin()
    driver = Watched(policy)
    running(driver, 0.0, job("a"))
    policy.say = lambda _: {"r/a": (Share(cpu_cap_cores=UNLIMITED), "all of it")}
    for now in range(1, 20):
        driver.ask(float(now))
    assert driver.changed["r/a"] == [1.0]


_WEIGHTS = st.dictionaries(
    st.sampled_from("abcde"),
    st.sampled_from((1.0, 5.0, 100.0, 3e3, 1e4)) | st.floats(1.0, 1e4),
    max_size=5,
)


_HISTORY = st.lists(
    st.tuples(st.sampled_from((0.5, 3.0, 20.0)), _WEIGHTS, st.sampled_from("abcde") | st.none()),
    max_size=40,
)


@settings(deadline=None, derandomize=True, database=None, max_examples=100)
@given(_HISTORY, st.booleans())
def test_both_hold_at_every_moment_of_any_history(
    said: list[tuple[float, dict[str, float], str | None]], leave: bool
) -> None:
    policy = Plugin()
    driver = Watched(policy)

    def check(now: float) -> None:
        assert driver.low() <= (driver.exhausted(now) if leave else set())
        assert driver.most_in_a_minute() <= MOST_CHANGES

    running(driver, 0.0, job("a"), job("b"))
    now, coming = 0.0, list("cde")
    for wait, weights, leaves in said:
        now += wait
        while driver.wake_at is not None and driver.wake_at < now:
            at = driver.wake_at
            driver.step(at, Wake())
            check(at)
        policy.weighs(**weights)
        if leave and f"r/{leaves}" in driver.shares and len(driver.shares) > 1:
            driver.step(now, TaskExited(TaskId(f"r/{leaves}/worker-0"), Exit(code=0)))
            check(now)
        if coming and wait == 20.0:
            running(driver, now, job(coming.pop()))
        driver.ask(now)
        check(now)
