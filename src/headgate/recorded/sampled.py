"""Choose single sampled steps of a job with several tasks, and align the times of everything in
them.

A task reports a step after its end. Workers of a synchronous plan do the same steps and receive the
last sums together, so their spans are aligned at the end of the exchange. Rounds of servers and
steps of asynchronous workers are placed by the time of their report. The error is some
milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from headgate.model.identifiers import TaskOfRun
from headgate.recorded.steps import EXPOSED

Kind = Literal["typical", "slowest"]
_CLOSE_SECONDS = 1.0
"""How long before or after a step a server may report its round: on a busy machine messages are
slow.
"""

REST = frozenset({"other", "idle"})
"""Spans for time that belongs to no other span."""

_SEEN = 1e-3
"""Shortest part of a step that gets a bar between two others."""


class ReportedStep(NamedTuple):
    """A task's report of one step: `t` in seconds of the run, the step, and its seconds."""

    t: float
    task: TaskOfRun
    step: int
    seconds: float

    @property
    def start(self) -> float:
        """The start of the step, from the time of its report."""
        return self.t - self.seconds


@dataclass(frozen=True, slots=True)
class Chosen:
    """A step chosen for display.

    Args:
        start: Its start, in seconds of the run.
        seconds: Its length; with synchronous workers, of the slowest.
        workers: The reports of its workers.
        servers: The reports of servers at the time; a server may report several rounds.
    """

    kind: Kind
    step: int
    start: float
    seconds: float
    workers: tuple[ReportedStep, ...]
    servers: tuple[ReportedStep, ...]

    @property
    def told(self) -> tuple[ReportedStep, ...]:
        return *self.workers, *self.servers


class Bar(NamedTuple):
    """A span within a step; `begin` is in seconds from the start of the step."""

    name: str
    begin: float
    seconds: float
    bytes_in: float = 0.0
    bytes_out: float = 0.0

    @property
    def end(self) -> float:
        return self.begin + self.seconds


class StepTransfer(NamedTuple):
    """Bytes sent to a peer (`push`) or received from it (`pull`), first to last, in seconds from
    the start of the step.
    """

    peer: str
    way: Literal["push", "pull"]
    begin: float
    end: float
    bytes: float


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A task's sampled step as reported.

    Args:
        seconds: Seconds by span.
        transfers: Its traffic with other tasks.
        loader_workers: Processes that read its input; None: unknown.
    """

    told: ReportedStep
    seconds: Mapping[str, float]
    transfers: tuple[StepTransfer, ...] = ()
    loader_workers: int | None = None


@dataclass(frozen=True, slots=True)
class TaskStep:
    """What a task did in a step: its spans in the order of time, and its traffic with each peer."""

    task: TaskOfRun
    seconds: float
    bars: tuple[Bar, ...]
    transfers: tuple[StepTransfer, ...]


@dataclass(frozen=True, slots=True)
class SampledStep:
    """A step with everything in it: workers first, by index, then servers."""

    kind: Kind
    step: int
    start: float
    seconds: float
    tasks: tuple[TaskStep, ...]


def choose(
    workers: Sequence[ReportedStep], servers: Sequence[ReportedStep], *, synchronous: bool
) -> tuple[Chosen, ...]:
    """The step of median length and the slowest one; one if they are the same, none without steps.

    Args:
        workers: Reports of the workers.
        servers: Reports of the servers.
        synchronous: Whether the workers do the same steps.
    """
    steps = _shared(workers) if synchronous else [(worker,) for worker in workers]
    if not steps:
        return ()
    crowd = sorted(len(step) for step in steps)[len(steps) // 2]
    usual = sorted((step for step in steps if len(step) >= crowd), key=_seconds)
    picked: list[tuple[Kind, tuple[ReportedStep, ...]]] = [
        ("typical", usual[(len(usual) - 1) // 2])
    ]
    slowest = max(steps, key=_seconds)
    if slowest is not picked[0][1]:
        picked.append(("slowest", slowest))
    result = []
    for kind, step in picked:
        seconds = _seconds(step)
        start = max(reported_step.t for reported_step in step) - seconds
        others = step if synchronous else (*step, *_beside(step[0], workers))
        rounds = _during(start, seconds, servers, step[0].step if synchronous else None)
        result.append(Chosen(kind, step[0].step, start, seconds, others, rounds))
    return tuple(result)


def _seconds(step: Sequence[ReportedStep]) -> float:
    return max(reported_step.seconds for reported_step in step)


def _shared(workers: Sequence[ReportedStep]) -> list[tuple[ReportedStep, ...]]:
    """The workers' reports, step by step. A later report of the same step replaces the earlier
    one.
    """
    done: list[dict[str, ReportedStep]] = []
    latest: dict[int, dict[str, ReportedStep]] = {}
    for worker in sorted(workers):
        step = latest.get(worker.step)
        if step is None or worker.task in step:
            step = latest[worker.step] = {}
            done.append(step)
        step[worker.task] = worker
    return [
        tuple(sorted(step.values(), key=lambda reported_step: reported_step.task.name.order))
        for step in done
    ]


def _beside(one: ReportedStep, workers: Sequence[ReportedStep]) -> list[ReportedStep]:
    """For every other worker, the step that overlaps most with `one`, if any."""
    best: dict[str, tuple[float, ReportedStep]] = {}
    for worker in workers:
        overlap = min(worker.t, one.t) - max(worker.start, one.start)
        if worker.task != one.task and overlap > best.get(worker.task, (0.0, worker))[0]:
            best[worker.task] = overlap, worker
    return [reported_step for _, reported_step in best.values()]


def _during(
    start: float, seconds: float, servers: Sequence[ReportedStep], step: int | None
) -> tuple[ReportedStep, ...]:
    """The rounds of servers for which a step waited. If rounds are steps, these are near rounds of
    the same number. Otherwise they are rounds reported during the step, or else the closest one of
    each server.
    """
    end, slack = start + seconds, seconds / 4
    near = max(_CLOSE_SECONDS, seconds)
    by_server: dict[str, list[ReportedStep]] = {}
    for reported_step in servers:
        if start - near < reported_step.t <= end + near:
            by_server.setdefault(reported_step.task, []).append(reported_step)
    reported_steps: list[ReportedStep] = []
    for told_by in by_server.values():
        same = [reported_step for reported_step in told_by if reported_step.step == step]
        while_on = [
            reported_step
            for reported_step in told_by
            if start + slack < reported_step.t <= end + slack
        ]
        reported_steps += (
            same or while_on or [min(told_by, key=lambda reported_step: abs(reported_step.t - end))]
        )
    return tuple(reported_steps)


def lay_out(spans: Iterable[tuple[str, float | None, float, float, float]]) -> tuple[Bar, ...]:
    """Non-overlapping bars from name, begin (None: after the one before), seconds, bytes in and
    out.

    A span in several pieces becomes one bar from its first begin, and later bars shift. The rest of
    the time fills the gaps.
    """
    given = list(spans)
    unnamed = [span for span in given if span[0] in REST]
    named = [span for span in given if span[0] not in REST]
    if all(begin is not None for _, begin, *_ in named):
        named.sort(key=lambda span: span[1] or 0.0)
    filler = max(unnamed, key=lambda span: span[2])[0] if unnamed else None
    bars: list[Bar] = []
    total_seconds = sum(span[2] for span in given)
    end = 0.0

    def fill(until: float) -> None:
        if filler is not None and until - end > total_seconds * _SEEN:
            bars.append(Bar(filler, end, until - end))

    for name, begin, seconds, bytes_in, bytes_out in named:
        at = max(end, begin if begin is not None else end)
        fill(at)
        bars.append(Bar(name, at, seconds, bytes_in, bytes_out))
        end = at + seconds
    fill(total_seconds)
    return tuple(bars)


def assemble(
    chosen: Chosen,
    parts: Iterable[tuple[ReportedStep, Sequence[Bar], Sequence[StepTransfer]]],
    *,
    synchronous: bool,
) -> SampledStep:
    """Assemble a chosen step for drawing.

    Args:
        parts: Bars and transfers of each of `chosen.told`, in seconds from its own start.
        synchronous: As for `choose`.
    """
    given = sorted(parts, key=lambda part: (part[0].task.name.order, part[0].t))
    exchanged = {
        reported_step: _exchanged(bars)
        for reported_step, bars, _ in given
        if synchronous and reported_step in chosen.workers
    }
    together = max((end for end in exchanged.values() if end is not None), default=0.0)
    pushed: dict[str, float] = {}  # when the first bytes left for each peer
    tasks: dict[TaskOfRun, TaskStep] = {}
    for reported_step, bars, transfers in given:
        worker = reported_step in chosen.workers
        offset = reported_step.start - chosen.start
        if worker and synchronous:
            end = exchanged[reported_step]
            offset = together - end if end is not None else 0.0
        arrived = next((bar.begin for bar in bars if bar.name == "receive"), None)
        name = reported_step.task.name
        if (
            not worker
            and synchronous
            and reported_step.task not in tasks
            and name in pushed
            and arrived is not None
        ):
            offset = pushed[name] - arrived  # causality is more reliable than clocks
        laid = tuple(bar._replace(begin=bar.begin + offset) for bar in bars)
        sent = tuple(
            transfer._replace(begin=transfer.begin + offset, end=transfer.end + offset)
            for transfer in transfers
        )
        for transfer_sent in sent:
            if transfer_sent.way == "push":
                pushed[transfer_sent.peer] = min(
                    transfer_sent.begin, pushed.get(transfer_sent.peer, transfer_sent.begin)
                )
        before = tasks.get(reported_step.task)
        if before is None:
            tasks[reported_step.task] = TaskStep(
                reported_step.task, reported_step.seconds, laid, sent
            )
        else:
            tasks[reported_step.task] = replace(
                before,
                seconds=before.seconds + reported_step.seconds,
                bars=(*before.bars, *laid),
                transfers=(*before.transfers, *sent),
            )
    return SampledStep(
        chosen.kind, chosen.step, chosen.start, chosen.seconds, tuple(tasks.values())
    )


def placed(
    steps: Mapping[ReportedStep, Sequence[Bar]], *, synchronous: bool
) -> dict[ReportedStep, float]:
    """The start of each step, in seconds of the run, such that no two of a task overlap.

    A report comes late, never early. So a step ends before the next of its task begins, and
    synchronous workers end their exchange when the first of them is known to have ended it.

    Args:
        steps: Steps of a job with their bars.
        synchronous: As for `choose`.
    """
    together = {step for step in steps if synchronous and step.task.name.is_worker}
    groups = [*_shared(list(together)), *((step,) for step in steps if step not in together)]
    starts: dict[ReportedStep, float] = {}
    limits: dict[TaskOfRun, float] = {}
    for group in sorted(groups, key=max, reverse=True):
        latest = {
            step: min(step.start, limits.get(step.task, step.t) - step.seconds) for step in group
        }
        ends = {step: _exchanged(steps[step]) for step in group}
        met = min(
            (latest[step] + end for step, end in ends.items() if end is not None), default=0.0
        )
        for step, end in ends.items():
            starts[step] = limits[step.task] = latest[step] if end is None else met - end
    return starts


def _exchanged(bars: Sequence[Bar]) -> float | None:
    """When a worker had all sums, in seconds from the start of its step; None: it exchanged
    nothing.
    """
    return max((bar.end for bar in bars if bar.name in EXPOSED), default=None)
