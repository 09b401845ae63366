"""What held each job back, for the terminal and for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.attribution import (
    ITSELF,
    LEAST_SECONDS,
    NODE,
    OTHERS,
    LostTime,
    Resource,
    TimeEstimate,
    is_other_user,
)
from headgate.diagnosis.findings import Finding, FindingKind, WaitedFacts
from headgate.diagnosis.neighbours import programs_outside
from headgate.diagnosis.verdicts import besides, findings, verdict
from headgate.diagnosis.what_if import Speedup, Speedups
from headgate.model.reason_text import in_words
from headgate.model.units import counted, say_percent, say_seconds
from headgate.recorded.recording import Recording
from headgate.reports.findings import why
from headgate.reports.history import OtherRuns, beside, slower_than_before
from headgate.reports.missing import missing_reading, no_figure
from headgate.reports.remedies import next_step
from headgate.reports.words import MISSING, culprit_named, listed, say_moment

SPEED_COLUMNS = ("× 1.25", "× 2", "No limit")
_MOST_WITH_HISTORY = 24
"""Most jobs that are compared with earlier runs."""
MOST_IN_FULL = 24
"""Most jobs whose accounts are all printed unasked."""
MORE = "`headgate explain JOB` has the account of one job, `headgate explain --full` those of all."
_MOST_SAID = 10
_MOST_LINES = 6
_FEW_ALIKE = 2
"""So many jobs that waited for the same have a line each."""
_SHORT_SECONDS = 5.0
_CULPRITS: Mapping[tuple[str, Resource], str] = {
    (NODE, "cores"): "the hypervisor",
    (NODE, "disk"): "the disk",
    (NODE, "network"): "its own traffic",
    (ITSELF, "cores"): "its own other tasks",
    (ITSELF, "memory"): "its own limit",
}


def culprit(loss: LostTime, account: Account) -> str:
    """The culprit of a loss of a job, in words; of programs outside, the one that used most of the
    resource.
    """
    programs = () if account.around.meanwhile else programs_outside(account, loss.resource)
    if loss.to == OTHERS and programs:
        more = " and others" if programs[1:] else ""
        return f"{programs[0].command} of {programs[0].user}{more}, outside Headgate"
    named = _CULPRITS.get((loss.to, loss.resource))
    return named or culprit_named(loss.to, account.around.meanwhile)


def explained(run: Recording, job: str | None = None) -> list[Account]:
    """The accounts of a run's jobs, or of one job."""
    every = accounts(run.jobs, run.nodes, run.seconds, run.since, only=run.whole)
    unknown = [
        account.record
        for account in every
        if (grant := account.around.grant) is not None and grant.may_have_lost > 0.0
    ]
    if unknown:
        others = OtherRuns(run)
        rates = {record.name: others.alone(record) for record in unknown}
        alone = {name: rate for name, rate in rates.items() if rate is not None}
        if alone:
            every = accounts(run.jobs, run.nodes, run.seconds, run.since, alone, run.whole)
    chosen = [account for account in every if job in (None, account.job)]
    if len(chosen) <= _MOST_WITH_HISTORY:
        chosen = [
            replace(account, around=replace(account.around, slower=slower))
            if (slower := slower_than_before(run, account.record)) is not None
            else account
            for account in chosen
        ]
    outside = (loss.to for account in chosen for loss in account.losses)
    if not any(to == OTHERS or is_other_user(to) for to in outside):
        return chosen
    meanwhile, programs = beside(run), run.description.programs
    return [
        replace(account, around=replace(account.around, meanwhile=meanwhile, programs=programs))
        for account in chosen
    ]


def as_json(run: str, accounts: Sequence[Account]) -> dict[str, Any]:
    """The output of `headgate explain --json`; keys are only ever added."""
    return {"run": run, "jobs": [_job(account) for account in accounts]}


def verdict_as_json(account: Account) -> dict[str, Any]:
    """A job's verdict: kind, facts and remedy, with their sentences."""
    finding = verdict(account)
    return {"name": finding.kind, **_finding(finding, account)}


def findings_as_json(account: Account) -> list[dict[str, Any]]:
    """All findings about a job, its verdict first."""
    return [_finding(finding, account) for finding in findings(account)]


def _finding(finding: Finding, account: Account) -> dict[str, Any]:
    """A finding as JSON: kind, facts and remedy, with their sentences."""
    return {
        "why": why(finding, account),
        "next": next_step(finding, account),
        **finding.cost._asdict(),
        "culprit": finding.culprit,
        "order": finding.order,
        "kind": finding.kind,
        "resource": finding.resource,
        "facts": _values(finding.facts),
        "notes": [{"kind": note.kind, **_values(note)} for note in finding.notes],
        "remedy": _values(finding.remedy),
    }


def _values(value: Any) -> Any:
    """Facts as JSON values."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _values(part) for name, part in value.items()}
    return [_values(part) for part in value] if isinstance(value, list | tuple) else value


def account_as_json(account: Account) -> dict[str, Any]:
    """Where a job's time went: elapsed seconds, the parts that add up to them, and losses."""
    return {
        "elapsed": account.elapsed,
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
    }


def _job(account: Account) -> dict[str, Any]:
    return {
        "job": account.job,
        **account_as_json(account),
        "verdict": verdict_as_json(account),
        "findings": findings_as_json(account),
        "more": {
            name: {times: _values(speedup) for times, speedup in speedups.items()}
            for name, speedups in account.around.speedups.named().items()
        },
        "replay_error": account.around.speedups.replay_error,
        "more_lacks": {
            resource: no_figure(reason, account.around.speedups)
            for resource, reason in account.around.speedups.lacks.items()
        },
        "lacks": [missing_reading(missing) for missing in account.missing_readings],
    }


def tell(accounts: Sequence[Account], console: Console, *, full: bool = False) -> None:
    """Print each job's verdict, reason and next step, how it spent its time, and to whom it lost
    time. Of very many jobs, only those that lost most, unless `full`, and a line for those alike.
    """
    if full or len(accounts) <= MOST_IN_FULL:
        for index, account in enumerate(accounts):
            if index:
                console.print()
            _tell_job(account, console)
        return
    lossy = [account for account in accounts if _loss_once_begun(account) > (False, 0.0)]
    first = sorted(lossy, key=_loss_once_begun, reverse=True)[:_MOST_LINES]
    for account in first:
        _tell_job(account, console)
        console.print()
    lines, advice = headlines(accounts)
    told = {account.job for account in first}
    folded = _folded([line for line in lines if line.worth_a_line])
    together = [line.why for line, jobs in folded if jobs > 1]
    left = sum(jobs == 1 and line.job not in told for line, jobs in folded)
    others = [f"{_left_out(left)}."] if left else []
    for text in (*together, *others, *_told_together(lines, advice), MORE):
        console.print(Text(text), soft_wrap=True)


def _loss_once_begun(account: Account) -> tuple[bool, float]:
    """Sort key: jobs that failed, then by the seconds that the dearest cause cost a job after its
    start.
    """
    found = findings(account)
    costs = (
        finding.cost.high
        for finding in found
        if finding.kind.has_cost and not isinstance(finding.facts, WaitedFacts)
    )
    return found[0].kind is FindingKind.FAILED, max(costs, default=0.0)


def _tell_job(account: Account, console: Console) -> None:
    for line in headline(account):
        console.print(line, soft_wrap=True)
    console.print(_parts(account))
    if account.losses:
        console.print(_losses(account))
    if account.around.speedups.figures:
        console.print(_bought(account.around.speedups))
    for reason, resources in account.around.speedups.reasons().items():
        text = f"No figure for more of {listed(resources)}"
        reason_text = no_figure(reason, account.around.speedups)
        console.print(Text(f"  {text}: {reason_text}."), soft_wrap=True)


def headline(account: Account) -> list[Text]:
    """One or two lines: what held a job back, its cost with the error, and the next step."""
    finding = verdict(account)
    band = _band(finding.cost) if finding.kind.has_cost else ""
    style = "bold red" if finding.kind is FindingKind.FAILED else "bold"
    error = f" 90 % band: {band}." if band else ""
    lines = [Text.assemble((why(finding, account), style), error, (f" ({finding.kind})", "dim"))]
    if following := next_step(finding, account):
        lines.append(Text(f"  Next: {following}"))
    lines += [
        Text.assemble(f"  Also: {why(other, account)}", (f" ({other.kind})", "dim"))
        for other in besides(account, finding)
    ]
    return lines


@dataclass(frozen=True, slots=True)
class Headline:
    """A job's verdict in the summary of a run.

    Args:
        finding: What held it back.
        why: The same as a sentence.
        to: The most expensive neighbour, in words; empty: none.
        part: The finding's cost as a fraction of its elapsed time, 0 to 1; None: unknown.
        band: The least and most seconds of the cost; empty: no band.
        advice: What to do next; empty: nothing, or `Advice` says it for several jobs.
    """

    job: str
    finding: Finding
    why: str
    to: str
    part: float | None
    band: str
    advice: str

    @property
    def failed(self) -> bool:
        return self.finding.kind is FindingKind.FAILED

    @property
    def held_back(self) -> bool:
        """Whether a cause is known."""
        return self.finding.kind not in (FindingKind.HEALTHY, FindingKind.NOT_KNOWN)

    @property
    def worth_a_line(self) -> bool:
        """Whether it was held back, or neighbours may have done so at unknown cost."""
        cost = self.finding.cost
        may_be = self.finding.kind is FindingKind.NOT_KNOWN and cost.low == 0.0 < cost.high
        return self.held_back or may_be


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice shared by several jobs."""

    jobs: tuple[str, ...]
    text: str


def headlines(accounts: Sequence[Account]) -> tuple[list[Headline], list[Advice]]:
    """The verdict of each job: failed ones first, then by loss, then healthy and unknown ones. Very
    short jobs are left out unless they failed, and so are jobs that never began. Advice shared by
    several jobs is separate.
    """
    shown = [
        (account, finding, next_step(finding, account))
        for account in accounts
        for finding in (verdict(account),)
        if finding.kind is FindingKind.FAILED
        or account.elapsed - account.asked_to_wait >= _SHORT_SECONDS
    ]
    advised: dict[object, list[tuple[str, str]]] = {}
    for account, finding, advice in shown:
        if advice:
            advised.setdefault(finding.order or advice, []).append((account.job, advice))
    alike = {key: jobs for key, jobs in advised.items() if len(jobs) > 1}
    lines = [
        Headline(
            job=account.job,
            finding=finding,
            why=" ".join(why(cause, account) for cause in (finding, *besides(account, finding))),
            to=culprit_named(finding.culprit, account.around.meanwhile) if finding.culprit else "",
            part=_part_lost(finding, account),
            band=_band(finding.cost) if finding.kind.has_cost else "",
            advice="" if (finding.order or advice) in alike else advice,
        )
        for account, finding, advice in shown
    ]
    lines.sort(key=_rank)
    return lines, [Advice(tuple(job for job, _ in jobs), jobs[0][1]) for jobs in alike.values()]


def _part_lost(finding: Finding, account: Account) -> float | None:
    seconds = finding.cost.seconds
    known = finding.kind.has_cost and seconds > 0.0 and account.elapsed > 0.0
    return seconds / account.elapsed if known else None


def _rank(line: Headline) -> tuple[int, float]:
    """Sort key: failed jobs first, then by loss."""
    if line.failed:
        return 0, 0.0
    return (1, -line.finding.cost.high) if line.held_back else (2, 0.0)


def as_lines(accounts: Sequence[Account]) -> list[tuple[str, bool]]:
    """A line for each job with its cause and next step, and whether it failed; only the first of
    very many.
    """
    lines, advice = headlines(accounts)
    folded = _folded([line for line in lines if line.worth_a_line])
    texts = [(_line(line), line.failed) for line, _ in folded[:_MOST_LINES]]
    left = sum(jobs for _, jobs in folded[_MOST_LINES:])
    more = [f"{_left_out(left)}: see `headgate explain`."] if left else []
    return texts + [(text, False) for text in (*more, *_told_together(lines, advice))]


def _left_out(jobs: int) -> str:
    return f"{counted(jobs, 'more job')} failed or were held back, or may have been"


def _told_together(lines: Sequence[Headline], advice: Sequence[Advice]) -> list[str]:
    """What is said of several jobs at once: their advice, and that nothing held them back."""
    texts = [f"For {listed(alike.jobs)}: {alike.text}" for alike in advice]
    for kind, more in (
        (FindingKind.HEALTHY, ""),
        (FindingKind.NOT_KNOWN, " `headgate explain JOB` says what is missing."),
    ):
        if jobs := [
            line.job for line in lines if line.finding.kind is kind and not line.worth_a_line
        ]:
            texts.append(f"{kind}: {listed(jobs)}.{more}")
    return texts


def _folded(lines: Sequence[Headline]) -> list[tuple[Headline, int]]:
    """Headlines, one for all jobs that waited for the same, each with its number of jobs."""
    alike: dict[tuple[str, str], list[Headline]] = {}
    for line in lines:
        facts, reason, job = line.finding.facts, "", line.job
        if isinstance(facts, WaitedFacts) and facts.skipped is None:
            reason, job = f", {in_words(facts.waited_for)}" if facts.waited_for else "", ""
        alike.setdefault((reason, job), []).append(line)
    folded = list[tuple[Headline, int]]()
    for (reason, _), same in alike.items():
        if len(same) > _FEW_ALIKE:
            seconds = [line.finding.cost.seconds for line in same]
            least, most = say_seconds(min(seconds)), say_seconds(max(seconds))
            times = least if least == most else f"{least} to {most}"
            waited = f"{counted(len(same), 'job')} waited to start for {times}{reason}."
            folded.append((replace(same[0], why=waited), len(same)))
        else:
            folded += [(line, 1) for line in same]
    return folded


def _line(line: Headline) -> str:
    advice = f" Next: {line.advice}" if line.advice else ""
    return f"{line.why}{advice} ({line.finding.kind})"


def _parts(account: Account) -> Table:
    table = _table("Where its time went", "Seconds", "Of all", "90 % band")
    for part, estimate in account.parts.items():
        if estimate.high >= LEAST_SECONDS:
            share = (
                say_percent(estimate.seconds / account.elapsed)
                if account.elapsed > 0.0
                else MISSING
            )
            table.add_row(f"  {part}", say_moment(estimate.seconds), share, _band(estimate))
    table.add_row("  elapsed", say_moment(account.elapsed), "", "")
    return table


def _losses(account: Account) -> Table:
    table = _table("Lost to", "Seconds", "Of all", "90 % band", "Resource", "Evidence")
    for loss in account.losses:
        share = say_percent(loss.lost.seconds / account.elapsed)
        culprit_text = Text(f"  {culprit(loss, account)}")
        table.add_row(
            culprit_text,
            say_moment(loss.lost.seconds),
            share,
            _band(loss.lost),
            loss.resource,
            loss.evidence,
        )
    return table


def _bought(speedups: Speedups) -> Table:
    table = _table("What more would buy", *SPEED_COLUMNS)
    for name, figures in speedups.named().items():
        table.add_row(f"  {name.replace('+', ' + ')}", *map(say_speedup, figures.values()))
    return table


def say_speedup(speedup: Speedup | None) -> str:
    """`1.90 (1.50 to 2.30)`; without a band if `say_times` gives no digits."""
    if speedup is None:
        return MISSING
    times = say_times(speedup.speedup)
    if speedup.speedup > _MOST_SAID:
        return times
    return f"{times} ({speedup.low:.2f} to {speedup.high:.2f})"


def say_times(speedup: float) -> str:
    """`1.90`; above `_MOST_SAID` no digits, because these would only come from the replay."""
    return f"{speedup:.2f}" if speedup <= _MOST_SAID else f"over {_MOST_SAID}"


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(f"  {first}")
    for name in others:
        table.add_column(name, justify="left" if name in ("Resource", "Evidence") else "right")
    return table


def _band(estimate: TimeEstimate) -> str:
    if estimate.low == estimate.high:
        return ""
    return f"{say_seconds(round(estimate.low, 1))} to {say_seconds(round(estimate.high, 1))}"
