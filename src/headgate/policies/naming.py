"""Policies by name, with options: `flowcon:faithful,alpha=0.05,itval=20`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from headgate import registry
from headgate.errors import UsageError
from headgate.policies.base import Policy


def create(text: str, built_in: Mapping[str, type[Policy]]) -> Policy:
    """Make the policy that a text names.

    Raises:
        UsageError: No policy is so called, or it has no such option, or not with such a value.
    """
    name, _, given = text.partition(":")

    def call(factory: Callable[..., Policy]) -> Policy:
        return factory(**_options(name, factory, given))

    own = built_in.get(name)
    made = registry.make("headgate.policies", Policy, name, built_in, call) if own is None else call(own)
    made.name = text  # another option is another policy
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
    for each in given.split(","):
        option, equals, value = (part.strip() for part in each.partition("="))
        if option not in takes:
            known = ", ".join(takes) if takes else "none"
            raise UsageError(f"policy {name!r} has no option {option!r}; its options: {known}")
        options[option] = _value(name, option, takes[option], value if equals else None)
    return options


def _value(name: str, option: str, default: bool | float, value: str | None) -> bool | float:
    """What is written after the equals sign, as what the option's default is."""
    if isinstance(default, bool):
        if value in (None, "true", "yes"):
            return True
        if value in ("false", "no"):
            return False
        raise UsageError(f"policy {name!r}: `{option}` is {value!r}; expected nothing, true or false")
    try:
        return type(default)(value if value is not None else "")
    except ValueError:
        expected = f"a number, such as {option}={default:g}"
        raise UsageError(f"policy {name!r}: `{option}` is {value or 'empty'}; expected {expected}") from None
