"""Frozen dataclasses as JSON and back, without loss, by the types of their fields.

A dataclass is an object of the fields that differ from their defaults. Numbers that are not finite
are strings. A value of a union of dataclasses says its `type`. Fields that this version does not
know are ignored, so that a later version's files can be read as far as they go.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from headgate.model.reasons import Reason

TYPE = "type"
"""The key that names the dataclass of an object."""
_PLAIN = (str, int, bool, types.NoneType)


class Form(NamedTuple):
    """How the values of a type are written and read.

    Args:
        dump: From a value to JSON; None: it is JSON as it is.
        load: The way back.
        holds: Whether a value is of the type.
        accepts: Whether JSON may be of the type.
    """

    dump: Callable[[Any], Any] | None
    load: Callable[[Any], Any] | None
    holds: Callable[[Any], bool]
    accepts: Callable[[Any], bool]


def dump(value: object) -> dict[str, Any]:
    """A dataclass as JSON that says its type."""
    kind: Any = type(value)
    return {TYPE: kind.__name__, **_applied(_dataclass_form(kind).dump, value)}


def load(json: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
    """The way back: a value of one of `kinds`, by their names.

    Raises:
        ValueError: It is none of these, or lacks something.
    """
    kind = kinds.get(json.get(TYPE, ""))
    if kind is None:
        raise ValueError(f"this version knows no {json.get(TYPE)!r}")
    try:
        return _applied(_dataclass_form(kind).load, json)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this {kind.__name__} cannot be read: {error}") from error


def _applied(change: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if change is None else change(value)


@cache
def form(hint: Any) -> Form:
    """How values of this type are written.

    Raises:
        TypeError: It is none that can be told from JSON.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _plain_form(tuple({type(value) for value in arguments}))
    if origin in (Union, types.UnionType):
        return _union_form(arguments)
    if origin in (tuple, Sequence, frozenset):
        return _sequence_form(origin, arguments)
    if origin in (Mapping, dict):
        return _mapping_form(*arguments)
    if not isinstance(hint, type):
        raise TypeError(f"found a field of type {hint!r}; expected one that JSON can tell")
    if hint is float:
        return Form(_dump_float, _load_float, _is_number, _may_be_number)
    if hint in _PLAIN:
        return _plain_form((hint,))
    if issubclass(hint, Enum):
        values = frozenset(member.value for member in hint)
        return Form(
            lambda member: member.value,
            hint,
            lambda value: isinstance(value, hint),
            lambda json: isinstance(json, str | int) and json in values,
        )
    if issubclass(hint, str):
        return Form(
            None,
            hint,
            lambda value: isinstance(value, str),
            lambda json: isinstance(json, str),
        )
    if is_dataclass(hint):
        return _dataclass_form(hint)
    raise TypeError(f"found a field of type {hint!r}; expected one that JSON can tell")


def _plain_form(kinds: tuple[type, ...]) -> Form:
    def fits(value: object) -> bool:
        return isinstance(value, kinds)

    return Form(None, None, fits, fits)


def _is_number(value: object) -> bool:
    return isinstance(value, float | int)


def _may_be_number(json: object) -> bool:
    return isinstance(json, float | int) or json in ("nan", "inf", "-inf")


def _dump_float(value: float) -> float | str:
    return value if math.isfinite(value) else repr(float(value))


def _load_float(json: float | str) -> float:
    return float(json) if isinstance(json, str) else json


def _sequence_form(origin: Any, arguments: tuple[Any, ...]) -> Form:
    make = frozenset if origin is frozenset else tuple
    kinds = (frozenset,) if origin is frozenset else (tuple, list)
    if origin is tuple and arguments[-1:] != (...,):
        items = [form(argument) for argument in arguments]
        write = [item.dump for item in items]
        read = [item.load for item in items]

        def dumps(values: Any) -> list[Any]:
            return list(map(_applied, write, values))

        def loads(json: list[Any]) -> Any:
            return tuple(map(_applied, read, json))

    else:
        item = form(arguments[0])
        order: Callable[[Any], Any] = sorted if origin is frozenset else list

        def dumps(values: Any) -> list[Any]:
            return [_applied(item.dump, value) for value in order(values)]

        def loads(json: list[Any]) -> Any:
            return make(_applied(item.load, value) for value in json)

    return Form(
        dumps,
        loads,
        lambda value: isinstance(value, kinds),
        lambda json: isinstance(json, list),
    )


def _mapping_form(key: type, value: Any) -> Form:
    item = form(value)

    def write(mapping: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(name): _applied(item.dump, entry) for name, entry in mapping.items()}

    def read(json: Mapping[str, Any]) -> dict[Any, Any]:
        return {key(name): _applied(item.load, entry) for name, entry in json.items()}

    return Form(
        write,
        read,
        lambda entry: isinstance(entry, Mapping),
        lambda json: isinstance(json, dict),
    )


def _union_form(hints: tuple[Any, ...]) -> Form:
    """Members are told apart by their kinds: names of an enumeration before other text, and
    dataclasses by the `type` that they say where there are several.
    """
    classes: dict[str, Any] = {
        hint.__name__: hint for hint in hints if isinstance(hint, type) and is_dataclass(hint)
    }
    members = [form(hint) for hint in hints if hint not in classes.values()]
    if len(classes) > 1:
        members.append(
            Form(
                dump,
                lambda json: load(json, classes),
                lambda value: type(value) in classes.values(),
                lambda json: isinstance(json, dict),
            )
        )
    else:
        members += [_dataclass_form(kind) for kind in classes.values()]
    named = [member for member in members if member.dump is not None or member.load is not None]
    # what changes nothing comes last
    members = [*named, *(member for member in members if member not in named)]

    def write(value: Any) -> Any:
        for member in members:
            if member.holds(value):
                return _applied(member.dump, value)
        raise TypeError(f"found {value!r:.100}; expected one of {hints}")

    def read(json: Any) -> Any:
        for member in members:
            if member.accepts(json):
                return _applied(member.load, json)
        raise TypeError(f"found {json!r:.100}; expected one of {hints}")

    return Form(
        write if any(member.dump for member in members) else None,
        read if any(member.load for member in members) else None,
        lambda value: any(member.holds(value) for member in members),
        lambda json: any(member.accepts(json) for member in members),
    )


@cache
def _dataclass_form(kind: type) -> Form:
    if kind is Reason:  # whose facts are of any type
        return Form(
            Reason.plain,
            Reason.read,
            lambda value: isinstance(value, Reason),
            lambda json: isinstance(json, dict),
        )
    hints = get_type_hints(kind)
    known = [entry for entry in fields(kind) if entry.init]
    forms = {entry.name: form(hints[entry.name]) for entry in known}
    written = [(entry.name, _default(entry), forms[entry.name].dump) for entry in known]

    def write(value: object) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for name, default, change in written:
            given = getattr(value, name)
            if given is default or (type(given) is type(default) and given == default):
                continue
            entries[name] = given if change is None else change(given)
        return entries

    def read(json: Mapping[str, Any]) -> Any:
        return kind(
            **{
                name: _applied(forms[name].load, entry)
                for name, entry in json.items()
                if name in forms
            }
        )

    return Form(
        write,
        read,
        lambda value: isinstance(value, kind),
        lambda json: isinstance(json, dict),
    )


def _default(entry: Any) -> Any:
    if entry.default_factory is not MISSING:
        return entry.default_factory()
    return entry.default
