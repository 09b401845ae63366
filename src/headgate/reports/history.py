"""Other runs of the same job: how fast it ran alone, and whether it was faster before."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.findings import Difference, SlowerFacts
from headgate.diagnosis.job_figures import figures
from headgate.diagnosis.step_times import UsualStep, of_reports, ratio_to_runs, step_time
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import FIRST_WORKER, TaskOfRun
from headgate.model.jobs import Job
from headgate.model.records import plain
from headgate.recorded import runs
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.queries import Counter, last_counts, mean_cores
from headgate.recorded.reader import RunReader
from headgate.recorded.recording import Recording, read
from headgate.recorded.rows import JobRow, TaskRow
from headgate.recorded.tables import NODE
from headgate.recorded.usage import Array
from headgate.reports.compared import differences

_SAME = ("script", "run", "args", "workdir", "python", "env")
"""Jobs are the same if these fields are. The number of tasks does not change a step, because the
global batch stays.
"""
_SAME_SCRIPT = ("script", "run", "args", "workdir")
"""Jobs are of the same script if these fields are. What else differs is told."""
_EARLIER, _ENOUGH_EARLIER, _READINGS = 40, 5, 300
"""Most of the latest runs that are looked at for the same script, enough of them, and readings of
each task of the one that is compared.
"""
_LEAST_SLOWER = 1.1
"""Least ratio of the times of a step that is worth a word."""
_LOOKED_AT, _ENOUGH = 200, 10
"""Most of the latest runs that are read, and enough runs with a rate to stop."""
_MOST_REPORTS = 20_000
_SETTLE_SECONDS, _LEAST_SECONDS, _LEAST_STEPS, _BLOCKS = 1.0, 2.0, 5, 20
_OUTSIDE = 0.1
"""Fraction of a node's cores: if others used more, the job did not run alone."""
_SAME_CORES = 0.05
_LEAST_ERROR, _UNKNOWN_ERROR = 0.03, 0.05
"""Relative deviation between runs: the least, and the assumed one with a single run."""
_SPREAD = 1.645
"""Deviations on each side of a 90 % band."""


_ENDED: dict[Path, Mapping[str, str]] = {}
"""See `_ended_jobs`."""


class _OtherRun(NamedTuple):
    """An ended run: its time in seconds since the epoch, cores and NICs of its nodes, rows of its
    jobs, and its jobs by `_kind`.
    """

    folder: Path
    began: float
    ended: float
    nodes: Mapping[str, Any]
    jobs: Sequence[JobRow]
    kinds: Mapping[str, Sequence[tuple[JobRow, Job]]]


class OtherRuns:
    """The other runs in the same folder, before and after a run. Each is read once for all jobs."""

    def __init__(self, run: Recording) -> None:
        nodes = {node.name: (node.cores, node.nic_bytes_per_second) for node in run.nodes}
        every = list(_others_of(run))
        # Nothing else ran meanwhile, and the nodes were the same.
        alone = [
            other_run
            for other_run in every
            if not any(_overlap(other_run, other) for other in every if other is not other_run)
        ]
        self._alone = [other_run for other_run in reversed(alone) if other_run.nodes == nodes]

    def alone(self, job: RecordedJob, cores: float | None = None) -> AloneRate | None:
        """The speed of a job in other runs alone on the same nodes; None: there are none.

        A run counts if its job had the same script or command, arguments, environment and working
        folder, and if nothing else ran meanwhile: no other job, no other run, and no programs
        outside on more than a tenth of the cores.

        Args:
            job: The job.
            cores: Its core limit in these runs, within 5 %; None: its present limit.
        """
        wanted = job.limit("cores") if cores is None else cores
        rates: list[tuple[float, float, int]] = []
        for other in self._alone:
            if len(rates) >= _ENOUGH:
                break
            try:
                rates += _rates(other, job, wanted)
            except HeadgateError:
                continue  # a damaged run is ignored
        return _together(rates)


def _others_of(run: Recording) -> Iterator[_OtherRun]:
    """The other runs in the order of their beginning."""
    beside = sorted(run.folder.parent.iterdir()) if run.folder.parent.is_dir() else []
    others = [
        other_job
        for other_job in beside
        if other_job.name != run.folder.name and (other_job / runs.STORE).exists()
    ]
    for folder in others[-_LOOKED_AT:]:
        try:
            with RunReader(folder / runs.STORE) as reader:
                facts = RunDescription.read(reader)
                rows = [row for row in reader.records(JobRow) if row.attempts_span() is not None]
        except HeadgateError:
            continue
        if facts.began is None or facts.ended is None:  # the run was interrupted
            continue
        nodes = {node.name: (node.cores, node.nic_bytes_per_second) for node in facts.nodes}
        kinds: dict[str, list[tuple[JobRow, Job]]] = {}
        for row in rows:
            spec = row.job()
            kinds.setdefault(_kind(spec), []).append((row, spec))
        end = facts.began + facts.ended
        yield _OtherRun(folder, facts.began, end, nodes, rows, kinds)


def beside(run: Recording) -> tuple[str, ...]:
    """The other runs on nodes of this one at the same time, latest first."""
    if run.began is None or not run.folder.parent.is_dir():
        return ()
    names, end, overlapping = {node.name for node in run.nodes}, run.began + run.seconds, []
    for folder in sorted(run.folder.parent.iterdir(), reverse=True)[:_LOOKED_AT]:
        try:
            facts = runs.describe(folder)
        except HeadgateError:
            continue
        began, ended = facts.began, math.inf if facts.ended is None else facts.ended
        if folder == run.folder or began is None or began >= end or run.began >= began + ended:
            continue
        has_end = facts.ended is not None or runs.alive(folder)
        if has_end and names & {node.name for node in facts.nodes}:
            overlapping.append(folder.name)
    return tuple(overlapping)


def slower_than_before(run: Recording, job: RecordedJob) -> SlowerFacts | None:
    """How much longer the steps of a job take than in earlier runs of the same script with the same
    arguments in the same folder. None: not surely, or there are no such runs.
    """
    now = step_time(job)
    named = job.spec.script is not None or bool(job.spec.run)
    if now is None or not named or run.began is None or not run.folder.parent.is_dir():
        return None
    earlier = list(islice(_earlier(run, _key(job.spec)), _ENOUGH_EARLIER))
    if not earlier:
        return None
    steps = [step for _, _, step in earlier]
    logarithms = [math.log(step.seconds) for step in steps]
    deviation = float(np.std(logarithms, ddof=1)) if len(steps) > 1 else _UNKNOWN_ERROR
    times = ratio_to_runs(steps, now, max(deviation, _LEAST_ERROR))
    if times.low <= 1.0 or times.times < _LEAST_SLOWER:
        return None
    folder, name, _ = earlier[0]
    granted, differs = _differences(folder, name, run, job)
    return SlowerFacts(
        times=times.times,
        low=times.low,
        high=times.high,
        per_sample=times.per_sample,
        runs=tuple(folder.name for folder, _, _ in earlier),
        differs=differs,
        fewer_cores=granted,
    )


def _earlier(run: Recording, key: str) -> Iterator[tuple[Path, str, UsualStep]]:
    """Earlier runs with a job of the same script, latest first: folder, job and its steps."""
    folders = sorted(
        (folder for folder in run.folder.parent.iterdir() if folder.name < run.folder.name),
        reverse=True,
    )
    for folder in folders[:_EARLIER]:
        try:
            jobs = _ended_jobs(folder)
            name = jobs.get(key)
            step = _usual_step(folder, name) if name is not None else None
        except HeadgateError:
            continue  # a damaged run is ignored
        if name is not None and step is not None:
            yield folder, name, step


def _ended_jobs(folder: Path) -> Mapping[str, str]:
    """Names of the jobs of an ended run by script; an ended run changes no more."""
    if not (folder / runs.STORE).exists():
        return {}
    if folder not in _ENDED:
        with RunReader(folder / runs.STORE) as reader:
            facts = RunDescription.read(reader)
            rows = list(reader.records(JobRow))
        if facts.ended is None:
            return {}
        is_run = facts.mode in ("", "run")
        _ENDED[folder] = {_key(row.job()): row.name for row in rows} if is_run else {}
    return _ENDED[folder]


@lru_cache(maxsize=256)
def _usual_step(folder: Path, job: str) -> UsualStep | None:
    with RunReader(folder / runs.STORE) as reader:
        rows = reader.tuples(
            "SELECT t, step, samples FROM progress WHERE task = ? AND step IS NOT NULL "
            f"ORDER BY t DESC, rowid DESC LIMIT {_MOST_REPORTS}",
            [TaskOfRun.of(job, FIRST_WORKER)],
        )
    table = np.array(rows[::-1], dtype=float).reshape(-1, 3)
    return of_reports(table[:, 0], table[:, 1], table[:, 2])


def _differences(
    folder: Path, name: str, run: Recording, job: RecordedJob
) -> tuple[float | None, tuple[Difference, ...]]:
    """Cores granted then over those granted now, None: unknown; and all that differs."""
    before = read(folder / runs.STORE, most=_READINGS)
    earlier = before.job(name)
    if earlier is None:
        return None, ()
    was, now = (figures(known).granted_cores for known in (earlier, job))
    granted = [f"{count:.1f}" if count is not None else "" for count in (was, now)]
    shares = [Difference("cores granted", *granted)] if granted[0] != granted[1] else []
    differs = (*shares, *differences((before, earlier), (run, job)))
    return was / now if was and now else None, differs


def _key(spec: Job) -> str:
    """A key that jobs of the same script share."""
    return json.dumps([plain(getattr(spec, name)) for name in _SAME_SCRIPT], sort_keys=True)


def _overlap(one: _OtherRun, other: _OtherRun) -> bool:
    return one.began < other.ended and other.began < one.ended


def _rates(
    other_run: _OtherRun, job: RecordedJob, cores: float | None
) -> list[tuple[float, float, int]]:
    """Rate, standard error and number of nodes, for each equal job of a run that ran alone."""
    same = [
        row
        for row, spec in other_run.kinds.get(_kind(job.spec), ())
        if _is_same(spec, job.spec, cores)
    ]
    alone = [
        row
        for row in same
        if not any(_beside(row, other) for other in other_run.jobs if other is not row)
    ]
    if not alone:
        return []
    with RunReader(other_run.folder / runs.STORE) as reader:
        rates = [_rate(reader, row, other_run.nodes) for row in alone]
    return [rate for rate in rates if rate is not None]


def _kind(spec: Job) -> str:
    """A key that equal jobs share."""
    return json.dumps([plain(getattr(spec, name)) for name in _SAME], sort_keys=True)


def _is_same(spec: Job, wanted: Job, cores: float | None) -> bool:
    limit = spec.limits.cores
    if limit is None or cores is None:
        fits = limit is cores
    else:
        fits = abs(limit - cores) <= _SAME_CORES * cores
    named = spec.script is not None or bool(spec.run)
    return fits and named and all(getattr(spec, name) == getattr(wanted, name) for name in _SAME)


def _beside(row: JobRow, other: JobRow) -> bool:
    ran, others = row.attempts_span(), other.attempts_span()
    return ran is not None and others is not None and ran[0] < others[1] and others[0] < ran[1]


def _rate(
    reader: RunReader, row: JobRow, nodes: Mapping[str, Any]
) -> tuple[float, float, int] | None:
    first = TaskOfRun.of(row.name, FIRST_WORKER)
    tasks = {task.id: task for task in reader.records(TaskRow, "job = ?", [row.name])}
    since = (tasks[first].started or 0.0) if first in tasks else 0.0
    table = np.empty((0, 2))
    for counter in get_args(Counter):  # as in a job's reports
        if not len(table):
            table = last_counts(reader, first, counter, since, _MOST_REPORTS)
    table = table[table[:, 0] >= (table[0, 0] if len(table) else 0.0) + _SETTLE_SECONDS]
    if (
        len(table) < 3
        or table[-1, 0] - table[0, 0] < _LEAST_SECONDS
        or table[-1, 1] - table[0, 1] < _LEAST_STEPS
    ):
        return None
    on = {task.node for task in tasks.values() if task.node}
    if _others(reader, list(tasks), on, table[0, 0], table[-1, 0]) > _OUTSIDE * sum(
        nodes.get(node, (None, None))[0] or 0.0 for node in on
    ):
        return None
    return *_mean(table[:, 0], np.maximum.accumulate(table[:, 1])), len(on)


def _mean(times: Array, steps: Array) -> tuple[float, float]:
    """Mean rate and its standard error, from rates of blocks of reports."""
    at = np.unique(np.round(np.linspace(0, len(times) - 1, _BLOCKS + 1)).astype(int))
    seconds = np.diff(times[at])
    rates = (np.diff(steps[at]) / np.maximum(seconds, 1e-9))[seconds > 0.0]
    error = float(np.std(rates, ddof=1)) / math.sqrt(len(rates)) if len(rates) > 1 else 0.0
    return float((steps[-1] - steps[0]) / (times[-1] - times[0])), error


def _others(
    reader: RunReader, tasks: Sequence[str], nodes: set[str], start: float, end: float
) -> float:
    """Cores used by other programs on the job's nodes; 0: no readings."""
    all_of_it = sum(mean_cores(reader, NODE + node, start, end) for node in nodes)
    own = sum(mean_cores(reader, task, start, end) for task in tasks)
    return max(all_of_it - own, 0.0)


def _together(intervals: Sequence[tuple[float, float, int]]) -> AloneRate | None:
    """One rate from several runs, with a band for another run, from their spread and errors."""
    if not intervals:
        return None
    nodes = intervals[0][2]
    rates = np.array([rate for rate, _, on in intervals if on == nodes])
    errors = np.array([error for _, error, on in intervals if on == nodes])
    mean = float(rates.mean())
    between = float(np.std(rates, ddof=1)) if len(rates) > 1 else _UNKNOWN_ERROR * mean
    between = max(between, _LEAST_ERROR * mean) * math.sqrt(1.0 + 1.0 / len(rates))
    half = _SPREAD * math.hypot(between, float(np.sqrt(np.mean(errors**2) / len(rates))))
    return AloneRate(mean, max(mean - half, 0.05 * mean), mean + half, len(rates), nodes)
