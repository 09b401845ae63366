"""What moves shares between running jobs."""

from __future__ import annotations

from headgate.policies.base import Arrived, Change, Decision, Left, Placed, Policy, Predicted, Reported, Used
from headgate.policies.equal import EqualPolicy
from headgate.policies.flowcon import FlowConPolicy
from headgate.policies.headgate import HeadgatePolicy
from headgate.policies.las import LasPolicy
from headgate.policies.naming import create
from headgate.policies.none import NoPolicy
from headgate.policies.slaq import SlaqPolicy
from headgate.policies.srpt import SrptPolicy
from headgate.policies.themis import ThemisPolicy

BUILT_IN: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        NoPolicy,
        EqualPolicy,
        FlowConPolicy,
        SlaqPolicy,
        SrptPolicy,
        LasPolicy,
        ThemisPolicy,
        HeadgatePolicy,
    )
}
DEFAULT = HeadgatePolicy.name


def make(name: str) -> Policy:
    """The policy of that name, one of Headgate's own or one that registered under `headgate.policies`.

    Args:
        name: A name, and after a colon its options: `flowcon:faithful,alpha=0.05,itval=20`.

    Raises:
        UsageError: No policy is so called, or it has no such option or value.
    """
    return create(name, BUILT_IN)


__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "Arrived",
    "Change",
    "Decision",
    "EqualPolicy",
    "FlowConPolicy",
    "HeadgatePolicy",
    "LasPolicy",
    "Left",
    "NoPolicy",
    "Placed",
    "Policy",
    "Predicted",
    "Reported",
    "SlaqPolicy",
    "SrptPolicy",
    "ThemisPolicy",
    "Used",
    "make",
]
