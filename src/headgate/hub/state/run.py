"""Live runs: folder, store, jobs and watching clients of each."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headgate
from headgate.engines.base import LOCAL
from headgate.engines.launch import interpreter
from headgate.forecast.job_tracker import Trackers
from headgate.hub import messages
from headgate.hub.standard_input import GivenInput
from headgate.hub.state.job import LiveJob
from headgate.hub.submission import Submission, git_commit, packages
from headgate.hub.taking_up import FormerRun, keep_submission
from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint
from headgate.model.errors import StorageError, writing_cure
from headgate.model.identifiers import FIRST_WORKER, JobId, TaskId, TaskOfRun
from headgate.model.job_states import ENDED, JobState
from headgate.model.jobs import Job
from headgate.model.paths import below, secure
from headgate.model.progress import Progress
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import text_of
from headgate.model.shares import FIELDS, Share, Unlimited
from headgate.model.units import say_text
from headgate.recorded import runs
from headgate.recorded.rows import SCRIPT, WRITING
from headgate.recorded.store import Recorder
from headgate.sampling.columns import Column
from headgate.scripts import variables
from headgate.scripts.program import program

if TYPE_CHECKING:
    from headgate.recorded.proofs import Proof


_FULL_SECONDS, _SLOW_SECONDS = 5.0, 60.0
"""Most seconds until a run's first rows are on disk, where it takes none and where it is slow; the
submitting client waits for them.
"""
_EVERY_REPORT_SECONDS = 600.0  # ten rows a second would be 26 million in a month


class LiveRun:
    """A run that has not ended.

    Args:
        submission: Its submission.
        nodes: Nodes whose use is recorded.
        policy: Name of the policy that moves shares.
        now: Seconds on the hub's clock.
        trouble: Called when the store cannot be written, and when it can be again.
        given: Standard input of its only task; None: it has none.
        former: The run, if its hub died: it goes on in its folder. None: a new run.

    Attributes:
        ended_before: The jobs that ended under a hub that died.
        values_before: The best value of each job's metric under that, if messages need it.
        said_of_sweeps: What was told of the script of each sweep: its name, and the reason as JSON.

    Raises:
        StorageError: Its folder or store cannot be made.
    """

    def __init__(
        self,
        submission: Submission,
        nodes: tuple[Node, ...],
        policy: str,
        now: float,
        trouble: Callable[[str | None], None],
        given: GivenInput | None = None,
        former: FormerRun | None = None,
    ) -> None:
        self.given = given
        self.folder = runs.create() if former is None else former.folder
        self.id = self.folder.name
        self.submission = submission
        self.nodes = nodes
        self.began = now
        self.jobs: dict[str, LiveJob] = {}
        self.ended_before: set[str] = set()
        self.values_before: Mapping[str, float] = {} if former is None else former.values
        # unwritten progress, and since when
        self._progress: dict[TaskId, tuple[float, Progress]] = {}
        self._seeds: dict[str, int] = {}
        self._tasks: dict[TaskId, dict[str, Any]] = {}
        self.said_of_sweeps = set[tuple[str, str]]()
        self._specs: dict[int, tuple[Job, str]] = {}
        self._stood: dict[str, tuple[JobState, Job]] = {}  # as last recorded
        with contextlib.ExitStack() as undo:  # a run that cannot begin leaves nothing
            if former is None:
                undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            try:
                self._lock = runs.lock(self.folder)
                undo.callback(os.close, self._lock)
                self.recorder = Recorder(self.folder / runs.STORE, trouble)
                undo.callback(self.recorder.close)
                if former is None:
                    self._begin(policy)
                else:
                    self._take_up(former)
            except OSError as error:
                raise StorageError(
                    f"cannot write {self.folder}: {error.strerror}; {writing_cure(error)}, or "
                    "set HEADGATE_HOME"
                ) from error
            undo.pop_all()
        self._left = list(reversed(self.jobs.values()))  # jobs that may not have ended

    def _begin(self, policy: str) -> None:
        """Write the initial rows of the run."""
        submission = self.submission
        meta = {
            "id": self.id,
            "began": repr(time.time()),
            "clock": runs.clock(),
            "state": "running",
            "policy": policy,
            "mode": submission.mode,
            "headgate": headgate.__version__,
            "command": say_text(shlex.join(submission.command)),
            "cwd": submission.cwd,
            "node": _nodes(self.nodes),
            "host": runs.host(),
        }
        if submission.engine != LOCAL:
            meta |= {"engine": submission.engine.name, "address": submission.engine.address}
            meta["shared_files"] = str(int(submission.engine.shared_files))
        if submission.label:
            meta["label"] = submission.label
        if submission.only:
            meta["only"] = ",".join(submission.only)
        if submission.cluster:
            meta["cluster"] = submission.cluster
        if submission.resumed_from is not None:
            meta["resumed_from"] = submission.resumed_from
        if self.given is not None and self.given.held_data:
            meta["stdin"] = "1"
        if submission.from_scratch:
            meta["from_scratch"] = ",".join(submission.from_scratch)
        for key, value in meta.items():
            self.recorder.add("meta", key=key, value=value)
        if submission.mode == "call":
            (self.folder / runs.CALLS).touch()
        for i, job in enumerate(submission.jobs):
            (self.folder / "jobs" / job.name / "checkpoints").mkdir(mode=0o700, parents=True)
            live = self.jobs[job.name] = LiveJob(job, i, 0.0)
            self.record_job(job.name)
            if (point := submission.resume.get(job.name)) is not None:
                live.keep(point)
                self.recorder.add(
                    "checkpoints",
                    t=0.0,
                    task=TaskOfRun.of(job.name, FIRST_WORKER),
                    why="resumed",
                    **asdict(point),
                )

        if submission.outlives:
            keep_submission(self.folder, submission)

    def _take_up(self, former: FormerRun) -> None:
        """Restore the jobs from the store."""
        self.recorder.add("meta", key="clock", value=runs.clock_of(self.began))
        for name, job in former.jobs.items():
            live = self.jobs[name] = LiveJob(job.row.job(), job.position, job.row.submitted or 0.0)
            live.restore(job)
            if job.row.state in ENDED:
                self.ended_before.add(name)
            for id, row in job.tasks.items():
                known = {key: value for key, value in row.items() if key not in ("id", "job")}
                self._tasks[TaskId(f"{self.id}/{id}")] = known

    def confirm(self) -> None:
        """Wait until the initial rows are on disk, where they outlast a power cut.

        Raises:
            StorageError: They are not after a while. Nothing is left of the run.
        """
        if self.recorder.secured(_FULL_SECONDS) or (
            not self.recorder.is_failing and self.recorder.secured(_SLOW_SECONDS)
        ):
            # SQLite sees to its own files: to close one of them here would drop its locks
            files = [self.folder / name for name in (runs.SUBMISSION, variables.FILE)]
            with contextlib.suppress(OSError):  # a file system that cannot tell
                secure(*filter(Path.exists, files), self.folder, self.folder.parent)
        else:
            self.recorder.close()
            os.close(self._lock)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise StorageError(
                f"cannot write {self.folder}; free some space there, or set HEADGATE_HOME"
            )

    def left(self) -> None:
        """Warn that the submitting client is gone, and may have taken along unread standard
        input.
        """
        if self.given is not None and not self.given.is_whole and not self.ended:
            reason = Reason.of(ReasonKind.INPUT_ENDS_EARLY)
            self.event("warning", reason, next(iter(self.jobs)))

    @property
    def ended(self) -> bool:
        # checks each of very many jobs only once
        while self._left and self._left[-1].state in ENDED:
            self._left.pop()
        return not self._left

    def clock(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def snapshot(self, policy: str, tracker: Trackers) -> dict[str, Any]:
        """The present state of the run, for watchers."""
        jobs = [
            job.snapshot(name, tracker(JobId.of(self.id, name))) for name, job in self.jobs.items()
        ]
        return {
            "type": "snapshot",
            "run": self.id,
            "t": self.clock(),
            "policy": policy,
            "jobs": jobs,
        }

    def log(self, task: TaskId) -> str:
        """Path of a task's log."""
        return str(self.folder / "jobs" / task.job.name / f"{task.name}.log")

    def checkpoints(self, job: str) -> Path:
        return self.folder / "jobs" / job / "checkpoints"

    def record_job(self, name: str) -> None:
        """Write the state of a job to the store."""
        job = self.jobs[name]
        stood, self._stood[name] = self._stood.get(name), (job.state, job.spec)
        is_news = stood is None or stood[0] != job.state or stood[1] is not job.spec
        add = self.recorder.add_secured if is_news else self.recorder.add
        add(
            "jobs",
            name=name,
            position=job.position,
            spec=self._spec_of(job),
            state=job.state,
            reason=job.text,
            why=job.reason.plain(),
            exit_code=job.exit_code,
            submitted=job.submitted,
            started=job.started,
            ended=job.ended,
            attempt=job.attempt,
            plan=job.plan,
            profile=job.profile or job.observed_costs,
            expected=job.expected,
            ending=asdict(job.ending) if job.ending is not None else None,
            waits=job.waits,
            verified=job.verified,
        )

    def _spec_of(self, job: LiveJob) -> str:
        """The JSON of a job's present specification, which seldom changes."""
        known = self._specs.get(job.position)
        if known is None or known[0] is not job.spec:
            text = text_of(job.spec)
            known = self._specs[job.position] = job.spec, text
        return known[1]

    def record_task(self, task: TaskId, **row: object) -> None:
        """Write known facts of a task to the store, merged with earlier ones."""
        known = self._tasks[task] = {**self._tasks.get(task, {}), **row}
        self.recorder.add("tasks", id=task.of_run, job=task.job.name, **known)

    def record_gpus(self, task: TaskId, gpus: Collection[int]) -> None:
        """Write the GPUs on which a task holds memory, if they changed; none before it holds any
        and after its end.
        """
        numbers = sorted(gpus)
        if numbers and self._tasks.get(task, {}).get("gpus") != numbers:
            self.record_task(task, gpus=numbers)

    def record_share(
        self, task: TaskId, share: Share, threads: int, entitled: float, reason: Reason
    ) -> None:
        """Write what a task is granted from now on."""
        limits = {name: getattr(share, name) for name in FIELDS}
        self.recorder.add(
            "shares",
            t=self.clock(),
            task=task.of_run,
            **{
                name: None if isinstance(limit, Unlimited) else limit
                for name, limit in limits.items()
            },
            entitled_cores=entitled,
            threads=threads,
            reason=in_words(reason),
            why=reason.plain(),
        )

    def record_progress(self, progress: Progress) -> None:
        """Write a task's progress; after the run's first minutes at most once a second, as
        means.
        """
        before = self._progress.pop(progress.task, None)
        since, merged = (
            (before[0], before[1].merged(progress))
            if before is not None
            else (self.clock(), progress)
        )
        if self.clock() < _EVERY_REPORT_SECONDS or self.clock() - since >= 1.0:
            self._write_progress(merged)
        else:
            self._progress[progress.task] = since, merged

    def flush_progress(self, task: TaskId) -> None:
        """Write a task's unwritten progress."""
        if (waiting := self._progress.pop(task, None)) is not None:
            self._write_progress(waiting[1])

    def _write_progress(self, progress: Progress) -> None:
        loss = progress.loss
        self.recorder.add(
            "progress",
            t=self.clock(),
            task=progress.task.of_run,
            step=progress.step,
            epoch=progress.epoch,
            epochs=progress.epochs,
            within=progress.within,
            steps=progress.steps,
            remaining=progress.remaining,
            samples=progress.samples,
            loss=loss,
            nan=int(loss is not None and not math.isfinite(loss)),
            count=progress.count,
            metrics=progress.metrics or None,
        )

    def record_spans(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """Write the parts of one step.

        Raises:
            KeyError, TypeError, ValueError: The message is invalid.
        """
        at, id, step = self.clock(), task.of_run, int(message["step"])
        steps = messages.steps_of(message)
        if (
            parts := len(message["spans"]) + len(message.get("transfers") or ())
        ) > messages.MOST_PARTS:
            raise ValueError(
                f"found {parts} spans and transfers; expected at most {messages.MOST_PARTS}"
            )
        rows = [("spans", {**messages.span(span), "steps": steps}) for span in message["spans"]]
        rows += [
            ("transfers", messages.transfer(transfer))
            for transfer in message.get("transfers") or ()
        ]
        for table, row in rows:  # all rows, or none of an invalid message
            self.recorder.add(table, t=at, task=id, step=step, **row)

    def record_asides(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """Write a task's time beside its steps since its last message.

        Raises:
            KeyError, TypeError, ValueError: The message is invalid.
        """
        for name, seconds in messages.asides(message).items():
            self.recorder.add(
                "asides", t=self.clock(), task=task.of_run, name=name, seconds=seconds
            )

    def record_checkpoint(self, task: TaskId, message: Mapping[str, Any]) -> Checkpoint:
        """Write that a checkpoint was saved.

        Raises:
            KeyError, TypeError, ValueError: The message is invalid, or names a file outside the
                job's folder. Checkpoints are handed to other tasks and sent to other nodes.
        """
        checkpoint, saved = messages.checkpoint(message), messages.saving(message)
        folder = self.checkpoints(task.job.name)
        if below(folder, checkpoint.path) is None:
            raise ValueError(f"checkpoint {checkpoint.path!r} is not in {folder}")
        self.recorder.add(
            "checkpoints", t=self.clock(), task=task.of_run, **saved, **asdict(checkpoint)
        )
        return checkpoint

    def record_script_save(self, task: TaskId, message: Mapping[str, Any]) -> Checkpoint | None:
        """Write that a script saved a checkpoint by itself, or None, began to save it.

        Raises:
            KeyError, TypeError, ValueError: The message is invalid.
        """
        live, path = self.jobs[task.job.name], messages.text(message["path"])
        step = messages.step(message) or live.step or 0
        node = ""
        if self.submission.engine.has_own_files and live.current is not None:
            node = live.current.tasks[task.name].node
        checkpoint = Checkpoint(path, step, live.epoch or 0, None, own=True, node=node)
        begins = message.get("begins") is True
        self.recorder.add(
            "checkpoints",
            t=self.clock(),
            task=task.of_run,
            **{**messages.saving(message), "why": WRITING if begins else SCRIPT},
            **asdict(checkpoint),
        )
        if begins:
            live.saved = [former for former in live.saved if former.path != path]
        return None if begins else checkpoint

    def record_usage(self, target: str, reading: Mapping[Column, float]) -> None:
        """Write the resource use of a target."""
        self.recorder.add(
            "usage",
            t=self.clock(),
            target=target,
            **{str(column): value for column, value in reading.items()},
        )

    def record_proof(self, proof: Proof) -> None:
        """Write what pausing one job showed about another."""
        self.recorder.add("proofs", t=self.clock(), **proof.row())

    def event(
        self,
        kind: str,
        reason: Reason,
        job: str | None = None,
        task: TaskOfRun | None = None,
        **more: object,
    ) -> dict[str, Any]:
        """Write an event; `more` names further columns."""
        event = {"t": self.clock(), "kind": kind, "text": say_text(in_words(reason))}
        event |= {"job": job, "task": task, "why": reason.plain()}
        self.recorder.add("events", **event, **more)
        return {"type": "event", "run": self.id, **event}

    def meet(self, node: Node) -> None:
        """Record the use of a node that joined or changed, from now on."""
        self.nodes = (
            *(known_node for known_node in self.nodes if known_node.name != node.name),
            node,
        )
        self.recorder.add("meta", key="node", value=_nodes(self.nodes))

    def note_seed(self, job: str, seed: object) -> None:
        """Record the seed of a job's random generator."""
        if isinstance(seed, int):
            self._seeds[job] = seed
            text = ", ".join(f"{name} {value}" for name, value in self._seeds.items())
            self.recorder.add("meta", key="seed", value=text)

    def note_origin(self) -> None:
        """Record the git commit at the start, and the installed packages of each interpreter. Takes
        a moment, in processes of its own.
        """
        self.recorder.add("meta", key="git_commit", value=git_commit(self.submission.cwd))
        cache = runs.home() / "packages.json"
        listed = {python: packages(python, cache) for python in _interpreters(self.submission)}
        answered = {
            python: packages_listed
            for python, packages_listed in listed.items()
            if packages_listed is not None
        }
        self.recorder.add("meta", key="packages", value=json.dumps(answered))

    def close(self) -> None:
        """Mark the run as done, write what is left as soon as there is disk space, and close the
        store.
        """
        self.recorder.add("meta", key="state", value="done")
        self.recorder.add("meta", key="ended", value=repr(self.clock()))
        self.recorder.close(math.inf)
        (self.folder / runs.SUBMISSION).unlink(missing_ok=True)
        os.close(self._lock)
        if self.given is not None:
            self.given.close()
        if all(job.state == "done" for job in self.jobs.values()):
            variables.forget_secrets(self.folder)


def _nodes(nodes: tuple[Node, ...]) -> str:
    return json.dumps([asdict(node) for node in nodes])


def _interpreters(submission: Submission) -> list[str]:
    environment = submission.environment
    programs = [job for job in submission.jobs if program(job) is not None]
    return sorted({interpreter(job, {**environment, **job.env}.get("PATH")) for job in programs})
