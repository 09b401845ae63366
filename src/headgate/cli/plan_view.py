"""Prints the result of `headgate plan`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from headgate.cli.live_view import wide_console
from headgate.model.jobs import Job
from headgate.model.plans import Plan, Prediction
from headgate.model.units import counted, say_bytes, say_first, say_percent, say_seconds
from headgate.planning.choosing import grown, in_words
from headgate.planning.cost import CostModel
from headgate.planning.jointly import JointPlans
from headgate.planning.physics import RESOURCES
from headgate.planning.search import SearchResult

_WIDTH = 150  # of the table where the output is no terminal


@dataclass(frozen=True, slots=True)
class RankedPlans:
    """A job's candidates on a cluster. The first is the choice.

    Args:
        measured: Samples per second of candidates that were measured, in past runs or by probes.
        failed: Candidates that failed when they were measured, and why.
    """

    job: Job
    costs: CostModel
    found: SearchResult
    measured: Mapping[Plan, Sequence[float]] = field(default_factory=dict)
    failed: Mapping[Plan, str] = field(default_factory=dict)

    @property
    def shown(self) -> tuple[Prediction, ...]:
        return (self.found.best, *self.found.runners_up)


def show(
    answer: RankedPlans, before: RankedPlans | None, changes: Sequence[str], explain: int | None
) -> None:
    """Print the four answers, the candidates, and other requested details.

    Args:
        answer: The answer.
        before: The answer without the changes; None: there are none.
        changes: The changes.
        explain: Number of the candidate whose seconds are listed.
    """
    for line in _answer_lines(answer):
        click.echo(line)
    if before is not None:
        was, now = before.found.best.throughput, answer.found.best.throughput
        click.echo(
            f"\nwith {', '.join(changes)}: {_round(was)} becomes {_round(now)} samples/s "
            f"({100 * (now / was - 1):+.0f} %)"
        )
    click.echo()
    wide_console(_WIDTH).print(_table(answer))
    click.echo(_certainty(answer))
    for note in answer.costs.notes:
        click.echo(f"note: {note}")
    for plan, reason in answer.failed.items():
        click.echo(f"note: left out, because it did not run: {in_words(plan)}: {reason}")
    if explain is not None:
        click.echo(
            f"\ncandidate {explain}, seconds of a step before any of them hides behind another:"
        )
        for term in answer.costs.explain(answer.shown[explain - 1].plan):
            click.echo(
                f"  {say_seconds(term.seconds):>9}  {term.resource:8} {term.meaning} ({term.how})"
            )


def show_together(answers: Sequence[RankedPlans], division: JointPlans) -> None:
    """Print the four answers of jobs that run side by side, and the effect on each job."""
    for answer, part, fair in zip(answers, division.normalised, division.fair):
        click.echo(answer.job.name)
        for line in _answer_lines(answer):
            click.echo(f"  {line}")
        click.echo(
            f"  beside others {say_percent(part)} of what it would have alone; on an equal part of "
            f"the nodes {say_percent(fair)}\n"
        )
    click.echo(f"together {division.total:.2f} times what one of them would have alone")
    for note in dict.fromkeys(note for answer in answers for note in answer.costs.notes):
        click.echo(f"note: {note}")


def together_as_data(
    answers: Sequence[RankedPlans], division: JointPlans, changes: Sequence[str]
) -> dict[str, Any]:
    """The answers of jobs that run side by side, for `--json`."""
    return {
        "jobs": [
            {
                "job": answer.job.name,
                "choice": _prediction(answer.found.best),
                "memory_bytes": answer.costs.memory(answer.found.best.plan),
                "normalised": part,
                "fair": fair,
                "notes": list(answer.costs.notes),
            }
            for answer, part, fair in zip(answers, division.normalised, division.fair)
        ],
        "total": division.total,
        "what_if": list(changes),
    }


def _answer_lines(answer: RankedPlans) -> list[str]:
    """The four answers, with their reasons."""
    best = answer.found.best
    plan, memory = best.plan, answer.costs.memory(best.plan)
    sizes = (
        plan.batch_per_worker
        if isinstance(plan.batch_per_worker, tuple)
        else (plan.batch_per_worker,)
    )
    least, most = sizes[0], sizes[0]
    if all(size is not None for size in sizes):
        known_sizes = [size for size in sizes if size is not None]
        least, most = min(known_sizes), max(known_sizes)
    if most is None:
        batch = "the script's own batch"
        batch += ", divided among the workers" if plan.workers > 1 else ""
    else:
        samples = f"{least}" if least == most else f"{least} to {most}"
        batch = f"{samples} samples of a step for each worker"
    cores = ""
    if plan.cores_per_worker is not None:
        cores = f", {counted(plan.cores_per_worker, 'core', 'g')} each"
    how = {
        "single": "one worker by itself",
        "allreduce": "workers add up gradients among themselves",
    }
    role = how.get(plan.strategy, "servers add up the gradients of workers")
    waits = "" if plan.synchronous else ", and no worker waits for another"
    waits += f", at most {plan.staleness} steps ahead" if plan.staleness is not None else ""
    waits += (
        f", a step does without the gradients of {plan.backup_workers}"
        if plan.backup_workers
        else ""
    )
    on = _node_counts(plan.worker_nodes)
    grows = grown(answer.job, answer.costs.profile, plan)
    serve = f"; servers on {_node_counts(plan.server_nodes)}" if plan.servers else ""
    servers = "" if not plan.servers else f" and {plan.servers} server{'s' * (plan.servers > 1)}"
    largest = say_bytes(max(memory.values()))
    bound = f"bound by {best.bottleneck}"
    return [
        f"how many     {plan.workers} worker{'s' * (plan.workers > 1)}{servers}",
        f"how large    {batch}{cores}{grows}; at most {largest} of memory for a task",
        f"which role   {plan.strategy}: {role}{waits}",
        f"which node   workers on {on}{serve}",
        f"expected     {_round(best.throughput)} samples/s ({_band(best)}), {bound}",
    ]


def _node_counts(names: Sequence[str]) -> str:
    """Nodes, with the number of tasks on each if it is more than one."""
    counter = Counter(names)
    nodes = [name if count == 1 else f"{name} ({count})" for name, count in counter.items()]
    return say_first(nodes, 8)


def _table(answer: RankedPlans) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "", "strategy", "tasks", "batch", "nodes", "samples/s", "low to high"):
        table.add_column(
            heading, no_wrap=True, justify="right" if heading == "samples/s" else "left"
        )
    resources = [
        name
        for name in RESOURCES
        if any(name in shown_prediction.seconds for shown_prediction in answer.shown)
    ]
    if answer.measured:
        table.add_column("measured", no_wrap=True, justify="right")
    for heading in (*(f"{name} s" for name in resources), "binds"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "binds" else "right")
    kinds = {name: kind.in_words for kind in answer.costs.kinds for name in kind.names}
    for i, shown_prediction in enumerate(answer.shown):
        plan = shown_prediction.plan
        nodes = Counter(kinds[name] for name in {*plan.worker_nodes, *plan.server_nodes})
        sizes = plan.batch_per_worker
        batch = "" if sizes is None else str(sizes)
        if isinstance(sizes, tuple):
            batch = f"{min(sizes)}-{max(sizes)}"
        table.add_row(
            "*" if i == 0 else "",
            str(i + 1),
            plan.strategy + ("" if plan.synchronous else " async"),
            f"{plan.workers}" + (f"+{plan.servers}" if plan.servers else ""),
            batch,
            Text(", ".join(f"{count} {kind}" for kind, count in sorted(nodes.items()))),
            _round(shown_prediction.throughput),
            _band(shown_prediction),
            *([_mean(answer.measured.get(plan, ()))] if answer.measured else []),
            *(f"{shown_prediction.seconds.get(name, 0.0):.3g}" for name in resources),
            shown_prediction.bottleneck,
        )
    return table


def _band(prediction: Prediction) -> str:
    return f"{_round(prediction.low)} to {_round(prediction.high)}"


def _mean(rates: Sequence[float]) -> str:
    return _round(sum(rates) / len(rates)) if rates else ""


def _certainty(answer: RankedPlans) -> str:
    result = answer.found
    if answer.measured:
        count = sum(map(len, answer.measured.values()))
        return (
            f"* the choice: the best by the model, which {count} "
            f"measurement{'s' * (count > 1)} corrected"
        )
    if answer.failed:
        return "* the choice: the best by the model of those that may run"
    if answer.job.plan is not None:
        return "* the plan that the job states: no other was looked for"
    if result.exact:
        return "* the choice: the best there is by the model"
    gap = say_percent(result.gap, 1)
    return f"* the choice: at most {gap} below what any plan could bring by the model"


def _round(value: float) -> str:
    """Round to at least three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_data(
    answer: RankedPlans, before: RankedPlans | None, changes: Sequence[str], explain: int | None
) -> dict[str, Any]:
    """The answer for `--json`."""
    result = answer.found
    data: dict[str, Any] = {
        "job": answer.job.name,
        "choice": _prediction(result.best),
        "candidates": [_prediction(shown_prediction) for shown_prediction in answer.shown],
        "memory_bytes": answer.costs.memory(result.best.plan),
        "bound": result.bound,
        "exact": result.exact,
        "notes": list(answer.costs.notes),
        "measured": [
            {"plan": asdict(plan), "throughput": sum(rates) / len(rates), "times": len(rates)}
            for plan, rates in answer.measured.items()
        ],
        "failed": [
            {"plan": asdict(plan), "reason": reason} for plan, reason in answer.failed.items()
        ],
    }
    if before is not None:
        data |= {"what_if": list(changes), "before": _prediction(before.found.best)}
    if explain is not None:
        data["explain"] = [
            asdict(term) for term in answer.costs.explain(answer.shown[explain - 1].plan)
        ]
    return data


def _prediction(prediction: Prediction) -> dict[str, Any]:
    return asdict(replace(prediction, seconds=dict(prediction.seconds)))
