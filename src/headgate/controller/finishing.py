"""The report of a job's end: its answer to a stop request, what is saved, and doubts about its
success.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from headgate.controller.records import JobRecord
from headgate.model.actions import Action, MarkJob, Warn
from headgate.model.endings import Doubt, Ending, StopAnswer
from headgate.model.job_states import JobState
from headgate.model.reasons import Reason, ReasonKind


def as_asked(job: JobRecord, state: JobState, reason: Reason, code: int) -> MarkJob:
    """The end of a job that was asked to end as `state`."""
    killed, given = state == "killed", job.overdue_seconds
    ending = Ending.asked(
        given, job.resume, killed=killed, saved_then=job.saved_then, resumes=job.spec.resumes
    )
    if state == "stopped" and ending.answer is StopAnswer.NONE:
        state, reason = "killed", Reason.of(ReasonKind.NO_ANSWER, ending=asdict(ending))
    elif not job.lost:
        reason = Reason.of(ReasonKind.ENDED_AS_ASKED, after=reason, ending=asdict(ending))
    if state == "done" and ending.answer is StopAnswer.NONE:
        ending = replace(ending, doubt=Doubt.NO_ANSWER)
    job.ending = ending
    return job.mark(state, reason, code)


def doubts(job: JobRecord) -> list[Action]:
    """A warning if a finished job may have failed."""
    ending = job.ending
    if ending is None or ending.doubt is None:
        return []
    return [Warn(Reason.of(ReasonKind.IN_DOUBT, ending=asdict(ending)), job.id)]


def how_finished(job: JobRecord) -> Reason:
    """Why a job that ended by itself is done."""
    plan = job.planned()
    apart = plan.trains_together and plan.workers > 1 and not job.met and job.spec.contract is None
    return Reason.of(
        ReasonKind.FINISHED,
        copies=plan.workers if apart else None,
        kills=job.kills or None,
        ending=asdict(job.ending) if job.ending is not None else None,
    )
