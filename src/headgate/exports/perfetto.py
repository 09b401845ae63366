"""A trace for https://ui.perfetto.dev and chrome://tracing, in Chrome's Trace Event Format.

Each job is a process: one track has the states that it went through, and one for each task has its
sampled steps with their spans. What one task sent another is an arrow between them. Viewers drop
slices that overlap on a track, and arrows that end in no slice, so the trace has neither.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from headgate.exports.series import PREFIX, series
from headgate.model.identifiers import TaskName, TaskOfRun
from headgate.recorded import runs, stepping
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.reader import RunReader
from headgate.recorded.recording import Recording
from headgate.recorded.sampled import Bar, ReportedStep, StepTransfer, placed

_COUNTED = ("loss", f"{PREFIX}entitled_cores", f"{PREFIX}cpu_cores", f"{PREFIX}memory_bytes")
_Event = dict[str, Any]


class _Track(NamedTuple):
    pid: int
    tid: int


class _PlacedStep(NamedTuple):
    """A step that begins at a second of the run."""

    step: ReportedStep
    begin: float
    bars: Sequence[Bar]
    transfers: Sequence[StepTransfer]

    @property
    def end(self) -> float:
        return self.begin + self.step.seconds


class _Arrow(NamedTuple):
    """Bytes that left one task and reached another, at seconds of the run."""

    source: TaskOfRun
    target: TaskOfRun
    begin: float
    end: float
    bytes: float


def to_perfetto(run: Recording, to: Path) -> Path:
    """Write a trace.

    Raises:
        OSError: It cannot be written.
    """
    tids, flows = count(1), count(1)
    names: list[_Event] = []
    events: list[_Event] = []
    states: dict[str, _Track] = {}
    with RunReader(run.folder / runs.STORE) as reader:
        for job in run.jobs:
            tid = next(tids)
            own = states[job.name] = _Track(tid, tid)
            names += [_name("process_name", own, job.name), _name("thread_name", own, "states")]
            tasks = sorted((task.id for task in job.tasks), key=lambda id: id.name.order)
            tracks = {task: _Track(own.pid, next(tids)) for task in tasks}
            names += [_name("thread_name", track, task.name) for task, track in tracks.items()]
            events += _states(job, own)
            steps = _placed_steps(reader, job)
            for step in steps:
                events += _step(step, tracks[step.step.task])
            for arrow in _arrows(job, steps):
                events += _arrow(arrow, tracks, next(flows))
    events += _counters(run, states)
    events.sort(key=itemgetter("ts"))
    other = {"run": run.id}
    trace = {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": other}
    to.write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
    return to


def _event(phase: str, name: str, track: _Track, t: float, **more: Any) -> _Event:
    return {"ph": phase, "name": name, **track._asdict(), "ts": _microseconds(t), **more}


def _slice(name: str, track: _Track, begin: float, end: float, **args: Any) -> _Event:
    length = round(_microseconds(end) - _microseconds(begin), 3)
    return _event("X", name, track, begin, dur=length, args=args)


def _microseconds(t: float) -> float:
    """Whole nanoseconds, so that what ends together does so in the trace."""
    return round(t * 1e6, 3)


def _name(kind: str, track: _Track, name: str) -> _Event:
    return _event("M", kind, track, 0.0, args={"name": name})


def _states(job: RecordedJob, track: _Track) -> Iterator[_Event]:
    for phase in job.phases:
        args = {"attempt": phase.attempt, "why": phase.reason}
        yield _slice(phase.state, track, phase.start, phase.end, **args)


def _placed_steps(reader: RunReader, job: RecordedJob) -> list[_PlacedStep]:
    """The sampled steps of a job's tasks, in the order of time."""
    drawn = list(stepping.drawn(reader, [traced.told for traced in job.traced]))
    starts = placed({step: bars for step, bars, _ in drawn}, synchronous=job.synchronous)
    steps = [_PlacedStep(step, starts[step], bars, transfers) for step, bars, transfers in drawn]
    steps.sort(key=lambda step: step.begin)
    if job.synchronous and all(task.id.name.is_worker for task in job.tasks):
        return list(_with_waits(steps))
    return steps


def _with_waits(steps: Sequence[_PlacedStep]) -> Iterator[_PlacedStep]:
    """Tell the waits of workers that add up gradients among themselves: no sum is there before the
    last of them begins to send, and until then the others wait for it.
    """
    sending: dict[int, list[tuple[float, TaskName]]] = defaultdict(list)
    for step in steps:
        sending[step.step.step] += [
            (step.begin + bar.begin, step.step.task.name) for bar in step.bars if bar.name == "push"
        ]
    for step in steps:
        bars: list[Bar] = []
        for bar in step.bars:
            begin, end = step.begin + bar.begin, step.begin + bar.end
            later = [last for last in sending[step.step.step] if begin < last[0] < end]
            if bar.name == "push" and later:
                last, worker = max(later)
                bars.append(Bar(f"wait for {worker}", bar.begin, last - begin))
                bar = bar._replace(begin=last - step.begin, seconds=end - last)
            bars.append(bar)
        yield step._replace(bars=bars)


def _step(step: _PlacedStep, track: _Track) -> Iterator[_Event]:
    yield _slice(f"step {step.step.step}", track, step.begin, step.end)
    for bar in step.bars:
        begin, end = (min(step.begin + t, step.end) for t in (bar.begin, bar.end))
        args = {"bytes_in": bar.bytes_in, "bytes_out": bar.bytes_out}
        yield _slice(bar.name, track, begin, end, **args)


def _arrows(job: RecordedJob, steps: Iterable[_PlacedStep]) -> Iterator[_Arrow]:
    """Arrows from where bytes were sent to where they arrived. Both ends lie in steps."""
    tasks = {task.id.name: task.id for task in job.tasks}
    pushes: dict[tuple[int, TaskOfRun, TaskOfRun], list[_Arrow]] = defaultdict(list)
    pulls: dict[tuple[int, TaskOfRun, TaskOfRun], list[_Arrow]] = defaultdict(list)
    by_task: dict[TaskOfRun, list[_PlacedStep]] = defaultdict(list)
    for step in steps:
        by_task[step.step.task].append(step)
        for transfer in step.transfers:
            peer = tasks.get(TaskName(transfer.peer))
            if peer is None:
                continue
            own, is_push = step.step.task, transfer.way == "push"
            source, target = (own, peer) if is_push else (peer, own)
            begin, end = step.begin + transfer.begin, step.begin + transfer.end
            arrows = pushes if is_push else pulls
            key = step.step.step, source, target
            arrows[key].append(_Arrow(source, target, begin, end, transfer.bytes))
    for key in {**pushes, **pulls}:
        sent, arrived = pushes.get(key, []), pulls.get(key, [])
        if len(sent) == len(arrived):  # both ends were recorded
            ends = zip(sent, arrived)
            sent = [push._replace(end=max(push.begin, pull.end)) for push, pull in ends]
        for arrow in sent or arrived:
            if _is_within(by_task[arrow.source], arrow.begin) and _is_within(
                by_task[arrow.target], arrow.end
            ):
                yield arrow


def _is_within(steps: Sequence[_PlacedStep], t: float) -> bool:
    at = bisect(steps, t, key=lambda step: step.begin)
    return at > 0 and t <= steps[at - 1].end


def _arrow(arrow: _Arrow, tracks: Mapping[TaskOfRun, _Track], id: int) -> Iterator[_Event]:
    args = {"bytes": arrow.bytes}
    same = {"id": id, "cat": "transfer"}
    yield _event("s", "transfer", tracks[arrow.source], arrow.begin, args=args, **same)
    yield _event("f", "transfer", tracks[arrow.target], arrow.end, bp="e", **same)


def _counters(run: Recording, tracks: Mapping[str, _Track]) -> Iterator[_Event]:
    for figure in series(run):
        if figure.name in _COUNTED:
            for point in figure.points:
                args = {"value": point.value}
                yield _event("C", figure.name, tracks[figure.job], point.t, args=args)
