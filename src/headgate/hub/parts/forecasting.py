"""Predict the remaining work of running jobs, off the hub's loop and only if needed, and the starts
of waiting jobs.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from headgate.arbiter.records import Span
from headgate.controller.start_forecast import StartForecast
from headgate.forecast.job_tracker import JobTracker, Trackers
from headgate.forecast.remaining import Question, answer
from headgate.forecast.scaling import Scaling, useful_cores
from headgate.hub.parts import Component
from headgate.hub.state.job import LiveJob
from headgate.hub.state.runs import REST, LiveRuns
from headgate.model.actions import Action
from headgate.model.events import Event, Predicted, TaskExited, TaskStarted, Usage
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.profiling import lengths, store
from headgate.profiling.lengths import EarlierRuns, LengthEstimate

_AGAIN_SECONDS = 5.0
"""After this many seconds estimates are renewed even without events: the awaited ends may be
late.
"""
_SOONEST_SECONDS = 0.5
_NAMED = 3
"""Most jobs named as holders of what another job waits for."""


@dataclass
class _ForecastJob:
    """The forecast of a job's attempt.

    Args:
        tracker: The controller's tracker of the job.
        whole: The job did not resume, so all its work is seen.
        began: When it began (s).
        spent: Core-seconds that the job had used by then.
        cores: Cores that each task uses.
        power: Thread scaling known from earlier runs (`Scaling.power`).
        most_bytes: Peak memory of one of its workers.
        most_gpu_bytes: Peak memory of one of its workers on a GPU.
        ends: Expected end; None: unknown.
        band: Least and most of what is left, as parts of what is likely; None: the job ends at
            nothing that is known.
    """

    live: LiveJob
    tracker: JobTracker
    whole: bool
    began: float
    spent: float
    cores: dict[TaskId, float] = field(default_factory=dict)
    scaling: Scaling = field(default_factory=Scaling)
    power: float | None = None
    most_bytes: float = 0.0
    most_gpu_bytes: float = 0.0
    ends: float | None = None
    band: tuple[float, float] | None = None

    def useful(self) -> float | None:
        """Cores that it uses efficiently while others want them; with several tasks one for each
        worker. None: not known yet.
        """
        attempt = self.live.current
        if attempt is None or len(attempt.tasks) < 2:
            power = self.scaling.power()
            power = power if power is not None else self.power
            return useful_cores(power) if power is not None else None
        workers = sum(
            name.is_worker and task.state != "ended" for name, task in attempt.tasks.items()
        )
        return float(max(workers, 1))

    def follows(self) -> bool:
        """Whether the thread count of its only task follows its grant."""
        attempt = self.live.current
        tasks = attempt.tasks.values() if attempt is not None else ()
        return len(tasks) == 1 and all(
            task.follows_threads and task.stated_threads is None for task in tasks
        )


class Forecasting(Component):
    """Follows the reports and use of jobs, and predicts what is left of them.

    Args:
        live_runs: The runs.
        tracker: Gives the controller's tracker of a job.
        lengths: Folder of the lengths of earlier jobs.
        profiles: Folder of the stored profiles.
        tell: Takes a `Predicted`.
        asks: Whether somebody needs a job's remaining work even if it runs alone.
        predicts: Whether the policy uses the remaining work of jobs that run together. Curves are
            fitted only if one of both is so.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        tracker: Trackers,
        lengths: Path,
        profiles: Path,
        tell: Callable[[Event], None],
        asks: Callable[[JobId], bool],
        predicts: Callable[[], bool],
    ) -> None:
        self._live_runs = live_runs
        self._tracker = tracker
        self._lengths = lengths
        self._profiles = profiles
        self._powers: dict[str, float] = {}  # scaling by profile key, from running and earlier jobs
        self._tell = tell
        self._asks = asks
        self._predicts = predicts
        self._watched: dict[JobId, _ForecastJob] = {}
        self._durations: dict[JobId, LengthEstimate | None] = {}  # of such jobs
        self._doing: set[asyncio.Task[None]] = set()
        # Several at once would keep the interpreter from the hub's loop most of the time.
        self._one_at_once = asyncio.Semaphore()
        self._asked: set[JobId] = set()

    def cores(self, job: JobId) -> float | None:
        """Cores that a job can put to good use; None: not known."""
        watched = self._watched.get(job)
        return watched.useful() if watched is not None else None

    @property
    def ends(self) -> Mapping[JobId, float]:
        """Known expected ends of running jobs, in seconds of `time.monotonic`. They come from the
        job's speed, or else from the length of such jobs. An overdue job is expected to end now.
        """
        now, ends = time.monotonic(), dict[JobId, float]()
        for job, watched in self._watched.items():
            if watched.ends is not None:
                ends[job] = max(watched.ends, now)
            elif (
                watched.whole
                and (duration := self._duration(job)) is not None
                and watched.began + duration.likely > now
            ):
                ends[job] = watched.began + duration.likely
        return ends

    def lasts(self, job: JobId) -> float | None:
        """Expected run time of a job (s), by the length of such jobs. None: there were none, or it
        resumes from a checkpoint.
        """
        duration = self._duration_of_new(job)
        return duration.likely if duration is not None else None

    def left(self, job: JobId) -> Span | None:
        """Seconds that a job takes or has left, with a band; None: not known."""
        live, watched, now = self._live_runs.find(job)[1], self._watched.get(job), time.monotonic()
        if watched is not None and watched.ends is not None and watched.band is not None:
            seconds = max(watched.ends - now, 0.0)
            span = Span(seconds, *(part * seconds for part in watched.band))
        elif (duration := self._duration_of_new(job)) is not None:
            past = now - watched.began if watched is not None else 0.0
            span = Span(*(max(seconds - past, 0.0) for seconds in duration))
        else:
            span = None
        if (limit := live.spec.timeout) is None:
            return span
        most = max(limit - (now - watched.began), 0.0) if watched is not None else limit
        return Span(*(min(part, most) for part in span or (most, 0.0, most)))

    def _duration_of_new(self, job: JobId) -> LengthEstimate | None:
        """As `_duration`; None, too, if the job resumes."""
        return self._duration(job) if self._live_runs.find(job)[1].checkpoint is None else None

    def _duration(self, job: JobId) -> LengthEstimate | None:
        """Run time of such jobs (s), from start to end; None: there were none."""
        if job not in self._durations:
            live = self._live_runs.find(job)[1]
            earlier = EarlierRuns.read(self._lengths, live.script_key, live.profile_key)
            self._durations[job] = earlier.seconds()
        return self._durations[job]

    def step_seconds(self, job: JobId, fewest: float) -> float | None:
        """Step time with the present tasks, from at least `fewest` steps; None: unknown."""
        tracker = self._tracker(job)
        return tracker.step_seconds(fewest) if tracker is not None else None

    def forget(self, run: str) -> None:
        for kept in (self._watched, self._durations):
            for job in [job for job in kept if job.run == run]:
                del kept[job]

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted(task):
                self._watch(task, starts=True)
            case Progress(task) if self._runs(task):
                self._reported(event)
            case Usage(task, cpu_cores, memory_bytes, gpu_memory_bytes=on_gpus) if (
                self._runs(task) and (watched := self._watch(task)) is not None
            ):
                watched.cores[task] = cpu_cores
                if task.name.is_worker:
                    watched.most_bytes = max(watched.most_bytes, memory_bytes)
                    attempt = watched.live.current
                    gpus = attempt.tasks[task.name].gpus if attempt is not None else ()
                    watched.most_gpu_bytes = max(
                        watched.most_gpu_bytes, on_gpus / max(len(gpus), 1)
                    )
                self._scale(watched, time.monotonic())
            case TaskExited(task):
                self._ended(task)

    def _scale(self, watched: _ForecastJob, now: float) -> None:
        """Record the cores used at the present thread count, for jobs with one task."""
        attempt = watched.live.current
        if attempt is not None and len(attempt.tasks) == 1:
            [task] = attempt.tasks.values()
            waits = (task.usage or {}).get("cpu_waiting", 0.0)
            watched.scaling.used(
                now, sum(watched.cores.values()), task.threads, task.entitled_cores, waits
            )

    def _runs(self, task: TaskId) -> bool:
        """Whether a task has not ended; its last measurements may arrive after its end."""
        attempt = self._live_runs.find(task)[1].current
        known = attempt.tasks.get(task.name) if attempt is not None else None
        return known is not None and known.state != "ended"

    def _watch(self, task: TaskId, starts: bool = False) -> _ForecastJob | None:
        """The forecast of a task's attempt; None: the controller does not know its job."""
        job = task.job
        if job not in self._watched:
            now, (run, live) = time.monotonic(), self._live_runs.find(job)
            tracker = self._tracker(job)
            if tracker is None:
                return None
            is_whole = (
                starts
                and live.checkpoint is None
                and live.attempt == 1
                and run.submission.mode == "run"
            )
            known = (
                json.loads(live.profile).get("thread_power") if live.profile is not None else None
            )
            power = self._powers.get(live.profile_key, known)
            spent = tracker.used.cpu
            self._watched[job] = _ForecastJob(live, tracker, is_whole, now, spent, power=power)
        return self._watched[job]

    def _ended(self, task: TaskId) -> None:
        """A task has ended. If its job ran from start to end, its length is stored."""
        job = task.job
        watched = self._watched.get(job)
        if watched is None:
            return
        watched.cores.pop(task, None)
        if watched.cores:
            return
        now = time.monotonic()
        work = watched.tracker.core_seconds(now) - watched.spent
        del self._watched[job]
        if watched.scaling.power() is not None:
            self._do(self._keep(watched))
        if watched.whole and watched.live.state == "done" and work > 0.0:
            self._do(self._remember(watched, work, now - watched.began))

    async def _keep(self, watched: _ForecastJob) -> None:
        """Store a job's thread scaling for its later runs."""
        power, key = watched.scaling.power(), watched.live.profile_key
        if power is not None:
            self._powers[key] = power
            with suppress(OSError):  # not worth a warning: a trial measures it again
                await asyncio.to_thread(store.keep_power, self._profiles, key, power)

    async def _remember(self, watched: _ForecastJob, work: float, seconds: float) -> None:
        live, most = watched.live, (watched.most_bytes, watched.most_gpu_bytes)
        took = lengths.Took(live.profile_key, work, seconds, *most)
        with suppress(OSError):  # not worth a warning: the next job is predicted later
            await asyncio.to_thread(lengths.remember, self._lengths, live.script_key, took)
        self._durations.clear()  # the new length also affects other jobs

    def _reported(self, progress: Progress) -> None:
        now, watched, job = time.monotonic(), self._watch(progress.task), progress.task.job
        if watched is None:
            return
        tracker = watched.tracker
        tracker.stopping = watched.live.spec.progress.stopping
        step = progress.step if progress.step is not None else tracker.losses.seen
        watched.scaling.reported(now, step)
        asks = self._asks(job) or (len(self._watched) > 1 and self._predicts())
        if asks and job not in self._asked and (question := tracker.due()) is not None:
            self._asked.add(job)
            self._do(self._answer(job, watched, question))

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _answer(self, job: JobId, watched: _ForecastJob, question: Question) -> None:
        async with self._one_at_once:
            try:
                left = await asyncio.to_thread(answer, job, question)
            finally:
                self._asked.discard(job)
        if left is not None and self._watched.get(job) is watched:  # the same attempt still runs
            watched.ends = time.monotonic() + left.seconds if left.seconds is not None else None
            is_known = left.ends and left.work > 0.0
            watched.band = (left.low / left.work, left.high / left.work) if is_known else None
            if (power := watched.scaling.power()) is not None:
                self._powers[watched.live.profile_key] = power
            elif watched.power is None:  # an equal job may have been measured meanwhile
                watched.power = self._powers.get(watched.live.profile_key)
            self._tell(replace(left, cores=watched.useful(), follows=watched.follows()))

    def close(self) -> None:
        for task in self._doing:
            task.cancel()


class StartEstimates(Component):
    """Writes to the runs of waiting jobs what each waits for, when that has changed.

    Args:
        live_runs: The runs.
        waits: Whether any job waits.
        ahead: Waiting jobs in order, each with its expected start in seconds of `time.monotonic`.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        waits: Callable[[], bool],
        ahead: Callable[[float], Sequence[StartForecast]],
    ) -> None:
        self._live_runs = live_runs
        self._waits = waits
        self._ahead = ahead
        self._told_at = -math.inf
        self._rest_seconds = 0.0
        self._has_news = False

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        now = time.monotonic()
        self._has_news = (
            self._has_news or bool(actions) or isinstance(event, Predicted | TaskStarted)
        )
        # All estimates are renewed together, not at each start: events come every second.
        pause = max(_SOONEST_SECONDS if self._has_news else _AGAIN_SECONDS, self._rest_seconds)
        if self._waits() and now >= self._told_at + pause:
            before = time.thread_time()
            self._tell(self._ahead(now))
            self._told_at, self._has_news = now, False
            self._rest_seconds = REST * (time.thread_time() - before)

    def _tell(self, ahead: Sequence[StartForecast]) -> None:
        now, wall, names = time.monotonic(), time.time(), lru_cache(_names)
        for place, start in enumerate(ahead):
            run, live = self._live_runs.find(start.job)
            lacks, holders = start.lacks.plain(), names(start.job.run, start.holders)
            reason = Reason.of(
                ReasonKind.NEEDS_ROOM,
                lacks=lacks,
                holders=holders,
                ahead=place or None,
                unknown=names(start.job.run, start.unknown),
                kept={names(start.job.run, (job,))[0]: why for job, why in start.kept} or None,
                expected_at=wall + max(start.at - now, 0.0) if start.at is not None else None,
            )
            text, waits = in_words(reason), {**lacks, "holders": holders}
            if live.state == "waiting" and (live.text, live.waits) != (text, waits):
                live.reason, live.waits = reason, waits
                live.expected = run.clock() + start.at - now if start.at is not None else None
                run.record_job(live.spec.name)


def _names(run: str, others: Sequence[JobId]) -> tuple[str, ...]:
    """Names of other jobs as seen from a run; those of another run include that run's id."""
    return tuple(other.name if other.run == run else str(other) for other in others)
