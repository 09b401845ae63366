"""Frozen dataclasses as JSON values, and back: what the store keeps of jobs, plans and profiles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
_Decoder = Callable[[Any], Any]
FORMER_NAME = "former_name"
"""Key, in the metadata of a dataclass's field, of the name that earlier versions wrote."""


def plain(value: object) -> Any:
    """A record as JSON values: tuples become lists, and sets sorted lists."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def parse(kind: type[Record], data: object) -> Record:
    """A record of a dataclass from its JSON values, also as other versions wrote them.

    Fields that the dataclass does not have are left out; those that the data lacks take their
    defaults.

    Raises:
        ValueError: A value is of another kind, makes no sense, or lacks and has no default.
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
    if origin in (Union, UnionType):
        return _of_union([_decoder(arg) for arg in args])
    if origin is Literal:
        return _of_literal(args)
    if origin is tuple and args[-1] is not Ellipsis:
        return _of_tuple([_decoder(arg) for arg in args])
    if origin is not None and issubclass(origin, Mapping):
        return _of_mapping(_decoder(args[1]))
    if origin is not None and issubclass(origin, Collection):
        return _of_collection(frozenset if origin is frozenset else tuple, _decoder(args[0]))
    return _of_scalar(kind)


def _of_record(kind: type[Any]) -> _Decoder:
    hints = get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
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
        stated = {  # most fields are as usual, and very many jobs may be read
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


def _of_mapping(decoder: _Decoder) -> _Decoder:
    def decode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"found {value!r:.80}; expected a mapping")
        return {str(key): decoder(inner) for key, inner in value.items()}

    return decode


def _of_scalar(kind: Any) -> _Decoder:
    allowed = (int, float) if kind is float else (kind,)

    def decode(value: Any) -> Any:
        if kind is Any:
            return value
        if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
            name = "null" if kind is NoneType else kind.__name__
            raise ValueError(f"found {value!r:.80}; expected {name}")
        return float(value) if kind is float else value

    return decode
