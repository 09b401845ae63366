"""Proof by pause: pauses a job for short random moments, and measures the effect on the steps of
others.

Whatever ends a job releases it first. If the hub dies, its watchdog releases the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from headgate.engines.base import LOCAL
from headgate.forecast.job_tracker import Trackers
from headgate.hub.parts import Component
from headgate.hub.parts.proof import LOOK_SECONDS, Boxes, ProofUnderWay, Tell, is_of_other
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model import defaults
from headgate.model.actions import Action, StopTask
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.events import Event, StopRequested, TaskExited, TaskStarted
from headgate.model.job_states import ENDED
from headgate.model.reasons import Reason, ReasonKind

if TYPE_CHECKING:
    from headgate.diagnosis.proving import Window

_MOST_ASKED = 0.25
"""Largest fraction of its time for which somebody may have a job paused."""


class InterferenceProber(Component):
    """Proves which job slows which: on request of a client, and by itself for jobs with `prove:
    true`.

    Args:
        live_runs: The runs of the jobs.
        tracker: Gives the controller's tracker of a job.
        boxes: The boxes of the tasks on this machine.
        others: As of `ProofUnderWay`.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        tracker: Trackers,
        boxes: Boxes,
        others: Callable[[str, float], Awaitable[Window]],
    ) -> None:
        self._live_runs = live_runs
        self._tracker = tracker
        self._boxes = boxes
        self._others = others
        self._loop = asyncio.get_running_loop()
        self._current: ProofUnderWay | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tried: set[tuple[str, str, str]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TaskStarted) and self._timer is None and self._wanting(event.task.run):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        ending = [action.task.job for action in actions if isinstance(action, StopTask)]
        if isinstance(event, TaskExited):
            ending.append(event.task.job)
        elif isinstance(event, StopRequested):
            ending.append(event.job)
        if self._current is not None:
            for job in ending:
                self._current.release(job)

    def forget(self, run: str) -> None:
        if self._current is not None and self._current.run.id == run:
            self._current.cancel()
        self._tried = {pair for pair in self._tried if pair[0] != run}

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._current is not None:
            self._current.cancel()

    def begin(
        self,
        run: str,
        victims: Sequence[str] | None,
        culprits: Sequence[str] | None,
        most: float,
        tell: Tell,
    ) -> ProofUnderWay:
        """Start to prove which job slows which.

        Args:
            victims: The jobs whose steps are watched; None: all running jobs.
            culprits: The jobs to pause; None: all others that may be paused.
            most: The fraction of its time for which each culprit may be paused.
            tell: Called after each pause, and at last with the result.

        Raises:
            UsageError: Such a proof is impossible.
        """
        live = self._live_runs.runs[run]
        if self._current is not None:
            raise UsageError(
                f"a proof is under way in run {self._current.run.id}; wait for it, or end it "
                "with Ctrl-C"
            )
        if live.submission.engine != LOCAL:
            raise UsageError(
                f"run {run} runs on {live.submission.engine}; only tasks of this machine "
                "can be held"
            )
        if not 0.0 < most <= _MOST_ASKED:
            raise UsageError(
                f"found {most:.3g} of its time; expected a part above 0 and at most "
                f"{_MOST_ASKED:.0%}"
            )
        own = [name for name in culprits or () if not is_of_other(name)]
        for name, job in self._live_runs.chosen(run, [*(victims or ()), *own]).jobs.items():
            if job.state != "running":
                raise UsageError(f"job {name!r} is {job.state}; only running jobs can be proved")
        for name in own:
            if not live.jobs[name].spec.pausable:
                raise UsageError(
                    f"job {name!r} says `pausable: false`; it is not held. Choose another "
                    "--neighbour"
                )
        running = [name for name, job in live.jobs.items() if job.state == "running"]
        held = list(
            culprits
            or (name for name in running if live.jobs[name].spec.pausable and [name] != victims)
        )
        seen = list(victims or (name for name in running if [name] != held))
        if not any(culprit != victim for culprit in held for victim in seen):
            raise UsageError(f"run {run} has no neighbour to hold: no other pausable job runs")
        self._current = ProofUnderWay(
            live, seen, held, most, self._tracker, self._boxes, tell, self._others
        )
        self._current.work.add_done_callback(self._ended)
        return self._current

    def _ended(self, _: object) -> None:
        self._current = None

    # --- jobs with `prove: true`
    # ----------------------------------------------------------------------

    def _wanting(self, run: str) -> list[str]:
        """Live jobs of a run with `prove: true`."""
        live_run = self._live_runs.runs.get(run)
        jobs = live_run.jobs.items() if live_run is not None else ()
        return [name for name, job in jobs if job.spec.prove and job.state not in ENDED]

    def _look(self) -> None:
        self._timer = None
        if any(map(self._wanting, self._live_runs.runs)):
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        for run in self._live_runs.runs.values():
            for victim in self._wanting(run.id):
                if self._current is None and run.jobs[victim].state == "running":
                    self._prove(run, victim)

    def _prove(self, run: LiveRun, victim: str) -> None:
        """Prove which neighbours slow a job, among those not yet tested."""
        beside = [
            name
            for name, job in run.jobs.items()
            if name != victim and job.state == "running" and job.spec.pausable
            if (run.id, victim, name) not in self._tried
        ]
        self._tried |= {(run.id, victim, name) for name in beside}
        if not beside:
            return

        def tell(message: dict[str, Any]) -> None:
            for text in message.get("reasons", ()):
                reason = Reason.of(ReasonKind.NOT_PROVED, text=text)
                self._live_runs.event(run, "warning", reason, victim)

        try:
            self.begin(run.id, [victim], beside, defaults.HELD_PART, tell)
        except HeadgateError as error:
            reason = Reason.of(ReasonKind.NOT_PROVED, text=str(error))
            self._live_runs.event(run, "warning", reason, victim)


# --- pauses ---------------------------------------------------------------------------------------
