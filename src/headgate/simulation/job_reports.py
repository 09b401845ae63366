"""What a simulated job tells while it runs, and what follows from that, by what it follows from
live.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import fmean

from headgate.forecast.remaining import LONGEST_SECONDS, Outlook, Question, answer
from headgate.forecast.scaling import Scaling
from headgate.model.events import Predicted, Progress
from headgate.model.identifiers import FIRST_WORKER
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
        self._outlook = Outlook(now) if predicts and work.job.foretold else None
        self._question: Question | None = None

    def used(self, now: float, cores: float) -> None:
        """Take in the cores that it used on average since the last time, which may be longer ago
        than any reading is live: as several readings.
        """
        since, gap = self._used_at, now - self._used_at
        self._used_at = now
        if self._scaling is None and self._outlook is None:
            return
        [task, *_] = self._work.tasks.values()
        readings = max(math.ceil(2.0 * gap / LONGEST_SECONDS), 1)
        for reading in range(1, readings + 1):
            at = since + gap * reading / readings
            if self._scaling is not None:
                self._scaling.used(at, cores, task.threads, task.entitled)
            if self._outlook is not None:
                self._outlook.used(at, cores)

    def told(self, now: float, asks: bool) -> Progress | None:
        """What it tells; None: nothing, as it has no losses, or none since the last time.

        Args:
            asks: Whether anybody would go by what is predicted of it.
        """
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
        if self._outlook is not None:
            self._foresee(self._outlook, now, done, len(news), asks)
        [task, *_] = work.tasks
        loss = fmean(loss for _, loss in news)
        return Progress(task, step, epoch=epoch, loss=loss, count=len(news), epochs=job.epochs)

    def _foresee(self, outlook: Outlook, now: float, done: float, news: int, asks: bool) -> None:
        """Take in each of the last losses by itself, when it came, as live: of several at once
        nobody could tell which of the steps between them began an epoch.
        """
        work, job = self._work, self._work.job
        heard = slice(self._heard - news, self._heard)
        for place, ((part, loss), (step, epoch)) in enumerate(
            zip(job.losses[heard], job.told[heard], strict=True), 1
        ):
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
            progress = Progress(
                work.id.task(FIRST_WORKER), step, epoch=epoch, epochs=job.epochs, within=within
            )
            self._question = outlook.reported(
                max(now - ago, self._told_at), loss, progress, asks and place == news
            )
        self._told_at = now

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

    def left(self) -> Predicted | None:
        """What is left by what it told last; None where that calls for no answer, or there is
        none.
        """
        question, self._question = self._question, None
        return answer(self._work.id, question) if question is not None else None

    def useful(self) -> float | None:
        """Cores that it puts to good use while others want them, of several workers one each; None:
        not known, or it is on GPUs.
        """
        if self._scaling is not None:
            return self._scaling.useful()
        return float(self._work.needs) if not self._work.job.gpus else None
