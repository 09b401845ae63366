"""`headgate reserve`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import click

from headgate.arbiter.records import Booking, JobDemand
from headgate.cli.machine_view import reservation
from headgate.cli.options import Whole
from headgate.client.machine import SharedMachine
from headgate.model import records, units
from headgate.model.errors import UsageError

_EXPECTED = "expected such as: headgate reserve 2 gpus for 3h from 18:00"
_GPUS = re.compile(r"\d{1,4}")
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


@click.command()
@click.argument("words", nargs=-1, metavar="[AMOUNTS for TIME [from TIME]]")
@click.option("--list", "lists", is_flag=True, help="List all reservations.")
@click.option("--cancel", metavar="ID", type=Whole(min=1), help="Give up a reservation.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(words: tuple[str, ...], lists: bool, cancel: int | None, as_json: bool) -> None:
    """Reserve GPUs and memory of a shared machine for your jobs.

    Whoever may reserve is in the administrator's rules. Meanwhile your jobs find that room empty;
    those of others go on if they have surely ended by then.

    `from` takes a time of day, or a date and a time: 2026-12-24T18:00. Without it, the reservation
    begins now. Cores are not reserved, because each user has a part of them at any moment.

    \b
    Example: headgate reserve 2 gpus for 3h from 18:00
             headgate reserve 1 gpu 64GiB for 30m
             headgate reserve --list
             headgate reserve --cancel 4
    """
    if bool(words) + lists + (cancel is not None) != 1:
        raise UsageError(f"found nothing to do, or several things; {_EXPECTED}; or --list")
    machine = SharedMachine()
    if cancel is not None:
        machine.cancel(cancel)
        click.echo(json.dumps({"cancelled": cancel}) if as_json else f"gave up {cancel}")
    elif lists:
        bookings = machine.look().bookings
        if as_json:
            click.echo(json.dumps([_row(booking) for booking in bookings], indent=2))
        for line in map(reservation, bookings) if not as_json else ():
            click.echo(line)
        if not bookings and not as_json:
            click.echo("nothing is reserved")
    else:
        demand, seconds, begin = _read(words, datetime.now().astimezone())
        booking = machine.reserve(demand, seconds, begin)
        click.echo(json.dumps(_row(booking)) if as_json else reservation(booking))


def _row(booking: Booking) -> dict[str, Any]:
    row: dict[str, Any] = records.plain(booking)
    demand = row.pop("demand")
    return {**row, "gpus": demand["gpus"], "memory_bytes": demand["memory_bytes"]}


def _read(words: Sequence[str], now: datetime) -> tuple[JobDemand, float, float | None]:
    """What is asked for: for how many seconds, from when (seconds since the epoch; None: now)."""
    text = list(words)
    if "for" not in text:
        raise UsageError(f"found {' '.join(words)!r} without `for`; {_EXPECTED}")
    i = text.index("for")
    amounts, times = text[:i], text[i + 1 :]
    try:
        seconds = units.seconds(times[0])
        if seconds <= 0.0:
            raise ValueError("expected a time above 0")
        match times[1:]:
            case []:
                begin = None
            case ["from", when]:
                begin = _moment(when, now).timestamp()
            case _:
                raise ValueError("expected `from` and a time after it")
        return _demand(iter(amounts)), seconds, begin
    except (ValueError, IndexError) as error:
        why = "a time is missing" if isinstance(error, IndexError) else error
        raise UsageError(f"found {' '.join(words)!r}; {why}; {_EXPECTED}") from None


def _demand(amounts: Iterator[str]) -> JobDemand:
    gpus = memory = 0
    for word in amounts:
        unit = next(amounts, "") if _GPUS.fullmatch(word) else ""
        if unit in ("gpu", "gpus", "GPU", "GPUs"):
            gpus += int(word)
        elif unit in ("core", "cores"):
            raise ValueError("cores are not reserved: each user has a part of them at any moment")
        elif not unit:
            memory += units.memory(word)
        else:
            raise ValueError(f"expected GPUs or memory instead of {word} {unit}")
    if not gpus and not memory:
        raise ValueError("expected GPUs or memory before `for`")
    return JobDemand("", gpus=gpus, memory_bytes=memory)


def _moment(text: str, now: datetime) -> datetime:
    """A time of day, the next one, or a date and time, here."""
    if (clock := _TIME.fullmatch(text)) is not None:
        moment = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return moment if moment > now else moment + timedelta(days=1)
    try:
        moment = datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise ValueError("expected `from` such as 18:00 or 2026-12-24T18:00") from None
    if moment.timestamp() < now.timestamp():
        raise ValueError(f"{text} is over")
    return moment
