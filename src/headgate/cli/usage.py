"""`headgate usage`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import click
from rich.table import Table
from rich.text import Text

from headgate.arbiter.usage import DAY_SECONDS, DayUse
from headgate.cli.live_view import print_table
from headgate.cli.options import Whole
from headgate.client.machine import SharedMachine
from headgate.model.units import say_text

Period = Literal["day", "week", "month"]
_PERIODS: tuple[Period, ...] = ("day", "week", "month")
_HOUR, _GIB = 3600.0, 1 << 30
_DAYS = 30


@click.command()
@click.option("--user", metavar="USER", help="Only this user.")
@click.option(
    "--by",
    type=click.Choice(_PERIODS),
    help="A row for each user and day, week or month (UTC). Default: one for each user.",
)
@click.option(
    "--days", type=Whole(1, 36_500), default=_DAYS, show_default=True, help="How far back."
)
@click.option("--gpus", is_flag=True, help="Only those who held GPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(user: str | None, by: Period | None, days: int, gpus: bool, as_json: bool) -> None:
    """Show what the users of a shared machine have had.

    Core-hours count CPU time. GPU-hours count the time for which GPUs were held; in the idle part
    of it, no job of their user computed on them.

    \b
    Example: headgate usage
             headgate usage --user ada --by week --days 90
             headgate usage --gpus --json
    """
    since = max(int(time.time() // DAY_SECONDS) - days + 1, 0)
    uses = _summed(SharedMachine().usage(since, user), by)
    rows = [_row(name, period, use) for (name, period), use in sorted(uses.items())]
    rows = [row for row in rows if row["gpu_hours"] or not gpus]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        click.echo(
            f"{f'{user} had nothing' if user else 'nobody had anything'} since {_date(since)}"
        )
        return
    if by is None:
        click.echo(f"since {_date(since)}:")
    headings = ("core-hours", "GPU-hours", "GPUs held but idle", "memory, GiB-hours")
    table = Table("user", *([by] if by else []), box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            Text(say_text(row["user"])),
            *([row["period"]] if by else []),
            *(_hours(row[key]) for key in ("core_hours", "gpu_hours", "idle_gpu_hours")),
            _hours(row["memory_gib_hours"]),
        )
    print_table(table)


def _summed(
    uses: Mapping[tuple[str, int], DayUse], by: Period | None
) -> dict[tuple[str, str], DayUse]:
    summed: dict[tuple[str, str], DayUse] = {}
    for (user, day), use in uses.items():
        key = user, _period(day, by)
        summed[key] = summed.get(key, DayUse()).plus(use)
    return summed


def _date(day: int) -> date:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date()


def _period(day: int, by: Period | None) -> str:
    """The name of a day's period: its date, `2026-W48`, `2026-11`; empty: all days together."""
    if by is None:
        return ""
    return _date(day).strftime({"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}[by])


def _row(user: str, period: str, use: DayUse) -> dict[str, Any]:
    return {
        "user": user,
        **({"period": period} if period else {}),
        "core_hours": use.core_seconds / _HOUR,
        "gpu_hours": use.gpu_seconds / _HOUR,
        "idle_gpu_hours": use.idle_gpu_seconds / _HOUR,
        "memory_gib_hours": use.memory_byte_seconds / _HOUR / _GIB,
    }


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 0.05 or not hours else f"{hours:.2g}"
