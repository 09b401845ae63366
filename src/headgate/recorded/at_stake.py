"""What a stop now would lose of a job whose script saves its checkpoints by itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headgate.recorded import runs, script_checkpoints
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow
from headgate.scripts import resume_arguments
from headgate.scripts.facts import facts_of

_LEAST_SECONDS = 300.0
"""Shortest time between checkpoints that is advised."""
_MOST_COST = 0.01
"""Part of the time that checkpoints may cost."""
_FAR = 3.0
"""How many times that a script's own time between checkpoints has to be for advice."""


@dataclass(frozen=True, slots=True)
class AtStake:
    """The newest whole checkpoint of a script's own, and what came after it.

    Args:
        job: The job.
        seconds: Time since it was saved, up to now or to the job's end.
        path: Its file or folder.
        step: The step in which it was saved; None: unknown.
        saved: When it was saved, in seconds of the run.
        arguments: What the script is started again with; empty: it finds it by itself. None:
            nothing tells.
        known: How that is known, a value of `resume_arguments.ResumeSource`; None: it is not.
        every: Median seconds from one checkpoint to the next; None: it has saved fewer than two.
        takes: Median seconds that one takes to save; None: unknown.
        advised: Seconds between checkpoints that would lose far less and cost at most a hundredth
            of the time; None: its own are often enough, or their cost is unknown.
    """

    job: str
    seconds: float
    path: str
    step: int | None
    saved: float
    arguments: tuple[str, ...] | None
    known: str | None
    every: float | None = None
    takes: float | None = None
    advised: float | None = None


def of_run(folder: Path) -> dict[str, AtStake]:
    """What is at stake in a run, by job. Jobs whose script has saved none are left out.

    Raises:
        NotFoundError, StorageError: The store does not exist, or cannot be read.
    """
    with RunReader(folder / runs.STORE) as reader:
        if not any(row.get("own") for row in reader.rows("checkpoints")):
            return {}
        description, rows = RunDescription.read(reader), list(reader.records(JobRow))
        now = description.ended
        if now is None and runs.alive(folder):
            now = runs.elapsed(description)
        if now is None:  # its hub died
            now = reader.tuples("SELECT max(t) FROM progress")[0][0] or 0.0
        stakes = (_of_job(reader, row, now) for row in rows)
        return {stake.job: stake for stake in stakes if stake is not None}


def _of_job(reader: RunReader, row: JobRow, now: float) -> AtStake | None:
    newest = script_checkpoints.newest_whole(reader, row.name)
    if newest is None or row.state == "done":
        return None
    job = row.job()
    resumes_by = resume_arguments.way(job, facts_of(job))
    end = row.ended if row.ended is not None else now
    rhythm = script_checkpoints.rhythm(reader, row.name)
    return AtStake(
        job=row.name,
        seconds=max(end - newest.t, 0.0),
        path=newest.checkpoint.path,
        step=newest.checkpoint.step or None,
        saved=newest.t,
        arguments=resumes_by.arguments(newest.checkpoint.path) if resumes_by is not None else None,
        known=resumes_by.known if resumes_by is not None else None,
        every=rhythm.every,
        takes=rhythm.seconds,
        advised=advised(rhythm),
    )


def advised(rhythm: script_checkpoints.Rhythm) -> float | None:
    """Seconds between checkpoints to advise; None: none, see `AtStake.advised`."""
    if rhythm.every is None or rhythm.seconds is None:
        return None
    shorter = max(_LEAST_SECONDS, rhythm.seconds / _MOST_COST)
    return shorter if rhythm.every >= _FAR * shorter else None
