"""A trace for https://ui.perfetto.dev and chrome://tracing, in Chrome's Trace Event Format.

Each job is a process: one track has the states that it went through, and one for each task has its
sampled steps with their spans. What one task sent another is an arrow between them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate.exports.series import PREFIX, series
from headgate.model.identifiers import TaskName
from headgate.recorded import runs, stepping
from headgate.recorded.recording import Recording
from headgate.recorded.sampled import Bar, ReportedStep, StepTransfer
from headgate.recorded.store import RunReader

_MICROSECONDS = 1e6
_STATES = 0
"""The track with a job's states; those of tasks follow."""
_COUNTED = ("loss", f"{PREFIX}entitled_cores", f"{PREFIX}cpu_cores", f"{PREFIX}memory_bytes")


def to_perfetto(run: Recording, to: Path) -> Path:
    """Write a trace.

    Raises:
        OSError: It cannot be written.
    """
    events = [*_states(run), *_steps(run), *_counters(run)]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": run.id}}
    to.write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
    return to


def _event(phase: str, name: str, pid: int, tid: int, t: float, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": name, "pid": pid, "tid": tid, "ts": t * _MICROSECONDS, **more}


def _name(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return _event("M", kind, pid, tid, 0.0, args={"name": name})


def _states(run: Recording) -> Iterator[dict[str, Any]]:
    for pid, job in enumerate(run.jobs, 1):
        yield _name("process_name", pid, _STATES, job.name)
        yield _name("thread_name", pid, _STATES, "states")
        for phase in job.phases:
            length = (phase.end - phase.start) * _MICROSECONDS
            args = {"attempt": phase.attempt, "why": phase.reason}
            yield _event("X", phase.state, pid, _STATES, phase.start, dur=length, args=args)


def _steps(run: Recording) -> Iterator[dict[str, Any]]:
    with RunReader(run.folder / runs.STORE) as reader:
        for pid, job in enumerate(run.jobs, 1):
            tasks = {task.id: tid for tid, task in enumerate(job.tasks, 1)}
            names = {task.id.name: task.id for task in job.tasks}
            for id, tid in tasks.items():
                yield _name("thread_name", pid, tid, id.name)
            steps = [traced.told for traced in job.traced]
            for step, bars, transfers in stepping.drawn(reader, steps):
                tid = tasks[step.task]
                yield from _step(step, bars, pid, tid)
                for transfer in transfers:
                    if (peer := names.get(TaskName(transfer.peer))) is not None:
                        yield from _arrow(step, transfer, pid, tid, tasks[peer])


def _step(
    step: ReportedStep, bars: tuple[Bar, ...], pid: int, tid: int
) -> Iterator[dict[str, Any]]:
    length = step.seconds * _MICROSECONDS
    yield _event("X", f"step {step.step}", pid, tid, step.start, dur=length)
    for bar in bars:
        args = {"bytes_in": bar.bytes_in, "bytes_out": bar.bytes_out}
        at = step.start + bar.begin
        yield _event("X", bar.name, pid, tid, at, dur=bar.seconds * _MICROSECONDS, args=args)


def _arrow(
    step: ReportedStep, transfer: StepTransfer, pid: int, own: int, other: int
) -> Iterator[dict[str, Any]]:
    """An arrow from where bytes were sent to where they arrived."""
    source, target = (own, other) if transfer.way == "push" else (other, own)
    id = f"{step.task}/{step.step}/{transfer.way}/{transfer.peer}"
    begin, end = step.start + transfer.begin, step.start + transfer.end
    args = {"bytes": transfer.bytes}
    yield _event("s", transfer.way, pid, source, begin, id=id, cat="transfer", args=args)
    yield _event("f", transfer.way, pid, target, end, id=id, cat="transfer", bp="e")


def _counters(run: Recording) -> Iterator[dict[str, Any]]:
    pids = {job.name: pid for pid, job in enumerate(run.jobs, 1)}
    for figure in series(run):
        if figure.name in _COUNTED:
            for point in figure.points:
                pid, args = pids[figure.job], {"value": point.value}
                yield _event("C", figure.name, pid, _STATES, point.t, args=args)
