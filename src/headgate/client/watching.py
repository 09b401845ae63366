"""Follow the events of a run until its report is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from headgate.client.starting import connect_or_start
from headgate.hub.connection import ANSWER_SECONDS, HubConnection, HubGoneError
from headgate.model.errors import HeadgateError
from headgate.recorded import runs

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WatchedTask:
    """A task as its hub sees it now; fields as of `headgate.recorded.status.TaskStatus`."""

    task: str
    node: str
    state: str
    entitled_cores: float | None
    gpus: Sequence[int]
    cpu_cores: float | None
    memory_bytes: float | None
    gpu_busy: float | None
    gpu_memory_bytes: float | None
    net_in: float | None
    net_out: float | None


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A job as its hub sees it now; fields as of `headgate.recorded.status.JobStatus`.

    Args:
        losses: Means of its losses so far, the oldest first.
    """

    name: str
    state: str
    reason: str
    step: int | None
    epoch: int | None
    epochs: int | None
    steps: int | None
    loss: float | None
    losses: Sequence[float]
    entitled_cores: float
    cpu_cores: float | None
    memory_bytes: float | None
    gpus: Sequence[int]
    gpu_busy: float | None
    gpu_memory_bytes: float | None
    tasks: Sequence[WatchedTask]


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run at `t` seconds after its begin.

    Args:
        has_ended: Whether all its jobs have.
    """

    run: str
    t: float
    policy: str
    jobs: tuple[WatchedJob, ...]
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class RunEvent:
    """What happened to a run at `t`, or to a job of it: a state that it came to, a warning, a
    note.
    """

    t: float
    kind: str
    text: str
    job: str | None


@dataclass(frozen=True, slots=True)
class RunReported:
    """The report is written: the last news. `report` is its path, if there is one."""

    report: str | None


RunNews = RunSnapshot | RunEvent | RunReported


class Watch:
    """Watches a run over a connection of its own.

    Args:
        hub: A connection that is attached to the run.
        run: The run's id.
    """

    def __init__(self, hub: HubConnection, run: str) -> None:
        self._hub = hub
        self.run = run
        self.path = runs.home() / "runs" / run

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.close()

    def follow(self, timeout: float) -> Iterator[RunNews | None]:
        """News of the run, until its report is written. Yields None whenever the hub is silent for
        `timeout` seconds. If the hub dies and the run goes on, the next hub tells the rest.

        Raises:
            HubGoneError: The hub died, and the run with it.
        """
        while True:
            try:
                yield from map(_news, self._hub.follow(timeout))
            except HubGoneError:
                if not self._meets_next():
                    raise
            else:
                return

    def _meets_next(self) -> bool:
        """Attach to the next hub of the run. Returns whether there is one."""
        while runs.is_awaited(self.path):
            try:
                hub = connect_or_start()
                hub.ask("attach", run=self.run)
            except HubGoneError:  # that one died, too
                continue
            except HeadgateError:  # the run has ended meanwhile
                return False
            self._hub.close()
            self._hub = hub
            return True
        return False

    def stop(self, jobs: Sequence[str] | None = None, *, kill: bool = False) -> None:
        """Ask the hub to stop jobs (None: all) and return at once."""
        self._hub.send("stop", run=self.run, jobs=jobs, kill=kill)

    def leave_stopped(self, *, kill: bool) -> None:
        """Ask the hub to stop all jobs. Returns once the hub has read the request, so that the
        connection may close.
        """
        self.stop(kill=kill)
        while (self._hub.receive(ANSWER_SECONDS) or {}).get("type") in ("snapshot", "event"):
            pass


def _news(message: Mapping[str, Any] | None) -> RunNews | None:
    match message or {}:
        case {"type": "snapshot" | "end" as kind, "jobs": jobs, **rest}:
            views = tuple(map(_job, jobs))
            return _known(RunSnapshot, {**rest, "jobs": views, "has_ended": kind == "end"})
        case {"type": "event", **rest}:
            return _known(RunEvent, rest)
        case {"type": "reported", "report": report}:
            return RunReported(report)
    return None


def _job(job: Mapping[str, Any]) -> WatchedJob:
    tasks = [_known(WatchedTask, task) for task in job["tasks"]]
    return _known(WatchedJob, {**job, "tasks": tasks})


def _known(kind: type[T], values: Mapping[str, Any]) -> T:
    """What of these values a record has."""
    return kind(**{field.name: values[field.name] for field in fields(kind)})  # type: ignore[arg-type]
