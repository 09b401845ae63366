"""Find the checkpoints from which a run's jobs can resume: the newest undamaged one in its
lineage.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from headgate.model.endings import Checkpoint
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.recorded import runs, script_checkpoints
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import CheckpointRow, JobRow
from headgate.scripts import resume_arguments
from headgate.scripts.facts import facts_of
from headgate.task import saving, script_saves

_STEP = re.compile(r"step-(\d+)")


@dataclass(slots=True)
class Origin:
    """The progress of a job, and the checkpoint that it can resume from.

    Args:
        job: The job.
        checkpoint: The newest undamaged one; None: there is none.
        run: Id of the run that saved it.
        passed_over: Newer ones, and why each was rejected.
        began: Whether it ever started.
        reached: How far it came, in words; empty: unknown.
        uses_headgate: Whether its script saves checkpoints through a library of Headgate's.
        by_itself: Whether its script resumes from its own checkpoints.
        unasked: The newest one that its script saved by itself, if nothing tells how the script
            resumes from it.
        arguments: The arguments with which its script resumes from `checkpoint`; none: it is told
            in another way, or finds it.
    """

    job: str
    checkpoint: Checkpoint | None = None
    run: str = ""
    passed_over: list[str] = field(default_factory=list)
    began: bool = False
    reached: str = ""
    uses_headgate: bool = False
    by_itself: bool = False
    unasked: Checkpoint | None = None
    arguments: tuple[str, ...] = ()

    @property
    def lacks(self) -> str:
        """Why it would lose its progress, as a sentence; empty: it can resume, or has made none."""
        if self.checkpoint is not None or not self.began or self.by_itself:
            return ""
        if self.passed_over:
            left = "; ".join(self.passed_over)
            return (
                f"job {self.job} {self.came}, and none of its checkpoints is whole ({left}; "
                "--checkpoint names one)"
            )
        if self.unasked is not None:
            return (
                f"job {self.job} {self.came}; its script saved {self.unasked.path} by itself, and "
                "nothing tells how it resumes from that. Say so: --resume-with '--resume "
                "{checkpoint}', or `resumes: true` in its job file if it looks for it by itself"
            )
        if not self.uses_headgate:
            return (
                f"job {self.job} can only be run again from its beginning, because it has saved "
                "nothing through headgate.torch, headgate.keras or headgate.jax"
            )
        return (
            f"job {self.job} {self.came}, and had saved no checkpoint yet" if self.reached else ""
        )

    @property
    def warning(self) -> str:
        """A warning to the user who resumes it; empty: none."""
        if self.checkpoint is None or not self.passed_over:
            return ""
        where = f"{Path(self.checkpoint.path).name} of run {self.run}"
        return (
            f"goes on from {where}, an earlier checkpoint than its last, because "
            f"{'; '.join(self.passed_over)}"
        )

    @property
    def goes_on(self) -> str:
        """How its script resumes from its own checkpoint; empty: it does not."""
        if self.checkpoint is None or not self.checkpoint.own:
            return ""
        if self.by_itself:
            path = self.checkpoint.path
            return f"looks for its checkpoint by itself, whose newest whole one is {path}"
        return f"is started with {shlex.join(self.arguments)}"

    @property
    def begins_anew(self) -> str:
        """A warning to the user who starts it from the beginning."""
        if self.by_itself and self.checkpoint is not None:
            return (
                f"is started as at first, as was asked for; it {self.came}, and may find "
                f"{self.checkpoint.path} by itself: move that away first to begin anew"
            )
        return f"starts from the beginning, as was asked for; it {self.came}"

    @property
    def came(self) -> str:
        """How far it came, as the rest of a sentence."""
        return f"had come to {self.reached}" if self.reached else "had begun"


def check_ended(run: Path) -> None:
    """Check that no live run trains this run, a resume of it, or a resume of its lineage.

    Raises:
        UsageError: A live run does, or the run is gone.
    """
    if not (run / runs.STORE).exists():
        raise UsageError(f"run {run.name} is gone; `headgate ps` lists the runs there are")
    if runs.alive(run):
        raise UsageError(f"run {run.name} is running; watch it with: headgate attach {run.name}")
    [*_, first] = runs.lineage(run)
    living = [kin for kin in runs.heirs(first) if runs.alive(kin)]
    heirs = runs.heirs(run)
    for kin in sorted(living, key=lambda kin: kin not in heirs):
        of = f"run {run.name}"
        if kin not in heirs:
            of = f"run {first.name}, which {of} went on from,"
        raise UsageError(
            f"{of} goes on already, as run {kin.name}; watch it with: headgate attach {kin.name}"
        )


def check_left(run: Path, jobs: Collection[str], again: Collection[str]) -> None:
    """Check that jobs of a run are left to do.

    Args:
        run: The run to resume.
        jobs: Names of the jobs to resume.
        again: Names of jobs that its user wants to run again, done or not.

    Raises:
        UsageError: A resume of the run has already done some of them.
    """
    for heir in reversed(runs.heirs(run)):
        ended = [
            job for job in runs.summary(heir).jobs if job.name in jobs and job.name not in again
        ]
        done = [job.name for job in ended if job.state == "done"]
        if done:
            left = (
                f"go on with the others: headgate resume {heir.name}"
                if len(done) < len(ended)
                else ""
            )
            from_scratch = (
                f"run it again from its beginning: headgate resume {run.name} --from-scratch"
            )
            done_jobs = (
                f"job {done[0]} of run {run.name} is"
                if len(done) == 1
                else f"jobs {', '.join(done)} are"
            )
            raise UsageError(
                f"{done_jobs} done already, in run {heir.name}, which went on from it; "
                f"{left or from_scratch}"
            )


def lost_by(run: Path, jobs: Collection[str]) -> dict[str, str]:
    """Warnings about earlier unfinished resumes of these jobs, by job."""
    names: dict[str, str] = {}
    for heir in runs.heirs(run):
        for job in runs.summary(heir).jobs:
            if job.name in jobs and job.started is not None:
                names[job.name] = (
                    f"run {heir.name} went on with it before and ended as {job.state}; what it did "
                    f"there is left out. To go on from there: headgate resume {heir.name}"
                )
    return names


def lacking(origins: Iterable[Origin]) -> str:
    """Why these jobs would lose their progress, in one sentence; empty: all can resume."""
    origins_lacking = [origin for origin in origins if origin.lacks]
    plain = [
        origin.job
        for origin in origins_lacking
        if not origin.uses_headgate and not origin.passed_over and origin.unasked is None
    ]
    if len(plain) < 2:
        return "; ".join(origin.lacks for origin in origins_lacking)
    several = (
        f"jobs {', '.join(plain)} can only be run again from their beginning, because they have "
        "saved nothing through headgate.torch, headgate.keras or headgate.jax"
    )
    return "; ".join(
        [several, *(origin.lacks for origin in origins_lacking if origin.job not in plain)]
    )


def origin(run: Path, job: Job) -> Origin:
    """What a job of a run can resume from. Its checkpoints are read, newest first, until one is
    undamaged.
    """
    resumes_by = resume_arguments.way(job, facts_of(job))
    origin_found = Origin(job.name)
    origin_found.by_itself = job.resumes and not job.resume_with
    origin_found.uses_headgate = runs.saves(job.script)
    seen: set[str] = set()
    for folder in runs.lineage(run):
        with RunReader(folder / runs.STORE) as reader:
            rows = list(reader.records(JobRow, "name = ?", [job.name]))
            origin_found.began = origin_found.began or any(row.started is not None for row in rows)
            origin_found.reached = origin_found.reached or _reached(reader, job.name)
            for own in script_checkpoints.saved(reader, job.name):
                if own.checkpoint.path in seen:
                    continue
                seen.add(own.checkpoint.path)
                if (damage := own.damage()) is not None:
                    passed = f"{own.checkpoint.path} of run {folder.name} {damage}"
                    origin_found.passed_over.append(passed)
                elif resumes_by is None:
                    origin_found.unasked, origin_found.passed_over = own.checkpoint, []
                    return origin_found
                else:
                    origin_found.by_itself = not resumes_by.words
                    origin_found.checkpoint, origin_found.run = own.checkpoint, folder.name
                    origin_found.arguments = resumes_by.arguments(own.checkpoint.path)
                    return origin_found
            for checkpoint in _candidates(folder, reader, job.name):
                if checkpoint.path in seen:
                    continue
                seen.add(checkpoint.path)
                origin_found.uses_headgate = True
                saved_by, damage = (
                    _saved_by(folder, checkpoint),
                    saving.damage(Path(checkpoint.path)),
                )
                if damage is None:
                    origin_found.checkpoint, origin_found.run = checkpoint, saved_by
                    return origin_found
                origin_found.passed_over.append(
                    f"{Path(checkpoint.path).name} of run {saved_by} {damage}"
                )
            if job.name in RunDescription.read(reader).from_scratch:
                break  # earlier ones were given up
    return origin_found


def named(run: Path, job: Job, file: str) -> Checkpoint:
    """A checkpoint that the user names.

    Raises:
        UsageError: It is damaged, or not a checkpoint.
    """
    remote = script_saves.is_remote(file)
    path = Path(file).absolute()
    resumes_by = resume_arguments.way(job, facts_of(job))
    if resumes_by is not None and resumes_by.names_checkpoint:
        own = replace(_unrecorded(path, 0), path=file if remote else str(path), own=True)
        if (damage := script_saves.damage(own.path)) is not None:
            raise UsageError(f"checkpoint {file} {damage}; name another one")
        return own
    if (damage := saving.damage(path)) is not None:
        raise UsageError(f"checkpoint {file} {damage}; name another one")
    for folder in runs.lineage(run):
        with RunReader(folder / runs.STORE) as reader:
            for checkpoint in _candidates(folder, reader, job.name):
                if Path(checkpoint.path) == path:
                    return checkpoint
    return _unrecorded(path, 0)


def _reached(reader: RunReader, job: str) -> str:
    """How far a job came in one run."""
    sql = "SELECT max(step) AS step, max(epoch) AS epoch FROM progress WHERE task GLOB ?"
    [last] = reader.query(sql, [f"{job}/*"])
    if last["step"]:
        return f"step {last['step']}"
    return f"epoch {last['epoch'] + 1}" if last["epoch"] is not None else ""


def _candidates(folder: Path, reader: RunReader, job: str) -> list[Checkpoint]:
    """The checkpoints of a job that a run has, or should have, newest first. Checkpoints saved
    after the hub died are in the job's folder without a record.
    """
    zero = RunDescription.read(reader).began or 0.0
    recorded: dict[str, tuple[float, Checkpoint]] = {}
    for row in reader.records(CheckpointRow, "task GLOB ?", [f"{job}/*"]):
        if row.own:
            continue
        path = _where(folder, job, row.path)
        recorded[path] = row.t, Checkpoint(path, row.step, row.epoch, row.position)
    newest = sorted(recorded.values(), key=lambda saved: saved[0])
    # older ones were removed when these were saved
    kept = {checkpoint.path for _, checkpoint in newest[-saving.KEPT :]}
    present = [(t, saved) for t, saved in newest if Path(saved.path).exists()]
    candidates = [(t, saved) for t, saved in newest if saved.path in kept or (t, saved) in present]
    if left := [path for path in _saved(folder, job) if str(path) not in recorded]:
        sql = "SELECT max(epoch) FROM progress WHERE task GLOB ?"
        epoch = reader.tuples(sql, [f"{job}/*"])[0][0] or 0
        # Sorted by file date relative to the last record: the clock may have been set since the run
        # began.
        if present:
            t, last = present[-1]
            zero = Path(last.path).stat().st_mtime - t
        candidates += [(path.stat().st_mtime - zero, _unrecorded(path, epoch)) for path in left]
    return [saved for _, saved in sorted(candidates, key=lambda saved: saved[0], reverse=True)]


def _where(folder: Path, job: str, recorded: str) -> str:
    """Path of a checkpoint, even if Headgate's folder was moved since it was recorded."""
    moved = folder / "jobs" / job / "checkpoints" / Path(recorded).name
    return str(moved) if moved.exists() and not Path(recorded).exists() else recorded


def _saved(folder: Path, job: str) -> Iterator[Path]:
    return (folder / "jobs" / job / "checkpoints").glob("step-*")


def _unrecorded(path: Path, epoch: int) -> Checkpoint:
    step = _STEP.search(path.name)
    return Checkpoint(str(path), int(step[1]) if step is not None else 0, epoch, None)


def _saved_by(folder: Path, checkpoint: Checkpoint) -> str:
    """Id of the run that saved a checkpoint; a resuming run records it too."""
    owner = Path(checkpoint.path).parents[3:4]
    return owner[0].name if owner and owner[0].parent == folder.parent else folder.name
