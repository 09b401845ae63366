"""Jobs that are held for a moment for a proof of another user, through the arbiter.

A job is held only if its user allows it with the setting `prove_for_others`, as it was when the run
was handed in, and for at most 2 % of its time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.arbiter.asking import job_of
from headgate.arbiter.messages import AskHold, HubRequest
from headgate.arbiter.records import HoldAsked, JobHeld
from headgate.forecast.job_tracker import Trackers
from headgate.hub.parts.proof import MOST_SECONDS, Boxes, JobPause, step_gate
from headgate.hub.state.runs import LiveRuns
from headgate.model.defaults import HELD_PART, variable_of
from headgate.model.errors import IsolationError
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind

if TYPE_CHECKING:
    from headgate.diagnosis.proving import Window

_SAVED_SECONDS = 3 * MOST_SECONDS
"""Time in which a job was not held, and may be, is saved up to this."""
_ANSWER_SECONDS = 5.0


class OthersHolds:
    """Asks for other users' jobs to be held, and holds jobs of this user for others.

    Args:
        live_runs: The runs.
        boxes: The boxes of the tasks on this machine.
        send: Sends to the arbiter; returns whether it could be sent.
        tracker: The tracker of a running job.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        boxes: Boxes,
        send: Callable[[HubRequest], bool],
        tracker: Trackers,
    ) -> None:
        self._live_runs, self._boxes, self._send = live_runs, boxes, send
        self._tracker = tracker
        self._asked: dict[int, asyncio.Future[JobHeld]] = {}
        self._count = 0
        self._saved: dict[JobId, tuple[float, float]] = {}
        self._told: set[tuple[JobId, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, name: str, seconds: float) -> Window:
        """Have a job of another user held.

        Args:
            name: `USER:JOB`.
            seconds: For how long.

        Raises:
            IsolationError: It is not held; the error says why.
        """
        from headgate.diagnosis.proving import Window

        user, _, job = name.partition(":")
        self._count += 1
        answer = self._asked[self._count] = asyncio.get_running_loop().create_future()
        try:
            if not self._send(AskHold(user, job, self._count, seconds)):
                raise IsolationError(f"{name} is not held: no arbiter is there to ask {user}'s hub")
            held = await asyncio.wait_for(answer, seconds + _ANSWER_SECONDS)
        except TimeoutError:
            raise IsolationError(f"{name} is not held: the hub of {user} gives no answer") from None
        finally:
            del self._asked[self._count]
        if held.why:
            raise IsolationError(f"{name} is not held: {held.why}")
        return Window(held.begin, held.end)

    def hear(self, heard: HoldAsked | JobHeld) -> None:
        """Take what the arbiter passes on."""
        if isinstance(heard, HoldAsked):
            task = asyncio.get_running_loop().create_task(self._answer(heard))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif (answer := self._asked.get(heard.number)) is not None and not answer.done():
            answer.set_result(heard)

    async def _answer(self, asked: HoldAsked) -> None:
        job = job_of(asked.job.id)
        why = self._refusal(job, asked.seconds)
        held: Window | None = None
        if not why:
            boxes = [box for task, box in self._boxes().items() if task.job == job]
            attempt = self._live_runs.runs[job.run].jobs[job.name].current
            gate = step_gate(attempt, asyncio.get_running_loop())
            pause = JobPause(boxes, gate, self._step_seconds(job))
            try:
                held = await asyncio.to_thread(pause.hold, asked.seconds)
                why = "" if held is not None and boxes else "it has no task that can be held"
            except IsolationError as error:
                why = str(error)[:100]
            if not why:
                self._tell(job, asked.by.user)
        window = held if held is not None else (0.0, 0.0)
        self._send(JobHeld(asked.by, asked.number, *window, why=why))

    def _refusal(self, job: JobId, seconds: float) -> str:
        """Why a job is not held for others; empty: it may be."""
        run = self._live_runs.runs.get(job.run)
        live = run.jobs.get(job.name) if run is not None else None
        if run is None or live is None or live.state != "running":
            return "it does not run"
        if run.submission.environment.get(variable_of("prove_for_others")) != "on":
            return "its user does not allow that (setting prove_for_others)"
        if not live.spec.pausable:
            return "its job says `pausable: false`"
        if live.current is not None and live.current.pauses_by_gate:
            step_seconds = self._step_seconds(job)
            if not 0.0 < step_seconds <= seconds / 2:  # it would compute while it is told as held
                took = f"take {step_seconds:.2g} s" if step_seconds else "are not known"
                return f"it is held between its steps, and these {took}"
        now = time.monotonic()
        saved, at = self._saved.get(job, (_SAVED_SECONDS, now))
        saved = min(saved + HELD_PART * (now - at), _SAVED_SECONDS)
        if seconds > min(saved, MOST_SECONDS):
            return f"it is held for others for at most {HELD_PART:.0%} of its time"
        self._saved[job] = saved - seconds, now
        return ""

    def _step_seconds(self, job: JobId) -> float:
        """Mean seconds of a step; 0: unknown."""
        tracker = self._tracker(job)
        if tracker is None or not tracker.tells_steps:
            return 0.0
        return tracker.steps.mean_seconds()

    def _tell(self, job: JobId, user: str) -> None:
        """Record in the job's run for whom it is held, once for each user."""
        if (job, user) not in self._told:
            self._told.add((job, user))
            run = self._live_runs.runs[job.run]
            reason = Reason.of(ReasonKind.HELD_FOR_PROOF, user=user)
            self._live_runs.event(run, "note", reason, job.name)
