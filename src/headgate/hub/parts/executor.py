"""Carries out the controller's actions at engines, stores and tasks, and decides which tasks may
spin.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from headgate import isolation
from headgate.engines.base import LOCAL
from headgate.engines.launch import stated_threads
from headgate.hub.messages import gate
from headgate.hub.parts import Component
from headgate.hub.parts.engines import Engines
from headgate.hub.parts.listener import HubListener
from headgate.hub.parts.nodes import Nodes
from headgate.hub.parts.planning import InitialPlanner
from headgate.hub.starts import Starts
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model import job_states
from headgate.model.actions import (
    Action,
    BoundRun,
    Fault,
    MarkIdle,
    MarkJob,
    PlanJob,
    Resize,
    SetShare,
    ShareGpu,
    StartTask,
    StopTask,
    TryJob,
    Warn,
    subject,
)
from headgate.model.calls import RESULT
from headgate.model.endings import Checkpoint, Exit
from headgate.model.errors import HeadgateError
from headgate.model.events import Event, TaskStarted
from headgate.model.identifiers import TaskId
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind, StartOver
from headgate.model.records import text_of
from headgate.model.roles import task_names
from headgate.model.shares import Share
from headgate.output.patterns import ProgressReader
from headgate.profiling import at_once, gpu_neighbours
from headgate.scripts import resume_arguments
from headgate.scripts.contracts import LaunchedGroup
from headgate.scripts.facts import facts_of
from headgate.scripts.job_files import FileLook, edited
from headgate.scripts.resume_arguments import ResumeWay
from headgate.task import script_saves
from headgate.task.membership import LOOPBACK

_AGAIN_SECONDS = 1.0


class ActionExecutor(Component):
    """Carries out the controller's actions.

    Args:
        home: Headgate's folder.
        live_runs: The runs.
        engines: Engines that start tasks.
        nodes: Nodes of the tasks.
        listener: Told of tasks that could not start.
        initial_planner: Finds plans.
        finish: Called soon after the last job of a run has ended.
    """

    def __init__(
        self,
        home: Path,
        live_runs: LiveRuns,
        engines: Engines,
        nodes: Nodes,
        listener: HubListener,
        initial_planner: InitialPlanner,
        finish: Callable[[LiveRun], None],
    ) -> None:
        self._home = home
        self._live_runs = live_runs
        self._engines = engines
        self._nodes = nodes
        self._listener = listener
        self._initial_planner = initial_planner
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._shares: dict[TaskId, Share] = {}

    def forget(self, run: str) -> None:
        self._shares = {task: share for task, share in self._shares.items() if task.run != run}

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TaskStarted):
            run, _ = self._live_runs.find(event.task)
            if run.given is not None:
                run.given.started()
        for action in actions:
            self.take(action)

    def take(self, action: Action, again: bool = False) -> None:
        """Carry out an action, for the first time or `again`. Errors are reported to its run and do
        not affect other actions.
        """
        try:
            self._act(action)
        except Exception as error:  # noqa: BLE001
            about = subject(action)
            if about is None or about.run not in self._live_runs.runs:
                return
            if not again:
                self._live_runs.failed(f"{type(action).__name__} could not be done", error, about)
            match action:
                case StartTask(task=task):
                    failure = Exit(code=None, reason=f"could not be started: {error}")
                    self._loop.call_soon(self._listener.ended, task, failure)
                case StopTask():  # its job waits for the end
                    self._loop.call_later(_AGAIN_SECONDS, self.take, action, True)
                case MarkJob(job=job) if (run := self._live_runs.find(job)[0]).ended:
                    self._loop.call_soon(self._finish, run)

    def _act(self, action: Action) -> None:
        match action:
            case PlanJob():
                self._initial_planner.plan(action)
            case StartTask():
                self._start(action)
            case SetShare():
                self._set_share(action)
            case TryJob(job, cores, seconds, beside):
                run, live = self._live_runs.find(job)
                lenders = tuple(
                    other.name if other.run == job.run else str(other) for other in beside
                )
                trial = Reason.of(
                    ReasonKind.TRIED_WITH_MORE, cores=cores, seconds=seconds, beside=lenders
                )
                self._live_runs.event(run, job_states.TRIAL, trial, live.spec.name)
            case BoundRun() | ShareGpu():
                self._measured(action)
            case StopTask(task, grace, _, leaves):
                _, live = self._live_runs.find(task)
                if leaves and live.current is not None:
                    live.current.mark_leaving(
                        task.name
                    )  # so that it is not taken for an order to all
                self._engines.of(task.run).stop(task, grace)
            case Resize():
                self._resize(action)
            case Fault(job, task, reason, restarts):
                run, live = self._live_runs.find(job)
                if restarts:
                    live.interrupt(run.clock())
                self._live_runs.event(run, "fault", reason, live.spec.name, task)
            case MarkJob():
                self._mark(action)
            case MarkIdle(task, idle):
                _, live = self._live_runs.find(task)
                if live.current is not None:
                    live.current.tasks[task.name].idle = idle
            case Warn():
                self._warn(action)

    def _warn(self, action: Warn) -> None:
        if action.job is None:
            self._live_runs.tell_all(action.reason)
            return
        run, live = self._live_runs.find(action.job)
        self._live_runs.event(run, "warning", action.reason, live.spec.name)

    def _set_share(self, action: SetShare) -> None:
        task = action.task
        # a gate controls GPU time
        if (boxed := replace(action.share, gpu_fraction=None)) != Share():
            self._engines.of(task.run).set_share(task, boxed)
        self._granted(task, action.share, action.threads, action.entitled_cores, action.reason)
        _, live = self._live_runs.find(task)
        if live.current is not None:
            live.current.thread(task.name)

    def _measured(self, action: BoundRun | ShareGpu) -> None:
        """Tell what was measured, and keep it for later runs; else it is measured again."""
        run, live = self._live_runs.find(action.job)
        if isinstance(action, BoundRun):
            self._live_runs.event(run, "note", action.reason)
            if action.script and action.at_once is not None:
                with suppress(OSError):
                    at_once.remember(self._home, action.script, action.at_once)
            return
        self._live_runs.event(run, "note", action.reason, live.spec.name)
        if action.measured is not None:
            with suppress(OSError):
                gpu_neighbours.remember(self._home, action.measured)

    def _resize(self, action: Resize) -> None:
        run, live = self._live_runs.find(action.job)
        live.plan = text_of(action.plan)
        live.least_workers = max(live.least_workers, action.least_workers)
        self._initial_planner.moved(action.job, action.plan)
        if live.current is not None and not action.restarts:
            live.current.plan = action.plan
        run.record_job(live.spec.name)

    def _start(self, action: StartTask) -> None:
        run, live = self._live_runs.find(action.job)
        starts = Starts(run.submission, self._home)
        if live.left_box is not None:
            self._take_up(run, live, action, starts, live.left_box)
            return
        wanted = action.resume
        is_first = live.current is None or live.current.number != action.attempt
        if is_first:
            live.facts = facts_of(live.spec)
        if wanted is not None and wanted.own and self._resumes_by(live) is None:
            live.unasked, wanted = wanted, None
        action = replace(action, resume=live.resumable(wanted, action.node))
        if live.current is None or is_first:
            checkpoints = run.checkpoints(action.spec.name)
            _remove_copies(checkpoints)  # of the previous attempt
            (checkpoints / RESULT).unlink(missing_ok=True)
            send, ports = self._engines.of(run.id).send, starts.ports(action, self._used_ports())
            roles = task_names(action.spec.roles)
            attempt = Attempt(
                action.job,
                action.attempt,
                action.plan,
                action.spec.encrypt,
                send,
                ports,
                roles,
                live.spec.grace,
            )
            attempt.resumes_from = action.resume
            self._note_resume(run, live, wanted or live.unasked, action)
            live.begin(attempt, action.resume.step if action.resume is not None else 0)
            self._compare_files(run, live)
            if action.plan.workers > 1 and not ports and live.facts.shares_nothing:
                attempt.forewarned = True
                self._live_runs.event(run, "warning", self._listener.apart(live), live.spec.name)
            if not ports and (batch := _too_small_batch(action.plan, live.profile)) is not None:
                facts = {"job": live.spec.name, "batch": batch, "workers": action.plan.workers}
                too_few = Reason(ReasonKind.TOO_FEW_SAMPLES, facts)
                self._live_runs.event(run, "warning", too_few, live.spec.name)
        else:
            attempt = live.current
        unknown = {"pid": None, "ended": None, "exit": None, "gpus": None}
        run.record_task(
            action.task, node=action.node, attempt=action.attempt, started=run.clock(), **unknown
        )
        spec = self._engines.spec_of(run.id)
        address = starts.addresses(action.plan, partial(self._nodes.get, spec))
        node = self._nodes.get(spec, action.node)
        reader = ProgressReader(action.spec.progress)
        meeting = starts.meeting(action, live.facts, attempt.ports, address, attempt.key)
        if (
            isinstance(meeting, LaunchedGroup)
            and not attempt.tasks
            and meeting.addresses[0] != LOOPBACK
        ):
            where = f"{meeting.addresses[0]}:{meeting.ports[0]}"
            is_open = Reason.of(ReasonKind.OPEN_MEETING, address=where)
            self._live_runs.event(run, "note", is_open, live.spec.name)
        stated = stated_threads(action.spec, action.task.name)
        attempt.start(
            action.task.name, action.node, address(action.node), reader, action.joins, stated
        )
        self._shares.pop(action.task, None)
        self._granted(
            action.task, action.share, action.threads, action.entitled_cores, action.reason
        )
        try:
            if node is None:
                raise HeadgateError(f"node {action.node} is gone")
            prepared = starts.launch(
                action,
                node,
                run.checkpoints(action.spec.name),
                meeting,
                live.facts,
                has_namesake=bool(live.namesake),
                is_profiled=live.profile is not None,
                stdin=run.given.of_an_attempt() if run.given is not None else None,
            )
        except HeadgateError as error:  # its interpreter may be gone since submission
            failure = Exit(code=None, reason=f"could not be started: {error}", lost=node is None)
            self._loop.call_soon(self._listener.ended, action.task, failure)
            return
        self._engines.of(run.id).start(prepared, action.share, run.log(action.task))

    def _take_up(
        self, run: LiveRun, live: LiveJob, action: StartTask, starts: Starts, box: Mapping[str, Any]
    ) -> None:
        """Go on with the task of a job whose hub died, in its attempt."""
        live.left_box = None
        send, ports = self._engines.of(run.id).send, starts.ports(action, self._used_ports())
        spec, plan, names = action.spec, action.plan, task_names(action.spec.roles)
        numbers = action.attempt, plan, spec.encrypt
        attempt = Attempt(action.job, *numbers, send, ports, names, live.spec.grace)
        live.begin(attempt, live.step or 0)
        live.begun, live.opening = True, action.reason
        node = self._nodes.get(self._engines.spec_of(run.id), action.node)
        stated = stated_threads(spec, action.task.name)
        reader = ProgressReader(spec.progress)
        address = node.address if node is not None else ""
        attempt.start(action.task.name, action.node, address, reader, False, stated)
        run.record_task(action.task, node=action.node, attempt=action.attempt)
        self._granted(
            action.task, action.share, action.threads, action.entitled_cores, action.reason
        )
        self._engines.of(run.id).take_up(box, action.share, run.log(action.task))

    def _resumes_by(self, live: LiveJob) -> ResumeWay | None:
        return resume_arguments.way(live.spec, live.facts)

    def _note_resume(
        self, run: LiveRun, live: LiveJob, saved: Checkpoint | None, start: StartTask
    ) -> None:
        """Note how a script resumes from a checkpoint of its own, or warn that it does not.

        Args:
            saved: The latest checkpoint of the job, which may be damaged or elsewhere.
            start: The first start of an attempt.
        """
        if saved is None or not saved.own:
            return
        resume, resumes_by = start.resume, self._resumes_by(live)
        if resume is None or resumes_by is None:
            lacks = Reason.of(
                ReasonKind.STARTS_OVER,
                path=saved.path,
                step=saved.step or None,
                cause=StartOver.UNASKED if resumes_by is None else _lacks(saved, start.node),
                node=saved.node or None,
            )
            self._live_runs.event(run, "warning", lacks, live.spec.name)
            return
        words = resumes_by.arguments(resume.path)
        later = None if words or resume.node else script_saves.later_beside(resume.path)
        came = live.step if live.step is not None and live.step > resume.step > 0 else None
        goes_on = Reason.of(
            ReasonKind.RESUMES_WITH,
            arguments=shlex.join(words),
            path=resume.path if not words else None,
            step=resume.step or None,
            came=came,
            later=later,
        )
        kind = "note" if later is None else "warning"
        self._live_runs.event(run, kind, goes_on, live.spec.name)

    def _compare_files(self, run: LiveRun, live: LiveJob) -> None:
        """Warn of programs, own modules or settings that were edited while the job waited or
        between attempts.
        """
        if not (paths := edited(live.files)):
            return
        again = live.current is not None and live.current.number > 1
        files = tuple(os.path.relpath(path, live.spec.workdir) for path in paths)
        reason = Reason.of(ReasonKind.FILES_EDITED, files=files, again=again)
        self._live_runs.event(run, "warning", reason, live.spec.name)
        live.files = FileLook().files(live.spec, live.facts, run.submission.environment)

    def _used_ports(self) -> set[int]:
        """Ports of all attempts."""
        attempts = [
            live.current for run in self._live_runs.runs.values() for live in run.jobs.values()
        ]
        return {port for attempt in attempts if attempt is not None for port in attempt.ports}

    def _granted(
        self, task: TaskId, change: Share, threads: int, entitled: float, reason: Reason
    ) -> None:
        run, live = self._live_runs.find(task)
        share = self._shares[task] = self._shares.get(task, Share()).merged(change)
        name = task.name
        if live.current is not None and name in live.current.tasks:
            task_view = live.current.tasks[name]
            task_view.grant_threads(threads)
            threads, task_view.entitled_cores = task_view.threads, entitled
            spec = self._engines.spec_of(run.id)
            # The engine's limits concern processes; containers have weights wherever they run.
            in_process = live.spec.isolation in (None, isolation.DEFAULT)
            limits = self._engines.of(run.id).uncontrolled() if in_process else ()
            uncontrolled = {limit.lever for limit in limits}
            node = self._nodes.get(spec, task_view.node)
            # One worker may take turns for all, so it needs the lock files of all.
            is_here = (
                spec == LOCAL
                or len({*live.current.plan.worker_nodes, *live.current.plan.server_nodes}) == 1
            )
            turns = [f"gpu-{gpu}" for gpu in task_view.gpus] if is_here else ()
            task_view.gate = gate(
                share, entitled, node.cores if node is not None else None, uncontrolled, turns
            )
            live.current.send_gates()
        run.record_share(task, share, threads, entitled, reason)

    def _mark(self, action: MarkJob) -> None:
        run, live = self._live_runs.find(action.job)
        if action.state == "running" and not live.begun:
            if live.placed(_opening(action.reason, live), run.clock()):
                run.record_job(live.spec.name)
            return
        live.mark(action.state, action.reason, action.exit_code, run.clock(), action.ending)
        # first, so that whoever sees the state in the store finds its event there
        self._live_runs.event(run, action.state, action.reason, live.spec.name)
        run.record_job(live.spec.name)
        if action.state == "done":
            _remove_copies(run.checkpoints(live.spec.name))
        if run.ended:
            self._loop.call_soon(self._finish, run)


def _opening(reason: Reason, live: LiveJob) -> Reason:
    """The reason for the start of an attempt, with the checkpoint that the attempt has got."""
    if reason.kind is not ReasonKind.STARTED or live.current is None:
        return reason
    resume = live.current.resumes_from
    return Reason.of(
        reason.kind, **{**reason.facts, "resumed_from": resume.where if resume else None}
    )


def _lacks(saved: Checkpoint, node: str) -> StartOver:
    """Why an attempt on a node cannot resume from the latest checkpoint of its script."""
    if saved.node:
        return StartOver.WRITTEN_ANEW if saved.node == node else StartOver.ELSEWHERE
    match script_saves.damage(saved.path):
        case None:
            return StartOver.WRITTEN_ANEW
        case "is gone":
            return StartOver.GONE
    return StartOver.DAMAGED


def _remove_copies(checkpoints: Path) -> None:
    """Remove the copies of a job's servers' state that an engine brought for restarts on other
    nodes.
    """
    for copy in checkpoints.glob("server-*.copy"):
        copy.unlink(missing_ok=True)


def _too_small_batch(plan: Plan, profile: str | None) -> int | None:
    """Samples of a step by the job's profile if the plan has more workers; None: enough samples."""
    batch = json.loads(profile).get("batch") if profile is not None else None
    is_divided = plan.in_step and plan.batch_per_worker is None
    return batch if is_divided and batch is not None and batch < plan.workers else None
