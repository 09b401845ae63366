"""Compare two runs: their differences, and how each job's time shifted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.attribution import TimeEstimate, exact
from headgate.diagnosis.findings import Difference
from headgate.diagnosis.job_figures import figures
from headgate.diagnosis.own_steps import PARTS
from headgate.diagnosis.step_times import FEWEST_STEPS, TimeRatio, ratio, step_time
from headgate.model.plans import APART
from headgate.model.records import plain
from headgate.model.units import say_bits, say_bytes, say_percent, say_seconds
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.recording import Recording
from headgate.reports.templates import Markup, render
from headgate.reports.words import MISSING, listed, said_threads, say, say_moment, ways
from headgate.scripts import variables

_OF_THE_RUN = {
    "headgate": "Headgate",
    "policy": "policy",
    "git_commit": "git commit",
    "cwd": "working folder",
    "seed": "seed",
}
"""Recorded facts of a run, with their names for people."""
_TIMES = frozenset({"at", "timeout", "grace"})
"""Fields of a job in seconds."""
_MINUTE = 60.0
_LEAST_SECONDS, _LEAST_PART = 0.5, 0.02
"""Least difference that is shown, in seconds and as a fraction of the longer elapsed time,
regardless of its band.
"""


@dataclass(frozen=True, slots=True)
class Shift:
    """Seconds of a part of a job's time in both runs, and the second minus the first.

    Args:
        low: Low end of a 90 % band of the difference.
        high: High end of it.
        beyond_noise: Whether the band excludes 0 and the difference is notable.
    """

    part: str
    first: TimeEstimate
    second: TimeEstimate
    difference: float
    low: float
    high: float
    beyond_noise: bool


@dataclass(frozen=True, slots=True)
class ComparedJob:
    """A job in both runs.

    Args:
        steps_per_second: In the first and the second run; None: no steps reported.
        step_time: The time of a step in the second run over that in the first; None: too few steps
            to tell.
    """

    job: str
    differs: tuple[Difference, ...]
    steps_per_second: tuple[float | None, float | None]
    time: tuple[Shift, ...]
    step_time: TimeRatio | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs.

    Args:
        only: Jobs only in the first run, and only in the second.
    """

    runs: tuple[str, str]
    differs: tuple[Difference, ...]
    jobs: tuple[ComparedJob, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]


def compare(first: Recording, second: Recording) -> Comparison:
    """Compare jobs of the same name; if each run has one job, those two."""
    names = [job.name for job in first.jobs]
    others = [job.name for job in second.jobs]
    pairs = [(name, name) for name in names if name in others]
    if not pairs and len(names) == len(others) == 1:
        pairs = [(names[0], others[0])]
    accounts_by_job = [
        {account.job: account for account in accounts(run.jobs, run.nodes, run.seconds)}
        for run in (first, second)
    ]
    return Comparison(
        runs=(first.id, second.id),
        differs=tuple(_of_runs(first, second)),
        jobs=tuple(
            _job(first, second, pair, (accounts_by_job[0][pair[0]], accounts_by_job[1][pair[1]]))
            for pair in pairs
        ),
        only=(
            tuple(name for name in names if name not in {pair[0] for pair in pairs}),
            tuple(name for name in others if name not in {pair[1] for pair in pairs}),
        ),
    )


class Pace(StrEnum):
    """Whether the steps of the second run are slower than a limit allows."""

    SLOWER = "slower"
    NOT_SLOWER = "not-slower"
    NOT_KNOWN = "cannot-be-told"


def pace(job: ComparedJob, limit: float) -> Pace:
    """Whether a step takes longer by more than `limit`, a fraction. It cannot be told if the band
    of the ratio holds the limit.
    """
    times = job.step_time
    if times is None:
        return Pace.NOT_KNOWN
    if times.low > 1.0 + limit:
        return Pace.SLOWER
    return Pace.NOT_SLOWER if times.high <= 1.0 + limit else Pace.NOT_KNOWN


def judged(comparison: Comparison, limit: float) -> Pace:
    """The same for two runs: `SLOWER` if one of their jobs is."""
    paces = {pace(job, limit) for job in comparison.jobs} or {Pace.NOT_KNOWN}
    return next(kind for kind in (Pace.SLOWER, Pace.NOT_KNOWN, Pace.NOT_SLOWER) if kind in paces)


def pace_line(comparison: Comparison, limit: float) -> str:
    """One line about that, which names the jobs and by how much their steps differ."""
    kind = judged(comparison, limit)
    named = [job for job in comparison.jobs if pace(job, limit) is kind]
    jobs = "; ".join(f"{job.job}: {_pace_of(job)}" for job in named)
    return f"{_PACES[kind].format(limit=say_percent(limit))}: {jobs or _NO_JOB}"


_NO_JOB = "no job of one run has the name of a job of the other"
_PACES: Mapping[Pace, str] = {
    Pace.SLOWER: "slower by more than {limit}",
    Pace.NOT_SLOWER: "not slower by more than {limit}",
    Pace.NOT_KNOWN: "cannot be told whether it is slower by more than {limit}",
}


def _pace_of(job: ComparedJob) -> str:
    times = job.step_time
    if times is None:
        return f"it takes {FEWEST_STEPS} reported steps in each run, after the first"
    unit = "sample" if times.per_sample else "step"
    longer = f"{_percent(times.times)} time a {unit}"
    return f"{longer} (90 % band: {_percent(times.low)} to {_percent(times.high)})"


def _percent(times: float) -> str:
    return f"{(times - 1.0) * 100.0:+.1f} %"


def differences(
    first: tuple[Recording, RecordedJob], second: tuple[Recording, RecordedJob]
) -> tuple[Difference, ...]:
    """What differs between two jobs and their runs, but for the variables of terminals."""
    return (*_of_runs(first[0], second[0], of_terminals=False), *_of_jobs(first, second))


def as_json(comparison: Comparison, limit: float | None = None) -> dict[str, Any]:
    """The output of `headgate compare --json`; keys are only ever added.

    Args:
        limit: The fraction by which a step may take longer; None: none was given.
    """
    printed = asdict(comparison)
    if limit is not None:
        printed["fail_if_slower"] = {
            "limit": limit,
            "result": judged(comparison, limit),
            "why": pace_line(comparison, limit),
            "jobs": {job.job: pace(job, limit) for job in comparison.jobs},
        }
    for job, compared_job in zip(printed["jobs"], comparison.jobs, strict=True):
        times = compared_job.step_time
        job["step_time"] = times._asdict() if times is not None else None
        for shift in job["time"]:
            shift["first"], shift["second"] = (
                TimeEstimate(*shift[key])._asdict() for key in ("first", "second")
            )
    return printed


def section(comparison: Comparison) -> Markup:
    """The same for pages."""
    return render("comparison.html", comparison=comparison)


def tell(comparison: Comparison, console: Console) -> None:
    """Print the differences, then a table of each job's time."""
    first, second = comparison.runs
    console.print(Text(f"{first} against {second}", style="bold"))
    _differences(comparison.differs, console)
    for number, only in enumerate(comparison.only):
        if only:
            console.print(Text(f"  only in {comparison.runs[number]}: {listed(only)}"))
    for job in comparison.jobs:
        console.print()
        console.print(Text(job.job, style="bold"))
        _differences(job.differs, console)
        console.print(_time(job))
    if not comparison.jobs:
        console.print(f"  {_NO_JOB}")


def _differences(differs: tuple[Difference, ...], console: Console) -> None:
    for differ in differs:
        text = f"  {differ.what}: {differ.first or MISSING} → {differ.second or MISSING}"
        console.print(Text(text), soft_wrap=not console.is_terminal)


def _time(job: ComparedJob) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("  Time")
    for name in ("First", "Second", "Difference", "90 % band"):
        table.add_column(name, justify="right")
    table.add_column("")
    for shift in job.time:
        if max(shift.first.seconds, shift.second.seconds) < 0.05:
            continue
        band = "" if shift.low == shift.high else f"{_change(shift.low)} to {_change(shift.high)}"
        cells = (
            say_moment(shift.first.seconds),
            say_moment(shift.second.seconds),
            _change(shift.difference),
            band,
        )
        table.add_row(f"  {shift.part}", *cells, "beyond the noise" if shift.beyond_noise else "")
    if None not in job.steps_per_second:
        rates = [f"{say(rate)}/s" for rate in job.steps_per_second if rate is not None]
        table.add_row("  steps", *rates, "", "", "")
    return table


def _change(seconds: float) -> str:
    """A difference with the unit of its values."""
    rounded = round(seconds, 1) + 0.0  # avoids -0.0
    if abs(rounded) < _MINUTE:
        return f"{rounded:+.1f} s"
    return f"{'-' if rounded < 0 else '+'}{say_moment(abs(rounded))}"


def _job(
    first: Recording,
    second: Recording,
    pair: tuple[str, str],
    accounts_of_job: tuple[Account, Account],
) -> ComparedJob:
    jobs = _find(first, pair[0]), _find(second, pair[1])
    steps = step_time(jobs[0]), step_time(jobs[1])
    most = max(account.elapsed for account in accounts_of_job)
    return ComparedJob(
        job=pair[0] if pair[0] == pair[1] else " against ".join(pair),
        differs=tuple(_of_jobs((first, jobs[0]), (second, jobs[1]))),
        steps_per_second=(figures(jobs[0]).steps_per_second, figures(jobs[1]).steps_per_second),
        time=(
            _shift(
                "elapsed",
                exact(accounts_of_job[0].elapsed),
                exact(accounts_of_job[1].elapsed),
                most,
            ),
            *(
                _shift(part, accounts_of_job[0].parts[part], accounts_of_job[1].parts[part], most)
                for part in PARTS
            ),
        ),
        step_time=ratio(steps[0], steps[1]) if steps[0] and steps[1] else None,
    )


def _find(run: Recording, name: str) -> RecordedJob:
    return next(job for job in run.jobs if job.name == name)


def _shift(part: str, first: TimeEstimate, second: TimeEstimate, most: float) -> Shift:
    """The errors of the two runs are assumed independent."""
    difference = second.seconds - first.seconds
    down = math.hypot(second.seconds - second.low, first.high - first.seconds)
    up = math.hypot(second.high - second.seconds, first.seconds - first.low)
    low, high = difference - down, difference + up
    large = abs(difference) >= max(_LEAST_SECONDS, _LEAST_PART * most)
    return Shift(part, first, second, difference, low, high, large and (low > 0.0 or high < 0.0))


def _of_runs(
    first: Recording, second: Recording, of_terminals: bool = True
) -> Iterator[Difference]:
    for key, name in _OF_THE_RUN.items():
        yield from _differ(name, getattr(first.description, key), getattr(second.description, key))
    nodes = [{node.name: node for node in run.nodes} for run in (first, second)]
    yield from _differ("nodes", *(listed(sorted(node_row)) for node_row in nodes))
    for name in sorted(nodes[0].keys() & nodes[1].keys()):
        for field in (
            "cores",
            "memory_bytes",
            "nic_bytes_per_second",
            "disk_bytes_per_second",
            "description",
        ):
            values = [getattr(node_row[name], field) for node_row in nodes]
            yield from _differ(f"{name}: {field}", *(_said(field, value) for value in values))
    if of_terminals:
        yield from _variables((first.folder, second.folder))
    packages = [_packages(run.description) for run in (first, second)]
    for name in sorted(packages[0].keys() | packages[1].keys()):
        yield from _differ(name, packages[0].get(name, ""), packages[1].get(name, ""))


def _variables(folders: tuple[Path, Path]) -> Iterator[Difference]:
    """Differences between the submitting terminals' variables; none if either is unknown."""
    first, second = map(variables.read, folders)
    if first is not None and second is not None:
        for variable in variables.differing(first, second):
            yield Difference(f"variable {variable.name}", *variable.shown())


def _packages(facts: RunDescription) -> dict[str, str]:
    """Versions by package, over all interpreters."""
    named = [package.partition("==") for names in facts.packages.values() for package in names]
    return {name: version for name, _, version in named}


def _of_jobs(
    first: tuple[Recording, RecordedJob], second: tuple[Recording, RecordedJob]
) -> Iterator[Difference]:
    flat = [dict(_flat(_settings(job))) for _, job in (first, second)]
    for key in sorted(flat[0].keys() | flat[1].keys()):
        first_value, second_value = flat[0].get(key), flat[1].get(key)
        before, env, name = key.rpartition("env.")
        if env and first_value != second_value:
            shown = variables.DifferingVariable(name, first_value, second_value).shown()
            yield Difference(f"{before}variable {name}", *shown)
        else:
            yield from _differ(key, first_value or "", second_value or "")
    for field_name in ("state", "attempts"):
        yield from _differ(
            field_name, *(str(getattr(job, field_name)) for _, job in (first, second))
        )
    yield from _differ("computes", *(listed(ways(job.cost)) for _, job in (first, second)))
    counts = [figures(job).threads for _, job in (first, second)]
    yield from _differ("threads", *(said_threads(count) if count else "" for count in counts))
    yield from _differ("nodes", *(listed(sorted(job.nodes)) for _, job in (first, second)))
    yield from _differ("neighbours", *(listed(_beside(run, job)) for run, job in (first, second)))


def _settings(job: RecordedJob) -> dict[str, Any]:
    """The settings and the layout of a job. A plan stated by the user is also the chosen plan."""
    settings: dict[str, Any] = plain(job.spec)
    del settings["name"]
    apart = {APART: True} if job.apart else {}
    return {
        **settings,
        "roles": {role.name: plain(role) for role in job.spec.roles},
        "plan": {**plain(job.plan), **apart} if job.plan is not None else {},
    }


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of nested mappings, by dotted name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        yield name, " ".join(_said("", part) for part in value)
    else:
        yield name, _said(name.rpartition(".")[2], value)


def _said(field: str, value: object) -> str:
    """A value with its unit, as people write it; empty: None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if field == "nic_bytes_per_second":
        return say_bits(value)
    if field.endswith("bytes_per_second"):
        return f"{say_bytes(value)}/s"
    if field.endswith("bytes"):
        return say_bytes(value)
    if field in _TIMES:
        return say_seconds(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _beside(run: Recording, job: RecordedJob) -> list[str]:
    """Jobs that ran on one of this job's nodes at the same time."""
    begun, ended = job.started, job.ended if job.ended is not None else run.seconds
    if begun is None:
        return []
    return [
        other.name
        for other in run.jobs
        if other is not job
        and other.started is not None
        and other.started < ended
        and other.nodes & job.nodes
        if (other.ended if other.ended is not None else run.seconds) > begun
    ]


def _differ(what: str, first: str, second: str) -> Iterator[Difference]:
    if first != second:
        yield Difference(what, first, second)
