"""Convert frozen dataclasses to JSON values and back, as the store keeps jobs, plans and
profiles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
_Decoder = Callable[[Any], Any]
FORMER_NAME = "former_name"
"""Metadata key of a field's name in earlier versions."""
READ = "read"
"""Metadata key of a field's function that reads it from JSON."""
TYPE = "type"
"""Key of a dataclass's name in an object."""
_AS_THEY_ARE = {str, int, bool, NoneType}
_NO_NUMBERS = ("nan", "inf", "-inf")


def dump(record: object) -> dict[str, Any]:
    """A record as JSON that states its type, for `load`: all fields that are not None.

    No field is left out for having its default, because another version may have another default.
    """
    entries = {name: value for name, value in plain(record).items() if value is not None}
    return {TYPE: type(record).__name__, **entries}


def load(data: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
    """Make a record from JSON that states its type.

    Args:
        data: The JSON.
        kinds: The possible dataclasses, by name.

    Raises:
        ValueError: The type is unknown, or the record cannot be read.
    """
    kind = kinds.get(data.get(TYPE, ""))
    if kind is None:
        raise ValueError(f"this version knows no {data.get(TYPE)!r}")
    return parse(kind, {**dict.fromkeys(_optional(kind)), **data})


def text_of(record: object) -> str:
    """A record as JSON text for `read`; names that are not UTF-8 are escaped."""
    return json.dumps(plain(record))


def read(kind: type[Record], text: str | bytes | None) -> Record:
    """A record of a dataclass from its JSON text.

    Raises:
        ValueError: The text is missing or damaged.
    """
    if not isinstance(text, str | bytes | None):  # a database may hold anything
        raise ValueError(f"found {text!r:.80}; expected JSON text")
    return parse(kind, json.loads(text or ""))


def plain(value: Any) -> Any:
    """Convert a record to JSON values: tuples become lists, and sets sorted lists."""
    kind: Any = type(value)
    return _encoder(kind)(value)


@cache
def _encoder(kind: type[Any]) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        return lambda member: member.value
    if issubclass(kind, float):
        return lambda number: number if math.isfinite(number) else repr(number)
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return lambda record: {
            name: value if type(value := getattr(record, name)) in _AS_THEY_ARE else plain(value)
            for name in names
        }
    if issubclass(kind, Mapping):
        return lambda mapping: {str(key): plain(value) for key, value in mapping.items()}
    if issubclass(kind, frozenset | set):
        return sorted
    if issubclass(kind, list | tuple):
        return lambda values: list(map(plain, values))
    return lambda value: value


@cache
def _optional(kind: type[Any]) -> tuple[str, ...]:
    return tuple(name for name, hint in get_type_hints(kind).items() if NoneType in get_args(hint))


def parse(kind: type[Record], data: object) -> Record:
    """Make a record of a dataclass from its JSON values, also from other versions.

    Unknown fields are dropped; missing ones take their defaults.

    Raises:
        ValueError: A value has the wrong type, is invalid, or is missing and has no default.
    """
    try:
        return cast(Record, _decoder(cast(Any, kind))(data))
    except (OverflowError, TypeError) as error:
        raise ValueError(f"this is no {kind.__name__}: {error}") from error


@cache
def _decoder(kind: Any) -> _Decoder:
    origin, args = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _of_record(cast("type[Any]", kind))
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        named = _of_tuple([_decoder(hint) for hint in get_type_hints(kind).values()])
        return lambda value: kind(*named(value))
    if origin in (Union, UnionType):
        return _of_union([_decoder(arg) for arg in args])
    if origin is Literal:
        return _of_literal(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _of_tuple([_decoder(arg) for arg in args])
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(args[0], _decoder(args[1]))
    if origin is not None and issubclass(origin, Collection):
        return _of_collection(frozenset if origin is frozenset else tuple, _decoder(args[0]))
    return _of_scalar(kind)


def _of_record(kind: type[Any]) -> _Decoder:
    hints = get_type_hints(kind)
    decoders = {
        field.name: field.metadata.get(READ) or _decoder(hints[field.name])
        for field in fields(kind)
    }
    required = [
        field.name
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    former = {
        field.metadata[FORMER_NAME]: field.name
        for field in fields(kind)
        if FORMER_NAME in field.metadata
    }
    usual = {
        field.name: plain(field.default) for field in fields(kind) if field.default is not MISSING
    }

    def decode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"found {value!r:.80}; expected the fields of a {kind.__name__}")
        if lacking := [name for name in required if name not in value]:
            raise ValueError(f"found no `{lacking[0]}` among the fields of a {kind.__name__}")
        stated = {  # most fields have their defaults, and very many jobs may be read
            name: inner
            for written, inner in value.items()
            if (name := former.get(written, written)) in decoders
            and (name not in usual or usual[name] != inner)
        }
        return kind(**{name: decoders[name](inner) for name, inner in stated.items()})

    return decode


def _of_union(decoders: Sequence[_Decoder]) -> _Decoder:
    def decode(value: Any) -> Any:
        for decoder in decoders[:-1]:
            try:
                return decoder(value)
            except ValueError:
                continue
        return decoders[-1](value)

    return decode


def _of_literal(allowed: Collection[object]) -> _Decoder:
    def decode(value: Any) -> Any:
        if value not in allowed:
            raise ValueError(f"found {value!r:.80}; expected one of {', '.join(map(str, allowed))}")
        return value

    return decode


def _of_tuple(decoders: Sequence[_Decoder]) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(decoders):
            raise ValueError(f"found {value!r:.80}; expected {len(decoders)} values")
        return tuple(decoder(inner) for decoder, inner in zip(decoders, value, strict=True))

    return decode


def _of_collection(made: Callable[[Any], Any], decoder: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, list | tuple | frozenset):
            raise ValueError(f"found {value!r:.80}; expected a list")
        return made(map(decoder, value))

    return decode


def _of_mapping(key: _Decoder, decoder: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"found {value!r:.80}; expected a mapping")
        return {key(name): decoder(inner) for name, inner in value.items()}

    return decode


def _of_scalar(kind: Any) -> _Decoder:
    if kind is Any:
        return lambda value: value
    if issubclass(kind, Enum):
        return cast(_Decoder, kind)
    if kind is float:
        return _number
    if kind is int:
        return _whole
    is_text = issubclass(kind, str)
    allowed = str if is_text else kind

    def decode(value: Any) -> Any:
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            name = "null" if kind is NoneType else kind.__name__
            raise ValueError(f"found {value!r:.80}; expected {name}")
        return kind(value) if is_text else value

    return decode


def _number(value: Any) -> float:
    if isinstance(value, bool) or not (isinstance(value, int | float) or value in _NO_NUMBERS):
        raise ValueError(f"found {value!r:.80}; expected float")
    return float(value)


def _whole(value: Any) -> int:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole:
        raise ValueError(f"found {value!r:.80}; expected int")
    return int(value)
