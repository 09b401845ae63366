"""What held each job back, for the terminal and for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.diagnosis.accounts import Account, accounts
from headgate.diagnosis.attribution import (
    ITSELF,
    LEAST_SECONDS,
    NODE,
    OTHERS,
    Loss,
    Resource,
    TimeEstimate,
)
from headgate.diagnosis.verdicts import Verdict, verdict
from headgate.diagnosis.what_if import More, Speedup
from headgate.model.units import say_seconds
from headgate.recorded.recording import Recording
from headgate.recorded.rows import loads
from headgate.reports.history import OtherRuns, beside
from headgate.reports.words import MISSING, counted, listed, say_moment
from headgate.sampling.outside_programs import PROGRAMS, OutsideProgram

SPEED_COLUMNS = ("× 1.25", "× 2", "No limit")
_WITHOUT_COST = ("healthy", "not-known", "failed")
"""Verdicts that name no cause with a cost."""
_WORTH_A_NAME = 0.1
"""Part of what the largest program outside used, from which on another one is named."""
_MOST_SAID = 10
_MOST_LINES = 6
_SHORT_SECONDS = 5.0
_CULPRITS: Mapping[tuple[str, Resource], str] = {
    (NODE, "cores"): "the hypervisor",
    (NODE, "disk"): "the disk",
    (NODE, "network"): "its own traffic",
    (ITSELF, "cores"): "its own other tasks",
    (ITSELF, "memory"): "its own limit",
}


def culprit(loss: Loss, meanwhile: Sequence[str] = ()) -> str:
    """To whom something was lost, in words; `meanwhile` are other runs at the same time."""
    return _CULPRITS.get((loss.to, loss.resource)) or culprit_named(loss.to, meanwhile)


def culprit_named(to: str, meanwhile: Sequence[str] = ()) -> str:
    """A neighbour, in words."""
    if to != OTHERS:
        return to
    return "other runs, programs outside" if meanwhile else "programs outside Headgate"


def explained(run: Recording, job: str | None = None) -> list[Account]:
    """The accounts of a run's jobs, or of one."""
    every = accounts(run.jobs, run.nodes, run.seconds, run.since, only=run.whole)
    unknown = {
        each.job for each in every if each.grant is not None and each.grant.may_have_lost > 0.0
    }
    if unknown:
        others = OtherRuns(run)
        rates = {each.name: others.alone(each) for each in run.jobs if each.name in unknown}
        alone = {name: rate for name, rate in rates.items() if rate is not None}
        every = (
            accounts(run.jobs, run.nodes, run.seconds, run.since, alone, run.whole)
            if alone
            else every
        )
    found = [each for each in every if job in (None, each.job)]
    if not any(loss.to == OTHERS for each in found for loss in each.losses):
        return found
    meanwhile, programs = beside(run), _programs(run)
    return [replace(each, meanwhile=meanwhile, programs=programs) for each in found]


def _programs(run: Recording) -> tuple[OutsideProgram, ...]:
    """The programs outside Headgate that used at least a tenth of what the first of them did, that
    first.
    """
    recorded = loads(run.meta.get(PROGRAMS))
    try:
        programs = (
            [OutsideProgram(**each) for each in recorded] if isinstance(recorded, list) else []
        )
    except TypeError:  # of another version
        return ()
    return tuple(
        program for program in programs if program.seconds >= _WORTH_A_NAME * programs[0].seconds
    )


def as_json(run: str, found: list[Account]) -> dict[str, Any]:
    """What `headgate explain --json` prints: keys are only ever added."""
    return {"run": run, "jobs": [_job(each) for each in found]}


def _job(account: Account) -> dict[str, Any]:
    return {
        "job": account.job,
        "elapsed": account.elapsed,
        "verdict": verdict(account)._asdict(),
        "account": {part: estimate._asdict() for part, estimate in account.parts.items()},
        "lost": [
            {
                "to": loss.to,
                "resource": loss.resource,
                **loss.lost._asdict(),
                "evidence": loss.evidence,
            }
            for loss in account.losses
        ],
        "more": {
            name: {
                times: each._asdict() if each is not None else None for times, each in found.items()
            }
            for name, found in account.more.named().items()
        },
        "replay_error": account.more.replay_error,
        "more_lacks": dict(account.more.lacks),
        "lacks": list(account.lacks),
    }


def tell(found: list[Account], console: Console) -> None:
    """Print each job's verdict, reason and next step, where its time went, and to whom it was
    lost.
    """
    for index, account in enumerate(found):
        if index:
            console.print()
        for line in headline(account):
            console.print(line, soft_wrap=True)
        console.print(_parts(account))
        if account.losses:
            console.print(_losses(account))
        if account.more.figures:
            console.print(_bought(account.more))
        for why, resources in account.more.reasons().items():
            console.print(
                Text(f"  No figure for more of {listed(resources)}: {why}."), soft_wrap=True
            )


def headline(account: Account) -> list[Text]:
    """What held a job back, with the error of what it cost, and the next step: a line or two."""
    cause = verdict(account)
    error = (
        "" if cause.name in _WITHOUT_COST or not _band(cause) else f" 90 % band: {_band(cause)}."
    )
    style = "bold red" if cause.name == "failed" else "bold"
    lines = [Text.assemble((cause.why, style), error, (f" ({cause.name})", "dim"))]
    if cause.next:
        lines.append(Text(f"  Next: {cause.next}"))
    return lines


@dataclass(frozen=True, slots=True)
class Headline:
    """A job's verdict as the summary of a run has it.

    Args:
        verdict: What held it back.
        to: The neighbour that cost it most, in words; empty if none did.
        part: The part of its elapsed time that the verdict's cause cost, 0 to 1; None if that is
            not known.
        band: The seconds that it cost, at the least and at the most; empty if there is no band.
        advice: What to do next; empty if nothing is, or if `Advice` says it to several jobs.
    """

    job: str
    verdict: Verdict
    to: str
    part: float | None
    band: str
    advice: str

    @property
    def failed(self) -> bool:
        return self.verdict.name == "failed"

    @property
    def held_back(self) -> bool:
        """Whether anything is known to have held it back."""
        return self.verdict.name not in ("healthy", "not-known")

    @property
    def worth_a_line(self) -> bool:
        """Whether it was held back, or neighbours may have done so and nothing tells."""
        return self.held_back or (
            self.verdict.name == "not-known" and self.verdict.low == 0.0 < self.verdict.high
        )


@dataclass(frozen=True, slots=True)
class Advice:
    """What several jobs are told alike."""

    jobs: tuple[str, ...]
    text: str


def headlines(found: Sequence[Account]) -> tuple[list[Headline], list[Advice]]:
    """The verdict of each job: those that failed first, then by what they lost, then the healthy
    ones and those not known. Very short jobs are left out unless they failed, and those that did
    not begin. What several are told to do next stands apart, once.
    """
    shown = [
        (account, cause)
        for account in found
        for cause in (verdict(account),)
        if cause.name == "failed" or account.elapsed - account.asked_to_wait >= _SHORT_SECONDS
    ]
    advised: dict[object, list[tuple[str, str]]] = {}
    for account, cause in shown:
        if cause.next:
            advised.setdefault(cause.order or cause.next, []).append((account.job, cause.next))
    alike = {key: jobs for key, jobs in advised.items() if len(jobs) > 1}
    lines = [
        Headline(
            job=account.job,
            verdict=cause,
            to=culprit_named(cause.culprit, account.meanwhile) if cause.culprit else "",
            part=_part_lost(cause, account),
            band="" if cause.name in _WITHOUT_COST else _band(cause),
            advice="" if (cause.order or cause.next) in alike else cause.next,
        )
        for account, cause in shown
    ]
    lines.sort(key=_rank)
    return lines, [Advice(tuple(job for job, _ in jobs), jobs[0][1]) for jobs in alike.values()]


def _part_lost(cause: Verdict, account: Account) -> float | None:
    known = cause.name not in _WITHOUT_COST and cause.seconds > 0.0 and account.elapsed > 0.0
    return cause.seconds / account.elapsed if known else None


def _rank(line: Headline) -> tuple[int, float]:
    """Jobs that failed come first, then those that were held back, by what they lost."""
    if line.failed:
        return 0, 0.0
    return (1, -line.verdict.high) if line.held_back else (2, 0.0)


def as_lines(found: Sequence[Account]) -> list[tuple[str, bool]]:
    """Why each job was held back and what to do next, a line each, with whether it failed; of very
    many jobs only the first are listed.
    """
    lines, advice = headlines(found)
    held = [line for line in lines if line.worth_a_line]
    texts = [
        (
            " ".join(
                filter(None, (line.verdict.why, _next(line.advice), f"({line.verdict.name})"))
            ),
            line.failed,
        )
        for line in held[:_MOST_LINES]
    ]
    if len(held) > _MOST_LINES:
        more = counted(len(held) - _MOST_LINES, "job")
        texts.append(
            (
                f"{more} more failed or were held back, or may have been: see `headgate explain`.",
                False,
            )
        )
    texts += [(f"For {listed(each.jobs)}: {each.text}", False) for each in advice]
    for name, more in (("healthy", ""), ("not-known", " `headgate explain` says what is missing.")):
        if jobs := [
            line.job for line in lines if line.verdict.name == name and not line.worth_a_line
        ]:
            texts.append((f"{name}: {listed(jobs)}.{more}", False))
    return texts


def _next(advice: str) -> str:
    return f"Next: {advice}" if advice else ""


def _parts(account: Account) -> Table:
    table = _table("Where its time went", "Seconds", "Of all", "90 % band")
    for part, estimate in account.parts.items():
        if estimate.high >= LEAST_SECONDS:
            share = (
                f"{estimate.seconds / account.elapsed:.0%}" if account.elapsed > 0.0 else MISSING
            )
            table.add_row(f"  {part}", say_moment(estimate.seconds), share, _band(estimate))
    table.add_row("  elapsed", say_moment(account.elapsed), "", "")
    return table


def _losses(account: Account) -> Table:
    table = _table("Lost to", "Seconds", "Of all", "90 % band", "Resource", "Evidence")
    for loss in account.losses:
        share = f"{loss.lost.seconds / account.elapsed:.0%}"
        who = Text(f"  {culprit(loss, account.meanwhile)}")
        table.add_row(
            who,
            say_moment(loss.lost.seconds),
            share,
            _band(loss.lost),
            loss.resource,
            loss.evidence,
        )
    return table


def _bought(more: More) -> Table:
    table = _table("What more would buy", *SPEED_COLUMNS)
    for name, found in more.named().items():
        table.add_row(f"  {name.replace('+', ' + ')}", *map(say_speedup, found.values()))
    return table


def say_speedup(found: Speedup | None) -> str:
    """`1.90 (1.50 to 2.30)`; without a band where `say_times` gives no digits."""
    if found is None or found.speedup > _MOST_SAID:
        return MISSING if found is None else say_times(found.speedup)
    return f"{say_times(found.speedup)} ({found.low:.2f} to {found.high:.2f})"


def say_times(speedup: float) -> str:
    """`1.90`; of more than `_MOST_SAID` times no digits, which would only be those of the
    replay.
    """
    return f"{speedup:.2f}" if speedup <= _MOST_SAID else f"over {_MOST_SAID}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"  {first}")
    for name in others:
        table.add_column(name, justify="left" if name in ("Resource", "Evidence") else "right")
    return table


def _band(estimate: TimeEstimate | Verdict) -> str:
    if estimate.low == estimate.high:
        return ""
    return f"{say_seconds(round(estimate.low, 1))} to {say_seconds(round(estimate.high, 1))}"
