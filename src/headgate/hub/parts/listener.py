"""Messages of engines and tasks: brought to the hub's loop, and on to controller, stores and
watchers.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from headgate import isolation
from headgate.engines.base import LOCAL, Listener
from headgate.hub import messages
from headgate.hub.parts.checkpoint_reports import CheckpointReports
from headgate.hub.parts.profile_reports import ProfileReports
from headgate.hub.parts.throttle import ProgressThrottle
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.machine import systemd
from headgate.model import events
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import Event
from headgate.model.identifiers import TaskId, TaskName
from headgate.model.plans import APART
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.output.failures import FailureReader
from headgate.sampling.shared_memory import left_since
from headgate.scripts import inspection
from headgate.scripts.program import is_of_a_shell

MOST_COMPLAINTS = 20
"""Most warnings about invalid messages of one task."""

_NO_INPUT = re.compile(r"EOFError: EOF when reading a line")
"""Last line of a script that waits for input and has none."""
_INPUT_CURE = (
    "it has no standard input, as a terminal's is no job's; give it a file with `< "
    "FILE`, or its arguments"
)
_MOST_ENDPOINTS = 16
_CONNECTS_SECONDS = 30.0
"""A script that reports progress for this long without connecting will not connect."""
_TEXT_SHOWN = 80
_LINE_SHOWN = 400  # characters: Headgate's errors say at their end what to do


class HubListener(Listener):
    """Receives the messages of engines.

    Args:
        live_runs: The runs.
        profiles: Folder of the stored profiles.
        step: Sends an event to the controller.
        suspect: Called with a task that ended badly, before its end is reported: its node may be
            lost.
        hardware: Gives the machine of a task; None: it is lost.
        leave: Ends this hub at once; the next one takes up its runs.
        printed: Called with lines that a task printed.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        profiles: Path,
        step: Callable[[Event], None],
        suspect: Callable[[TaskId], None],
        hardware: Callable[[TaskId, str], Node | None],
        leave: Callable[[], None],
        printed: Callable[[TaskId, Sequence[str]], None] = lambda *_: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._live_runs = live_runs
        self._step = step
        self._suspect = suspect
        self._leave = leave
        self._printed = printed
        self._checkpoint_reports = CheckpointReports(live_runs, step)
        self._profile_reports = ProfileReports(live_runs, profiles, hardware)
        self._throttles: dict[TaskId, ProgressThrottle] = {}

    # --- from the engine's threads ----------------------------------------------------------------

    def started(self, task: TaskId, pid: int) -> None:
        self._soon(self._started, task, pid)

    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        self._soon(self._output, task, lines)

    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        self._soon(self._message, task, message)

    def exited(self, task: TaskId, exit: Exit) -> None:
        self._soon(self.ended, task, exit)

    def warned(self, task: TaskId | None, what: Reason | str) -> None:
        self._soon(self._warned, task, what)

    def waits(self, task: TaskId, what: str) -> None:
        self._soon(self._waits, task, what)

    def _soon(self, hear: Callable[..., None], task: TaskId | None, *value: object) -> None:
        self._loop.call_soon_threadsafe(self._try, hear, task, *value)

    # --- on the loop ------------------------------------------------------------------------------

    def _try(self, hear: Callable[..., None], task: TaskId | None, *value: object) -> None:
        """Process a message; an error loses only this message."""
        try:
            hear(task, *value)
        except Exception as error:  # noqa: BLE001
            self._live_runs.failed("what its engine told could not be taken in", error, task)

    def _complain(self, task: TaskId, kind: ReasonKind, **facts: object) -> None:
        """Warn of an invalid message of a task, `MOST_COMPLAINTS` times at most."""
        run, live, attempt, name = self._live_runs.attempt_of(task)
        task_view = attempt.tasks[name]
        task_view.complaints += 1
        if task_view.complaints <= MOST_COMPLAINTS:
            last = {"is_last": True} if task_view.complaints == MOST_COMPLAINTS else {}
            complaint = Reason(kind, {**facts, **last})
            self._live_runs.event(run, "warning", complaint, live.spec.name, task)

    def _started(self, task: TaskId, pid: int) -> None:
        run, live, attempt, _ = self._live_runs.attempt_of(task)
        run.record_task(task, pid=pid)
        if live.starts(run.clock()):
            run.record_job(live.spec.name)
            self._live_runs.event(run, live.state, live.reason, live.spec.name)
            if len(attempt.tasks) > 1:  # no keeper tells the next hub that it has run
                run.recorder.flush(0.0)
        self._step(events.TaskStarted(task, pid))

    def _output(self, task: TaskId, lines: Sequence[str]) -> None:
        run, live, attempt, name = self._live_runs.attempt_of(task)
        task_view = attempt.tasks[name]
        readings = []
        for line in lines:
            try:
                line_readings = task_view.reader.feed([line])
                readings += [
                    messages.read(task, line_reading, live.spec.progress.metric)
                    for line_reading in line_readings
                ]
            except Exception as error:  # noqa: BLE001  # whatever one line may do, the next ones are read
                shown = line[:_TEXT_SHOWN]
                self._complain(task, ReasonKind.LINE_UNREADABLE, line=shown, error=str(error))
        if task_view.reader.problem is not None and not task_view.reader_failed:
            task_view.reader_failed = True
            too_slow = Reason.of(ReasonKind.PATTERN_TOO_SLOW, text=task_view.reader.problem)
            self._live_runs.event(run, "warning", too_slow, live.spec.name, task)
        if readings and not task_view.reports_itself:
            if task not in self._throttles:
                self._throttles[task] = ProgressThrottle(
                    lambda progress: self._try(self._progress, task, progress, True), self._loop
                )
            for reading in readings:
                self._throttles[task].add(reading)
        if (
            name == live.spec.first_task
            and not task_view.reports_itself
            and (warning := task_view.reader.missed()) is not None
        ):
            missing = Reason.of(ReasonKind.METRIC_MISSING, text=warning)
            self._live_runs.event(run, "warning", missing, live.spec.name, task)
        if readings and run.clock() - (live.started or 0.0) > _CONNECTS_SECONDS:
            self._tell_unseen(run, live, name)
        if readings and attempt.are_apart(run.clock()):
            self._apart(run, live)
        task_view.failure.feed(lines)
        self._printed(task, lines)

    def _message(self, task: TaskId, message: Mapping[str, Any]) -> None:
        run, live, attempt, name = self._live_runs.attempt_of(task)
        job = live.spec.name
        try:
            match message["type"]:
                case (
                    "hello"
                    | "listening"
                    | "gpus"
                    | "joining"
                    | "meet"
                    | "position"
                    | "elsewhere"
                    | "threads"
                ):
                    self._introduced(task, message)
                case "progress":
                    progress = messages.progress(task, message)
                    if (observed := attempt.tasks[name].observed) is not None:
                        progress = observed.counted(progress, run.clock())
                    else:
                        attempt.tasks[name].reports_itself = True
                        self._tell_rest(task)
                    self._progress(task, progress)
                case "stopping":
                    live.stops_after(*messages.stopping(message))
                    run.record_job(job)
                case "spans" | "asides":
                    self._timed(task, message)
                case "profile" | "costs":
                    self._profile_reports.take(task, message)
                case "checkpoint" | "script_saves":
                    self._checkpoint_reports.saved(task, message)
                case "checkpoint_failed" | "checkpoint_damaged":
                    self._checkpoint_reports.not_saved(task, message)
                case "writes":
                    node = "" if run.submission.engine == LOCAL else attempt.tasks[name].node
                    folder = f"{node}:{messages.text(message['folder'])}"
                    path = messages.text(message["path"])
                    if (other := attempt.wrote(name, path, folder)) is not None:
                        both = Reason.of(
                            ReasonKind.FILE_WRITTEN_TWICE, path=path, tasks=(other, name)
                        )
                        self._live_runs.event(run, "warning", both, job, task)
                case "fault":
                    self._recovered(task, message)
                case "note":
                    kind = "warning" if message.get("warns") else "note"
                    says = Reason.of(ReasonKind.TASK_SAYS, text=messages.text(message["text"]))
                    self._live_runs.event(run, kind, says, job, task)
                case "unreadable":
                    self._complain(task, ReasonKind.MESSAGE_UNREADABLE, line=message["line"])
        except Exception as error:  # noqa: BLE001  # whatever one message may do, the next ones are heard
            self._complain(task, ReasonKind.MESSAGE_SENSELESS, error=f"{error!r:.300}")

    def _introduced(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A task reported its framework or its address, or asks for the addresses of others."""
        run, live, attempt, name = self._live_runs.attempt_of(task)
        job = live.spec.name
        match message["type"]:
            case "hello" if message.get("saves"):
                return  # a message about a checkpoint of its script's follows
            case "hello" if message.get("observes"):
                run.note_seed(job, message.get("seed"))
                attempt.observe(name, messages.text(message.get("framework") or ""))
            case "hello":
                run.note_seed(job, message.get("seed"))
                framework = messages.text(message.get("framework") or "")
                attempt.connect(name, framework)
                self._step(events.TaskConnected(task, framework))
            case "listening":
                endpoints = tuple(
                    messages.text(endpoint)
                    for endpoint in islice(message["endpoints"], _MOST_ENDPOINTS)
                )
                if attempt.listen(name, endpoints):
                    is_open = Reason.of(ReasonKind.OPEN_ENDPOINTS, endpoints=endpoints)
                    self._live_runs.event(run, "note", is_open, job, task)
            case "threads" if attempt.tasks[name].observed is not None:
                attempt.keeps_threads(name, max(int(message["threads"]), 1))
            case "gpus":
                attempt.tasks[name].gpus = messages.gpus(message)
                run.record_gpus(task, attempt.tasks[name].gpus)
                self._step(events.GpusUsed(task, attempt.tasks[name].gpus))
            case "joining":
                attempt.join(name)
            case "meet":
                attempt.sync_points.wait(name, message)
            case "position" | "elsewhere":  # `elsewhere`: its name before 0.3
                attempt.sync_points.pass_position(name, message["standing"])

    def ended(self, task: TaskId, exit: Exit) -> None:
        """A task has ended, or could not start; called on the loop."""
        if self._is_with_machine(task, exit):
            self._leave()
        try:
            exit = self._left(task, exit)
        except Exception as error:  # noqa: BLE001  # its end has to reach the controller
            self._live_runs.failed("its end could not be written down", error, task)
        self._step(events.TaskExited(task, exit))
        if task.job.run in self._live_runs.runs:
            self._live_runs.find(task.job)[1].unseen_end = None  # of this attempt alone

    def _is_with_machine(self, task: TaskId, exit: Exit) -> bool:
        """Whether a task got the signal that all processes get when their machine is shut down."""
        if exit.shell_code != 128 + signal.SIGTERM:
            return False
        run = self._live_runs.runs.get(task.job.run)
        was_asked = run is None or run.jobs[task.job.name].state == "stopping"
        return not was_asked and systemd.is_stopping()

    def _left(self, task: TaskId, exit: Exit) -> Exit:
        """Note a task's end. Returns the exit to report."""
        run, live, attempt, name = self._live_runs.attempt_of(task)
        self._tell_rest(task)
        if not exit.ok and exit.reason is None:
            exit = replace(exit, reason=_reason(exit, attempt.tasks[name].failure))
        if (
            not exit.ok
            and live.spec.isolation in isolation.IN_CONTAINERS
            and run.submission.engine == LOCAL
        ):
            from headgate.isolation.container.files import hint

            if cure := hint(live.spec, exit.in_words()):
                exit = replace(exit, cure=cure)
        if not exit.ok and run.given is None and _NO_INPUT.search(exit.reason or ""):
            exit = replace(exit, reason=f"{exit.reason}; {_INPUT_CURE}")
        if exit.outside is not None:
            outside = Reason(ReasonKind.WROTE_OUTSIDE, asdict(exit.outside))
            self._live_runs.event(run, "warning", outside, live.spec.name, task)
        if exit.ok:
            exit = replace(
                exit, last_failure=attempt.tasks[name].failure.last(is_of_a_shell(live.spec))
            )
        if run.submission.engine == LOCAL and (left := left_since(attempt.tasks[name].began)):
            files, size = tuple(file.name for file in left), sum(file.size for file in left)
            behind = Reason.of(ReasonKind.LEFT_SHARED_MEMORY, files=files, bytes=size)
            self._live_runs.event(run, "note", behind, live.spec.name, task)
        exit = attempt.explain_exit(name, exit)
        run.flush_progress(task)
        ended = run.clock() if live.unseen_end is None else live.unseen_end
        run.record_task(task, ended=ended, exit=asdict(exit))
        task_view = attempt.tasks[name]
        if (
            name == live.spec.first_task
            and not exit.lost
            and not task_view.reports_itself
            and (advice := task_view.reader.hint()) is not None
        ):
            missing = Reason.of(ReasonKind.METRIC_MISSING, text=advice)
            self._live_runs.event(run, "note", missing, live.spec.name, task)
        if exit.ok:
            self._tell_unseen(run, live, name)
        attempt.remove(name, exit.ok)
        if not exit.ok:
            self._suspect(task)
        elif name.is_worker and attempt.are_apart(run.clock(), ended=True):
            self._apart(run, live)
        return exit

    def _tell_unseen(self, run: LiveRun, live: LiveJob, name: TaskName) -> None:
        """Tell once of a script whose steps are unseen: it imports a library of Headgate's and has
        not connected, or nothing of its framework tells them.
        """
        if live.unseen_told or name != live.spec.first_task:
            return
        live.unseen_told = True
        if live.is_unconnected:
            unconnected = Reason(ReasonKind.UNCONNECTED)
            self._live_runs.event(run, "warning", unconnected, live.spec.name)
        elif frameworks := live.unseen_frameworks:
            printed = Reason.of(ReasonKind.STEPS_UNSEEN, frameworks=frameworks)
            self._live_runs.event(run, "note", printed, live.spec.name)

    def _warned(self, task: TaskId | None, what: Reason | str) -> None:
        reason = what if isinstance(what, Reason) else Reason.of(ReasonKind.ENGINE_SAYS, text=what)
        if task is None:
            self._live_runs.tell_all(reason)
        else:
            run, live, *_ = self._live_runs.attempt_of(task)
            self._live_runs.event(run, "warning", reason, live.spec.name, task)

    def _waits(self, task: TaskId, what: str) -> None:
        run, live, *_ = self._live_runs.attempt_of(task)
        if live.begun or live.state != "waiting":  # its job goes on with other tasks
            self._warned(task, Reason.of(ReasonKind.ENGINE_HOLDS, text=what))
            return
        reason = Reason.of(ReasonKind.AWAITS_ENGINE, text=what)
        if live.reason != reason:
            live.reason = reason
            run.record_job(live.spec.name)
            self._live_runs.event(run, live.state, reason, live.spec.name)

    # --- reports of tasks -------------------------------------------------------------------------

    def _progress(self, task: TaskId, progress: Progress, is_printed: bool = False) -> None:
        """Progress that a task reported, or that was read from its output."""
        run, live, attempt, name = self._live_runs.attempt_of(task)
        task_view = attempt.tasks[name]
        progress = task_view.mean.undone(progress)
        if is_printed and task_view.observed is not None:
            progress = task_view.observed.printed(progress)
        progress, excess = live.within_limits(live.length.complete(progress))
        if excess is not None:
            self._live_runs.event(run, "warning", excess, live.spec.name, task)
        run.record_progress(progress)
        job_progress = attempt.progressed(progress)
        if job_progress is None:
            return
        warning = live.progressed(job_progress)
        if warning is not None:
            self._live_runs.event(run, "warning", warning, live.spec.name, task)
        if (cost := live.caught_up(run.clock())) is not None:
            again = Reason.of(ReasonKind.CAUGHT_UP, step=live.step)
            self._live_runs.event(
                run, "fault", again, live.spec.name, seconds=cost[0], steps=cost[1]
            )
        self._step(job_progress)

    def _tell_rest(self, task: TaskId) -> None:
        """Pass on the last progress read from a task's output; no more is read from it."""
        if (throttle := self._throttles.pop(task, None)) is not None:
            throttle.flush()

    def _timed(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A task reported the times of a step, or of work beside its steps."""
        run, _, _, name = self._live_runs.attempt_of(task)
        if message["type"] == "asides":
            run.record_asides(task, message)
            return
        run.record_spans(task, message)
        if name.is_worker:
            self._paced(task, message)

    def _paced(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A worker reported the parts of its step: it may be a straggler, or no longer."""
        run, live, attempt, name = self._live_runs.attempt_of(task)
        spans = {str(span["name"]): float(span["seconds"]) for span in message["spans"]}
        attempt.tasks[name].input_part.add(spans)
        change = attempt.stragglers.add(name, spans)
        if change is None:
            return
        node, job = attempt.tasks[name].node, live.spec.name
        if change.slow:
            slow = Reason.of(
                ReasonKind.NODE_SLOW,
                node=node,
                task=name,
                own_seconds=change.own,
                others_seconds=change.others,
            )
            self._live_runs.event(run, "fault", slow, job, task)
        else:
            not_slow = Reason.of(ReasonKind.NODE_NOT_SLOW, node=node)
            self._live_runs.event(run, "note", not_slow, job, task)

    def apart(self, live: LiveJob) -> Reason:
        """Note that the workers of a job share nothing. Returns the warning."""
        if live.plan is not None:
            live.plan = json.dumps({**json.loads(live.plan), APART: True})
        workers = live.current.plan.workers if live.current is not None else 0
        return inspection.workers_apart(live.spec, live.facts, workers)

    def _apart(self, run: LiveRun, live: LiveJob) -> None:
        """The workers of a job were found to share nothing."""
        live.reason = self.apart(live)
        run.record_job(live.spec.name)
        if live.current is None or not live.current.forewarned:
            self._live_runs.event(run, "warning", live.reason, live.spec.name)

    def _recovered(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A task survived a fault of another task, its node or the network, or leaves because it
        was left behind.
        """
        run, live, _, name = self._live_runs.attempt_of(task)
        seconds, steps = messages.cost(message)
        text = messages.text(message["text"])
        reason = Reason.of(ReasonKind.RECOVERED, task=name, text=text)
        self._live_runs.event(
            run, "fault", reason, live.spec.name, task, seconds=seconds, steps=steps
        )
        if message.get("leaves"):
            self._step(events.TaskLeaves(task))


def _reason(exit: Exit, failure: FailureReader) -> str | None:
    """Why a task failed, by its last output; None: the output does not tell."""
    quote = failure.quote(signalled=exit.code is None)
    if exit.code is None:
        return f"{exit.in_words()}, after the line: {quote}" if quote is not None else None
    line = quote or failure.line[:_LINE_SHOWN]
    return f"{exit.in_words()}, after the line: {line}" if line else None
