"""What moves shares between running jobs."""

from __future__ import annotations

from headgate import registry
from headgate.errors import UsageError
from headgate.policies.base import Arrived, Change, Decision, Left, Policy, Reported, Used
from headgate.policies.equal import EqualPolicy
from headgate.policies.none import NoPolicy

BUILT_IN: dict[str, type[Policy]] = {policy.name: policy for policy in (NoPolicy, EqualPolicy)}
DEFAULT = EqualPolicy.name


def make(name: str) -> Policy:
    """The policy of that name, one of Headgate's own or one that registered under `headgate.policies`.

    Raises:
        UsageError: No policy is so called.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    found = registry.load("headgate.policies").found
    factory = found.get(name)
    if callable(factory):
        made = factory()
        if isinstance(made, Policy):
            return made
    known = ", ".join(sorted([*BUILT_IN, *found]))
    raise UsageError(f"no policy {name!r}; expected one of {known}")


__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "Arrived",
    "Change",
    "Decision",
    "EqualPolicy",
    "Left",
    "NoPolicy",
    "Policy",
    "Reported",
    "Used",
    "make",
]
