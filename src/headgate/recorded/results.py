"""What the jobs of a run came to: their parameters, and the last and best value of each metric."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from headgate.model import goals
from headgate.model.errors import UsageError
from headgate.model.job_states import ENDED
from headgate.model.progress_rule import ProgressRule
from headgate.model.reasons import Reason
from headgate.model.records import parse
from headgate.model.sweeps import SweepTrial, Value
from headgate.recorded import runs
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import as_object, readable

_LOSS = "loss"
_JOB = "substr(task, 1, instr(task, '/') - 1)"
# The loss of several workers at a step is the mean of theirs.
_LOSSES = (
    f"SELECT {_JOB} AS job, '{_LOSS}' AS name, max(t) AS t, "
    "sum(loss * coalesce(count, 1)) / sum(coalesce(count, 1)) AS value FROM progress "
    "WHERE loss IS NOT NULL GROUP BY job, coalesce(step, -1 - t)"
)
_METRICS = (
    f"SELECT {_JOB} AS job, key AS name, t, json_each.value AS value FROM progress, "
    "json_each(metrics) WHERE json_valid(metrics) AND json_each.type IN ('integer', 'real')"
)
_NOT_NUMBERS = (
    f"SELECT job FROM (SELECT {_JOB} AS job, nan, max(t) FROM progress "
    "WHERE loss IS NOT NULL OR nan GROUP BY job) WHERE nan"
)
# Of very many jobs, the rest of the specification would take seconds.
_RULES = "SELECT name, json_extract(spec, '$.progress') FROM jobs WHERE json_valid(spec)"
JOB, STATE, SECONDS = "job", "state", "seconds"


@dataclass(frozen=True, slots=True)
class _JobOfResult:
    table: ClassVar[str] = "jobs"

    name: str
    state: str
    started: float | None
    ended: float | None
    why: str | None

    def predicted(self) -> PredictedEnd | None:
        """What its metric was expected to end with, if a rule of its sweep ended it."""
        reason = readable(Reason, self.why) if self.state == "stopped" else None
        facts = reason.root.facts if reason is not None else {}
        band = facts.get("predicted", ())
        return PredictedEnd(*band) if len(band) == len(fields(PredictedEnd)) else None


@dataclass(frozen=True, slots=True)
class MetricResult:
    """A metric of a job.

    Args:
        last: Its last finite value.
        best: Its best one; None: its name does not tell whether less or more is better.
        better: Which way it improves; None: unknown.
    """

    last: float
    best: float | None
    better: goals.Better | None


@dataclass(frozen=True, slots=True)
class PredictedEnd:
    """The metric that a job is expected to end with: the median, and the ends of a 90 % band."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job came to so far.

    Args:
        name: Its name.
        sweep: Name of its sweep; empty: it is of none.
        parameters: Its values in that.
        metric: Name of the metric that shows its progress.
        metrics: Its metrics by name, `loss` among them.
        nan: Whether its last loss was NaN or infinite.
        state: Its state.
        seconds: How long it ran so far; None: it has not started.
        predicted: What `metric` is expected to end with, or was, if a rule of its sweep ended the
            job early; None: unknown, or the job has ended otherwise.
    """

    name: str
    sweep: str
    parameters: Mapping[str, Value]
    metric: str
    metrics: Mapping[str, MetricResult]
    nan: bool
    state: str
    seconds: float | None
    predicted: PredictedEnd | None = field(default=None, kw_only=True)

    def value(self, name: str) -> Value | None:
        """The value of a column: `job`, `state`, `seconds`, a parameter, or a metric's best one;
        its last one where no value is known to be best.
        """
        if name in self.metrics:
            metric = self.metrics[name]
            return metric.last if metric.best is None else metric.best
        own = {JOB: self.name, STATE: self.state, SECONDS: self.seconds}
        return own[name] if name in own else self.parameters.get(name)


def read(folder: Path) -> tuple[JobResult, ...]:
    """The results of a run's jobs, in the order of submission.

    Raises:
        NotFoundError, StorageError: The store does not exist, or cannot be read.
    """
    with RunReader(folder / runs.STORE) as reader:
        return of_store(reader, runs.alive(folder))


def of_store(reader: RunReader, is_alive: bool) -> tuple[JobResult, ...]:
    """As `read`; `is_alive` says whether a hub has the run."""
    description = RunDescription.read(reader)
    took = runs.elapsed(description) if is_alive else description.ended
    metrics: dict[str, dict[str, tuple[float, float, float]]] = defaultdict(dict)
    for rows in (_LOSSES, _METRICS):
        # SQLite gives the value of the row with the greatest time
        sql = (
            "SELECT job, name, last, low, high FROM (SELECT job, name, value AS last, max(t) "
            f"FROM ({rows}) GROUP BY job, name) JOIN (SELECT job, name, min(value) AS low, "
            f"max(value) AS high FROM ({rows}) GROUP BY job, name) USING (job, name)"
        )
        for job, name, last, low, high in reader.tuples(sql):
            metrics[job].setdefault(name, (float(last), float(low), float(high)))
    not_numbers = {job for (job,) in reader.tuples(_NOT_NUMBERS)}
    rules = dict(reader.tuples(_RULES))
    known = {text: readable(ProgressRule, text) or ProgressRule() for text in set(rules.values())}
    trials = {name: _trial(facts) for name, facts in trials_of(reader).items()}
    return tuple(
        _result(
            row,
            trials.get(row.name),
            known.get(rules.get(row.name)) or ProgressRule(),
            metrics.get(row.name, {}),
            row.name in not_numbers,
            took,
        )
        for row in reader.records(_JobOfResult, order="position")
    )


def _trial(facts: Mapping[str, Any]) -> SweepTrial | None:
    try:
        return parse(SweepTrial, facts)
    except ValueError:  # damaged
        return None


def _result(
    row: _JobOfResult,
    trial: SweepTrial | None,
    rule: ProgressRule,
    metrics: Mapping[str, tuple[float, float, float]],
    nan: bool,
    took: float | None,
) -> JobResult:
    end = row.ended if row.state in ENDED else took
    seconds = max(end - row.started, 0.0) if end is not None and row.started is not None else None
    state = "interrupted" if took is None and row.state not in ENDED else row.state
    named = dict[str, MetricResult]()
    for name, (last, low, high) in metrics.items():
        better = rule.direction(name)
        best = {"lower": low, "higher": high, None: None}[better]
        named[name] = MetricResult(last, best, better)
    return JobResult(
        row.name,
        trial.sweep if trial is not None else "",
        trial.parameters if trial is not None else {},
        rule.metric,
        named,
        nan,
        state,
        seconds,
        predicted=row.predicted(),
    )


def trials_of(reader: RunReader) -> dict[str, Mapping[str, Any]]:
    """Sweep and parameters of each job that is one of a sweep, read without the rest of the job."""
    sql = "SELECT name, json_extract(spec, '$.trial') FROM jobs WHERE json_valid(spec)"
    return {name: as_object(trial) for name, trial in reader.tuples(sql) if trial}


def sweeps_of(folder: Path) -> dict[str, str]:
    """The sweep of each job of a run that is of one."""
    with RunReader(folder / runs.STORE) as reader:
        return {job: str(trial["sweep"]) for job, trial in trials_of(reader).items()}


def parameter_names(results: Iterable[JobResult]) -> tuple[str, ...]:
    """The names of all parameters, in the order in which they come."""
    return tuple(dict.fromkeys(name for result in results for name in result.parameters))


def metric_names(results: Iterable[JobResult]) -> tuple[str, ...]:
    """The names of all metrics: first those that show the progress of jobs."""
    every = [result for result in results if result.metrics]
    first = (result.metric for result in every if result.metric in result.metrics)
    return tuple(dict.fromkeys((*first, *(name for result in every for name in result.metrics))))


def ranked(results: Sequence[JobResult], by: str | None = None) -> list[JobResult]:
    """Results in the order of a column: metrics with the best first, everything else ascending.

    Args:
        by: Name of a metric or a parameter, `job`, `state` or `seconds`; None: the metric that
            shows the progress of the jobs.

    Raises:
        UsageError: There is no such column.
    """
    metrics = metric_names(results)
    known = (*metrics, *parameter_names(results), JOB, STATE, SECONDS)
    if by is None:
        by = metrics[0] if metrics else JOB
    if by not in known:
        close = difflib.get_close_matches(by, known, 1)
        expected = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(known)}"
        raise UsageError(f"found no column {by!r}; {expected}")
    ways = {result.metrics[by].better for result in results if by in result.metrics}
    from_the_top = bool(ways) and "lower" not in ways
    having = [(value, row) for row in results if (value := row.value(by)) is not None]
    numbers = [pair for pair in having if not isinstance(pair[0], str)]
    numbers.sort(key=lambda pair: pair[0], reverse=from_the_top)
    texts = sorted((pair for pair in having if isinstance(pair[0], str)), key=lambda pair: pair[0])
    lacking = [result for result in results if result.value(by) is None]
    return [*(row for _, row in (*numbers, *texts)), *lacking]


def with_predicted(
    results: Sequence[JobResult], predicted: Mapping[str, PredictedEnd]
) -> tuple[JobResult, ...]:
    """Results with what jobs that run are expected to end with, by name."""
    return tuple(
        replace(result, predicted=predicted.get(result.name, result.predicted))
        for result in results
    )
