"""Shows a shared machine: what runs and waits of all users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click
from rich.table import Table
from rich.text import Text

from headgate.arbiter.acts import Act, ActKind
from headgate.arbiter.records import Booking, JobDemand, SeenJob, WaitKind
from headgate.arbiter.seen import SeenMachine, SeenUser
from headgate.cli.live_view import print_table
from headgate.client.machine import before
from headgate.model.sharing import Amounts
from headgate.model.units import (
    counted,
    say_bytes,
    say_first,
    say_percent,
    say_seconds,
    say_text,
    say_time,
)

_MOST_ROWS = 100
_ONE_LINE = {ord("\n"): " ", ord("\t"): " "}
_WAITS: Mapping[WaitKind, str] = {
    WaitKind.NO_ROOM: "no room",
    WaitKind.OTHERS_FIRST: "it would delay one before it, or a reservation",
    WaitKind.TAKING_BACK: "what others have of its user's part is being taken back",
    WaitKind.OWN_LIMIT: "its user's limit is reached",
    WaitKind.OWES: "its user has yet to give back what is another's part",
    WaitKind.HELD: "held by an administrator",
    WaitKind.TOO_LARGE: "more than this machine or its user may have",
}
_ACTS: Mapping[ActKind, str] = {
    ActKind.HOLD: "holds {}",
    ActKind.RELEASE: "released {}",
    ActKind.FIRST: "lets {} go first",
    ActKind.STOP: "stopped {}",
    ActKind.DRAIN: "drained the machine: nothing starts",
    ActKind.UNDRAIN: "lets jobs start again",
    ActKind.LIMIT: "limits {} to",
    ActKind.UNLIMIT: "no longer limits {}",
    ActKind.TAKE_BACK: "gets back the own part from {}",
}


def show(machine: SeenMachine) -> None:
    """Print the machine."""
    gpus = f", {counted(machine.gpus, 'GPU')}" if machine.gpus else ""
    cores, memory = counted(machine.cores, "core", "g"), say_bytes(machine.memory_bytes)
    click.echo(f"machine {machine.name}: {cores}, {memory}{gpus}, for all users")
    if machine.drained:
        click.secho("drained: jobs go on, and nothing starts", fg="yellow")
    if machine.users:
        print_table(_users(machine))
        click.echo()
        print_table(_jobs(machine))
    else:
        click.echo("nobody runs anything, or waits")
    if len(machine.jobs) > _MOST_ROWS:
        click.echo(f"... and {len(machine.jobs) - _MOST_ROWS} more; --json has all")
    _tell_first(machine)
    for booking in machine.bookings:
        click.echo(reservation(booking))
    for act in machine.acts:
        click.echo(told(act))


def _users(machine: SeenMachine) -> Table:
    on_gpus = machine.gpus > 0
    headings = ("user", "shares", "cores", "memory", *(["GPUs"] if on_gpus else []))
    table = Table(*headings, "runs", "waits", "had lately", box=None, pad_edge=False)
    for user in machine.users:
        used = "" if user.used_cores is None else f"{user.used_cores:.2f} of "
        table.add_row(
            Text(_name_of(user, machine)),
            f"{user.shares:g}",
            f"{used}{user.cores:.2f}",
            say_bytes(user.memory_bytes) if user.memory_bytes else "",
            *([", ".join(map(str, user.gpus))] if on_gpus else []),
            str(user.running),
            str(user.waiting),
            say_percent(user.past),
        )
    return table


def _name_of(user: SeenUser, machine: SeenMachine) -> str:
    you = " (you)" if user.user == machine.user else ""
    limit = amounts(user.largest)
    return say_text(user.user) + you + (f", at most {limit}" if limit else "")


def _jobs(machine: SeenMachine) -> Table:
    table = Table("job", "state", "has or needs", "start", "why", box=None, pad_edge=False)
    for job, number in list(zip(machine.jobs, before(machine), strict=True))[:_MOST_ROWS]:
        state = "running" if number is None else f"waits, {_ordinal(number)}"
        start, why = _start(job, machine.at), ""
        if job.gives_to:
            why = f"gives back to {line(job.gives_to)}"
        if job.waits is not None:
            why = _WAITS[job.waits]
            if job.waits is WaitKind.HELD and machine.drained:
                why = "the machine is drained"
        style = "bold" if job.user == machine.user else ""
        table.add_row(Text(title(job)), state, needs(job.demand, job.gpus), start, why, style=style)
    return table


def title(job: SeenJob) -> str:
    """`USER:JOB`, or that it is a private one."""
    return line(f"a job of {job.user}" if job.name is None else f"{job.user}:{job.name}")


def line(text: str) -> str:
    """What a user's hub says, as part of a line; it can say anything."""
    return say_text(text.translate(_ONE_LINE))


def _ordinal(before: int) -> str:
    return "next" if before == 0 else f"{before} before it"


def _start(job: SeenJob, now: float) -> str:
    """Since when it runs, or when it is expected to start and how sure that is."""
    if job.since is not None:
        begun = f"{say_seconds(round(max(now - job.since, 0.0)))} ago"
        left = job.demand.left
        return f"{begun}, ends in about {say_seconds(round(left.likely))}" if left else begun
    if job.at is None and job.latest is None:
        return "not known"
    if job.at is None:
        return f"within {_ahead(job.latest, now)}"
    if job.latest is None:
        return f"in about {_ahead(job.at, now)}; how sure is not known"
    if job.latest - job.at < 1.0:
        return f"in {_ahead(job.at, now)}"
    return f"in about {_ahead(job.at, now)}, at the latest {_ahead(job.latest, now)}"


def _ahead(at: float | None, now: float) -> str:
    return say_seconds(round(max((at or now) - now, 0.0)))


def needs(demand: JobDemand, gpus: Sequence[int] = ()) -> str:
    """What a job has or needs, in a few words."""
    parts = [_cores(demand)] if demand.cores else []
    if demand.all_memory_bytes:
        parts.append(say_bytes(demand.all_memory_bytes))
    if gpus:
        parts.append(f"GPU {', '.join(map(str, gpus))}")
    elif demand.all_gpus:
        parts.append(counted(demand.all_gpus, "GPU"))
    return ", ".join(parts)


def _cores(demand: JobDemand) -> str:
    return counted(demand.cores, "core", ".3g")


def amounts(limits: Amounts) -> str:
    """Amounts in a few words; empty: nothing is said."""
    parts = [counted(limits.cores, "core", "g")] if limits.cores is not None else []
    parts += [say_bytes(limits.memory_bytes)] if limits.memory_bytes is not None else []
    parts += [counted(limits.gpus, "GPU")] if limits.gpus is not None else []
    parts += [counted(limits.jobs, "job")] if limits.jobs is not None else []
    return ", ".join(parts)


def _tell_first(machine: SeenMachine) -> None:
    """Say who is before this user's first waiting job."""
    waiting = [job for job in machine.jobs if job.waits is not None]
    own = next((i for i, job in enumerate(waiting) if job.user == machine.user), None)
    if own:
        others = list(dict.fromkeys(title(job) for job in waiting[:own]))
        click.echo(f"before {title(waiting[own])}: {say_first(others, 3)}")


def reservation(booking: Booking) -> str:
    """A reservation as a line."""
    demand = needs(booking.demand).removeprefix(f"{_cores(booking.demand)}, ")
    times = f"{say_time(booking.begin)} to {say_time(booking.end)}"
    return f"reservation {booking.id}: {demand} for {say_text(booking.user)}, {times}"


def told(act: Act) -> str:
    """An act as a sentence."""
    on = f"{act.user}:{act.job.rpartition('#')[0] or act.job}" if act.job else act.user
    words = f"{act.by} {_ACTS[act.kind].format(on)}"
    limit = f" {amounts(act.largest)}" if act.largest is not None else ""
    waited = f", after {say_seconds(round(act.waited))}" if act.waited is not None else ""
    return line(f"{say_time(act.at)}: {words}{limit}{waited}{', which ends' * act.ends}")
