"""File entries made from a dataclass's declarations, and the dataclass made from an entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import Field, create_model

from headgate.config.fields import OF_KINDS, Text, Variable
from headgate.config.userfile import Entry, Number, Whole
from headgate.model.declarations import DeclaredField, declared_fields

_SIMPLE: Mapping[Any, Any] = {float: Number, int: Whole, str: Text}


class RecordEntry(Entry):
    """File keys that state the fields of a dataclass."""

    record_type: ClassVar[Any]

    def record(self, **resolved: Any) -> Any:
        """Make the dataclass from the stated keys.

        Args:
            resolved: Fields whose value differs from the written one.

        Raises:
            ValueError: Two values contradict each other.
        """
        stated = {
            field.name: _value(getattr(self, field.key))
            for field in declared_fields(self.record_type)
            if field.name not in resolved
        }
        return self.record_type(**stated, **resolved)


def _value(written: Any) -> Any:
    if isinstance(written, RecordEntry):
        return written.record()
    return tuple(map(_value, written)) if isinstance(written, list) else written


def entry_of(
    record: type, nested: Mapping[type, type[Entry]] | None = None, **defaults: Any
) -> Any:
    """The base class of an entry with a key for each declared field of a dataclass.

    Args:
        record: The dataclass.
        nested: Entry classes of the dataclasses among its fields.
        defaults: Defaults of fields that are required only in Python.
    """
    nested = nested or {}
    keys: dict[str, Any] = {}
    for field in declared_fields(record):
        default = defaults.get(field.name, field.default)
        written = _as_written(field, nested)
        keys[field.key] = (
            written | None if field.is_optional or default is None else written,
            Field(_default(default, nested), description=field.declaration.help),
        )
    base: Any = create_model(f"{record.__name__}Fields", __base__=RecordEntry, **keys)
    base.record_type = record
    return base


def _as_written(field: DeclaredField, nested: Mapping[type, type[Entry]]) -> Any:
    """The type of a field's value in a file."""
    declaration = field.declaration
    if declaration.kind is not None:
        written = OF_KINDS[declaration.kind]
    else:
        written = Union[tuple(_member(hint, nested) for hint in field.members)]  # noqa: UP007
    bounds = {"ge": declaration.least, "gt": declaration.above, "le": declaration.most}
    stated: dict[str, Any] = {name: bound for name, bound in bounds.items() if bound is not None}
    if not stated:
        return written
    # The bounds go next to the number itself, so that the JSON schema has them.
    number, *read = get_args(written)
    return Annotated[number, Field(**stated), *read]


def _member(hint: Any, nested: Mapping[type, type[Entry]]) -> Any:
    if hint in nested:
        return nested[hint]
    if get_origin(hint) in (tuple, frozenset):
        return list[_member(get_args(hint)[0], nested)]  # type: ignore[misc]  # made at run time
    if hint == Mapping[str, str]:
        return dict[Variable, Text]
    return _SIMPLE.get(hint, hint)


def _default(default: Any, nested: Mapping[type, type[Entry]]) -> Any:
    if default is MISSING:
        return ...
    if type(default) in nested:
        return nested[type(default)]()
    return [] if default in ((), frozenset()) else default
