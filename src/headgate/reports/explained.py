"""What held each job back, for the terminal and for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.analysis.accounts import Account, accounts
from headgate.analysis.losing import ITSELF, LEAST_SECONDS, NODE, OTHERS, Loss, Resource, TimeEstimate
from headgate.analysis.more import More, Speedup
from headgate.analysis.verdicts import Verdict, verdict
from headgate.reports.history import beside
from headgate.reports.recording import Recording
from headgate.reports.words import MISSING, counted, listed, say_moment
from headgate.units import say_seconds

SPEED_COLUMNS = ("× 1.25", "× 2", "No limit")
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
    others = "other runs, programs outside" if meanwhile else "programs outside Headgate"
    return others if loss.to == OTHERS else _CULPRITS.get((loss.to, loss.resource), loss.to)


def explained(run: Recording, job: str | None = None) -> list[Account]:
    """The accounts of a run's jobs, or of one."""
    found = [each for each in accounts(run.jobs, run.nodes, run.seconds, run.since) if job in (None, each.job)]
    if not any(loss.to == OTHERS for each in found for loss in each.losses):
        return found
    meanwhile = beside(run)
    return [replace(each, meanwhile=meanwhile) for each in found] if meanwhile else found


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
            {"to": loss.to, "resource": loss.resource, **loss.lost._asdict(), "evidence": loss.evidence}
            for loss in account.losses
        ],
        "more": {
            name: {times: each._asdict() if each is not None else None for times, each in found.items()}
            for name, found in account.more.named().items()
        },
        "replay_error": account.more.replay_error,
        "more_lacks": dict(account.more.lacks),
        "lacks": list(account.lacks),
    }


def tell(found: list[Account], console: Console) -> None:
    """Print each job's verdict, reason and next step, where its time went, and to whom it was lost."""
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
            console.print(Text(f"  No figure for more of {listed(resources)}: {why}."), soft_wrap=True)


def headline(account: Account) -> list[Text]:
    """What held a job back, with the error of what it cost, and the next step: a line or two."""
    told = verdict(account)
    error = f" 90 % band: {_band(told)}." if told.name not in ("healthy", "not-known", "failed") and _band(told) else ""
    lines = [Text.assemble((told.why, "bold"), error, (f" ({told.name})", "dim"))]
    if told.next:
        lines.append(Text(f"  Next: {told.next}"))
    return lines


def headlines(found: Sequence[Account]) -> list[str]:
    """Why each job was held back and what to do next, in a line each. The largest loss comes first; of very many jobs
    only the first are listed. Then come the healthy jobs and those not known. Very short jobs are left out, and
    those that did not begin. What several are told to do next stands with the first of them."""
    long = [account for account in found if account.elapsed - account.asked_to_wait >= _SHORT_SECONDS]
    told = [(account.job, verdict(account)) for account in long]
    held = sorted((why for _, why in told if why.name not in ("healthy", "not-known")), key=lambda why: -why.high)
    lines, said = [], set()
    for why in held[:_MOST_LINES]:
        following = f" Next: {why.next}" if why.next and why.next not in said else ""
        said.add(why.next)
        lines.append(f"{why.why}{following} ({why.name})")
    if len(held) > _MOST_LINES:
        lines.append(f"{counted(len(held) - _MOST_LINES, 'job')} more were held back: see `headgate explain`.")
    for name, more in (("healthy", ""), ("not-known", " `headgate explain` says what is missing.")):
        if jobs := [job for job, why in told if why.name == name]:
            lines.append(f"{name}: {listed(jobs)}.{more}")
    return lines


def _parts(account: Account) -> Table:
    table = _table("Where its time went", "Seconds", "Of all", "90 % band")
    for part, estimate in account.parts.items():
        if estimate.high >= LEAST_SECONDS:
            share = f"{estimate.seconds / account.elapsed:.0%}" if account.elapsed > 0.0 else MISSING
            table.add_row(f"  {part}", say_moment(estimate.seconds), share, _band(estimate))
    table.add_row("  elapsed", say_moment(account.elapsed), "", "")
    return table


def _losses(account: Account) -> Table:
    table = _table("Lost to", "Seconds", "Of all", "90 % band", "Resource", "Evidence")
    for loss in account.losses:
        share = f"{loss.lost.seconds / account.elapsed:.0%}"
        who = Text(f"  {culprit(loss, account.meanwhile)}")
        table.add_row(who, say_moment(loss.lost.seconds), share, _band(loss.lost), loss.resource, loss.evidence)
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
    """`1.90`; of more than `_MOST_SAID` times no digits, which would only be those of the replay."""
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
