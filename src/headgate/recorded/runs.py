"""Folders of runs, and which runs are live.

`$HEADGATE_HOME` (default `~/.local/share/headgate`, mode 0700) has a folder for each run;
docs/files.md lists its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headgate.machine.processes import boot_id
from headgate.model.errors import (
    HeadgateError,
    NotFoundError,
    StorageError,
    UsageError,
    writing_cure,
)
from headgate.model.identifiers import FIRST_WORKER, TaskName, run_and_job
from headgate.model.job_checks import NAME_PATTERN
from headgate.model.jobs import Job
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.units import say_first
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.folders import (
    HUB,
    LOCK,
    STORE,
    SUBMISSION,
    awaited,
    home,
    host,
    hub,
    hubs,
    is_awaited,
    is_locked,
    listing,
    make_sockets,
    remove_sockets,
    sockets,
)
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow, readable

__all__ = [
    "HUB",
    "LOCK",
    "STORE",
    "SUBMISSION",
    "awaited",
    "home",
    "host",
    "hub",
    "hubs",
    "listing",
]
__all__ += ["is_awaited", "is_locked"]
__all__ += ["make_sockets", "remove_sockets", "sockets"]
"""Names from `folders` that users of this module need."""

CALLS = "calls"
"""Empty file in the folder of a run whose jobs are function calls."""
_TIME = "%Y%m%d-%H%M%S-"
_STAMP = 19  # characters of the time in a run's name, to the millisecond
_AWAITED = "the next command starts another, which takes it up"
_NAMED = 5  # most runs named in a message
_BEGUN = 2  # most jobs named in one


def create() -> Path:
    """Make the folder of a new run. Its name sorts after those of earlier runs, even if the clock
    was set back.

    Raises:
        StorageError: It cannot be made.
    """
    while True:
        path = home() / "runs" / f"{_stamp()}{secrets.token_hex(1)}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue  # another run of this millisecond exists
        except OSError as error:
            cure = f"{writing_cure(error)}, or set HEADGATE_HOME to a folder you can write"
            raise StorageError(f"cannot make {path}: {error.strerror}; {cure}") from error
        return path


def _stamp() -> str:
    """The present time, or the millisecond after the latest run if that one is in the future."""
    # local time, as in names
    now = datetime.fromtimestamp(time.time(), UTC).astimezone().replace(tzinfo=UTC)
    with contextlib.suppress(OSError, ValueError):  # there is no run, or its name has another form
        latest = datetime.strptime(max(os.listdir(home() / "runs"))[:_STAMP], f"{_TIME}%f").replace(
            tzinfo=UTC
        )
        if latest > now:
            now = latest + timedelta(milliseconds=1)
    return f"{now:{_TIME}}{now.microsecond // 1000:03}"


def lock(run: Path) -> int:
    """Mark a run as live while this process keeps the returned descriptor open."""
    fd = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def alive(run: Path) -> bool:
    """Whether a hub still runs it."""
    return is_locked(run / LOCK)


def find(prefix: str | None = None) -> Path:
    """The folder of the run whose id starts with (or contains) `prefix`. None: the latest run, if
    possible one that is not `is_aside`.

    Raises:
        NotFoundError: No run matches.
        UsageError: Several runs match.
    """
    every = listing()
    if prefix is None:
        if not every:
            raise NotFoundError("there are no runs yet; start one with: headgate run train.py")
        return next((path for path in reversed(every) if not is_aside(path)), every[-1])
    exact = [path for path in every if path.name == prefix]
    matches = (
        exact
        or [path for path in every if path.name.startswith(prefix)]
        or [p for p in every if prefix in p.name]
    )
    if not matches:
        if NAME_PATTERN.fullmatch(prefix):
            of = next(
                (path.name for path in reversed(every) if (path / "jobs" / prefix).is_dir()), None
            )
            if of is not None:
                raise NotFoundError(f"no run {prefix!r}; that is a job of run {of}: name the run")
        begun = begun_with(prefix, every)
        cure = f"{begun}: name the run" if begun else "`headgate ps` lists the runs there are"
        raise NotFoundError(f"no run {prefix!r}; {cure}")
    if len(matches) > 1:
        names = [path.name for path in matches[-_NAMED:]]
        more = f" and {len(matches) - _NAMED} earlier ones" if len(matches) > _NAMED else ""
        raise UsageError(f"{prefix!r} could be any of {', '.join(names)}{more}; give more of it")
    return matches[0]


def find_job(job: str, run: str | None = None) -> tuple[Path, str]:
    """Folder of the latest run with a job of this name (`JOB` or `RUN/JOB`), and the job's own
    name. Runs that are `is_aside` come last.

    Raises:
        NotFoundError: No run has such a job.
        UsageError: `run` matches several runs.
    """
    prefix, name = run_and_job(job)
    wanted = prefix or run
    every = [find(wanted)] if wanted else listing()
    if NAME_PATTERN.fullmatch(name):
        folders = [path for path in every if (path / "jobs" / name).is_dir()]
        if folders:
            return next(
                (path for path in reversed(folders) if not is_aside(path)), folders[-1]
            ), name
    where = f"run {wanted}" if wanted else "any run"
    begun = begun_with(name, every)
    cure = f"{begun}: name one" if begun else "`headgate status` lists the jobs of a run"
    raise NotFoundError(f"no job {name!r} in {where}; {cure}")


def begun_with(name: str, among: Sequence[Path]) -> str:
    """Which jobs of the latest of these runs have names that begin with this one, as those of a
    sweep do, in words; empty: none has.
    """
    if NAME_PATTERN.fullmatch(name):
        for run in reversed(among):
            if jobs := sorted(folder.name for folder in (run / "jobs").glob(f"{name}-*")):
                return f"jobs of run {run.name} begin with it ({say_first(jobs, _BEGUN)})"
    return ""


def is_aside(run: Path) -> bool:
    """Whether a run only profiled or verified a script, or its jobs are calls of functions."""
    with contextlib.suppress(HeadgateError):  # a reader of the run gets the error
        return (run / CALLS).exists() or describe(run).mode in ("profile", "verify")
    return False


def first_task(run: Path, job: str) -> TaskName:
    """The task that represents a job: its first worker, or the first task of the role that ends
    it.
    """
    with RunReader(run / STORE) as reader:
        rows = list(reader.records(JobRow, "name = ?", [job]))
    return rows[0].job().first_task if rows else FIRST_WORKER


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job from its run's store; times are seconds since the run began.

    Args:
        expected: Predicted start while it waits for room, if known.
        waits: What it waits for: kind, facts, and jobs that hold some of it.
        ending: Fields of its `Ending`, if any.
        why: Kind and facts of the reason; None: an earlier version recorded it.
    """

    run: str
    name: str
    state: str
    reason: str
    exit_code: int | None
    submitted: float | None
    started: float | None
    ended: float | None
    attempt: int
    expected: float | None = None
    ending: Mapping[str, Any] | None = None
    waits: Mapping[str, Any] | None = None
    why: Mapping[str, Any] | None = None

    @property
    def succeeded(self) -> bool:
        """Whether it is done, or was ended by the rule of its sweep."""
        if self.state != "stopped" or self.why is None:
            return self.state == "done"
        reason = readable(Reason, json.dumps(self.why))
        return reason is not None and reason.root.kind is ReasonKind.STOPPED_EARLY


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run from its store.

    Args:
        state: `running`, `interrupted`, `done` (every job is), `stopped` (some were), or `failed`
            (some failed, were killed or skipped).
        began: Seconds since the epoch.
        ended: Seconds since `began`.
        took: Seconds since `began`; of a live run up to now, unaffected by changes of the wall
            clock.
        host: Host on which it runs or ran; empty: unknown.
        cluster: Its lab, if any.
        engine: What starts its tasks; empty: this machine.
        address: Address of the engine's cluster, if it was given.
    """

    id: str
    path: str
    state: str
    began: float
    ended: float | None
    took: float | None
    policy: str
    command: str
    jobs: tuple[JobSummary, ...]
    host: str = ""
    cluster: str = ""
    engine: str = ""
    address: str = ""

    @property
    def elsewhere(self) -> str:
        """The host on which it runs if that is another one; else empty."""
        return self.host if self.state == "running" and self.host != host() else ""


def summary(run: Path) -> RunSummary:
    """Read the summary of a run. A run marked as running without a hub counts as interrupted."""
    with RunReader(run / STORE) as reader:
        running = alive(run)  # checked first: a run that ends meanwhile was not interrupted
        description = RunDescription.read(reader)
        state = description.state
        if state == "running" and not running:
            state = "interrupted"
        jobs = []
        for row in reader.records(JobRow, order="position"):
            job_state, reason, why = row.state, row.reason or "", row.why
            if state == "interrupted" and job_state in ("waiting", "running", "paused", "stopping"):
                job_state, why = "interrupted", None
                hint = _AWAITED if is_awaited(run) else resume_hint(run, [row.job()])
                reason = f"the hub died; {hint}"
            jobs.append(
                JobSummary(
                    run=run.name,
                    name=row.name,
                    state=job_state,
                    reason=reason,
                    exit_code=row.exit_code,
                    submitted=row.submitted,
                    started=row.started,
                    ended=row.ended,
                    attempt=row.attempt or 0,
                    expected=row.expected,
                    ending=json.loads(row.ending) if row.ending is not None else None,
                    waits=json.loads(row.waits) if row.waits else None,
                    why=json.loads(why) if why else None,
                )
            )
        if state == "done":
            states = {job.state for job in jobs if not job.succeeded}
            if states & {"failed", "killed", "skipped"}:
                state = "failed"
            elif "stopped" in states:
                state = "stopped"
        return RunSummary(
            id=run.name,
            path=str(run),
            state=state,
            began=description.began or 0.0,
            ended=description.ended,
            took=elapsed(description)
            if description.ended is None and state == "running"
            else description.ended,
            policy=description.policy,
            command=description.command,
            jobs=tuple(jobs),
            host=description.host,
            cluster=description.cluster,
            engine=description.engine,
            address=description.address,
        )


def clock() -> str:
    """The start time that a run stores beside the wall clock: the boot id, and seconds since that
    boot.
    """
    return clock_of(time.monotonic())


def clock_of(began: float) -> str:
    """The same of a run that began at this time of `time.monotonic`."""
    return f"{boot_id()} {began!r}"


def elapsed(run: RunDescription) -> float:
    """Seconds since a run began; by the wall clock if it began in another boot, or has no stored
    clock.
    """
    boot, _, began = run.clock.partition(" ")
    if boot == boot_id() and began:
        return time.monotonic() - float(began)
    return max(time.time() - (run.began or 0.0), 0.0)


def describe(run: Path) -> RunDescription:
    """The facts about a run in its store.

    Raises:
        NotFoundError, StorageError: The store does not exist, or cannot be read.
    """
    with RunReader(run / STORE) as reader:
        return RunDescription.read(reader)


def lineage(run: Path) -> list[Path]:
    """A run and the runs that it resumes from, latest first. A deleted or unreadable run ends the
    chain.
    """
    folders: list[Path] = []
    name = run.name
    while name and (folder := run.with_name(name)) not in folders and (folder / STORE).exists():
        folders.append(folder)
        try:
            name = describe(folder).resumed_from
        except HeadgateError:
            break
    return folders


def heirs(run: Path) -> list[Path]:
    """The runs that resume from a run, directly or through others, oldest first."""
    kin, folders = {run.name}, []
    for other in listing():
        if other.name > run.name:
            with contextlib.suppress(HeadgateError):
                if describe(other).resumed_from in kin:
                    kin.add(other.name)
                    folders.append(other)
    return folders


def in_use() -> dict[Path, Path]:
    """The live runs, and every run that one of them resumes from; each with that live run."""
    return {
        former: run for run in listing() if alive(run) or is_awaited(run) for former in lineage(run)
    }


def resume_hint(run: Path, jobs: Sequence[Job]) -> str:
    """The command that resumes jobs of a run. Their checkpoints are not read."""
    from_scratch = [job.name for job in jobs if not _can_go_on(run, job)]
    if not from_scratch:
        return f"go on with: headgate resume {run.name}"
    if len(from_scratch) == len(jobs):
        return f"run it again from its beginning with: headgate resume {run.name} --from-scratch"
    return (
        f"go on with: headgate resume {run.name} --from-scratch, which runs "
        f"{', '.join(from_scratch)} from the beginning"
    )


def _can_go_on(run: Path, job: Job) -> bool:
    if job.resumes or saves(job.script):
        return True
    folders = lineage(run)
    if any(_script_saved(folder, job.name) for folder in folders):
        return True  # `headgate resume` asks if nothing tells how
    pattern = f"jobs/{job.name}/checkpoints/step-*"
    saved = any(next(folder.glob(pattern), None) is not None for folder in folders)
    # a job that never started has nothing to lose
    return saved or not any(_began(folder, job.name) for folder in folders)


def _script_saved(run: Path, job: str) -> bool:
    with contextlib.suppress(HeadgateError), RunReader(run / STORE) as reader:
        rows = reader.rows("checkpoints", "task GLOB ?", [f"{job}/*"])
        return any(row.get("own") for row in rows)
    return False


def _began(run: Path, job: str) -> bool:
    with contextlib.suppress(HeadgateError), RunReader(run / STORE) as reader:
        return any(row.started is not None for row in reader.records(JobRow, "name = ?", [job]))
    return True  # unknown


def saves(script: str | None) -> bool:
    """Whether a script saves checkpoints through a library of Headgate's, judging by its
    imports.
    """
    from headgate.scripts.facts import source_facts  # imported late: few commands need it

    return script is not None and bool(source_facts(Path(script)).libraries)
