"""The live loop: carries the controller's actions to the engine, and requests of clients to the
controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate import policies
from headgate.controller.core import Controller, live_controller
from headgate.engines.base import LOCAL, Engine
from headgate.forecast.job_tracker import JobTracker
from headgate.hub.event_log import EventLog
from headgate.hub.housekeeping import Housekeeping
from headgate.hub.intake import Intake
from headgate.hub.job_requests import JobRequests
from headgate.hub.parts import Component, sharing
from headgate.hub.parts.engines import Engines, TaskReservations
from headgate.hub.parts.executor import ActionExecutor
from headgate.hub.parts.forecasting import Forecasting, StartEstimates
from headgate.hub.parts.holding import JobHolder
from headgate.hub.parts.listener import HubListener
from headgate.hub.parts.monitoring import HangDetector, Readiness, Sampling
from headgate.hub.parts.nodes import HealthChecks, Nodes
from headgate.hub.parts.notifying import Notifying
from headgate.hub.parts.outside import OutsideKilled, OutsideUse
from headgate.hub.parts.oversubscription import Oversubscription
from headgate.hub.parts.planning import InitialPlanner
from headgate.hub.parts.proving import InterferenceProber
from headgate.hub.parts.replanning import Replanning
from headgate.hub.parts.stopping_early import StoppingEarly
from headgate.hub.parts.tracking import ExperimentTracking
from headgate.hub.parts.verifying import Verifying
from headgate.hub.standard_input import GivenInput
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.hub.taking_up import FormerRun
from headgate.machine import arbiter_socket
from headgate.model import events
from headgate.model.actions import Action, subject
from headgate.model.cluster import Node
from headgate.model.errors import UsageError
from headgate.model.events import Event
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reasons import Reason
from headgate.policies import Policy
from headgate.recorded import runs

_log = logging.getLogger(__name__)

_LEAVE_SECONDS = 2.0
_AGAIN_SECONDS = 1.0  # delay after an event that made the controller fail


class LiveHub:
    """All functions of a hub, on one event loop.

    Args:
        home: Headgate's folder.
        node: This machine.
        engine: The engine of this machine, not yet open.
        policy: The policy that moves shares.
        last_entry: As of `EventLog`.
    """

    def __init__(
        self, home: Path, node: Node, engine: Engine, policy: Policy, last_entry: int = 0
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._live_runs = LiveRuns(lambda: self.policy, self._tracker)
        self._forecasting = Forecasting(
            self._live_runs,
            self._tracker,
            home / "lengths",
            home / "profiles",
            self._step,
            lambda job: (
                self._controller.waits or self._sharing.is_shared or self._replanning.considers(job)
            ),
            lambda: self._controller.policy.predicts,
        )
        self._event_log = EventLog(self._live_runs, runs.hub(), last_entry)
        self._controller = self._controlled(policy)
        self._nodes = Nodes(node, self._live_runs, self._step)
        self._listener = HubListener(
            self._live_runs,
            home / "profiles",
            self._step,
            suspect=lambda _: self._nodes.look(),
            hardware=lambda task, node: self._nodes.hardware(self._engines.spec_of(task.run), node),
            leave=self.leave,
            printed=lambda task, lines: self._readiness.printed(task, lines),  # noqa: PLW0108  # it is made later
        )
        sampling = Sampling(self._live_runs, engine, self._step)
        self._engines = Engines(
            home, engine, self._listener, sampling.told, self._nodes, self._live_runs
        )
        self._readiness = Readiness(self._live_runs, self._engines, self._step)
        self._verifying = Verifying(home, self._live_runs, self._step)
        barred = self._verifying.barred
        self._initial_planner = initial_planner = InitialPlanner(
            home, self._live_runs, self._nodes, node, self._step, barred
        )
        self._replanning = Replanning(
            home,
            self._live_runs,
            self._nodes,
            self._engines,
            self._forecasting,
            initial_planner,
            node,
            self._step,
            barred,
        )
        outside = OutsideUse(node, self._live_runs, engine.boxes, lambda: sampling.on_gpus)
        self.holder = JobHolder(self._live_runs, engine.boxes, self._step)
        name, socket = sharing.name(runs.hub()), arbiter_socket.path()
        self._sharing = sharing.MachineSharing(
            socket,
            node,
            lambda: sharing.stated(
                name, node, self._controller, self._forecasting, self._live_runs
            ),
            self._step,
            self._live_runs,
            engine.boxes,
            outside.moved,
            self._tracker,
        )
        self.proving = InterferenceProber(
            self._live_runs, self._tracker, engine.boxes, self._sharing.holds.ask
        )
        tracking = ExperimentTracking(self._live_runs)
        notifying = Notifying(self._live_runs)
        stopping_early = StoppingEarly(self._live_runs, self._tracker, self._step)
        self._housekeeping = Housekeeping(self._live_runs, notifying.ended, tracking.ended)
        self._intake = Intake(
            home,
            node,
            self._live_runs,
            self._nodes,
            self._engines,
            self._event_log,
            self._housekeeping,
            stopping_early,
            lambda: self._controller.policy,
            self._step,
        )
        self.requests = JobRequests(
            self._live_runs,
            self._engines,
            self._nodes,
            lambda: self._controller.policy,
            self._step,
        )
        self._components: tuple[Component, ...] = (
            self._nodes,
            # reserve before starting
            TaskReservations(
                self._live_runs, self._engines, self._nodes, self._step, self._forecasting.left
            ),
            ActionExecutor(
                home,
                self._live_runs,
                self._engines,
                self._nodes,
                self._listener,
                initial_planner,
                self._finish,
            ),
            *(
                self._readiness,
                initial_planner,
                self._replanning,
                self._forecasting,
                self._verifying,
            ),
            StartEstimates(
                self._live_runs,
                lambda: self._controller.waits,
                lambda now: self._controller.ahead(now, self._forecasting.ends),
            ),
            Oversubscription(self._live_runs, node),
            *(sampling, HealthChecks(self._live_runs, self._nodes.look)),
            HangDetector(
                self._live_runs, self._tracker, lambda run: run.submission.engine == LOCAL
            ),
            *(OutsideKilled(node, self._live_runs, engine.boxes), outside),
            *(self.holder, self.proving),
            stopping_early,
            *(tracking, notifying, self._sharing),
        )
        self._wake: asyncio.TimerHandle | None = None
        self.watchers = self._live_runs.watchers
        self._nodes.tell()
        self._sharing.start()

    # --- requests of clients
    # --------------------------------------------------------------------------

    @property
    def runs(self) -> Mapping[str, LiveRun]:
        """Runs that have not ended."""
        return self._live_runs.runs

    @property
    def unreported(self) -> Mapping[str, Mapping[str, Any]]:
        """Ended runs whose report is not written yet: their last message, by id."""
        return self._housekeeping.unreported

    def expect(self, task: TaskId, then: Callable[[], None]) -> None:
        """Have `then` called, in any thread, once a power cut would not have it forgotten that a
        task begins, or at once if that cannot be written. Any thread may call it.
        """
        if (run := self.runs.get(task.run)) is not None:
            run.recorder.when_secured(then)
        else:
            then()

    @property
    def has_runs(self) -> bool:
        """Whether a run has not ended, or is being submitted."""
        return bool(self.runs or self._intake.busy)

    @property
    def busy(self) -> bool:
        """Whether any work is left."""
        return bool(self.runs or self._housekeeping.busy)

    def warn(self, reason: Reason) -> None:
        """Send a warning to all runs."""
        self._live_runs.tell_all(reason)

    @property
    def policy(self) -> str:
        return self._controller.policy.name

    def set_policy(self, policy: Policy) -> None:
        """Make a new controller with this policy; only while nothing runs.

        Raises:
            UsageError: Jobs run under another policy.
        """
        if self.has_runs and policy.name == self.policy:
            return
        if self.has_runs:
            join = f"wait for them, or leave out `--policy {policy.name}` to join them"
            raise UsageError(f"jobs run under policy {self.policy!r}; {join}")
        self._controller = self._controlled(policy)
        self._nodes.tell()
        self._sharing.tell()

    async def submit(self, submission: Submission, given: GivenInput | None = None) -> LiveRun:
        """Take in a run; its only task reads `given`.

        Raises:
            HeadgateError: It cannot run here. Nothing of it is kept.
        """
        return await self._intake.submit(submission, given)

    async def take_up(self, formers: Sequence[FormerRun]) -> None:
        """Go on with runs whose hub died."""
        with contextlib.suppress(UsageError):  # the policy's package is gone
            self.set_policy(policies.make(formers[0].policy))
        await self._intake.take_up(formers)
        for run in list(self.runs.values()):
            if run.ended:
                self._finish(run)

    def leave(self) -> None:
        """End this process at once, with all records written: the next hub takes up the runs."""
        for run in self.runs.values():
            run.recorder.flush(_LEAVE_SECONDS)
        os._exit(1)

    def begins_to_end(self) -> None:
        """Cancel trials, which would submit their next run to another hub, and let paused jobs go
        on, which would hear no signal.
        """
        self._verifying.close()
        self.holder.close()

    async def close(self) -> None:
        """Kill what runs and write what is left."""
        self._housekeeping.hurry()
        await self._engines.close()
        await asyncio.sleep(0)  # the engine's last messages are queued on this loop
        self.watchers.close()
        for component in self._components:
            component.close()
        if self._wake is not None:
            self._wake.cancel()
        for run in list(self.runs.values()):
            self._finish(run)
        await self._housekeeping.finish()

    # --- the controller's actions -----------------------------------------------------------------

    def _step(self, event: Event) -> None:
        now = time.monotonic()
        actions: Sequence[Action] = ()
        wake_at: float | None = now + _AGAIN_SECONDS
        self._event_log.note_pairs(now, self._initial_planner.pairs.known)
        try:
            actions, wake_at = self._controller.step(now, event)
        except Exception as error:  # noqa: BLE001  # one event costs nothing but itself
            self._live_runs.failed(
                f"{type(event).__name__} could not be taken in", error, subject(event)
            )
        _log.debug("%s of %s: %d actions", type(event).__name__, subject(event), len(actions))
        self._try(self._event_log.record, now, event, actions)
        for component in self._components:
            self._try(component.hear, event, actions)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if wake_at is not None:
            self._wake = self._loop.call_later(
                max(wake_at - time.monotonic(), 0.0), self._step, events.Wake()
            )

    def _try(self, act: Callable[..., object], *facts: object) -> None:
        """Do one of several independent things. An error is reported and does not prevent the
        others.
        """
        try:
            act(*facts)
        except Exception as error:  # noqa: BLE001
            self._live_runs.failed("Headgate met an error and goes on", error)

    def _finish(self, run: LiveRun) -> None:
        if self._live_runs.runs.pop(run.id, None) is None:
            return
        last = run.snapshot(self.policy, self._tracker)
        for component in self._components:
            self._try(component.forget, run.id)
        self._try(self._controller.forget, run.id)
        self._try(self._event_log.forget, time.monotonic(), run.id)
        self._housekeeping.add(self._engines.release())
        _log.info("run %s has ended", run.id)
        self._housekeeping.end(run, last)

    # --- small things -----------------------------------------------------------------------------

    def _tracker(self, job: JobId) -> JobTracker | None:
        """The present controller's tracker of a job."""
        return self._controller.tracker(job)

    def _controlled(self, policy: Policy) -> Controller:
        self._event_log.controller_made(time.monotonic(), policy.name)
        return live_controller(policy, lambda: self._event_log.pairs, self._forecasting.lasts)
