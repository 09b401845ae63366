"""The reports of a simulated job."""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import fmean

from headgate.forecast.scaling import LONGEST_SECONDS, Scaling
from headgate.model.progress import Progress, ReportPart
from headgate.simulation.engine import Work


class JobReports:
    """Makes the reports of a running job.

    Args:
        work: The job.
        now: When it started (s).
        predicts: Whether anybody needs its remaining work.
    """

    def __init__(self, work: Work, now: float, predicts: bool) -> None:
        self._work = work
        self._used_at = self._told_at = now
        self._heard = 0
        self._scaling = Scaling() if predicts and not work.job.gpus and work.needs == 1 else None

    def used(self, now: float, cores: float) -> None:
        """Add its mean cores since the last call. A long time is split into several readings, as in
        a live hub.
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
        """Its report; None: it has no losses, or no new ones."""
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
        """Each of the last losses with its own time, as in a live hub: merged ones would not show
        at which step an epoch began.
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
        """Reported step and epoch at a done fraction, interpolated between reported steps."""
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
        """Cores that it uses efficiently while others want them; with several workers one each.
        None: unknown, or on GPUs.
        """
        if self._scaling is not None:
            return self._scaling.useful()
        return float(self._work.needs) if not self._work.job.gpus else None
