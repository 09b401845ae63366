"""Command-line options for fields of jobs, made from the declarations of these fields."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from headgate.cli.options import Finite, Whole
from headgate.model import units
from headgate.model.declarations import CommandOption, DeclaredField, Kind, declared_fields
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.mounts import Mount

_F = TypeVar("_F", bound=Callable[..., Any])
_STATED = "headgate.stated"
_READERS: Mapping[Kind | None, Callable[[object], Any]] = {
    Kind.SECONDS: units.seconds,
    Kind.MEMORY: units.memory,
    Kind.COUNT: units.count,
    Kind.AT_ONCE: units.at_once,
}
LAUNCHED = ("launch", "batch", "parameters")
"""Fields about scripts of other launchers."""
LAID_OUT = ("moves", "encrypt", "verify")
"""Fields of jobs that stand beside their plans."""


class _Written(click.ParamType[Any]):
    """A value with a unit, as in files."""

    name = "text"

    def __init__(self, read: Callable[[object], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._read(value)
        except ValueError as error:
            name = param.opts[0] if param is not None else ""
            raise UsageError(f"found {name} {value!r}; {error}") from None


def of_jobs(*places: str, **helps: str) -> Callable[[_F], _F]:
    """Give a command the options for these fields of jobs. `stated` returns their values.

    Args:
        places: Fields, for example `retries` and `limits.cores`; none: all that have an option.
        helps: Help texts that replace the declared ones, by the field's key.
    """
    known = {place: (field, option) for place, field, option in _declared(Job)}

    def add(command: _F) -> _F:
        for place in reversed(places or tuple(known)):
            field, option = known[place]
            command = _option(place, field, option, helps.get(field.key))(command)
        return command

    return add


def stated(ctx: click.Context) -> dict[str, Any]:
    """The fields of jobs that the command line states, by field."""
    return dict(ctx.meta.get(_STATED, {}))


def goes_with_plans(stated: Mapping[str, Any]) -> bool:
    """Whether a stated field stands beside a job's plan in its file."""
    return "moves" in stated or "encrypt" in stated


def _declared(record: type, above: str = "") -> Iterator[tuple[str, DeclaredField, CommandOption]]:
    for field in declared_fields(record):
        if (option := field.declaration.option) is not None:
            yield f"{above}{field.name}", field, option
        if is_dataclass(field.default):
            yield from _declared(type(field.default), f"{above}{field.name}.")


def _option(
    place: str, field: DeclaredField, option: CommandOption, help: str | None
) -> Callable[[_F], _F]:
    lifts = field.default is True
    name = (option.name or field.key).replace("_", "-")

    def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value not in (None, False, ()):
            ctx.meta.setdefault(_STATED, {})[place] = False if lifts else value

    return click.option(
        f"--no-{name}" if lifts else f"--{name}",
        help=help or option.help,
        metavar=option.metavar,
        expose_value=False,
        callback=keep,
        **_typed(field),
    )


def _typed(field: DeclaredField) -> dict[str, Any]:
    """Arguments for click about the values of an option."""
    declaration, kind = field.declaration, field.members[0]
    least, above, most = declaration.least, declaration.above, declaration.most
    if declaration.kind in _READERS:
        return {"type": _Written(_READERS[declaration.kind])}
    if kind is bool:
        return {"is_flag": True}
    if get_origin(kind) is Literal:
        return {"type": click.Choice(get_args(kind))}
    if kind in (int, float):
        low = least if least is not None else above
        number: Any = Whole if kind is int else Finite
        return {"type": number(low, most, min_open=above is not None)}
    return {"multiple": True} if kind == tuple[str, ...] else {}


def limits(stated: Mapping[str, Any]) -> Limits:
    """The limits that a command line states.

    Raises:
        UsageError: They are invalid.
    """
    fields = _below("limits", stated)
    if fields.get("gpus") == 0 and ("exclusive" in fields or "gpu_memory_bytes" in fields):
        other = "--exclusive" if "exclusive" in fields else "--gpu-memory"
        raise UsageError(f"found --gpus 0 with {other}; leave one of them out")
    return Limits(**fields)


def _below(field: str, stated: Mapping[str, Any]) -> dict[str, Any]:
    start = f"{field}."
    return {
        place.removeprefix(start): value
        for place, value in stated.items()
        if place.startswith(start)
    }


def applied(jobs: Sequence[Job], stated: Mapping[str, Any]) -> list[Job]:
    """The jobs with the fields that a command line states, except limits.

    Raises:
        UsageError: A field is invalid.
    """
    fields = {place: value for place, value in stated.items() if "." not in place}
    mounts = tuple(str(Mount.of(path, os.getcwd())) for path in fields.pop("mounts", ()))
    try:
        return [replace(job, mounts=(*job.mounts, *mounts), **fields) for job in jobs]
    except ValueError as error:
        raise UsageError(str(error)) from None
