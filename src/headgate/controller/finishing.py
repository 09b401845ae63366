"""What is said of the end of a job: whether it answered, what is saved of it, and what casts a
doubt on it.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.controller.records import JobRecord
from headgate.model.endings import Doubt, Ending, StopAnswer
from headgate.model.events import NEXT, Action, JobState, MarkJob, Warn


def as_asked(job: JobRecord, state: JobState, reason: str, code: int) -> MarkJob:
    """The end of a job that was asked to end as `state`."""
    killed, given = state == "killed", job.overdue_seconds
    ending = Ending.asked(
        given, job.resume, killed=killed, saved_then=job.saved_then, resumes=job.spec.resumes
    )
    said = [reason] if job.lost else [reason, ending.in_words()]
    if state == "stopped" and ending.answer is StopAnswer.NONE:
        state, said = "killed", [f"killed: {ending.in_words()}"]
    elif state == "done" and ending.answer is StopAnswer.NONE:
        ending = replace(ending, doubt=Doubt.NO_ANSWER)
    job.ending = ending
    return job.mark(state, "; ".join(said), code)


def doubts(job: JobRecord) -> list[Action]:
    """A warning of a job that is done and may not have done what it was to do."""
    ending = job.ending
    if ending is None or ending.doubt is None:
        return []
    return [
        Warn(
            f"its end is in doubt: {ending.in_words()}"
            + (f"{NEXT}{ending.cure}" if ending.cure else ""),
            job.id,
        )
    ]


def how_finished(job: JobRecord) -> str:
    """Why a job is done that ended by itself."""
    workers = job.planned().workers
    text = "finished"
    if job.planned().trains_together and workers > 1 and not job.met and job.spec.contract is None:
        text += (
            f", {workers} times over: its workers shared nothing, because none uses "
            "headgate.torch, .keras or .jax"
        )
    if job.kills:
        text += (
            f", but {job.kills} of its processes {'were' if job.kills > 1 else 'was'} "
            "killed for want of memory"
        )
    if job.ending is not None:
        text += f", but {job.ending.in_words()}"
    return text
