"""The live loop: carries the controller's actions to the engine, and requests of clients to the
controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headgate import policies
from headgate.config import settings
from headgate.controller import Controller, live_controller
from headgate.engines.base import LOCAL, Engine
from headgate.engines.launch import inject
from headgate.engines.remote.environment import more, sent
from headgate.forecast.job_tracker import JobTracker
from headgate.hub import doubts
from headgate.hub.allocations import warn_neighbours
from headgate.hub.changes import Changes, check_resize
from headgate.hub.checking import InspectedJob, checked
from headgate.hub.claiming import claimed
from headgate.hub.event_log import EventLog
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
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.hub.taking_up import FormerRun
from headgate.hub.watchdog import forget_boxes
from headgate.machine import arbiter_socket, gpu_visibility
from headgate.machine.allocation import slurm_share
from headgate.model import defaults, events
from headgate.model.actions import Action, subject
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.events import Event, TakenUp
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason
from headgate.model.reasons import ReasonKind as Why
from headgate.model.records import text_of
from headgate.model.shares import Lever
from headgate.model.units import say_bytes
from headgate.planning.candidates import candidates, tasks_on
from headgate.planning.memory import gpu_need
from headgate.policies import Policy
from headgate.profiling import at_once, gpu_neighbours, lengths
from headgate.profiling import store as profiles
from headgate.recorded import retention, runs
from headgate.scripts import launchers
from headgate.scripts.arguments import TrainingLength
from headgate.scripts.facts import ScriptFacts
from headgate.scripts.gpu_use import gpu_use

_log = logging.getLogger(__name__)

_DISK_LEVERS = frozenset({Lever.DISK_RATE, Lever.BUFFERED_WRITES})
ORIGIN_SECONDS = 5.0
"""Most seconds that the end of a short run waits for the list of installed packages."""
REPORT = "HEADGATE_REPORT"
"""Variable in the submitting environment; `off`: no page is written at the end of the run."""
REPORT_SECONDS = 600.0
"""Most seconds for a report; a run of a month takes minutes."""
_WRITTEN_SECONDS = 10.0  # longest wait of a run's watchers for its last rows to be written
_LEAVE_SECONDS = 2.0
_PAUSED_SECONDS = 1.0
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
        self._home = home
        self._node = node
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
        self.holder = JobHolder(self._live_runs, engine.boxes, self._step)
        name, socket = sharing.name(runs.hub()), arbiter_socket.path()
        self._sharing = sharing.MachineSharing(
            socket,
            node,
            lambda: sharing.stated(name, node, self._controller, self._forecasting),
            self._step,
            self._live_runs,
            engine.boxes,
        )
        self.proving = InterferenceProber(
            self._live_runs, self._tracker, engine.boxes, self._sharing.holds.ask
        )
        self._tracking = ExperimentTracking(self._live_runs)
        self._notifying = Notifying(self._live_runs)
        self._stopping_early = StoppingEarly(self._live_runs, self._tracker, self._step)
        self._components: tuple[Component, ...] = (
            self._nodes,
            # reserve before starting
            TaskReservations(self._live_runs, self._engines, self._nodes, self._step),
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
            *(part(node, self._live_runs, engine.boxes) for part in (OutsideKilled, OutsideUse)),
            *(self.holder, self.proving),
            self._stopping_early,
            *(self._tracking, self._notifying, self._sharing),
        )
        self._wake: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._origins: dict[str, asyncio.Task[Any]] = {}
        self._coming = 0  # runs that are being submitted
        # one after the other: each sees the nodes of the one before
        self._taking_in = asyncio.Lock()
        self._ending: set[LiveRun] = set()
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
    def has_runs(self) -> bool:
        """Whether a run has not ended, or is being submitted."""
        return bool(self.runs or self._coming)

    @property
    def busy(self) -> bool:
        """Whether any work is left."""
        return bool(self.runs or self._background)

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
        self._coming += 1
        try:
            async with (
                self._engines.opened(submission.engine) as engine,
                self._taking_in,
                claimed(self._home, submission),
            ):
                return await self._take_in(submission, engine, given)
        finally:
            self._coming -= 1

    async def _take_in(
        self, submission: Submission, engine: Engine, given: GivenInput | None
    ) -> LiveRun:
        kept: list[str] = []
        usual = settings.at_once(submission.environment)
        if submission.engine != LOCAL:
            environment = sent(submission.environment, submission.engine.name)
            kept = sorted(
                name
                for name in submission.environment.keys() - environment
                if name[:9] != "HEADGATE_"
            )
            submission = replace(submission, environment=environment)
        cluster = self._nodes.cluster(submission)
        within = gpu_visibility.within(self._node, submission.environment)
        recorded = (within, *submission.nodes) if submission.engine == LOCAL else cluster.nodes
        inspected = await asyncio.to_thread(checked, submission, cluster, within)
        inject(self._home / "inject")
        run = LiveRun(
            submission, recorded, self.policy, time.monotonic(), self._live_runs.trouble, given
        )
        await asyncio.to_thread(run.confirm)
        self._live_runs.runs[run.id] = run
        self._event_log.begin(run)
        _log.info("run %s is taken in, with %d jobs", run.id, len(run.jobs))
        self._nodes.join(submission)
        self._step(events.SlotsStated(usual if isinstance(usual, int) else None))
        for name, live in run.jobs.items():
            self._admit(run, live, inspected[name], cluster, usual)
        unused = frozenset[Lever]() if self._controller.policy.limits_disk else _DISK_LEVERS
        missing = dict.fromkeys(
            limit.lever for limit in engine.uncontrolled() if limit.lever not in unused
        )
        if missing:
            levers = tuple(map(str, missing))
            self._tell_soon(run, "warning", Reason.of(Why.LEVERS_MISSING, levers=levers))
        if kept:
            names_more = more(submission.engine.name)
            not_sent = Reason.of(Why.VARIABLES_NOT_SENT, variables=kept, variable=names_more)
            self._tell_soon(run, "note", not_sent)
        if (
            submission.engine == LOCAL
            and not submission.nodes
            and (share := slurm_share()) is not None
        ):
            self._tell_soon(run, "note" if share.here else "warning", share.reason())
        for doubt in doubts.of(submission, self._node.gpus):
            self._tell_soon(run, "warning", doubt)
        for kind, texts in (("warning", submission.warnings), ("note", submission.notes)):
            for name, text in texts.items():
                self._tell_soon(run, kind, Reason.of(Why.CLIENT_SAYS, text=text), name)
        self._origins[run.id] = self._in_background(self._look_around(run))
        return run

    async def take_up(self, formers: Sequence[FormerRun]) -> None:
        """Go on with runs whose hub died: first with what runs, so that what waits sees its use."""
        with contextlib.suppress(UsageError):  # the policy's package is gone
            self.set_policy(policies.make(formers[0].policy))
        inject(self._home / "inject")
        admissions: list[tuple[bool, Callable[[], None]]] = []
        for former in formers:
            try:
                admissions += await self._taken_up(former)
            except (HeadgateError, OSError) as error:
                print(f"run {former.folder.name} cannot be taken up: {error}", file=sys.stderr)
        for _, admit in sorted(admissions, key=lambda admission: not admission[0]):
            admit()
        for run in list(self.runs.values()):
            if run.ended:
                self._finish(run)

    async def _taken_up(self, former: FormerRun) -> list[tuple[bool, Callable[[], None]]]:
        """Restore a run. Returns what admits each of its jobs, and whether that job goes on.

        Raises:
            HeadgateError: It cannot go on here.
        """
        submission = former.submission
        cluster = self._nodes.cluster(submission)
        within = gpu_visibility.within(self._node, submission.environment)
        inspected = {}
        for job in submission.jobs:
            inspected[job.name] = InspectedJob(ScriptFacts(), "", TrainingLength(), {}, "")
            if former.jobs[job.name].then.state not in ENDED:
                with contextlib.suppress(HeadgateError):  # its script is gone; it may be running
                    alone = replace(submission, jobs=(job,))
                    inspected |= await asyncio.to_thread(checked, alone, cluster, within)
        run = LiveRun(
            submission, (within,), self.policy, former.began, self._live_runs.trouble, former=former
        )
        self._live_runs.runs[run.id] = run
        self._event_log.begin(run)
        self._stopping_early.take_up(run)
        self._nodes.join(submission)
        _log.info("run %s is taken up, with %d jobs", run.id, len(run.jobs))
        usual = settings.at_once(submission.environment)
        self._step(events.SlotsStated(usual if isinstance(usual, int) else None))
        gap = Reason.of(Why.HUB_CAME_AGAIN, seconds=former.seconds)
        self._live_runs.event(run, "warning", gap)
        self._origins[run.id] = self._in_background(self._retain(run))

        def admit(name: str, then: TakenUp) -> None:
            if then.plan is not None:
                then = replace(then, plan=replace(then.plan, worker_nodes=(self._node.name,)))
            self._admit(run, run.jobs[name], inspected[name], cluster, usual, then)
            if (urgent := former.jobs[name].urgent) is not None:
                pause = events.PauseRequested(JobId.of(run.id, name), urgent=urgent)
                delay = _PAUSED_SECONDS if then.goes_on else 0.0  # its engine takes it up meanwhile
                self._loop.call_later(delay, self._step, pause)
            if former.jobs[name].is_stopping and run.jobs[name].state not in ENDED:
                self._step(events.StopRequested(JobId.of(run.id, name)))

        return [
            (job.then.goes_on, partial(admit, name, job.then)) for name, job in former.jobs.items()
        ]

    def _admit(
        self,
        run: LiveRun,
        live: LiveJob,
        inspected_job: InspectedJob,
        cluster: Cluster,
        usual: object,
        taken_up: TakenUp | None = None,
    ) -> None:
        """Tell the controller of a job, with what is known of such jobs."""
        submission, name = run.submission, live.spec.name
        names = tuple(node.name for node in cluster.nodes)
        live.facts, live.files = inspected_job.facts, inspected_job.files
        live.profile_key, live.length = inspected_job.profile_key, inspected_job.length
        live.namesake = inspected_job.namesake
        if other := live.namesake:
            self._tell_soon(run, "note", Reason.of(Why.HAS_NAMESAKE, path=other), name)
        live.script_key = profiles.script_of(live.profile_key)
        known = profiles.load(self._home / "profiles", live.profile_key)
        if known is not None:
            live.profile = text_of(known)
        took = lengths.recall(self._home / "lengths", live.script_key, live.profile_key)
        used = lengths.memory_bytes(self._home / "lengths", live.script_key, live.profile_key)
        needs = (
            max(used or 0, (known.memory_peak_bytes if known is not None else None) or 0) or None
        )
        before = lengths.gpu_memory_bytes(self._home / "lengths", live.script_key, live.profile_key)
        on_gpu = gpu_need(live.spec.limits, known, before)
        environment = {**submission.environment, **live.spec.env}
        gpus = (
            gpu_visibility.indices(environment, self._node.gpus)
            if submission.engine == LOCAL
            else None
        )
        job = JobId.of(run.id, name)
        divides = live.spec.contract is not None and launchers.divides_memory(live.spec, live.facts)
        memory_bytes = on_gpu.memory_bytes
        use = gpu_use(live.spec, live.facts) if any(node.gpus for node in cluster.nodes) else "no"
        if use == "maybe" and lengths.used_no_gpu(
            self._home / "lengths", live.script_key, live.profile_key
        ):
            use = "no"
        facts = live.checkpoint, names, needs, took, gpus, divides, memory_bytes, use
        key = live.profile_key
        beside = gpu_neighbours.recall(self._home, key)
        script = f"{live.script_key} {live.spec.script or ''}"
        spec = live.spec
        if spec.at_once is None and usual == "auto":
            spec = replace(spec, at_once=usual)
        measures = "auto" in (spec.at_once, spec.trial.at_once if spec.trial is not None else None)
        best = at_once.recall(self._home, script) if measures else None
        stored = key, beside, script, best
        self._step(events.JobSubmitted(job, spec, *facts, *stored, taken_up=taken_up))
        if memory_bytes is None and known is None and use != "no":
            unknown = Reason.of(Why.GPU_NEED_UNKNOWN, text=on_gpu.known)
            self._tell_soon(run, "note", unknown, name)

    def _tell_soon(self, run: LiveRun, kind: str, reason: Reason, job: str | None = None) -> None:
        """Send a message about a run once its submitting client watches it."""
        self._loop.call_soon(self._live_runs.event, run, kind, reason, job)

    async def _look_around(self, run: LiveRun) -> None:
        await asyncio.gather(
            asyncio.to_thread(run.note_origin), self._retain(run), self._tell_neighbours(run)
        )

    async def _tell_neighbours(self, run: LiveRun) -> None:
        for neighbour in await asyncio.to_thread(warn_neighbours):
            self._live_runs.event(run, "warning", neighbour)

    async def _retain(self, run: LiveRun) -> None:
        keep = run.submission.environment.get("HEADGATE_KEEP_RUNS")
        try:
            gone = await asyncio.to_thread(retention.retain, keep)
        except HeadgateError as error:
            reason = Reason.of(Why.NO_RUN_DELETED, error=str(error))
            self._live_runs.event(run, "warning", reason)
            return
        if gone:
            deleted = Reason.of(Why.RUNS_DELETED, runs=gone, keep=keep or str(defaults.KEEP_RUNS))
            self._live_runs.event(run, "note", deleted)
            # into the hub's log
            text = f"{run.id}: {in_words(deleted)}: {', '.join(gone)}"
            print(text, file=sys.stderr, flush=True)

    def stop(self, run: str, jobs: Sequence[str] | None, kill: bool) -> list[str]:
        """Stop jobs of a run (None: all). Returns the names of those that had not ended.

        Raises:
            UsageError: The run has no such job.
        """
        for name in jobs or ():
            self._job(run, name)
        known = self.runs[run].jobs
        stopping = [name for name in jobs or known if known[name].state not in ENDED]
        for name in stopping:
            self._step(events.StopRequested(JobId.of(run, name), kill))
        return stopping

    def checkpoint(self, run: str, jobs: Sequence[str] | None) -> list[str]:
        """Ask jobs for a checkpoint at their next step boundary. Returns the names of those that
        can save one.
        """
        asked = []
        for name, live in sorted(self.runs[run].jobs.items()):
            if (jobs is None or name in jobs) and (saver := live.saver) is not None:
                self._engines.of(run).send(JobId.of(run, name).task(saver), {"type": "checkpoint"})
                asked.append(name)
        return asked

    def unconnected(self, run: str, jobs: Sequence[str] | None) -> list[str]:
        """Names of running jobs that import a library of Headgate's and have not connected."""
        return [
            name
            for name, live in sorted(self.runs[run].jobs.items())
            if (jobs is None or name in jobs) and live.state == "running" and live.is_unconnected
        ]

    def change(self, run: str, job: str, changes: Changes) -> None:
        """Change the limits, fields or number of workers of a live job.

        Raises:
            UsageError: A change is impossible. Nothing is changed.
        """
        live, id = self._job(run, job), JobId.of(run, job)
        spec = changes.applied(live.spec)
        if changes.workers is not None:
            most = tasks_on(self._nodes.cluster(self.runs[run].submission))
            check_resize(run, live, changes.workers, most)
        elif live.state in ENDED:
            raise UsageError(
                f"job {job!r} is {live.state}; only one that has not ended can be changed"
            )
        if changes.priority is not None and not self._controller.policy.grants:
            raise UsageError(f"policy {self.policy!r} moves no shares, whatever a job's priority")
        if changes.priority is not None and spec.share is not None:
            raise UsageError(f"job {job!r} has a `share` of its own, whatever its priority")
        held = _most_held(live)
        if changes.memory is not None and changes.memory < held:
            raise UsageError(
                f"found memory {say_bytes(changes.memory)}; job {job!r} holds {say_bytes(held)}"
            )
        if changes.memory is not None:
            candidates(self._nodes.cluster(self.runs[run].submission), spec)
        if spec != live.spec:
            live.spec = spec
            self.runs[run].record_job(job)
            reason = Reason.of(Why.CHANGED_BY_USER, **changes.plain())
            self._live_runs.event(self.runs[run], "note", reason, job)
            self._step(events.ChangeRequested(id, spec))
        if changes.workers is not None:
            self._step(events.ResizeRequested(id, changes.workers))

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
        self._hurry()
        await self._engines.close()
        await asyncio.sleep(0)  # the engine's last messages are queued on this loop
        self.watchers.close()
        for component in self._components:
            component.close()
        if self._wake is not None:
            self._wake.cancel()
        for run in list(self.runs.values()):
            self._finish(run)
        self._hurry()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _hurry(self) -> None:
        """Stop ended runs from waiting for disk space for their records."""
        for run in self._ending:
            run.recorder.hurry()

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
        last = {**run.snapshot(self.policy, self._tracker), "type": "end"}
        for component in self._components:
            self._try(component.forget, run.id)
        self._try(self._controller.forget, run.id)
        self._try(self._event_log.forget, time.monotonic(), run.id)
        self._in_background(self._engines.release())
        _log.info("run %s has ended", run.id)
        self._ending.add(run)
        self._in_background(self._wind_up(run, last))

    async def _wind_up(self, run: LiveRun, last: dict[str, Any]) -> None:
        await asyncio.wait([self._origins.pop(run.id)], timeout=ORIGIN_SECONDS)
        await self._notifying.ended(run.id)
        # a thread of its own: it may wait for disk space indefinitely
        thread = ThreadPoolExecutor(1)
        closed = self._loop.run_in_executor(thread, run.close)
        thread.shutdown(wait=False)
        await asyncio.wait([closed], timeout=_WRITTEN_SECONDS)
        self.watchers.tell(run.id, last)
        if not closed.done():  # the disk is full: watchers need not wait for space
            self.watchers.tell(run.id, {"type": "reported", "run": run.id, "report": None})
            self.watchers.drop(run.id)
        page = run.folder / "report.html"
        try:
            await closed
            forget_boxes(runs.hub(), run.id)
            # trials are removed, and nobody reads reports of single calls
            unread = run.submission.mode in ("verify", "call")
            if not unread and run.submission.environment.get(REPORT) != "off":
                await asyncio.wait_for(_write_report(run.folder / runs.STORE, page), REPORT_SECONDS)
        except (OSError, sqlite3.Error, TimeoutError) as error:
            # watchers go on without a report
            traceback.print_exception(error)
        else:
            await self._tracking.ended(run.id)
        finally:
            self._ending.discard(run)
            report = str(page) if page.exists() else None
            self.watchers.tell(run.id, {"type": "reported", "run": run.id, "report": report})
            self.watchers.drop(run.id)

    # --- small things -----------------------------------------------------------------------------

    def _tracker(self, job: JobId) -> JobTracker | None:
        """The present controller's tracker of a job."""
        return self._controller.tracker(job)

    def _controlled(self, policy: Policy) -> Controller:
        self._event_log.controller_made(time.monotonic(), policy.name)
        return live_controller(policy, lambda: self._event_log.pairs, self._forecasting.lasts)

    def _job(self, run: str, name: str) -> LiveJob:
        """A job of a run.

        Raises:
            UsageError: The run has no such job.
        """
        known = self.runs[run].jobs
        if name not in known:
            raise UsageError(f"run {run} has no job {name!r}; expected one of {', '.join(known)}")
        return known[name]

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _most_held(live: LiveJob) -> float:
    """Bytes that the largest task of a job holds now; 0: unknown."""
    tasks = live.current.tasks.values() if live.current is not None else ()
    return max((task.usage.get("memory_bytes", 0.0) for task in tasks if task.usage), default=0.0)


async def _write_report(store: Path, page: Path) -> None:
    """Write a run's page in a process of its own, so that it delays no job of another run."""
    code = (
        "import sys, pathlib, headgate.reports.html as html; "
        "html.write_at_end(*map(pathlib.Path, sys.argv[1:]))"
    )
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(store), str(page))
    try:
        await writer.wait()
    finally:
        if writer.returncode is None:
            writer.kill()
