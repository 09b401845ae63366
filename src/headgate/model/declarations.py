"""Fields that a user may state, each declared once: type, default, bounds, help and option.

File keys, their JSON schema, the reference, command-line options and checks in Python follow from
the declaration. A field without one is internal to Headgate.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from enum import Enum, auto
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record", bound=type)
_KEY = "declaration"


class Kind(Enum):
    """How people write a value, if its type does not tell."""

    NAME = auto()
    PATH = auto()
    COMMAND = auto()
    FORERUNNERS = auto()
    SECONDS = auto()
    MEMORY = auto()
    COUNT = auto()
    RATE = auto()
    SHARE = auto()
    SIGNAL = auto()
    WORKERS = auto()
    STRATEGY = auto()
    BATCH = auto()
    EXPRESSION = auto()
    TRACKERS = auto()
    AT_ONCE = auto()
    PARAMETERS = auto()
    COMBINATIONS = auto()


@dataclass(frozen=True, slots=True)
class CommandOption:
    """The command-line option of a field.

    Args:
        help: Its help.
        metavar: Placeholder of its value in the help; None: by its type.
        name: Its name; empty: the field's key.
    """

    help: str
    metavar: str | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class FieldDeclaration:
    """The declaration of a field, besides its type and default.

    Args:
        help: Its meaning.
        key: Its key in files; empty: its name.
        kind: How people write it; None: by its type.
        least: The least value.
        above: Exclusive lower bound.
        most: Upper bound in files and on the command line; Python may exceed it.
        example: A value in Python notation, for messages.
        option: Its command-line option; None: it has none.
    """

    help: str
    key: str = ""
    kind: Kind | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    example: str = ""
    option: CommandOption | None = None


def declared(help: str, **more: Any) -> Mapping[str, FieldDeclaration]:
    """Metadata of a dataclass field that a user may state; arguments as of `FieldDeclaration`."""
    return {_KEY: FieldDeclaration(help, **more)}


@dataclass(frozen=True, slots=True)
class DeclaredField:
    """A field that a user may state.

    Args:
        name: Its name.
        hint: Its type.
        default: Its default; `dataclasses.MISSING`: it has none.
        declaration: The rest of its declaration.
    """

    name: str
    hint: Any
    default: Any
    declaration: FieldDeclaration

    @property
    def key(self) -> str:
        """Its key in files."""
        return self.declaration.key or self.name

    @property
    def members(self) -> tuple[Any, ...]:
        """Its possible types, without None."""
        return tuple(part for part in union(self.hint) if part is not type(None))

    @property
    def is_optional(self) -> bool:
        """Whether None means that no value is given."""
        return len(self.members) < len(union(self.hint))


def union(hint: Any) -> tuple[Any, ...]:
    """The members of a union; any other type alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


@cache
def declared_fields(record: type) -> tuple[DeclaredField, ...]:
    """The fields of a dataclass that a user may state, in their order."""
    hints = get_type_hints(record)
    return tuple(
        DeclaredField(field.name, hints[field.name], _default(field), field.metadata[_KEY])
        for field in dataclasses.fields(record)
        if _KEY in field.metadata
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def documented(record: _Record) -> _Record:
    """Add the help of its fields to a dataclass's docstring."""
    given = {
        f.name: f.metadata[_KEY].help for f in dataclasses.fields(record) if _KEY in f.metadata
    }
    lines = (f"        {name}: {text}" for name, text in given.items())
    record.__doc__ = "\n".join([(record.__doc__ or "").rstrip(), "", "    Args:", *lines])
    return record


Rule = tuple[str, Callable[[Any], bool], str]
"""A field, the condition on its value, and what is expected."""


@cache
def _kind_rules(record: type) -> tuple[Rule, ...]:
    return tuple(
        rule for field in declared_fields(record) if (rule := _kind_rule(field)) is not None
    )


@cache
def _bound_rules(record: type) -> tuple[Rule, ...]:
    return tuple(
        rule for field in declared_fields(record) if (rule := _bound_rule(field)) is not None
    )


def against_kinds(record: object) -> Iterator[tuple[str, object, str]]:
    """Fields of a simple type with a value of another type: name, value, what is expected."""
    return _against(record, _kind_rules(cast(Any, type(record))))


def against_bounds(record: object) -> Iterator[tuple[str, object, str]]:
    """Fields outside their bounds: name, value, what is expected."""
    return _against(record, _bound_rules(cast(Any, type(record))))


def _against(record: object, rules: tuple[Rule, ...]) -> Iterator[tuple[str, object, str]]:
    for name, fits, expected in rules:
        if not fits(value := getattr(record, name)):
            yield name, value, expected


def is_number(value: object) -> bool:
    """Whether a value is a number and not a boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def are_texts(values: object) -> bool:
    """Whether a value is a list of texts."""
    return isinstance(values, list | tuple) and all(isinstance(value, str) for value in values)


def _kind_rule(field: DeclaredField) -> Rule | None:
    """The type rule of a field; None: its record checks the field itself."""
    declaration = field.declaration
    simple = _simple(field.members, declaration.example)
    if simple is None or declaration.kind in (Kind.COMMAND, Kind.FORERUNNERS, Kind.SIGNAL):
        return None
    fits, expected = simple
    if not field.is_optional:
        return field.name, fits, expected
    joint = " or " if expected == "text" else ", or "
    expected = expected if expected.startswith("one of") else f"{expected}{joint}None"
    return field.name, lambda value: value is None or fits(value), expected


def _simple(members: tuple[Any, ...], example: str) -> tuple[Callable[[Any], bool], str] | None:
    [hint, *others] = members
    if others:
        return None
    such_as = f", such as {example}" if example else ""
    if get_origin(hint) is Literal:
        values = get_args(hint)
        return lambda value: value in values, f"one of {', '.join(values)}"
    if hint == tuple[str, ...]:
        return are_texts, f"a list of texts{such_as}"
    if hint == Mapping[str, str]:
        return _is_mapping_of_texts, f"a mapping from text to text{such_as}"
    return {
        str: (lambda value: isinstance(value, str), "text"),
        bool: (lambda value: isinstance(value, bool), "True or False"),
        int: (lambda value: isinstance(value, int) and is_number(value), "a whole number"),
        float: (is_number, "a number"),
    }.get(hint)


def _is_mapping_of_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def _bound_rule(field: DeclaredField) -> Rule | None:
    least, above = field.declaration.least, field.declaration.above
    if least is None and above is None:
        return None
    seconds = " seconds" if field.declaration.kind is Kind.SECONDS else ""
    expected = f"{least:g} or more{seconds}" if least is not None else ""
    if above == 0:
        expected = f"positive{seconds}" if seconds else "a positive number"
    elif above is not None:
        expected = f"more than {above:g}{seconds}"

    def fits(value: Any) -> bool:
        if value is None:
            return field.is_optional
        return bool(
            (above is None or value > above)
            and (least is None or least <= value)
            and value < math.inf
        )

    return field.name, fits, f"{expected}, or None" if field.is_optional else expected
