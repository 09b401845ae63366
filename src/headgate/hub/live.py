"""The live loop: carries the controller's actions to the engine, and what clients ask for to the controller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headgate import events, runs
from headgate.cluster import Node
from headgate.controller import Controller
from headgate.engines.base import Engine
from headgate.engines.launch import command, inject, launch
from headgate.errors import HeadgateError, UsageError
from headgate.events import ENDED, Action, Event, Exit, TaskId
from headgate.hub.attempt import Attempt
from headgate.hub.hearing import Hearing
from headgate.hub.job import LiveJob
from headgate.hub.ledger import Ledger
from headgate.hub.nodes import Nodes
from headgate.hub.run import LiveRun, Submission
from headgate.hub.sampling import Sampling
from headgate.planning import candidates
from headgate.policies import Policy
from headgate.profiling import store as profiles
from headgate.shares import Share
from headgate.telemetry.patterns import ProgressReader

_NOT_USED = "disk rate"  # no policy sets one, so that its lack changes nothing
ORIGIN_SECONDS = 5.0
"""Longest that the end of a short run waits for what its scripts run with to be listed."""
REPORT_SECONDS = 600.0
"""Longest that a report may take; a run of a month takes minutes."""


class LiveHub:
    """Everything that a hub does, on one event loop.

    Args:
        home: Headgate's folder.
        node: This machine.
        engine: Made, and not yet open.
        policy: What moves shares.
    """

    def __init__(self, home: Path, node: Node, engine: Engine, policy: Policy) -> None:
        self._loop = asyncio.get_running_loop()
        self._home = home
        self._node = node
        self._engine = engine
        self._controller = Controller(policy)
        self._ledger = Ledger(lambda: self.policy)
        self._nodes = Nodes(node, self._ledger, self._step)
        self._hearing = Hearing(self._ledger, home / "profiles", self._step, lambda _: self._nodes.look())
        self._sampling = Sampling(self._ledger, engine, node, self._step)
        self._shares: dict[TaskId, Share] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._origins: dict[str, asyncio.Task[Any]] = {}
        self._closing = False
        self.watchers = self._ledger.watchers
        engine.open(self._hearing)
        self._nodes.tell()

    # --- what clients ask for ---------------------------------------------------------------------------------------

    @property
    def runs(self) -> Mapping[str, LiveRun]:
        """Runs that have not ended."""
        return self._ledger.runs

    @property
    def busy(self) -> bool:
        """Whether anything is still to be done."""
        return bool(self.runs or self._background)

    @property
    def policy(self) -> str:
        return self._controller.policy.name

    def set_policy(self, policy: Policy) -> None:
        """Change the policy; only while nothing runs.

        Raises:
            UsageError: Jobs run under another.
        """
        if policy.name == self.policy:
            return
        if self.runs:
            join = f"wait for them, or leave out `--policy {policy.name}` to join them"
            raise UsageError(f"jobs run under policy {self.policy!r}; {join}")
        self._controller = Controller(policy)
        self._nodes.tell()

    async def submit(self, submission: Submission) -> LiveRun:
        """Take in a run.

        Raises:
            HeadgateError: It cannot be run here; nothing of it was kept.
        """
        cluster = self._nodes.cluster(submission)
        keys = {}
        for job in submission.jobs:  # so that what can be known now is one message now, and not a failed job later
            candidates(cluster, job)
            keys[job.name] = profiles.key(job, self._node)
            command(job, {**submission.environment, **job.env}.get("PATH"))
        inject(self._home / "inject")
        run = LiveRun(submission, self._node, self.policy, time.monotonic(), self._ledger.trouble)
        await asyncio.to_thread(run.confirm)
        self._ledger.runs[run.id] = run
        self._nodes.join(submission)
        names = tuple(node.name for node in cluster.nodes)
        for name, live in run.jobs.items():
            live.profile_key = keys[name]
            known = profiles.load(self._home / "profiles", live.profile_key)
            if known is not None:
                live.profile = profiles.dump(known)
            self._step(events.JobSubmitted(f"{run.id}/{name}", live.spec, live.checkpoint, names))
        if lost := [line.split(":")[0] for line in self._engine.lost() if not line.startswith(_NOT_USED)]:
            text = f"only approximate or missing here: {', '.join(lost)}; `headgate doctor` says why and what to do"
            # Not at once: whoever submitted it watches it from here on.
            self._loop.call_soon(self._ledger.event, run, "warning", text)
        self._origins[run.id] = self._in_background(asyncio.to_thread(run.note_origin))
        self._in_background(self._retain(run))
        self._sampling.start()
        return run

    async def _retain(self, run: LiveRun) -> None:
        try:
            await asyncio.to_thread(runs.retain)
        except HeadgateError as error:
            self._ledger.event(run, "warning", f"no old run was deleted: {error}")

    def stop(self, run: str, jobs: Sequence[str] | None, kill: bool) -> list[str]:
        """Stop jobs of a run (None: all of them); the names of those that had not ended.

        Raises:
            UsageError: The run has no job of such a name.
        """
        for name in jobs or ():
            self._job(run, name)
        known = self.runs[run].jobs
        stopping = [name for name in jobs or known if known[name].state not in ENDED]
        for name in stopping:
            self._step(events.StopRequested(f"{run}/{name}", kill))
        return stopping

    def checkpoint(self, run: str, jobs: Sequence[str] | None) -> list[str]:
        """Ask jobs for a checkpoint at their next step boundary; the names of those that can save one."""
        asked = []
        for name, live in sorted(self.runs[run].jobs.items()):
            lowest = live.current.lowest if live.current is not None else None
            if (jobs is None or name in jobs) and live.current and lowest and live.current.is_connected(lowest):
                self._engine.send(f"{run}/{name}/{lowest}", {"type": "checkpoint"})
                asked.append(name)
        return asked

    def resize(self, run: str, job: str, workers: int) -> None:
        """Have a running job of several tasks go on with so many workers.

        Raises:
            UsageError: It cannot.
        """
        live = self._job(run, job)
        plan = live.current.plan if live.current is not None else None
        fewest, most = live.spec.limits.workers
        if live.state != "running" or plan is None:
            raise UsageError(f"job {job!r} is {live.state}; only a running one can be resized")
        if plan.strategy == "single":
            raise UsageError(f"job {job!r} runs as a single task; resume it as another: headgate resume --workers")
        if isinstance(plan.batch_per_worker, tuple):
            raise UsageError(f"job {job!r} has a batch for each of its workers; stop it, and resume it by another plan")
        if workers <= plan.backup_workers:
            raise UsageError(f"found {workers} workers; expected more than its {plan.backup_workers} backup workers")
        if workers < fewest or (most is not None and workers > most):
            limits = f"{fewest}..{'' if most is None else most}"
            raise UsageError(f"found {workers} workers; the limits of job {job!r} say {limits}")
        self._step(events.ResizeRequested(f"{run}/{job}", workers))

    async def close(self) -> None:
        """Kill what runs and write what is left."""
        await asyncio.to_thread(self._engine.close)
        await asyncio.sleep(0)  # what the engine said last is queued on this loop
        self.watchers.close()
        self._sampling.close()
        if self._wake is not None:
            self._wake.cancel()
        for run in list(self.runs.values()):
            self._finish(run)
        await asyncio.gather(*self._background, return_exceptions=True)

    # --- the controller's actions -----------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        actions, wake_at = self._controller.step(time.monotonic(), event)
        for action in actions:
            self._act(action)
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if wake_at is not None:
            self._wake = self._loop.call_later(max(wake_at - time.monotonic(), 0.0), self._step, events.Wake())

    def _act(self, action: Action) -> None:
        match action:
            case events.PlanJob(job, spec, revision):
                run, live = self._ledger.find(job)
                try:
                    plan = candidates(self._nodes.cluster(run.submission), spec)[0]
                except UsageError as error:  # a node has gone since it was handed in
                    self._loop.call_soon(self._ledger.event, run, "warning", str(error), spec.name)
                    self._loop.call_soon(self._step, events.StopRequested(job))
                    return
                live.plan = json.dumps(asdict(plan))
                self._loop.call_soon(self._step, events.JobPlanned(job, revision, plan))
            case events.StartTask():
                self._start(action)
            case events.SetShare(task, share, threads, entitled, reason):
                if share != Share():
                    self._engine.set_share(task, share)
                _, live = self._ledger.find(task)
                if live.current is not None and live.current.is_connected(task.rsplit("/", 1)[1]):
                    self._engine.send(task, {"type": "threads", "threads": threads})
                self._granted(task, share, threads, entitled, reason)
            case events.StopTask(task, grace, _, leaves):
                _, live = self._ledger.find(task)
                if leaves and live.current is not None:
                    live.current.part(task.rsplit("/", 1)[1])  # so that nobody takes it for an order to all
                self._engine.stop(task, grace)
            case events.Resize(job, plan):
                run, live = self._ledger.find(job)
                live.plan = json.dumps(asdict(plan))
                if live.current is not None:
                    live.current.plan = plan
                run.record_job(live.spec.name)
            case events.Fault(job, task, text, restarts):
                run, live = self._ledger.find(job)
                if restarts:
                    live.interrupt(run.clock())
                self._ledger.event(run, "fault", text, live.spec.name, task)
            case events.MarkJob():
                self._mark(action)
            case events.Warn(text):
                self._ledger.tell_all(text)

    def _start(self, action: events.StartTask) -> None:
        run, live = self._ledger.find(action.job)
        name = action.task.rsplit("/", 1)[1]
        if live.current is None or live.current.number != action.attempt:
            attempt = Attempt(action.job, action.attempt, action.plan, action.spec.encrypt, self._engine.send)
            live.begin(attempt, action.resume.step if action.resume is not None else 0)
        else:
            attempt = live.current
        run.record_task(
            action.task, node=action.node, attempt=action.attempt, pid=None, started=run.clock(), ended=None, exit=None
        )
        node = self._nodes.get(action.node)
        reader = ProgressReader(action.spec.progress)
        attempt.start(name, action.node, node.address if node is not None else "", reader, action.joins)
        self._shares.pop(action.task, None)
        self._granted(action.task, action.share, action.threads, action.entitled_cores, action.reason)
        try:
            if node is None:
                raise HeadgateError(f"node {action.node} is gone")
            prepared = launch(
                action.task,
                action.spec,
                environment=run.submission.environment,
                threads=action.threads,
                injected=inject(self._home / "inject"),
                checkpoints=run.checkpoints(action.spec.name),
                resume=action.resume,
                gpus=action.gpus,
                mode=run.submission.mode,
                role="server" if name.startswith("server-") else "worker",
                place=node.place,
            )
        except HeadgateError as error:  # its interpreter may be gone since it was handed in
            failure = Exit(code=None, reason=f"could not be started: {error}")
            self._loop.call_soon(self._hearing.ended, action.task, failure)
            return
        self._engine.start(prepared, action.share, run.log(action.task))

    def _granted(self, task: TaskId, change: Share, threads: int, entitled: float, reason: str) -> None:
        run, live = self._ledger.find(task)
        share = self._shares[task] = self._shares.get(task, Share()).merged(change)
        name = task.rsplit("/", 1)[1]
        if live.current is not None and name in live.current.tasks:
            live.current.tasks[name].threads, live.current.tasks[name].entitled_cores = threads, entitled
        run.record_share(task, share, threads, entitled, reason)

    def _mark(self, action: events.MarkJob) -> None:
        run, live = self._ledger.find(action.job)
        live.mark(action.state, action.reason, action.exit_code, run.clock())
        run.record_job(live.spec.name)
        self._ledger.event(run, action.state, action.reason, job=live.spec.name)
        if run.ended:
            self._loop.call_soon(self._finish, run)

    def _finish(self, run: LiveRun) -> None:
        if self._ledger.runs.pop(run.id, None) is None:
            return
        self._controller.forget(run.id)
        self._nodes.release()
        self._shares = {task: share for task, share in self._shares.items() if task.split("/")[0] != run.id}
        last = {**run.snapshot(self.policy), "type": "end"}
        self._in_background(self._wind_up(run, last))

    async def _wind_up(self, run: LiveRun, last: dict[str, Any]) -> None:
        await asyncio.wait([self._origins.pop(run.id)], timeout=ORIGIN_SECONDS)
        await asyncio.to_thread(run.close)
        self.watchers.tell(run.id, last)
        page = run.folder / "report.html"
        with contextlib.suppress(OSError, TimeoutError):  # whoever watches goes on without a report
            await asyncio.wait_for(_write_report(run.folder / runs.STORE, page), REPORT_SECONDS)
        self.watchers.tell(run.id, {"type": "reported", "run": run.id, "report": str(page) if page.exists() else None})
        self.watchers.drop(run.id)

    # --- small things -----------------------------------------------------------------------------------------------

    def _job(self, run: str, name: str) -> LiveJob:
        """A job of a run.

        Raises:
            UsageError: The run has none of that name.
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


async def _write_report(store: Path, page: Path) -> None:
    """Draw up a run's page in a process of its own, so that it holds up no job of another run."""
    code = "import sys, pathlib, headgate.reports.html as html; html.write(*map(pathlib.Path, sys.argv[1:]))"
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(store), str(page))
    try:
        await writer.wait()
    finally:
        if writer.returncode is None:
            writer.kill()
