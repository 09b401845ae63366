"""One run as the hub keeps it: its folder, its store, and how its jobs stand now."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

import headgate
from headgate import runs
from headgate.cluster import Node
from headgate.engines.base import LOCAL
from headgate.engines.launch import interpreter
from headgate.engines.program import program
from headgate.errors import StorageError
from headgate.events import ENDED, Checkpoint, Progress
from headgate.hub import messages
from headgate.hub.packages import packages
from headgate.hub.state.job import LiveJob
from headgate.hub.submission import Submission
from headgate.identifiers import FIRST_WORKER, TaskId, TaskOfRun
from headgate.jobs import Job
from headgate.paths import below
from headgate.shares import FIELDS, Share, Unlimited
from headgate.telemetry.columns import Column
from headgate.telemetry.store import Recorder
from headgate.units import say_text

if TYPE_CHECKING:
    from headgate.analysis.proving import Proof

JOB = TypeAdapter(Job)
_FLUSH_SECONDS = 5.0
"""Longest that the first rows of a run may take to be on disk; whoever hands it in waits for them."""
_EVERY_REPORT_SECONDS = 600.0  # ten rows a second for a month would be 26 million


class LiveRun:
    """A run that is going on.

    Args:
        submission: What was handed in.
        nodes: Those whose use is recorded.
        policy: Name of the one that moves shares.
        now: Seconds on the hub's clock.
        trouble: Told when the store cannot be written, and when it can be again.

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
    ) -> None:
        self.folder = runs.create()
        self.id = self.folder.name
        self.submission = submission
        self.nodes = nodes
        self.began = now
        self.jobs: dict[str, LiveJob] = {}
        self._progress: dict[TaskId, tuple[float, Progress]] = {}  # since when, and what, is not written yet
        self._seeds: dict[str, int] = {}
        self._tasks: dict[TaskId, dict[str, Any]] = {}
        with contextlib.ExitStack() as undo:  # nothing is left of a run that cannot be begun
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            try:
                self._lock = runs.lock(self.folder)
                undo.callback(os.close, self._lock)
                self.recorder = Recorder(self.folder / runs.STORE, trouble)
                undo.callback(self.recorder.close)
                self._begin(policy)
            except OSError as error:
                raise StorageError(
                    f"cannot write {self.folder}: {error.strerror}; free some space there, or set HEADGATE_HOME"
                ) from error
            undo.pop_all()

    def _begin(self, policy: str) -> None:
        """Write what the run begins with."""
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
        }
        if submission.engine != LOCAL:
            meta |= {"engine": submission.engine.name, "address": submission.engine.address}
            meta |= {"shared_files": str(int(submission.engine.shared_files)), "only": ",".join(submission.only)}
        if submission.cluster:
            meta["cluster"] = submission.cluster
        if submission.resumed_from is not None:
            meta["resumed_from"] = submission.resumed_from
        if submission.from_scratch:
            meta["from_scratch"] = ",".join(submission.from_scratch)
        for key, value in meta.items():
            self.recorder.add("meta", key=key, value=value)
        for i, job in enumerate(submission.jobs):
            (self.folder / "jobs" / job.name / "checkpoints").mkdir(mode=0o700, parents=True)
            live = self.jobs[job.name] = LiveJob(job, i, 0.0)
            self.record_job(job.name)
            if (point := submission.resume.get(job.name)) is not None:
                live.keep(point)
                self.recorder.add(
                    "checkpoints", t=0.0, task=TaskOfRun.of(job.name, FIRST_WORKER), why="resumed", **asdict(point)
                )

    def confirm(self) -> None:
        """Wait until what the run begins with is on disk.

        Raises:
            StorageError: It is not after a while; then nothing is left of the run.
        """
        if not self.recorder.flush(_FLUSH_SECONDS):
            self.recorder.close()
            os.close(self._lock)
            shutil.rmtree(self.folder, ignore_errors=True)
            raise StorageError(f"cannot write {self.folder}; free some space there, or set HEADGATE_HOME")

    @property
    def ended(self) -> bool:
        return all(job.state in ENDED for job in self.jobs.values())

    def clock(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def snapshot(self, policy: str) -> dict[str, Any]:
        """How the run stands now, for whoever watches it."""
        jobs = [job.snapshot(name) for name, job in self.jobs.items()]
        return {"type": "snapshot", "run": self.id, "t": self.clock(), "policy": policy, "jobs": jobs}

    def log(self, task: TaskId) -> str:
        """Path of a task's log."""
        return str(self.folder / "jobs" / task.job.name / f"{task.name}.log")

    def checkpoints(self, job: str) -> Path:
        return self.folder / "jobs" / job / "checkpoints"

    def record_job(self, name: str) -> None:
        """Write how a job stands to the store."""
        job = self.jobs[name]
        self.recorder.add(
            "jobs",
            name=name,
            position=job.position,
            spec=json.dumps(JOB.dump_python(job.spec, mode="json")),  # spells what is no UTF-8
            state=job.state,
            reason=job.reason,
            exit_code=job.exit_code,
            submitted=job.submitted,
            started=job.started,
            ended=job.ended,
            attempt=job.attempt,
            plan=job.plan,
            profile=job.profile,
            expected=job.expected,
        )

    def record_task(self, task: TaskId, **row: object) -> None:
        """Write what is known of a task to the store, with what was known before."""
        known = self._tasks[task] = {**self._tasks.get(task, {}), **row}
        self.recorder.add("tasks", id=task.of_run, job=task.job.name, **known)

    def record_share(self, task: TaskId, share: Share, threads: int, entitled: float, reason: str) -> None:
        """Write what a task is granted from now on."""
        limits = {name: getattr(share, name) for name in FIELDS}
        self.recorder.add(
            "shares",
            t=self.clock(),
            task=task.of_run,
            **{name: None if isinstance(limit, Unlimited) else limit for name, limit in limits.items()},
            entitled_cores=entitled,
            threads=threads,
            reason=reason,
        )

    def record_progress(self, progress: Progress) -> None:
        """Write what a task reported; after its run's first minutes at most once a second, the means of that second."""
        before = self._progress.pop(progress.task, None)
        since, merged = (before[0], before[1].merged(progress)) if before is not None else (self.clock(), progress)
        if self.clock() < _EVERY_REPORT_SECONDS or self.clock() - since >= 1.0:
            self._write_progress(merged)
        else:
            self._progress[progress.task] = since, merged

    def flush_progress(self, task: TaskId) -> None:
        """Write what a task reported and is not written yet."""
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
            samples=progress.samples,
            loss=loss,
            nan=int(loss is not None and not math.isfinite(loss)),
            count=progress.count,
            metrics=progress.metrics or None,
        )

    def record_spans(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """Write how one step divides.

        Raises:
            KeyError, TypeError, ValueError: The message makes no sense.
        """
        at, id, step = self.clock(), task.of_run, int(message["step"])
        if (parts := len(message["spans"]) + len(message.get("transfers") or ())) > messages.MOST_PARTS:
            raise ValueError(f"found {parts} spans and transfers; expected at most {messages.MOST_PARTS}")
        rows = [("spans", messages.span(span)) for span in message["spans"]]
        rows += [("transfers", messages.transfer(each)) for each in message.get("transfers") or ()]
        for table, row in rows:  # all of them, or none of a message that makes no sense
            self.recorder.add(table, t=at, task=id, step=step, **row)

    def record_asides(self, task: TaskId, message: Mapping[str, Any]) -> None:
        """Write what a task spent time on beside its steps since it told the last time.

        Raises:
            KeyError, TypeError, ValueError: The message makes no sense.
        """
        for name, seconds in messages.asides(message).items():
            self.recorder.add("asides", t=self.clock(), task=task.of_run, name=name, seconds=seconds)

    def record_checkpoint(self, task: TaskId, message: Mapping[str, Any]) -> Checkpoint:
        """Write that a checkpoint was saved.

        Raises:
            KeyError, TypeError, ValueError: The message makes no sense, or names a file elsewhere: what a task names is
                handed to others, and sent to other nodes.
        """
        checkpoint, saved = messages.checkpoint(message), messages.saving(message)
        folder = self.checkpoints(task.job.name)
        if below(folder, checkpoint.path) is None:
            raise ValueError(f"checkpoint {checkpoint.path!r} is not in {folder}")
        self.recorder.add(
            "checkpoints",
            t=self.clock(),
            task=task.of_run,
            **saved,
            **asdict(checkpoint),
        )
        return checkpoint

    def record_usage(self, target: str, reading: Mapping[Column, float]) -> None:
        """Write what a target used."""
        self.recorder.add(
            "usage", t=self.clock(), target=target, **{str(column): value for column, value in reading.items()}
        )

    def record_proof(self, proof: Proof) -> None:
        """Write what pauses of one job told about another."""
        self.recorder.add(
            "proofs",
            t=self.clock(),
            culprit=proof.culprit,
            victim=proof.victim,
            pauses=proof.pauses,
            seconds=proof.seconds,
            gain=proof.gain.part,
            low=proof.gain.low,
            high=proof.gain.high,
            outcome=proof.outcome,
        )

    def event(self, t: float, kind: str, text: str, **more: object) -> None:
        """Write what happened; `more` names further columns of the table."""
        self.recorder.add("events", t=t, kind=kind, text=text, **more)

    def meet(self, node: Node) -> None:
        """A node has come, or has changed, whose use is recorded from now on."""
        self.nodes = (*(each for each in self.nodes if each.name != node.name), node)
        self.recorder.add("meta", key="node", value=_nodes(self.nodes))

    def note_seed(self, job: str, seed: object) -> None:
        """Record what a job's random generator was seeded with."""
        if isinstance(seed, int):
            self._seeds[job] = seed
            text = ", ".join(f"{name} {value}" for name, value in self._seeds.items())
            self.recorder.add("meta", key="seed", value=text)

    def note_origin(self) -> None:
        """Record the git commit that the run was started at, and what is installed for each interpreter that its
        scripts use. Takes a moment, in processes of its own."""
        self.recorder.add("meta", key="git_commit", value=_commit(self.submission.cwd))
        cache = runs.home() / "packages.json"
        listed = {python: packages(python, cache) for python in _interpreters(self.submission)}
        answered = {python: found for python, found in listed.items() if found is not None}
        self.recorder.add("meta", key="packages", value=json.dumps(answered))

    def close(self) -> None:
        """Mark the run as done, write what is left, once there is room for it, and let go of it."""
        self.recorder.add("meta", key="state", value="done")
        self.recorder.add("meta", key="ended", value=repr(self.clock()))
        self.recorder.close(math.inf)
        os.close(self._lock)


def _nodes(nodes: tuple[Node, ...]) -> str:
    return json.dumps([asdict(node) for node in nodes])


def _interpreters(submission: Submission) -> list[str]:
    environment = submission.environment
    programs = [job for job in submission.jobs if program(job) is not None]
    return sorted({interpreter(job, {**environment, **job.env}.get("PATH")) for job in programs})


def _commit(folder: str) -> str:
    """The git commit that a folder is at, with `+changes` where files differ from it; empty outside a repository."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+changes", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
