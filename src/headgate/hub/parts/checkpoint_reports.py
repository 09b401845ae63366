"""Reports of tasks about checkpoints: saved, damaged, or not saved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.hub import messages
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model import events
from headgate.model.events import Event
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.scripts import resume_arguments


class CheckpointReports:
    """Keeps what tasks report of checkpoints, and tells the controller.

    Args:
        live_runs: The runs.
        step: Sends an event to the controller.
    """

    def __init__(self, live_runs: LiveRuns, step: Callable[[Event], None]) -> None:
        self._live_runs = live_runs
        self._step = step

    def saved(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A checkpoint was saved, by Headgate or by the script itself."""
        if message["type"] == "script_saves":
            self._script_saves(task, message)
            return
        run, live, attempt, name = self._live_runs.attempt_of(task)
        checkpoint = run.record_checkpoint(task, message)
        self._saves_again(run, live, task)
        live.own_states = message.get("own_states") is True
        live.keep(checkpoint)
        self._step(events.CheckpointDone(task, checkpoint))
        if message.get("why") == "join":
            for joined in attempt.saved(name, checkpoint.path):
                reason = Reason.of(ReasonKind.JOINED, task=joined, step=checkpoint.step)
                self._live_runs.event(run, "note", reason, live.spec.name)
                self._step(events.TaskJoined(task.job.task(joined)))

    def _script_saves(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A script saves a checkpoint by itself. It counts as the job's if it is known how the
        script resumes.
        """
        run, live, *_ = self._live_runs.attempt_of(task)
        checkpoint = run.record_script_save(task, message)
        if checkpoint is None:
            return
        self._saves_again(run, live, task)
        if resume_arguments.way(live.spec, live.facts) is None:
            live.unasked = checkpoint
            return
        live.keep_own(checkpoint, messages.size(message))
        self._step(events.CheckpointDone(task, live.checkpoint or checkpoint))

    def _saves_again(self, run: LiveRun, live: LiveJob, task: TaskId) -> None:
        if live.unsaved:
            again = Reason.of(ReasonKind.CHECKPOINTS_AGAIN, failed=live.unsaved)
            self._live_runs.event(run, "note", again, live.spec.name, task)
            live.unsaved = 0

    def not_saved(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """A checkpoint could not be saved, or a saved one cannot be read."""
        run, live, attempt, name = self._live_runs.attempt_of(task)
        if message["type"] == "checkpoint_failed":
            if message.get("why") == "join":
                attempt.failed(name)
            live.unsaved += 1
            if live.unsaved == 1:  # once, if the disk stays full
                error = messages.text(message["error"])
                not_saved = Reason.of(ReasonKind.CHECKPOINT_NOT_SAVED, error=error)
                self._live_runs.event(run, "warning", not_saved, live.spec.name, task)
        elif attempt.tasks[name].state != "joining":  # a joining worker ends alone
            file = Path(str(message["path"])).name
            text = f"checkpoint {file} {message['error']}"
            self._step(events.CheckpointLost(task, text, live.give_up(file)))
