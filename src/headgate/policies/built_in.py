"""Built-in policies, and any policy by name with options:
`flowcon:faithful,alpha=0.05,itval=20`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from headgate.model import defaults, registry
from headgate.model.errors import UsageError
from headgate.policies.base import Policy
from headgate.policies.equal import EqualPolicy
from headgate.policies.flowcon import FlowConPolicy
from headgate.policies.headgate import HeadgatePolicy
from headgate.policies.las import LasPolicy
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
DEFAULT = defaults.POLICY


def make(name: str) -> Policy:
    """Make a built-in policy, or one registered under `headgate.policies`.

    Args:
        name: A name, optionally with a colon and options: `flowcon:faithful,alpha=0.05,itval=20`.

    Raises:
        UsageError: The policy, option or value does not exist.
    """
    plain, _, given = name.partition(":")

    def call(factory: Callable[..., Policy]) -> Policy:
        return factory(**_options(plain, factory, given))

    own = BUILT_IN.get(plain)
    made = (
        registry.make("headgate.policies", Policy, plain, BUILT_IN, call)
        if own is None
        else call(own)
    )
    made.name = name  # other options make another policy
    return made


def _options(name: str, factory: Callable[..., object], given: str) -> dict[str, bool | float]:
    if not given.strip():
        return {}
    takes = {
        option: parameter.default
        for option, parameter in inspect.signature(factory).parameters.items()
        if isinstance(parameter.default, bool | int | float)
    }
    options: dict[str, bool | float] = {}
    for option_text in given.split(","):
        option, equals, value = (part.strip() for part in option_text.partition("="))
        if option not in takes:
            known = ", ".join(takes) if takes else "none"
            raise UsageError(f"policy {name!r} has no option {option!r}; its options: {known}")
        options[option] = _value(name, option, takes[option], value if equals else None)
    return options


def _value(name: str, option: str, default: bool | float, value: str | None) -> bool | float:
    """Parse the value of an option by the type of its default."""
    if isinstance(default, bool):
        if value in (None, "true", "yes"):
            return True
        if value in ("false", "no"):
            return False
        raise UsageError(
            f"policy {name!r}: `{option}` is {value!r}; expected nothing, true or false"
        )
    try:
        return type(default)(value if value is not None else "")
    except ValueError:
        expected = f"a number, such as {option}={default:g}"
        raise UsageError(
            f"policy {name!r}: `{option}` is {value or 'empty'}; expected {expected}"
        ) from None
