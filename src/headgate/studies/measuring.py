"""Measure a cell from its run: rates in the window in which all jobs are warm and none has ended.
Startup and elapsed time are separate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headgate.diagnosis.account import Account
from headgate.diagnosis.own_causes import evaluations
from headgate.diagnosis.verdicts import verdict
from headgate.model.errors import HeadgateError, StorageError
from headgate.model.profiles import Profile
from headgate.recorded import runs
from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask
from headgate.recorded.reader import told_as_damage
from headgate.recorded.recording import Recording, read
from headgate.recorded.steps import StepBreakdown
from headgate.recorded.usage import EMPTY, Array, Signal
from headgate.reports import explained, findings
from headgate.reports.words import say_reason
from headgate.sampling.columns import Column

FOREIGN = 0.1
"""Fraction of the cores: if others used more, or the hypervisor stole more, a cell counts as
disturbed.
"""
_LEAST_REPORTS, _LEAST_STEPS = 2, 2
"""Least reports in a window, and least steps between the first and the last, for a rate."""
_LEAD = 1.3
"""Factor on the lead that a background needs before its workload."""
_TOGETHER = 0.5
"""Jobs that run at once have to be warm together for this fraction of the shortest job's warm
time.
"""
_LEAST_READ = 1.5
"""Least seconds of readings for a use figure."""
_LEAST_SEEN = 3.0
"""Least seconds that show whether others disturbed a cell; in a shorter window one inexact reading
would decide.
"""
_MORE_STEPS = "give each more steps"
_CLOCKS = 0.1
"""Seconds by which a reading may extend beyond a window."""
_CONNECTIONS: tuple[Column, ...] = ("tcp_in", "tcp_out")
_CPU: tuple[Column, ...] = ("cpu_cores", "cpu_stolen")
_GAUGES: tuple[Column, ...] = (
    "cpu_fullest_core",
    "memory_bytes",
    "net_in",
    "net_out",
    "disk_read",
    "disk_write",
)


class NotMeasuredError(HeadgateError):
    """A run gives no figures; the message says why."""


class NotTogetherError(NotMeasuredError):
    """Jobs were hardly warm at the same time, because some start faster than others.

    Args:
        why: What was observed.
        cure: What to do if delayed starts cannot help; empty: unknown.
        at: Second of the run at which each measured job has to start instead.
    """

    def __init__(self, why: str, cure: str, at: Mapping[str, float]) -> None:
        super().__init__(f"{why}: {cure}" if cure else why)
        self.why, self.at = why, at


def measured(folder: Path, jobs: Sequence[str], warm: int) -> dict[str, Any]:
    """The figures of a run, as plain JSON values.

    Args:
        folder: Folder of the run.
        jobs: Names of the measured jobs; others are the background.
        warm: Steps of each job that are left out.

    Raises:
        NotMeasuredError: A job failed, its background ended before it, its steps leave no window,
            or the record cannot be read.
    """
    store = folder / runs.STORE
    try:
        with told_as_damage(store):
            return _measured(read(store), jobs, warm)
    except StorageError as error:
        raise NotMeasuredError(str(error)) from error


def _measured(run: Recording, jobs: Sequence[str], warm: int) -> dict[str, Any]:
    for job in run.jobs:
        if job.name in jobs and job.state != "done":
            raise NotMeasuredError(
                f"{job.name} ended as {job.state}: {say_reason(job.reason) or 'no reason is known'}"
            )
    start, end = _window(run, jobs, warm)
    accounts = {account.job: account for account in explained.explained(run)}
    foreign, stolen, disturbed = _others(run, start, end)
    return {
        "run": run.id,
        "seconds": run.seconds,
        "window": [start, end],
        "foreign_cores": foreign,
        "stolen_cores": stolen,
        "disturbed": disturbed,
        "jobs": {
            job.name: _job(job, start, end, accounts[job.name])
            for job in run.jobs
            if job.name in jobs
        },
        **_nodes(run, jobs, start, end),
    }


def _window(run: Recording, jobs: Sequence[str], warm: int) -> tuple[float, float]:
    """The part of the run (s) in which all jobs are warm and none has ended."""
    background = [job for job in run.jobs if job.name not in jobs]
    stretches = {job.name: _warm_stretch(job, warm) for job in run.jobs if job.name in jobs}
    start, end = (
        max(stretch[0] for stretch in stretches.values()),
        min(stretch[1] for stretch in stretches.values()),
    )
    shortest = min(last - first for first, last in stretches.values())
    if end - start < _TOGETHER * shortest:
        both = (
            f"jobs were warm together for {max(end - start, 0.0):.1f} s, while one was for "
            f"{shortest:.1f} s"
        )
        later = {
            job.name: _handed_in(job) + start - stretches[job.name][0]
            for job in run.jobs
            if job.name in jobs
        }
        least = min(later.values())
        raise NotTogetherError(both, _MORE_STEPS, {name: at - least for name, at in later.items()})
    for job in background:  # it may report no steps, and need not be warm
        times, _, _ = _counted(job)
        began = float(times[0]) if len(times) else job.started or 0.0
        if began > end:
            late = f"the background {job.name} was under way only when others had ended"
            raise NotTogetherError(late, "", _warm_at(run, stretches, began * _LEAD))
        start = max(start, began)
        last = max(
            recorded_job.ended or 0.0 for recorded_job in run.jobs if recorded_job.name in jobs
        )
        if job.ended is not None and job.ended < last:
            early = f"the background {job.name} ended too early"
            raise NotMeasuredError(f"{early}: {last - job.ended:.1f} s before what it was to slow")
    for job in run.jobs:
        times, steps, _ = _counted(job)
        if job.name in jobs and not _enough(steps[(times >= start) & (times <= end)]):
            short = f"jobs were warm together for {max(end - start, 0.0):.1f} s"
            if not background:
                raise NotMeasuredError(f"{short}: {_MORE_STEPS}")
            raise NotTogetherError(short, _MORE_STEPS, _warm_at(run, stretches, start * _LEAD))
    return start, end


def _warm_at(
    run: Recording, stretches: Mapping[str, tuple[float, float]], at: float
) -> dict[str, float]:
    """When each job has to start to be warm at that second of the run."""
    took = {
        job.name: stretches[job.name][0] - _handed_in(job)
        for job in run.jobs
        if job.name in stretches
    }
    return {name: max(at - seconds, 0.0) for name, seconds in took.items()}


def _handed_in(job: RecordedJob) -> float:
    """Second of the run."""
    return job.spec.at


def _warm_stretch(job: RecordedJob, warm: int) -> tuple[float, float]:
    """Second of the run from which on a job is warm, and that of its last report."""
    times, steps, _ = _counted(job)
    is_warm = steps >= (steps[0] + warm if len(steps) else 0)
    if not _enough(steps[is_warm]):
        if not len(steps):
            cure = (
                "have it print `step N` or `epoch N` with its loss, or say in `progress:` "
                "how to read them"
            )
            raise NotMeasuredError(f"{job.name} told no steps: {cure}")
        counts, lower = (
            (f", and {warm} are for its warm-up", ", or lower `warm`") if warm else ("", "")
        )
        cure = f"give it more steps, have it print `step N` with its loss{lower}"
        raise NotMeasuredError(f"{job.name} told {int(steps[-1])} steps{counts}: {cure}")
    return float(times[is_warm][0]), float(times[is_warm][-1])


def _enough(steps: Array) -> bool:
    return len(steps) >= _LEAST_REPORTS and steps[-1] - steps[0] >= _LEAST_STEPS


def _counted(job: RecordedJob) -> tuple[Array, Array, Array]:
    """Times, steps and samples reported by a job; epochs if it has no steps; samples are NaN if not
    reported.
    """
    counter = job.progress.step if np.isfinite(job.progress.step).any() else job.progress.epoch
    kept = np.isfinite(counter)
    return job.progress.t[kept], np.maximum.accumulate(counter[kept]), job.progress.samples[kept]


def _job(job: RecordedJob, start: float, end: float, account: Account) -> dict[str, Any]:
    times, steps, samples = _counted(job)
    done = float(np.diff(np.interp([start, end], times, steps))[0])
    has_samples = bool(np.isfinite(samples).all())
    made = float(np.diff(np.interp([start, end], times, samples))[0]) if has_samples else done
    used = _inside(job.signal("cpu_cores"), [(start, end)])
    began = _handed_in(job)  # not the start of its tasks: a container is made before
    known = job.progress.loss[np.isfinite(job.progress.loss)]
    unit = "samples"
    if not has_samples:
        unit = "steps" if np.isfinite(job.progress.step).any() else "epochs"
    finding = verdict(account)
    return {
        "nodes": sorted(job.nodes),
        "unit": unit,
        "rate": made / (end - start),
        "step_seconds": (end - start) / done,
        "elapsed": (job.ended or end) - began,
        "startup": float(times[0]) - began,
        "cpu_seconds_per_step": used.mean * (end - start) / done if used.mean is not None else None,
        "memory_peak_bytes": job.memory_peak_bytes,
        "loss": float(known[-1]) if len(known) else None,
        "workers": _workers(job, start, end),
        **_model(job.cost),
        "verdict": finding.kind,
        "why": findings.why(finding, account),
        "lost": [
            {
                "to": loss.to,
                "resource": loss.resource,
                "seconds": loss.lost.seconds,
                "low": loss.lost.low,
            }
            for loss in account.losses
        ],
        "more": {
            resource: {
                times: speed._asdict() if speed is not None else None
                for times, speed in speeds.items()
            }
            for resource, speeds in account.around.speedups.named().items()
        },
    }


def _workers(job: RecordedJob, start: float, end: float) -> dict[str, dict[str, float | None]]:
    """For each worker's sampled steps: seconds, and bytes received and sent. If one worker
    coordinates asynchronous ones, it reports the steps of all; each makes its part of them.
    """
    workers = [task for task in job.tasks if task.is_worker]
    divisions = [task.division for task in workers if task.division is not None]
    coordinated = len(workers) > 1 and len(divisions) == 1 and not job.synchronous
    if not coordinated:
        return {task.name: _worker(task, task.division, start, end) for task in workers}
    own = replace(divisions[0], step_seconds=divisions[0].step_seconds * len(workers))
    return {task.name: _worker(task, own, start, end) for task in workers}


def _worker(
    task: RecordedTask, told: StepBreakdown | None, start: float, end: float
) -> dict[str, float | None]:
    """One worker's figures. Bytes are the library's count or the kernel's, whichever is greater:
    the library's lacks sparse gradients without servers, the kernel's lacks part of a short window.
    """
    if told is None:
        return {"step_seconds": None, "received": None, "sent": None}
    rates = (_inside(task.signal(column), [(start, end)]).mean for column in _CONNECTIONS)
    come, gone = (rate * told.step_seconds if rate is not None else None for rate in rates)
    return {
        "step_seconds": told.step_seconds,
        "received": max(
            (count for count in (told.received, come) if count is not None), default=None
        ),
        "sent": max((count for count in (told.sent, gone) if count is not None), default=None),
    }


def _model(profile: Profile) -> dict[str, float | None]:
    """Samples of a batch, bytes of its parameters, and bytes that a batch uses, without untouched
    table rows. Table rows on servers, and tables in frameworks other than PyTorch, are unknown.
    """
    dense, sparse = profile.dense_bytes or 0, profile.sparse_bytes or 0
    tables, rows = profile.dense_table_bytes, profile.sparse_bytes_per_sample
    part = profile.dense_table_touched if profile.dense_table_touched is not None else 1.0
    unused = (tables or 0) * (1.0 - part)
    touched = dense - unused + (rows or 0.0) * (profile.batch or 0)
    known = tables is not None and (rows is not None or not sparse)
    return {
        "batch": profile.batch,
        "model_bytes": dense + sparse or None,
        "touched_bytes": (known and touched) or None,
    }


def _inside(signal: Signal, stretches: Sequence[tuple[float, float]]) -> Signal:
    """Readings wholly within one of the stretches, if there are two. A reading across an edge
    covers too much of the time outside, and in a short window there would be no other.
    """
    kept = np.zeros(len(signal), bool)
    for start, end in stretches:
        kept |= (signal.start >= start - _CLOCKS) & (signal.end <= end + _CLOCKS)
    inside = Signal(signal.start[kept], signal.end[kept], signal.value[kept])
    return inside if inside.seconds >= _LEAST_READ else EMPTY


def _others(run: Recording, start: float, end: float) -> tuple[float, float, bool]:
    """Mean cores used by programs outside the run in the window, cores stolen by the hypervisor,
    and whether these disturbed it. Lab nodes are disturbed only once the machine has no spare
    cores.
    """
    job_nodes = {name for job in run.jobs for name in job.nodes}
    other_nodes = [node for node in run.nodes if node.name not in job_nodes]
    nodes = other_nodes or run.nodes
    start = min(start, end - _LEAST_SEEN)
    cores = sum(node.cores or 0.0 for node in nodes)
    used, stolen = (
        sum(node.signal(column).within(start, end).mean or 0.0 for node in nodes) for column in _CPU
    )
    foreign = max(
        used - sum(job.signal("cpu_cores").within(start, end).mean or 0.0 for job in run.jobs), 0.0
    )
    spare = bool(other_nodes) and cores - used > FOREIGN * cores
    return foreign, stolen, bool(cores and max(foreign, stolen) > FOREIGN * cores and not spare)


def _nodes(run: Recording, jobs: Sequence[str], start: float, end: float) -> dict[str, Any]:
    """Node use in the window while jobs trained, and from the first report on while one
    evaluated.
    """
    measured_jobs = [job for job in run.jobs if job.name in jobs]
    last = max(job.ended or end for job in measured_jobs)
    training, testing, at = [], [], start
    for begin, done in sorted(window for job in measured_jobs for window in evaluations(job)):
        if at < begin and at < end:
            training.append((at, min(begin, end)))
        if max(at, begin) < min(done, last):
            testing.append((max(at, begin), min(done, last)))
        at = max(at, done)
    if at < end:
        training.append((at, end))
    return {
        "nodes": {node.name: _node(node, training) for node in run.nodes},
        "nodes_testing": {node.name: _node(node, testing) for node in run.nodes} if testing else {},
    }


def _node(node: RecordedNode, stretches: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Mean and maximum use of a node in these stretches."""
    figures: dict[str, Any] = {"cores": node.cores, "memory": node.memory_bytes}
    figures |= {"nic": node.nic_bytes_per_second, "disk": node.disk_bytes_per_second}
    for column in _GAUGES:
        signal = _inside(node.signal(column), stretches)
        figures[column] = [signal.mean, signal.maximum]
    cpu = _inside(node.signal("cpu_cores"), stretches)
    figures["cpu_cores"] = [cpu.mean, cpu.maximum]
    busy = [cpu.mean, cpu.maximum] if node.cores else [None, None]
    figures["idle"] = [
        max(1.0 - stretch_signal / node.cores, 0.0)
        if stretch_signal is not None and node.cores
        else None
        for stretch_signal in busy
    ]
    return figures
