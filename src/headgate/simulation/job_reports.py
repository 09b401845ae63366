"""What a simulated job tells while it runs."""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import fmean

from headgate.forecast.scaling import LONGEST_SECONDS, Scaling
from headgate.model.events import Progress, ReportPart
from headgate.simulation.engine import Work


class JobReports:
    """A job that runs.

    Args:
        work: The job.
        now: When it started (s).
        predicts: Whether anybody goes by what is left of it.
    """

    def __init__(self, work: Work, now: float, predicts: bool) -> None:
        self._work = work
        self._used_at = self._told_at = now
        self._heard = 0
        self._scaling = Scaling() if predicts and not work.job.gpus and work.needs == 1 else None

    def used(self, now: float, cores: float) -> None:
        """Take in the cores that it used on average since the last time, which may be longer ago
        than any reading is live: as several readings.
        """
        since, gap = self._used_at, now - self._used_at
        self._used_at = now
        if self._scaling is None:
            return
        [task, *_] = self._work.tasks.values()
        readings = max(math.ceil(2.0 * gap / LONGEST_SECONDS), 1)
        for reading in range(1, readings + 1):
            at = since + gap * reading / readings
            self._scaling.used(at, cores, task.threads, task.entitled)

    def told(self, now: float) -> Progress | None:
        """What it tells; None: nothing, as it has no losses, or none since the last time."""
        work, job = self._work, self._work.job
        done = work.fraction(now)
        if work.starting or done <= 0.0:
            return None
        heard = bisect_right(job.losses, (done, math.inf))
        news, self._heard = job.losses[self._heard : heard], heard
        if job.losses and not news:
            return None
        step, epoch = self._place(done)
        if self._scaling is not None:
            self._scaling.reported(now, done if step is None else step)
        if not news:
            return None
        [task, *_] = work.tasks
        parts = self._parts(now, done, len(news)) if job.foretold else ()
        loss = fmean(loss for _, loss in news)
        count = len(news)
        return Progress(
            task, step, epoch=epoch, loss=loss, count=count, epochs=job.epochs, parts=parts
        )

    def _parts(self, now: float, done: float, news: int) -> tuple[ReportPart, ...]:
        """Each of the last losses by itself, and when it came, as live: of several at once nobody
        could tell which of the steps between them began an epoch.
        """
        work, job = self._work, self._work.job
        parts = []
        heard = slice(self._heard - news, self._heard)
        for (part, loss), (step, epoch) in zip(job.losses[heard], job.told[heard], strict=True):
            ago = (done - part) * job.seconds / work.speed if work.speed > 0 else 0.0
            within = None
            if (
                job.tells_parts
                and step is not None
                and epoch is not None
                and job.steps
                and job.epochs
            ):
                within = min(max(step / job.steps * job.epochs - (epoch - 1), 0.0), 1.0)
            at = max(now - ago, self._told_at)
            parts.append(ReportPart(at, step, epoch, loss, within))
        self._told_at = now
        return tuple(parts)

    def _place(self, done: float) -> tuple[int | None, int | None]:
        """Step and epoch that it tells when so much is done; of steps that it told those
        between.
        """
        job, heard = self._work.job, self._heard
        if job.told:
            (since, _), (step, epoch) = job.losses[heard - 1], job.told[heard - 1]
            if (
                step is not None
                and heard < len(job.told)
                and (later := job.told[heard][0]) is not None
            ):
                step += round((later - step) * (done - since) / (job.losses[heard][0] - since))
            return step, epoch
        step = round(done * job.steps) if job.steps is not None else None
        epoch = min(int(done * job.epochs) + 1, job.epochs) if job.epochs is not None else None
        return step, epoch

    def useful(self) -> float | None:
        """Cores that it puts to good use while others want them, of several workers one each; None:
        not known, or it is on GPUs.
        """
        if self._scaling is not None:
            return self._scaling.useful()
        return float(self._work.needs) if not self._work.job.gpus else None
