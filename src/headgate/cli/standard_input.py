"""Gives a command's standard input to its only job, or refuses the command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import click

from headgate import isolation
from headgate.engines.base import LOCAL
from headgate.hub.standard_input import StandardInput
from headgate.hub.submission import Submission
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.recorded import runs
from headgate.scripts.facts import facts_of

_CURE = "add `< /dev/null` if no job is to read it"
_PINNED = (
    "it reads the command's standard input, so that it has one worker; `< /dev/null` "
    "leaves that to its plan"
)


@dataclass(slots=True)
class Handover:
    """A submission, and the use of standard input.

    Args:
        submission: The submission.
        given: The input that its only job reads; None: none.
        unread: An input that nobody reads, and that holds no data so far.
    """

    submission: Submission
    given: StandardInput | None = None
    unread: StandardInput | None = None

    @classmethod
    def of(cls, submission: Submission, detach: bool) -> Self:
        """Decide from this process's standard input and the jobs.

        Raises:
            UsageError: As `settled`.
        """
        return cls.settled(submission, detach, StandardInput.of_this_process())

    @classmethod
    def settled(
        cls, submission: Submission, detach: bool, handed_over: StandardInput | None
    ) -> Self:
        """Decide from an input (None: there is none) and the jobs.

        Raises:
            UsageError: It holds data, and no job can read it.
        """
        if handed_over is None:
            return cls(_as_before(submission))
        holds_data = handed_over.holds_data()
        reasons = list(_reasons(submission, detach, handed_over))
        if reasons and holds_data:
            raise UsageError(f"standard input holds data, but {reasons[0]}; {_CURE}")
        [job, *_] = submission.jobs
        may_have_several = job.plan is None and _may_be_planned(job)
        if reasons or (may_have_several and not holds_data):
            return cls(submission, unread=handed_over)
        if may_have_several:
            pinned = replace(job, limits=replace(job.limits, workers=(1, 1)))
            notes = {
                **submission.notes,
                job.name: "; ".join(filter(None, (submission.notes.get(job.name), _PINNED))),
            }
            submission = replace(submission, jobs=(pinned,), notes=notes)
        return cls(submission, given=handed_over)

    def watch(self) -> None:
        """Print once that there are data which nobody reads."""
        if self.unread is not None and self.unread.holds_data():
            self.unread = None
            click.echo(
                f"warning: data came in on standard input, and no job reads them; {_CURE}", err=True
            )


def refuse(what: str) -> None:
    """Refuse standard input, for a verb whose jobs have none.

    Raises:
        UsageError: There is an input that holds data.
    """
    handed_over = StandardInput.of_this_process()
    if handed_over is not None and handed_over.holds_data():
        raise UsageError(f"standard input holds data, but {what} gives them to no script; {_CURE}")


def _reasons(submission: Submission, detach: bool, handed_over: StandardInput) -> Iterator[str]:
    """Why no job can read it, as parts of a sentence."""
    [job, *others] = submission.jobs
    if others:
        yield (
            f"{len(submission.jobs)} jobs cannot all read it; run one job, or give each a "
            "file by its arguments"
        )
    if submission.engine != LOCAL:
        yield (
            f"engine {submission.engine.name} starts jobs on other machines; give the job a "
            "file by its arguments"
        )
    if job.roles or job.evaluator or job.contract == "mpi":
        yield "a job of several processes cannot read it; give it a file by its arguments"
    workers = job.plan.tasks if job.plan is not None else job.limits.workers[0]
    if workers > 1:
        yield f"{workers} workers cannot all read it; give the job a file by its arguments"
    if job.isolation not in (None, isolation.DEFAULT):
        yield f"isolation {job.isolation} does not hand it on; give the job a file by its arguments"
    if detach and not handed_over.is_whole():
        yield (
            "it is written while the job runs, and may end with this terminal; leave out "
            "--detach, or give it a file"
        )
    if job.retries and not handed_over.is_file:
        yield (
            "a retry would need it again, and a pipe can be read once; give it a file with `< FILE`"
        )


def _may_be_planned(job: Job) -> bool:
    """Whether Headgate may give a job several workers unasked."""
    if job.limits.workers == (1, 1):
        return False
    return job.contract is not None or bool(facts_of(job).source.libraries)


def _as_before(submission: Submission) -> Submission:
    """A submission without standard input.

    Raises:
        UsageError: It resumes a run that had some.
    """
    former = submission.resumed_from
    if former is not None and runs.describe(runs.find(former)).has_input:
        again = shlex.join(["headgate", "resume", former])
        raise UsageError(
            f"the job of run {former} read the standard input of the command; give it again: "
            f"{again} < FILE"
        )
    return submission
