"""The live loop: carries the controller's actions to the engine, and what happens back to the controller, the stores
and whoever watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headgate import events, runs
from headgate.cluster import Node
from headgate.controller import Controller
from headgate.engines.base import Engine, Listener
from headgate.engines.launch import command, inject, launch
from headgate.errors import HeadgateError, UsageError
from headgate.events import ENDED, Action, Event, Exit, TaskId
from headgate.hub import messages
from headgate.hub.job import LiveJob
from headgate.hub.run import LiveRun, Submission
from headgate.hub.watching import Watchers
from headgate.planning import candidates
from headgate.policies import Policy
from headgate.profiling import store as profiles
from headgate.shares import Share
from headgate.telemetry.base import Target
from headgate.telemetry.round import Round, samplers

SAMPLE_SECONDS = 1.0
_LINE_SHOWN = 200
_NOT_USED = "disk rate"  # no policy sets one, so that its lack changes nothing
ORIGIN_SECONDS = 5.0
"""Longest that the end of a short run waits for what its scripts run with to be listed."""
REPORT_SECONDS = 600.0
"""Longest that a report may take; a run of a month takes minutes."""


class LiveHub(Listener):
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
        self._sampling = Round(samplers(self._trouble), self._trouble)
        self._runs: dict[str, LiveRun] = {}
        self.watchers = Watchers(self._snapshot)
        self._connected: set[TaskId] = set()
        self._shares: dict[TaskId, Share] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._sampler: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[Any]] = set()
        self._origins: dict[str, asyncio.Task[Any]] = {}
        engine.open(self)
        self._step(events.NodeJoined(node))

    # --- what clients ask for ---------------------------------------------------------------------------------------

    @property
    def runs(self) -> Mapping[str, LiveRun]:
        """Runs that have not ended."""
        return self._runs

    @property
    def busy(self) -> bool:
        """Whether anything is still to be done."""
        return bool(self._runs or self._background)

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
        if self._runs:
            join = f"wait for them, or leave out `--policy {policy.name}` to join them"
            raise UsageError(f"jobs run under policy {self.policy!r}; {join}")
        self._controller = Controller(policy)
        self._step(events.NodeJoined(self._node))

    def submit(self, submission: Submission) -> LiveRun:
        """Take in a run.

        Raises:
            HeadgateError: It cannot be run here; nothing of it was kept.
        """
        cluster = self._engine.cluster()
        keys = {}
        for job in submission.jobs:  # so that what can be known now is one message now, and not a failed job later
            candidates(cluster, job)
            keys[job.name] = profiles.key(job, self._node)
            command(job, {**submission.environment, **job.env}.get("PATH"))
        inject(self._home / "inject")
        run = LiveRun(submission, self._node, self.policy, time.monotonic(), self._trouble)
        self._runs[run.id] = run
        for name, live in run.jobs.items():
            live.profile_key = keys[name]
            known = profiles.load(self._home / "profiles", live.profile_key)
            if known is not None:
                live.profile = profiles.dump(known)
            self._step(events.JobSubmitted(f"{run.id}/{name}", live.spec, live.checkpoint))
        if lost := [line.split(":")[0] for line in self._engine.lost() if not line.startswith(_NOT_USED)]:
            text = f"only approximate or missing here: {', '.join(lost)}; `headgate doctor` says why and what to do"
            # Not at once: whoever submitted it watches it from here on.
            self._loop.call_soon(self._event, run, "warning", text)
        self._origins[run.id] = self._in_background(asyncio.to_thread(run.note_origin))
        self._in_background(self._retain(run))
        if self._sampler is None:
            self._sample()
        return run

    async def _retain(self, run: LiveRun) -> None:
        try:
            await asyncio.to_thread(runs.retain)
        except HeadgateError as error:
            self._event(run, "warning", f"no old run was deleted: {error}")

    def stop(self, run: str, jobs: Sequence[str] | None, kill: bool) -> list[str]:
        """Stop jobs of a run (None: all of them); the names of those that had not ended.

        Raises:
            UsageError: The run has no job of such a name.
        """
        live = self._runs[run]
        for name in jobs or ():
            if name not in live.jobs:
                raise UsageError(f"run {run} has no job {name!r}; expected one of {', '.join(live.jobs)}")
        stopping = [name for name in jobs or live.jobs if live.jobs[name].state not in ENDED]
        for name in stopping:
            self._step(events.StopRequested(f"{run}/{name}", kill))
        return stopping

    def checkpoint(self, run: str, jobs: Sequence[str] | None) -> list[str]:
        """Ask jobs for a checkpoint at their next step boundary; the names of those that can save one."""
        asked = []
        for task in sorted(self._connected):
            id, job, _ = task.split("/")
            if id == run and (jobs is None or job in jobs):
                self._engine.send(task, {"type": "checkpoint"})
                asked.append(job)
        return asked

    async def close(self) -> None:
        """Kill what runs and write what is left."""
        await asyncio.to_thread(self._engine.close)
        await asyncio.sleep(0)  # what the engine said last is queued on this loop
        self.watchers.close()
        for handle in (self._wake, self._sampler):
            if handle is not None:
                handle.cancel()
        for run in list(self._runs.values()):
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
                plan = candidates(self._engine.cluster(), spec)[0]
                self._find(job)[1].plan = json.dumps(asdict(plan))
                self._loop.call_soon(self._step, events.JobPlanned(job, revision, plan))
            case events.StartTask():
                self._start(action)
            case events.SetShare(task, share, threads, entitled, reason):
                if share != Share():
                    self._engine.set_share(task, share)
                if task in self._connected:
                    self._engine.send(task, {"type": "threads", "threads": threads})
                self._granted(task, share, threads, entitled, reason)
            case events.StopTask(task, grace, _):
                self._engine.stop(task, grace)
            case events.MarkJob():
                self._mark(action)
            case events.Warn(text):
                for run in self._runs.values():
                    self._event(run, "warning", text)

    def _start(self, action: events.StartTask) -> None:
        run, live = self._find(action.job)
        name = action.spec.name
        live.begin(action.attempt)
        run.record_task(action.task, node=action.node, attempt=action.attempt, started=run.clock())
        self._granted(action.task, action.share, action.threads, action.entitled_cores, action.reason)
        try:
            prepared = launch(
                action.task,
                action.spec,
                environment=run.submission.environment,
                threads=action.threads,
                injected=inject(self._home / "inject"),
                checkpoints=run.checkpoints(name),
                resume=action.resume,
                gpus=action.gpus,
                mode=run.submission.mode,
            )
        except HeadgateError as error:  # its interpreter may be gone since it was handed in
            failure = Exit(code=None, reason=f"could not be started: {error}")
            self._loop.call_soon(self._exited, action.task, failure)
            return
        self._engine.start(prepared, action.share, run.log(action.task))

    def _granted(self, task: TaskId, change: Share, threads: int, entitled: float, reason: str) -> None:
        share = self._shares[task] = self._shares.get(task, Share()).merged(change)
        run, live = self._find(task)
        live.threads, live.entitled_cores = threads, entitled
        run.record_share(task, share, threads, entitled, reason)

    def _mark(self, action: events.MarkJob) -> None:
        run, live = self._find(action.job)
        live.mark(action.state, action.reason, action.exit_code, run.clock())
        run.record_job(live.spec.name)
        self._event(run, action.state, action.reason, job=live.spec.name)
        if run.ended:
            self._loop.call_soon(self._finish, run)

    def _finish(self, run: LiveRun) -> None:
        if self._runs.pop(run.id, None) is None:
            return
        self._controller.forget(run.id)
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

    # --- what the engine says, from its own thread ------------------------------------------------------------------

    def started(self, task: TaskId, pid: int) -> None:
        self._loop.call_soon_threadsafe(self._started, task, pid)

    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        self._loop.call_soon_threadsafe(self._output, task, lines)

    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        self._loop.call_soon_threadsafe(self._message, task, message)

    def exited(self, task: TaskId, exit: Exit) -> None:
        self._loop.call_soon_threadsafe(self._exited, task, exit)

    def warned(self, task: TaskId | None, text: str) -> None:
        self._loop.call_soon_threadsafe(self._warned, task, text)

    def _started(self, task: TaskId, pid: int) -> None:
        run, _ = self._find(task)
        run.record_task(task, pid=pid)
        self._step(events.TaskStarted(task, pid))

    def _output(self, task: TaskId, lines: Sequence[str]) -> None:
        run, live = self._find(task)
        live.last_line = next((line for line in reversed(lines) if line.strip()), live.last_line)
        readings = live.reader.feed(lines)
        if live.reader.problem is not None and not live.reader_failed:
            live.reader_failed = True
            self._event(run, "warning", live.reader.problem, live.spec.name, task)
        for reading in readings:
            if not live.reports_itself:
                self._progress(run, live, messages.read(task, reading, live.spec.progress.metric))

    def _message(self, task: TaskId, message: Mapping[str, Any]) -> None:
        run, live = self._find(task)
        try:
            match message["type"]:
                case "hello":
                    run.note_seed(live.spec.name, message.get("seed"))
                    self._connected.add(task)
                    self._engine.send(task, messages.welcome(task, json.loads(live.plan or "{}"), live.threads))
                    self._step(events.TaskConnected(task, str(message.get("framework"))))
                case "progress":
                    live.reports_itself = True
                    self._progress(run, live, messages.progress(task, message))
                case "spans":
                    run.record_spans(task, message)
                case "profile":
                    self._profiled(run, live, message["profile"])
                case "checkpoint":
                    live.checkpoint = run.record_checkpoint(task, message)
                    self._step(events.CheckpointDone(task, live.checkpoint))
                case "checkpoint_failed":
                    self._event(run, "warning", f"no checkpoint was saved: {message['error']}", live.spec.name, task)
                case "note":
                    self._event(run, "note", str(message["text"]), live.spec.name, task)
        except (KeyError, TypeError, ValueError) as error:
            self._event(run, "warning", f"a message that makes no sense was left out: {error!r}", live.spec.name, task)

    def _exited(self, task: TaskId, exit: Exit) -> None:
        run, live = self._find(task)
        if exit.code and exit.reason is None and live.last_line:
            exit = replace(exit, reason=f"exit code {exit.code}, after the line: {live.last_line[:_LINE_SHOWN]}")
        run.flush_progress(task)
        run.record_task(task, ended=run.clock(), exit=asdict(exit))
        self._connected.discard(task)
        self._shares.pop(task, None)
        live.cpu_cores = live.memory_bytes = None
        self._step(events.TaskExited(task, exit))

    def _warned(self, task: TaskId | None, text: str) -> None:
        if task is None:
            self._trouble(text)
        else:
            run, live = self._find(task)
            self._event(run, "warning", text, live.spec.name, task)

    # --- what is measured -------------------------------------------------------------------------------------------

    def _progress(self, run: LiveRun, live: LiveJob, progress: events.Progress) -> None:
        warning = live.progressed(progress)
        run.record_progress(progress)
        if warning is not None:
            self._event(run, "warning", warning, live.spec.name, progress.task)
        self._step(progress)

    def _profiled(self, run: LiveRun, live: LiveJob, data: dict[str, Any]) -> None:
        profile = profiles.parse(data)
        live.profile = profiles.dump(profile)
        run.record_job(live.spec.name)
        try:
            profiles.save(self._home / "profiles", live.profile_key, profile)
        except OSError as error:
            self._event(run, "warning", f"the profile was not stored: {error.strerror}", live.spec.name)

    def _sample(self) -> None:
        if not self._runs:
            self._sampler = None
            self._sampling.read(time.monotonic(), [])  # lets go of the files of what is gone
            return
        self._sampler = self._loop.call_later(SAMPLE_SECONDS, self._sample)
        node = f"node:{self._node.name}"
        targets = [Target(task, box) for task, box in self._engine.boxes().items()]
        readings = self._sampling.read(time.monotonic(), [*targets, Target(node, None)])
        for run in self._runs.values():
            if node in readings:
                run.record_usage(node, readings[node])
        for task, reading in readings.items():
            if task == node or task.split("/")[0] not in self._runs:
                continue
            run, live = self._find(task)
            run.record_usage(task.split("/", 1)[1], reading)
            live.cpu_cores = reading.get("cpu_cores")
            live.memory_bytes = reading.get("memory_bytes")
            if live.cpu_cores is not None and live.memory_bytes is not None:
                self._step(events.Usage(task, live.cpu_cores, live.memory_bytes))

    # --- small things -----------------------------------------------------------------------------------------------

    def _snapshot(self, run: str) -> dict[str, Any] | None:
        return self._runs[run].snapshot(self.policy) if run in self._runs else None

    def _event(self, run: LiveRun, kind: str, text: str, job: str | None = None, task: TaskId | None = None) -> None:
        at = run.clock()
        run.event(at, kind, text, job, task.split("/", 1)[1] if task else None)
        self.watchers.tell(run.id, {"type": "event", "t": at, "kind": kind, "text": text, "job": job})

    def _trouble(self, text: str | None) -> None:
        """Something concerns every run; also called from the stores' threads."""

        def tell() -> None:
            for run in self._runs.values():
                self._event(run, "warning" if text else "note", text or "the store is written again")

        self._loop.call_soon_threadsafe(tell)

    def _find(self, id: str) -> tuple[LiveRun, LiveJob]:
        """Run and job of a job's or task's id."""
        run, name, *_ = id.split("/")
        return self._runs[run], self._runs[run].jobs[name]

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
