"""To each job the same, times its priority."""

from __future__ import annotations

import pytest

from headgate import policies
from headgate.model.errors import UsageError
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies import (
    Arrived,
    Changed,
    Decision,
    EqualPolicy,
    HeadgatePolicy,
    Left,
    NoPolicy,
    Reported,
    Used,
)


def weights(decision: Decision) -> dict[str, float | None]:
    return {job: share.cpu_weight for job, (share, _) in decision.shares.items()}


def test_weights_are_in_proportion_to_priorities() -> None:
    decision = EqualPolicy().decide(
        0.0,
        2.0,
        [Arrived(JobId("r/a"), 1.0), Arrived(JobId("r/b"), 2.0), Arrived(JobId("r/c"), 0.5)],
    )
    assert weights(decision) == {"r/a": 100.0, "r/b": 200.0, "r/c": 50.0}
    assert decision.shares[JobId("r/b")][1] == Reason(ReasonKind.EQUAL_SHARE, {"priority": 2.0})


def test_a_changed_priority_changes_the_weight_of_a_job_that_is_there() -> None:
    policy, changed = EqualPolicy(), [Changed(JobId("r/a"), 3.0)]
    assert policy.decide(0.0, 2.0, changed) == Decision()
    policy.decide(1.0, 2.0, [Arrived(JobId("r/a"), 1.0)])
    assert weights(policy.decide(2.0, 2.0, changed)) == {"r/a": 300.0}


def test_a_weight_stays_within_what_the_kernel_takes() -> None:
    decision = EqualPolicy().decide(
        0.0, 2.0, [Arrived(JobId("r/small"), 0.001), Arrived(JobId("r/large"), 100.0)]
    )
    assert weights(decision) == {"r/small": 1.0, "r/large": 10_000.0}


def test_who_stays_keeps_its_share_when_others_come_and_go() -> None:
    policy = EqualPolicy()
    policy.decide(0.0, 2.0, [Arrived(JobId("r/a"), 1.0)])
    assert weights(policy.decide(1.0, 2.0, [Arrived(JobId("r/b"), 1.0)])) == {"r/b": 100.0}
    assert policy.decide(2.0, 2.0, [Left(JobId("r/b"))]) == Decision()
    assert (
        policy.decide(
            3.0, 2.0, [Reported(JobId("r/a"), 0.1, 1, 1, 2, 1), Used(JobId("r/a"), 1.0, 1e6)]
        )
        == Decision()
    )


def test_who_comes_and_goes_within_one_call_is_granted_nothing() -> None:
    assert (
        EqualPolicy().decide(0.0, 2.0, [Arrived(JobId("r/a"), 1.0), Left(JobId("r/a"))])
        == Decision()
    )


def test_none_grants_nothing() -> None:
    assert NoPolicy().decide(0.0, 2.0, [Arrived(JobId("r/a"), 3.0)]) == Decision()


def test_policies_are_made_by_name() -> None:
    assert isinstance(policies.make("none"), NoPolicy)
    assert isinstance(policies.make("equal"), EqualPolicy)
    assert isinstance(policies.make(policies.DEFAULT), HeadgatePolicy)
    with pytest.raises(
        UsageError,
        match=(
            r"no policy 'fair'; expected one of equal, flowcon, headgate, las, none, slaq, "
            r"srpt, themis"
        ),
    ):
        policies.make("fair")
