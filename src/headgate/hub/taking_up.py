"""Runs whose hub died: what their stores and the boxes of their tasks tell the next hub."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headgate.hub.submission import Submission, parse
from headgate.hub.watchdog import kept_boxes, sweep
from headgate.machine import processes
from headgate.machine.processes import boot_id
from headgate.model.endings import Checkpoint, Ending
from headgate.model.errors import HeadgateError
from headgate.model.events import TakenUp
from headgate.model.identifiers import JobId, TaskId
from headgate.model.job_states import ENDED
from headgate.model.paths import write_whole
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import read
from headgate.recorded import results, resuming, runs
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow
from headgate.scripts import variables

_TIMED = ("usage", "progress", "shares", "events", "log")


@dataclass(frozen=True, slots=True)
class FormerJob:
    """A job of a run whose hub died.

    Args:
        row: Its row in the store.
        position: Its place among the jobs of the run.
        tasks: The rows of its tasks, by name.
        box: The record of its task's box; None: its task is gone, or there was none.
        checkpoint: What it would resume from.
        ended: When its task ended that no hub saw (s of the run); None: it had not ended.
        steps: Its last `step`, `epoch`, `epochs`, `steps` and `loss`.
        then: How it stood.
    """

    row: JobRow
    position: int
    tasks: Mapping[str, Mapping[str, Any]]
    box: Mapping[str, Any] | None
    checkpoint: Checkpoint | None
    ended: float | None
    steps: Mapping[str, Any]
    then: TakenUp

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to end."""
        return self.row.state == "stopping"

    @property
    def urgent(self) -> str | None:
        """Id of the urgent job that it was paused for; empty: its user asked; None: it was not
        paused.
        """
        reason = self.row.because() if self.row.state == "paused" else None
        return str(reason.facts.get("urgent") or "") if reason is not None else None


@dataclass(frozen=True, slots=True)
class FormerRun:
    """A run whose hub died.

    Args:
        folder: Its folder.
        submission: How it was submitted, with its jobs as they are now.
        policy: The policy that moved its shares.
        began: When it began, by the clock of this boot (s).
        seconds: Seconds since its last record.
        last_entry: Number of the last entry of its event log.
        jobs: Its jobs, by name.
        values: The best value of each job's metric, if the run has recipients of messages.
    """

    folder: Path
    submission: Submission
    policy: str
    began: float
    seconds: float
    last_entry: int
    jobs: Mapping[str, FormerJob]
    values: Mapping[str, float]


def keep_submission(folder: Path, submission: Submission) -> None:
    """Keep the submission of a run in its folder, so that the next hub can take it up. It may hold
    passwords, as variables may: nobody else can read the folder.

    Raises:
        OSError: It cannot be written.
    """
    variables.write(folder, submission.environment)
    kept = replace(submission, environment={}).plain()
    place = {"hub": str(runs.hub()), "host": runs.host()}
    write_whole(folder / runs.SUBMISSION, json.dumps({**place, "submission": kept}))


def former_runs() -> list[FormerRun]:
    """The runs that this process's hub has to take up, the oldest first. The caller holds the hub's
    lock.
    """
    boxes, former = kept_boxes(runs.hub()), list[FormerRun]()
    for folder in runs.awaited(runs.hub()):
        try:
            former.append(_read(folder, boxes))
        except (HeadgateError, OSError, ValueError, KeyError) as error:
            print(f"run {folder.name} cannot be taken up: {error}", flush=True)
    return former


def _read(folder: Path, boxes: Mapping[TaskId, Mapping[str, Any]]) -> FormerRun:
    kept = json.loads((folder / runs.SUBMISSION).read_text())["submission"]
    environment = variables.read(folder) or {}
    known = {name: value for name, value in environment.items() if value is not None}
    submission = replace(parse(kept), environment=known)
    with RunReader(folder / runs.STORE) as reader:
        description = RunDescription.read(reader)
        rebooted = description.clock.partition(" ")[0] != boot_id()
        last = max(reader.tuples(f"SELECT max(t) FROM {name}")[0][0] or 0.0 for name in _TIMED)
        elapsed = max(runs.elapsed(description), last)
        began = time.monotonic() - elapsed
        rows = list(reader.records(JobRow, order="position"))
        jobs = {}
        for position, row in enumerate(rows):
            box = boxes.get(JobId.of(folder.name, row.name).task(row.job().first_task))
            jobs[row.name] = _job(folder, reader, row, position, box, began, rebooted)
        entry = reader.tuples("SELECT max(id) FROM log")[0][0] or 0
        jobs_now = tuple(former.row.job() for former in jobs.values())
        is_told = bool(submission.notify) or any(job.notify for job in jobs_now)
        values = _values(reader) if is_told else {}
    return FormerRun(
        folder,
        replace(submission, jobs=jobs_now),
        description.policy,
        began,
        elapsed - last,
        entry,
        jobs,
        values,
    )


def _values(reader: RunReader) -> dict[str, float]:
    values = dict[str, float]()
    for result in results.of_store(reader, is_alive=True):
        if (metric := result.metrics.get(result.metric)) is not None:
            best = None if result.metric == "loss" else metric.best  # the loss of a step is noisy
            values[result.name] = metric.last if best is None else best
    return values


def _job(
    folder: Path,
    reader: RunReader,
    row: JobRow,
    position: int,
    box: Mapping[str, Any] | None,
    began: float,
    rebooted: bool,
) -> FormerJob:
    tasks = {task["id"]: task for task in reader.rows("tasks", "job = ?", [row.name])}
    names = ("step", "epoch", "epochs", "steps", "loss")
    sql = f"SELECT {', '.join(names)} FROM progress WHERE task GLOB ? ORDER BY rowid DESC LIMIT 1"
    steps = (reader.query(sql, [f"{row.name}/*"]) or [dict.fromkeys(names)])[0]
    state: Any = row.state
    attempt = row.attempt or 0
    if state in ENDED:
        ending = read(Ending, row.ending) if row.ending is not None else None
        then = TakenUp(state, attempt, ending=ending, reason=row.because())
        return FormerJob(row, position, tasks, None, None, None, steps, then)
    checkpoint = resuming.origin(folder, row.job()).checkpoint
    # rows of the last moments may be missing
    if rebooted or box is None or box["boot"] != boot_id() or box["attempt"] < attempt:
        box = None
    has_begun = box is not None and _written_end(box).get("begun", True)
    if box is not None and not (has_begun and _is_told(box)):
        # what may have come to its end only begins again if it can resume
        sweep(box)
        box = None
    starts = [task["started"] for task in tasks.values() if task["attempt"] == attempt]
    plan = row.chosen_plan()
    ended: float | None = None
    if box is not None:
        ended = _ended(box, began)
        now = time.monotonic() - began if ended is None else ended
        ran = now - max((start for start in starts if start is not None), default=now)
        plan = plan or Plan(strategy="single", workers=1, batch_per_worker=None)
        gpus = None if box["gpus"] is None else tuple(box["gpus"])
        then = TakenUp("running", box["attempt"], plan, gpus, goes_on=True, ran=ran)
    else:
        gone = has_begun or _has_run(row, tasks, rebooted)
        lost = Reason.of(ReasonKind.LOST_WITH_HUB, rebooted=rebooted) if gone else None
        open_attempts = {task["attempt"] for task in tasks.values() if task["ended"] is None}
        if not gone and attempt in open_attempts:
            attempt -= 1  # it never began
        then = TakenUp("waiting", attempt, lost=lost)
    return FormerJob(row, position, tasks, box, checkpoint, ended, steps, then)


def _has_run(row: JobRow, tasks: Mapping[str, Mapping[str, Any]], rebooted: bool) -> bool:
    """Whether a job whose tasks are gone had begun, and not ended."""
    left = any(task["ended"] is None for task in tasks.values())
    if rebooted:  # a start is on the disk before it begins, what followed may be lost
        return left
    has_begun = any(task["pid"] is not None for task in tasks.values())
    return has_begun and (row.state in ("running", "stopping") or (row.state == "paused" and left))


def _is_told(box: Mapping[str, Any]) -> bool:
    """Whether a task that no hub saw goes on, or its keeper tells how it ended."""
    for kept in (box, box["keeper"]):
        process = processes.look(kept["pid"])
        if process is not None and process.started == kept["started"]:
            return True
    return Path(box["keeper"]["places"]["end"]).exists()


def _ended(box: Mapping[str, Any], began: float) -> float | None:
    """When a task ended that no hub saw, as its keeper wrote down (s of the run)."""
    at = _written_end(box).get("at")
    return None if at is None else at - began


def _written_end(box: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a task ended, as its keeper wrote down; empty: it did not, or not yet."""
    try:
        end: Mapping[str, Any] = json.loads(Path(box["keeper"]["places"]["end"]).read_text())
    except (OSError, ValueError):
        return {}
    return end
