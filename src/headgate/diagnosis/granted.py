"""Loss of a job through fewer threads than it would have had alone.

Its speed on k threads is modelled as a power of k (Berg et al. 2020, heSRPT). The exponent comes
from the first of these sources that is available:

1. Its own steps, as its thread count changed. One or two changes may coincide with a change of the
   job itself. Then only the additional cores that it used with more threads count.
2. Its profile, with several thread counts or from a run whose threads changed.
3. Other runs of the same job alone.
4. Another job of this run with the same script.

Without any source nothing counts as lost, because a single-threaded program gains nothing from more
threads. The possible loss is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headgate.diagnosis.attribution import (
    ITSELF,
    NONE,
    OTHERS,
    LostTime,
    TimeEstimate,
    is_other_user,
)
from headgate.diagnosis.comparing import steps_between, windows_of
from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.switching import SwitchEffect, effects
from headgate.model.job_states import TRIAL
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.usage import Array, Signal, ratio

_AWAY = 0.05
"""Cores below which other jobs count as away."""
_BEGIN_BUCKETS = 3
"""Buckets after which constant threads count as those of its start."""
_SEEN_SECONDS, _SEEN_STEPS = 3.0, 5.0
"""Least seconds and steps with a thread count for its speed to be known."""
_FULL = 0.8
"""Fraction of its threads that ran or waited from which on it may gain from more."""
_BRINGS = 0.3
"""Exponent from which on more threads surely help, if its steps and its core use agree."""
_SURELY = 0.5
"""Fraction of that gain that is certain."""
_CALM = 0.05
"""Most waiting for a core, as a fraction of time, in a profile used for comparison."""
_TIMED = 0.15
"""Error of an exponent from step times elsewhere."""


Source = Literal["own-steps", "trial", "profile", "runs-alone", "like-job"]
"""Source of the exponent of a job's threads."""


class Power(NamedTuple):
    """The exponent of the thread count in a job's speed, with a 90 % band."""

    usual: float
    low: float
    high: float


UNKNOWN = Power(0.0, 0.0, 1.0)
"""A job may gain in proportion to its threads, or nothing."""


@dataclass(frozen=True, slots=True)
class ThreadGrant:
    """Threads granted to a job while other jobs ran.

    Args:
        threads: Usual number.
        alone: Number that it would have had alone.
        beside: Jobs for whose sake it had fewer.
        may_have_lost: Seconds that this may have cost, if unknown; 0: known.
        power: Exponent of its threads; None: unknown.
        source: Source of the exponent; None: unknown.
        lost: Seconds that it cost; 0 if unknown.
        stayed: Whether it kept them after these jobs had left.
        is_fixed: Whether its thread count is fixed while it runs, so that no trial shows the gain
            from more.
    """

    kind: ClassVar = "fewer-threads"
    threads: int
    alone: int
    beside: tuple[str, ...]
    may_have_lost: float
    power: Power | None = None
    source: Source | None = None
    lost: TimeEstimate = NONE
    stayed: bool = False
    is_fixed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fewer:
    """Loss of a job through fewer threads than it would have had alone.

    Args:
        part: Fraction of its own time in each bucket.
        low: Low end of its 90 % band.
        high: High end of it.
        grant: Its threads; None: as many as alone, or too little work for them.
    """

    part: Array
    low: Array
    high: Array
    grant: ThreadGrant | None = None

    def losses(self, beside: Mapping[str, Array], own: Array, elapsed: float) -> list[LostTime]:
        """Losses divided among the other jobs that ran meanwhile, by the cores that they used.

        Args:
            beside: Cores that each neighbour used in each bucket.
            own: Seconds of each bucket that were its own.
        """
        jobs = _jobs(beside)
        taken = sum(jobs.values(), np.zeros_like(self.part))
        total_taken = max(float(np.sum(taken)), 1e-9)
        losses = []
        for name, cores in jobs.items():
            # After the others have left, it still has the threads of its start.
            share = (
                np.where(taken > 0.0, ratio(cores, taken), float(np.sum(cores)) / total_taken) * own
            )
            seconds, low, high = (
                float(np.sum(part * share)) for part in (self.part, self.low, self.high)
            )
            losses.append(
                LostTime(name, "cores", TimeEstimate(seconds, low, min(high, elapsed)), "compared")
            )
        return losses


def fewer_threads(
    job: RecordedJob,
    beside: Mapping[str, Array],
    own: Array,
    edges: Array,
    cores: float,
    *,
    alone_rate: AloneRate | None = None,
    like: Power | None = None,
) -> Fewer:
    """Loss of a job through fewer compute threads while other jobs ran.

    Args:
        beside: Cores that each neighbour used in each bucket.
        own: Seconds of each bucket that it lost to nobody.
        edges: Edges of the buckets.
        cores: Cores of its node.
        alone_rate: Its speed in other runs alone, if known.
        like: Exponent of another job with its script, if known.
    """
    threads, jobs = _threads(job, edges), _jobs(beside)
    others = sum(jobs.values(), np.zeros_like(own))
    alone = _threads_alone(job, cores)
    stayed = _stayed(threads, own, others)
    short = np.isfinite(threads) & (threads < alone) & ((others >= _AWAY) | stayed)
    nothing = np.zeros_like(own)
    if not short.any() or not _is_full(job, threads, short, own, edges):
        return Fewer(nothing, nothing, nothing)
    usual = float(np.median(threads[short]))
    power, source = _told_power(job, threads, own, edges, alone_rate, like, alone / usual)
    few = np.where(short, threads, alone)
    parts = [1.0 - np.power(few / alone, size) for size in power or UNKNOWN]
    seconds = TimeEstimate(*(float(np.sum(part * own)) for part in parts))
    names = tuple(
        sorted((name for name in jobs if float(np.sum(jobs[name][short])) > 0.0), key=str)
    )
    grant = ThreadGrant(
        round(usual),
        round(alone),
        names,
        0.0 if power is not None else seconds.high,
        power,
        source,
        seconds if power is not None else NONE,
        stayed,
        stayed or (job.division is None and job.profile is None),
    )
    part, low, high = parts
    return Fewer(part, low if power is not None else nothing, high, grant)


def _told_power(
    job: RecordedJob,
    threads: Array,
    own: Array,
    edges: Array,
    alone_rate: AloneRate | None,
    like: Power | None,
    times: float,
) -> tuple[Power | None, Source | None]:
    """The exponent of its threads from the first available source, and that source; None, None:
    unknown.

    Args:
        times: Threads alone, relative to its threads.
    """
    was_tried = any(event.kind == TRIAL for event in job.events)
    if (power := _own_power(job, threads, own, edges)) is not None:
        return power, "trial" if was_tried else "own-steps"
    if (power := _profiled(job) or _against_profile(job, own, edges, times)) is not None:
        return power, "profile"
    if (power := _against(alone_rate, job, own, edges, times)) is not None:
        return power, "runs-alone"
    return like, "like-job" if like is not None else None


def _stayed(threads: Array, own: Array, others: Array) -> bool:
    """Whether it kept its initial threads after the other jobs had left: what they left it at the
    start holds to its end.
    """
    ran = np.isfinite(threads) & (own > 0.0)
    if not ran.any() or len(np.unique(threads[ran])) > 1:
        return False
    begun = others[ran][:_BEGIN_BUCKETS]
    return bool((begun >= _AWAY).any() and (others[ran] < _AWAY).sum() > _BEGIN_BUCKETS)


def by_limit(job: RecordedJob, own: Array, edges: Array, cores: float) -> Power:
    """The fraction of a job's own time lost through fewer threads under its own core limit, with a
    90 % band. Without a suitable profile it may be zero.

    Args:
        own: Seconds of each bucket that it lost to nobody.
        edges: Edges of the buckets.
        cores: Cores of its node.
    """
    threads, task = _threads(job, edges), job.tasks[0]
    limited = np.isfinite(threads) & (own > 0.0)
    if (
        len(job.tasks) > 1
        or not limited.any()
        or not np.isfinite(cores)
        or job.allowed_cores(task, cores) >= cores
    ):
        return Power(0.0, 0.0, 0.0)
    had, alone = float(np.median(threads[limited])), float(np.ceil(cores - 1e-9))
    if _stated(job) or had >= alone or not _is_full(job, threads, limited, own, edges):
        return Power(0.0, 0.0, 0.0)
    return Power(*(1.0 - (had / alone) ** size for size in _profiled(job) or UNKNOWN))


def _own_power(job: RecordedJob, threads: Array, own: Array, edges: Array) -> Power | None:
    """The exponent from its own steps; None: they were not observed with two thread counts."""
    speeds = _speeds(job, threads, own, edges)
    if len(speeds) < 2:
        return None
    few, many = min(speeds), max(speeds)
    span = float(np.log(many / few))
    used = {count: float(np.mean(_used(job, edges)[threads == count])) for count in (few, many)}
    of_cores = float(np.log(max(used[many], 1e-9) / max(used[few], 1e-9))) / span
    effect = _as_threads_change(job, threads, own, edges)
    of_steps = (
        effect.each if effect is not None else float(np.log(speeds[many] / speeds[few])) / span
    )
    if effect is not None and effect.sure:
        return Power(*np.clip([effect.each, effect.low, effect.high], 0.0, 1.0))
    sure = min(of_steps, of_cores)
    low = _SURELY * sure if sure >= _BRINGS else 0.0
    return Power(*np.clip([sure, low, max(of_steps, of_cores)], 0.0, 1.0))


def _against(
    alone_rate: AloneRate | None, job: RecordedJob, own: Array, edges: Array, times: float
) -> Power | None:
    """The exponent from its speed in other runs alone, on `times` times the threads."""
    speed = _speeds(job, np.ones_like(own), own, edges).get(1.0)
    if alone_rate is None or speed is None:
        return None
    faster = np.array([alone_rate.steps_per_second, alone_rate.low, alone_rate.high]) / speed
    return Power(*np.clip(np.log(faster) / np.log(times), 0.0, 1.0))


def _against_profile(job: RecordedJob, own: Array, edges: Array, times: float) -> Power | None:
    """The exponent from step times in a profile taken on `times` times the threads, as in a run
    that began alone.
    """
    speed, granted = (
        _speeds(job, np.ones_like(own), own, edges).get(1.0),
        job.tasks[0].threads.value,
    )
    profile = job.cost
    if speed is None or job.division is None or not np.isfinite(granted).any():
        return None
    many = round(float(np.nanmedian(granted)) * times)
    seconds = [
        step.seconds
        for step in profile.step_times
        if step.threads == many and step.batch == profile.batch
        if (step.waited or 0.0) <= _CALM and step.seconds > 0.0
    ]
    if not seconds:
        return None
    computing = (1.0 - (job.division.input_fraction or 0.0)) / speed
    power = float(np.log(max(computing, 1e-9) / seconds[0]) / np.log(times))
    return Power(*np.clip([power, power - 2.0 * _TIMED, power + 2.0 * _TIMED], 0.0, 1.0))


def _threads_alone(job: RecordedJob, cores: float) -> float:
    """Threads of a job on its node without other jobs: one for each core that it may use, or as its
    environment says.
    """
    most = min(cores, job.allowed_cores(job.tasks[0], cores))
    alone = max(float(np.ceil(most - 1e-9)), 1.0) if np.isfinite(most) else 1.0
    stated = _stated(job)
    return min(alone, max(float(stated), 1.0)) if stated.isdecimal() and len(stated) < 6 else alone


def _stated(job: RecordedJob) -> str:
    """The thread count set by its user; empty: none. A script with calls ignores the shell."""
    has_calls = job.profile is not None and not job.profile.observed
    return job.told_threads or ("" if has_calls else job.shell_threads)


def _jobs(beside: Mapping[str, Array]) -> dict[str, Array]:
    """The neighbours that are own jobs: only these reduce a job's threads."""
    return {
        name: np.nan_to_num(cores)
        for name, cores in beside.items()
        if name not in (ITSELF, OTHERS) and not is_other_user(name)
    }


def _threads(job: RecordedJob, edges: Array) -> Array:
    """Compute threads of its first task in each bucket; NaN: not set. A script that never connected
    keeps its initial ones.
    """
    granted = job.tasks[0].threads
    if not len(granted):
        return np.full(len(edges) - 1, np.nan)
    threads = granted.buckets(edges).mean
    if job.division is None:
        threads = np.where(np.isfinite(threads), granted.value[0], np.nan)
    return np.round(threads)


def _used(job: RecordedJob, edges: Array) -> Array:
    return np.nan_to_num(job.signal("cpu_cores").buckets(edges).mean)


def _is_full(
    job: RecordedJob, threads: Array, short: npt.NDArray[np.bool_], own: Array, edges: Array
) -> bool:
    """Whether it had work for all of its threads."""
    waited = np.nan_to_num(job.signal("cpu_waiting").buckets(edges).mean)
    seconds = np.where(short, own, 0.0)
    wanted = float(np.sum((_used(job, edges) + waited) * seconds))
    return wanted >= _FULL * float(np.sum(np.nan_to_num(threads) * seconds)) > 0.0


def _speeds(job: RecordedJob, threads: Array, own: Array, edges: Array) -> dict[float, float]:
    """Steps in a second of its own time, by thread count."""
    if not np.isfinite(job.progress.step).any():
        return {}
    steps, speeds = steps_between(job, edges), {}
    for count in np.unique(threads[np.isfinite(threads)]):
        seconds, done = float(np.sum(own[threads == count])), float(np.sum(steps[threads == count]))
        if seconds >= _SEEN_SECONDS and done >= _SEEN_STEPS:
            speeds[float(count)] = done / seconds
    return speeds


def _as_threads_change(
    job: RecordedJob, threads: Array, own: Array, edges: Array
) -> SwitchEffect | None:
    """The exponent from its steps just before and after changes of its thread count."""
    windows = windows_of(job)
    if len(windows) < 2:
        return None
    known = np.isfinite(threads)
    course = Signal(edges[:-1][known], edges[1:][known], -np.log(np.maximum(threads[known], 1.0)))
    width = edges[1] - edges[0]
    taken = np.diff(Signal(edges[:-1], edges[1:], own / width).cumulative(windows))
    steps = steps_between(job, windows)
    kept = (steps > 0) & (taken > 0)
    if np.count_nonzero(kept) < 2:
        return None
    fewer = (np.diff(course.cumulative(windows)) / np.diff(windows))[kept]
    [effect] = effects(np.log(taken[kept] / steps[kept]), fewer[None] - float(np.min(fewer)))
    return effect


def _profiled(job: RecordedJob) -> Power | None:
    """The exponent from its profile: step times of one batch size on several thread counts, or an
    earlier run whose threads changed.
    """
    profile = job.cost
    by_batch: dict[int, dict[int, float]] = {}
    for step in profile.step_times:
        if step.threads > 0 and step.seconds > 0.0:
            by_batch.setdefault(step.batch, {})[step.threads] = step.seconds
    seen = max(by_batch.values(), key=len, default={})
    power = profile.thread_power
    if len(seen) >= 2:
        few, many = min(seen), max(seen)
        power = float(np.log(seen[few] / seen[many]) / np.log(many / few))
    if power is None:
        return None
    return Power(*np.clip([power, power - _TIMED, power + _TIMED], 0.0, 1.0))
