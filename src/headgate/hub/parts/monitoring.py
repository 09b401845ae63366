"""Watch tasks from outside: their resource use, the readiness of roles, and hangs."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from headgate.engines.base import LOCAL, Engine, EngineSpec
from headgate.forecast.job_tracker import LEAST_STEPS, StepClock, Trackers
from headgate.hub.parts import Component
from headgate.hub.parts.engines import Engines
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model import events
from headgate.model.actions import Action, HoldJob, StartTask
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError
from headgate.model.events import Event, TaskConnected, TaskExited, TaskReady, TaskStarted
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.model.reasons import Facts, Reason, ReasonKind
from headgate.model.roles import Ready
from headgate.output.expressions import Expression, TooSlowError
from headgate.sampling import stacks
from headgate.sampling.base import Target
from headgate.sampling.columns import Column
from headgate.sampling.connections import listens
from headgate.sampling.gpu import GpuSampler
from headgate.sampling.round import SamplingRound, samplers
from headgate.sampling.stacks import Frame, TaskStacks

SAMPLE_SECONDS = 1.0
_NODE = "node:"


class Sampling(Component):
    """Reads the samplers while there are runs.

    Args:
        live_runs: The runs that get the readings.
        engine: The engine of this machine, whose tasks are read.
        step: Sends an event to the controller.
    """

    def __init__(self, live_runs: LiveRuns, engine: Engine, step: Callable[[Event], None]) -> None:
        self._live_runs = live_runs
        self._engine = engine
        self._step = step
        self._gpu = GpuSampler()
        self._round = SamplingRound(samplers(live_runs.trouble, self._gpu), live_runs.trouble)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def on_gpus(self) -> Mapping[int, Mapping[int, float]]:
        """What processes in no box used of each GPU at the last reading (`GpuSampler.others`)."""
        return self._gpu.others

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, events.JobSubmitted) and self._timer is None:
            self._sample()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def told(self, engine: EngineSpec, target: str, reading: Mapping[Column, float]) -> None:
        """Take a reading that an engine sent of a task or a node."""
        if not target.startswith(_NODE):
            self._task(TaskId(target), reading)
            return
        name = target.removeprefix(_NODE)
        for run in self._live_runs.runs.values():
            if run.submission.engine == engine and any(node.name == name for node in run.nodes):
                run.record_usage(target, reading)
        self._left(name, reading, reading.get("cpu_cores"))

    def _sample(self) -> None:
        runs = self._live_runs.runs
        if not runs:
            self._timer = None
            self._round.read(time.monotonic(), [])  # closes the files of ended tasks
            return
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self._sample)
        targets: dict[str, Target] = {
            task: Target(task, box) for task, box in self._engine.boxes().items()
        }
        of_runs: dict[str, list[tuple[LiveRun, Node]]] = {}
        for run in runs.values():
            for node in run.nodes if run.submission.engine == LOCAL else ():
                target = _target(node)
                targets[target.id] = target
                of_runs.setdefault(target.id, []).append((run, node))
        readings = self._round.read(time.monotonic(), list(targets.values()))
        of_nodes: dict[str, tuple[Node, Mapping[Column, float]]] = {}
        for id, reading in readings.items():
            if id not in of_runs:
                self._task(TaskId(id), reading)
            for run, node in of_runs.get(id, ()):
                run.record_usage(_NODE + node.name, reading)
                of_nodes[node.name] = node, reading
        for name, (node, of_node) in of_nodes.items():
            # of a part of the machine it is not known what others use there
            is_part = node.place is None and node.cores < (os.cpu_count() or 1)
            self._left(name, of_node, None if is_part else of_node.get("cpu_cores"))
        for id, by_gpu in self._gpu.held.items():
            if (live_run := runs.get(TaskId(id).run)) is not None:
                live_run.record_gpus(TaskId(id), by_gpu)
                live = self._live_runs.find(TaskId(id))[1]
                if live.current is not None and TaskId(id).name in live.current.tasks:
                    live.current.tasks[TaskId(id).name].held_gpus = tuple(sorted(by_gpu))
        for name in (
            {node.name for nodes in of_runs.values() for _, node in nodes} if self._gpu.used else ()
        ):
            held = {TaskId(id): by_gpu for id, by_gpu in self._gpu.held.items()}
            self._step(
                events.GpuMemoryUsed(name, self._gpu.used, held, self._gpu.single, self._gpu.closed)
            )

    def _left(self, name: str, reading: Mapping[Column, float], busy_cores: float | None) -> None:
        """Tell the controller how much memory a node has left, and what tasks hold there."""
        if (available := reading.get("memory_available")) is None:
            return
        held: dict[TaskId, float] = {}
        for run in self._live_runs.runs.values():
            for job, live in run.jobs.items():
                for task in live.current.tasks.values() if live.current is not None else ():
                    if task.node == name and task.state != "ended" and task.usage is not None:
                        held[JobId.of(run.id, job).task(task.name)] = task.usage.get(
                            "memory_bytes", 0.0
                        )
        self._step(events.MemoryUsed(name, available, held, busy_cores))

    def _task(self, id: TaskId, reading: Mapping[Column, float]) -> None:
        if id.run not in self._live_runs.runs:
            return
        run, live = self._live_runs.find(id)
        run.record_usage(id.of_run, reading)
        pace = None
        if live.current is not None and id.name in live.current.tasks:
            task = live.current.tasks[id.name]
            task.usage = reading
            pace = task.pace()
        if "cpu_cores" in reading and "memory_bytes" in reading:
            disk = reading.get("disk_read", 0.0) + reading.get("disk_write", 0.0)
            network = reading.get("net_in", 0.0) + reading.get("net_out", 0.0)
            on_gpus = reading.get("gpu_memory_bytes", 0.0)
            used = reading["cpu_cores"], reading["memory_bytes"], disk, network
            self._step(events.Usage(id, *used, gpu_memory_bytes=on_gpus, pace=pace))


def _target(node: Node) -> Target:
    """A node of this machine as a target. The machine itself comes with the GPUs that a run's
    environment allows, which differ between runs.
    """
    if node.place is not None:
        return Target(_NODE + node.name, None, node.place)
    gpus = tuple(gpu.index for gpu in node.gpus)
    return Target(f"{_NODE}{node.name} {gpus}", None, gpus=gpus)


# --- readiness of roles -------------------------------------------------------------------------

_SOONEST_SECONDS, _LATEST_SECONDS, _RARER = 0.05, 0.5, 1.3
"""First and longest seconds between two looks at a port, and the growth factor between them."""
_TAIL = 5
"""Lines of output quoted of a task that was not ready in time."""


@dataclass(slots=True)
class _Unready:
    """A task that is not ready yet."""

    ready: Ready
    port: int
    expression: Expression | None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL))
    looking: asyncio.Task[None] | None = None

    def end(self) -> None:
        if self.looking is not None:
            self.looking.cancel()


class Readiness(Component):
    """Tells the controller of tasks that are ready, or not ready in time.

    Args:
        live_runs: The runs.
        engines: Engines that look at ports on other machines.
        step: Sends an event to the controller.
    """

    def __init__(
        self, live_runs: LiveRuns, engines: Engines, step: Callable[[Event], None]
    ) -> None:
        self._live_runs = live_runs
        self._engines = engines
        self._step = step
        self._watched: dict[TaskId, _Unready] = {}
        self._loop = asyncio.get_running_loop()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted(task, pid) if (watched := self._watched.get(task)) is not None:
                watched.looking = self._loop.create_task(self._look(task, watched, pid))
            case TaskExited(task):
                self._drop(task)
        for action in actions:  # may be the same task's next start
            if isinstance(action, StartTask):
                self._expect(action)

    def printed(self, task: TaskId, lines: Sequence[str]) -> None:
        """Check lines that a task printed."""
        if (watched := self._watched.get(task)) is None:
            return
        watched.tail += [line for line in lines if line.strip()]
        if (expression := watched.expression) is None:
            return
        try:
            if any(expression.search(line) for line in lines):
                self._told(task)
        except TooSlowError as error:
            facts = {"pattern": expression.pattern, "error": str(error)}
            self._told(task, Reason(ReasonKind.READY_UNREADABLE, facts))

    def forget(self, run: str) -> None:
        for task in [task for task in self._watched if task.run == run]:
            self._drop(task)

    def close(self) -> None:
        for task in list(self._watched):
            self._drop(task)

    def _expect(self, start: StartTask) -> None:
        role = start.spec.role_of(start.task.name)
        _, live = self._live_runs.find(start.task)
        if role is None or role.ready is None or live.current is None:
            return
        ready = role.ready
        port = live.current.port_of(start.task.name) if ready.port is True else int(ready.port)
        expression = Expression(ready.line) if ready.line is not None else None
        self._watched[start.task] = _Unready(ready, port, expression)

    async def _look(self, task: TaskId, watched: _Unready, pid: int) -> None:
        """Look for a task's port until it is open or its time is over."""
        ready = watched.ready
        with suppress(TimeoutError):
            async with asyncio.timeout(ready.timeout):
                pause = _SOONEST_SECONDS
                while ready.line is not None or not await self._listens(task, pid, watched.port):
                    await asyncio.sleep(pause)
                    pause = min(pause * _RARER, _LATEST_SECONDS)
                self._loop.call_soon(self._told, task)
                return
        late = Reason.of(
            ReasonKind.READY_LATE,
            seconds=ready.timeout,
            text=ready.in_words(watched.port),
            printed=tuple(watched.tail),
        )
        self._loop.call_soon(self._told, task, late)

    async def _listens(self, task: TaskId, pid: int, port: int) -> bool:
        """Whether a program listens at a port of a task's network."""
        spec = self._engines.spec_of(task.run)
        if spec == LOCAL:
            return listens(pid, port)
        run, live = self._live_runs.find(task)
        node = live.current.tasks[task.name].node if live.current is not None else ""
        try:
            return await asyncio.to_thread(self._engines.of(run.id).ask, node, listens, pid, port)
        except HeadgateError:  # it does not answer now; if its node is lost, the task ends
            return False

    def _told(self, task: TaskId, failure: Reason | None = None) -> None:
        """Report a task as ready, or as failed to become ready."""
        if task not in self._watched:
            return
        self._drop(task)
        run, live = self._live_runs.find(task)
        if failure is None:
            ready = Reason.of(ReasonKind.TASK_READY, task=task.name)
            self._live_runs.event(run, "note", ready, live.spec.name, task)
        self._step(TaskReady(task, failure))

    def _drop(self, task: TaskId) -> None:
        if (watched := self._watched.pop(task, None)) is not None:
            watched.end()


# --- hangs ---------------------------------------------------------------------------------------

_LEAST_SILENCE = 60.0
"""Shortest silence without a step that is reported, however short steps are."""


@dataclass
class _Watched:
    """An attempt of a job, and the first process of each of its tasks."""

    clock: StepClock
    told_of: int | None = None  # its steps at the last warning of its silence
    pids: dict[TaskId, int] = field(default_factory=dict)
    connects: bool = False  # its script uses a library of Headgate's, and so reports steps
    frozen: bool = False


class HangDetector(Component):
    """Watches the steps of all jobs.

    Args:
        live_runs: The runs to warn.
        tracker: Gives the controller's tracker of a job.
        is_here: Whether the tasks of a run are processes of this machine.
        least: Shortest silence in seconds that is reported; a tenth of it is the interval of looks.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        tracker: Trackers,
        is_here: Callable[[LiveRun], bool],
        least: float = _LEAST_SILENCE,
    ) -> None:
        self._live_runs = live_runs
        self._tracker = tracker
        self._is_here = is_here
        self._least = least
        self._watched: dict[JobId, _Watched] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looked = time.monotonic()
        self._reading: set[asyncio.Task[None]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TaskStarted):
            tracker = self._tracker(event.task.job)
            if tracker is None:
                return
            fresh = _Watched(tracker.clock)
            self._watched.setdefault(event.task.job, fresh).pids[event.task] = event.pid
            if self._timer is None:
                self._looked = time.monotonic()
                self._look_later()
        elif isinstance(event, Progress) and (event.step is not None or event.epoch is not None):
            self._reported(event.task)
        elif (
            isinstance(event, TaskConnected)
            and (watched := self._watched.get(event.task.job)) is not None
        ):
            watched.connects = True
        elif (
            isinstance(event, TaskExited)
            and (watched := self._watched.get(event.task.job)) is not None
        ):
            watched.pids.pop(event.task, None)
            if not watched.pids:
                del self._watched[event.task.job]
        for action in actions:
            if isinstance(action, HoldJob) and action.job in self._watched:
                self._watched[action.job].frozen = action.held

    def forget(self, run: str) -> None:
        self._watched = {job: watched for job, watched in self._watched.items() if job.run != run}

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for reading in self._reading:
            reading.cancel()

    def _reported(self, task: TaskId) -> None:
        job = task.job
        watched = self._watched.get(job)
        if watched is None or watched.told_of in (None, watched.clock.reports):
            return
        watched.told_of = None
        if job.run in self._live_runs.runs:
            again = Reason.of(ReasonKind.STEPS_AGAIN, seconds=watched.clock.gap)
            self._live_runs.event(self._live_runs.runs[job.run], "note", again, job.name)

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._least / 10, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        paused, self._looked = now - self._looked - self._least / 10, now
        if not self._watched:
            self._timer = None
            return
        self._look_later()
        for job, watched in self._watched.items():
            if paused > self._least / 10:
                watched.clock.stood_still(paused)
            is_told = watched.told_of is not None or watched.frozen
            is_late = not is_told and watched.clock.is_late(now, self._least)
            if is_late and job.run in self._live_runs.runs:
                watched.told_of = watched.clock.reports
                run, silence = self._live_runs.runs[job.run], now - watched.clock.at
                kind, facts = "warning", {"seconds": silence, "is_idle": False}
                if watched.clock.reports < LEAST_STEPS:
                    kind = "warning" if watched.clock.reports or watched.connects else "note"
                    facts = {"seconds": watched.clock.idle_for(now), "is_idle": True}
                reading = self._loop.create_task(
                    self._tell(job, run, dict(watched.pids), kind, facts)
                )
                self._reading.add(reading)
                reading.add_done_callback(self._reading.discard)

    async def _tell(
        self, job: JobId, run: LiveRun, pids: dict[TaskId, int], kind: str, facts: Facts
    ) -> None:
        """Report a hang with the stacks of its tasks. Reading them takes some time, off the hub's
        loop.
        """
        where = "its tasks run elsewhere, and where they stand is not known"
        if self._is_here(run):
            where = await asyncio.to_thread(_where, pids)
        if job.run in self._live_runs.runs:
            reason = Reason(ReasonKind.NO_STEP, {**facts, "where": where})
            self._live_runs.event(run, kind, reason, job.name)


def _where(pids: dict[TaskId, int]) -> str:
    """Where each task is stuck, in one line. Tasks at the same place are grouped; the one that
    differs is named.
    """
    try:
        groups = stacks.grouped(stacks.read(task.name, pid) for task, pid in pids.items())
    except (HeadgateError, OSError, ValueError) as error:
        return f"where its tasks stand cannot be read: {error}"
    places = [_place(group) for group in groups]
    differ = stacks.differing(groups)
    others = (
        f"; {', '.join(differ)}: elsewhere than most; the others may be waiting for it"
        if differ
        else ""
    )
    return "; ".join(places) + others


def _place(group: Sequence[TaskStacks]) -> str:
    """Where a group of tasks is stuck: the call, and the script's line that led to it."""
    names = ", ".join(task.task for task in group)
    frames = group[0].place
    if not frames:
        return f"{names}: {group[0].trouble}"
    own = next((frame for frame in frames if frame.of_script), frames[-1])
    calls = [_call(frame) for frame in dict.fromkeys([frames[0], own])]
    return f"{names} in {', called from '.join(calls)}"


def _call(frame: Frame) -> str:
    return f"{frame.function} ({os.path.basename(frame.file)}:{frame.line})"
