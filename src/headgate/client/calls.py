"""Calls of functions that run as jobs, and their results."""

from __future__ import annotations

import os
import pickle
import threading
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headgate.client import remote_call
from headgate.client.client import placed
from headgate.client.logs import JobLogs
from headgate.client.run import Run
from headgate.client.starting import clean, connect_or_start
from headgate.client.submitting import hand_in
from headgate.client.watching import Watch
from headgate.hub.connection import HubConnection
from headgate.model.calls import RESULT
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.jobs import Job
from headgate.recorded import retention, runs

T = TypeVar("T")


class CallLostError(HeadgateError):
    """A call ended without a result: it was stopped or killed, or its result cannot be sent
    back.
    """


class RemoteTraceback(Exception):
    """The traceback inside the call; set as the cause of the exception that the future raises."""

    def __init__(self, trace: str) -> None:
        super().__init__(trace)
        self.trace = trace

    def __str__(self) -> str:
        return f"\n{self.trace}"


class CallFuture(futures.Future[T]):
    """The result of a call. It can be cancelled until the call is submitted to the hub."""

    def __init__(self) -> None:
        super().__init__()
        self._handed_in = threading.Event()
        self._job: JobId | None = None

    @property
    def id(self) -> str:
        """`RUN/JOB`, once the call is submitted. `Executor.attach`, `headgate logs` and `headgate
        stop` take it.

        Raises:
            concurrent.futures.CancelledError: The call was cancelled before.
            HeadgateError: The call could not be submitted.
        """
        self._handed_in.wait()
        if self._job is None:
            self.result()
        return str(self._job)

    def cancel(self) -> bool:
        """Cancel the call unless it is already submitted. Returns whether it is cancelled."""
        cancelled = super().cancel()
        if cancelled:
            self._handed_in.set()
        return cancelled

    def log(self, tail: int | None = None) -> str:
        """What the call printed so far; `tail`: only its last lines, this many."""
        job = JobId(self.id)
        return JobLogs.of(runs.home() / "runs" / job.run, job.name).text(tail)

    def _is_at(self, job: JobId) -> None:
        self._job = job
        self._handed_in.set()

    def _fail(self, error: BaseException) -> None:
        self.set_exception(error)
        self._handed_in.set()


@dataclass(slots=True)
class PendingCall:
    """A call that is not submitted yet."""

    future: CallFuture[Any]
    file: Path
    job: Job


@dataclass(slots=True)
class Batch:
    """Calls that were submitted together as one run, by job name."""

    watch: Watch
    hub: HubConnection
    left: dict[str, CallFuture[Any]] = field(default_factory=dict)


def handed_in(calls: list[PendingCall], place: tuple[str | None, str, str, bool]) -> Batch:
    clean()
    hub = connect_or_start()
    try:
        jobs = placed(tuple(call.job for call in calls), *place)
        watch = hand_in(hub, replace(jobs, mode="call"), None)
    except BaseException:
        hub.close()
        raise
    batch = Batch(watch, hub)
    for call in calls:
        # the call's files are kept as long as its run
        with suppress(OSError):
            os.link(call.file, watch.path / "jobs" / call.job.name / "call.pkl")
        batch.left[call.job.name] = call.future
        call.future._is_at(JobId.of(watch.run, call.job.name))
    return batch


def received(batch: Batch) -> bool:
    """Process what the hub reports of a batch. Returns whether more is to come."""
    folder, left = batch.watch.path, batch.left
    try:
        while left and (message := batch.hub.receive(0.0)) is not None:
            match message:
                case {"type": "event", "kind": kind, "job": name, "text": text} if (
                    kind in ENDED and name in left
                ):
                    _settle(left.pop(name), folder, name, kind, text)
                case {"type": "end", "jobs": jobs}:
                    for job in jobs:
                        if job["name"] in left:
                            future = left.pop(job["name"])
                            _settle(future, folder, job["name"], job["state"], job["reason"])
    except Exception as error:  # noqa: BLE001  # the hub died, or says what makes no sense
        while left:
            name, future = left.popitem()
            _give_up(future, folder, name, error)
    return bool(left)


def await_call(future: CallFuture[Any], folder: Path, name: str) -> None:
    """Wait for the end of a call that another process made."""
    run = Run(folder)
    try:
        run.wait_unless(lambda: _job(folder, name).state in ENDED)
        job = _job(folder, name)
    except Exception as error:  # noqa: BLE001  # whoever waits for the call has to hear of it
        _give_up(future, folder, name, error)
        return
    _settle(future, folder, name, job.state, job.reason)


def _give_up(future: CallFuture[Any], folder: Path, name: str, error: Exception) -> None:
    """Settle a call whose hub is lost: its result counts if it has written one."""
    if _result(folder, name).exists():
        _settle(future, folder, name, "interrupted", str(error))
    else:
        future.set_exception(error)


def _job(folder: Path, name: str) -> runs.JobSummary:
    return next(job for job in runs.summary(folder).jobs if job.name == name)


def _result(folder: Path, name: str) -> Path:
    """The file of a call's result; an engine without shared files brought it elsewhere."""
    file = folder / "jobs" / name / RESULT
    with suppress(OSError):
        (file.parent / "checkpoints" / RESULT).replace(file)
    return file


def _settle(future: CallFuture[Any], folder: Path, name: str, state: str, reason: str) -> None:
    """Set the result or exception of a call's future."""
    file = _result(folder, name)
    ended = f"call {folder.name}/{name}"
    try:
        with file.open("rb") as written:
            kind, trace = pickle.load(written)
            value = pickle.load(written)
    except FileNotFoundError:
        why = f"{state}: {reason}" if reason else state
        text = f"{ended} ended without a result, {why}; its output: headgate logs {future.id}"
        future.set_exception(CallLostError(text))
    except Exception as error:  # noqa: BLE001  # unpickling calls what a class defines
        future.set_exception(CallLostError(f"{ended}: its result cannot be read here: {error}"))
    else:
        if kind == remote_call.VALUE:
            future.set_result(value)
            return
        raised = value if kind == remote_call.ERROR else CallLostError(f"{ended}: {value}")
        raised.__cause__ = RemoteTraceback(trace) if trace else None
        future.set_exception(raised)
    finally:
        with suppress(OSError):
            (file.parent / retention.READ).touch()
