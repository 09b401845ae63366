"""What a run is warned of as it is handed in."""

from __future__ import annotations

from collections.abc import Sequence

from headgate import isolation
from headgate.engines.base import LOCAL
from headgate.hub.submission import Submission
from headgate.isolation.spawning import OWN
from headgate.machine import gpu_visibility
from headgate.model.cluster import Gpu
from headgate.sampling.gpu_holders import missing_nvml


def of(submission: Submission, gpus: Sequence[Gpu]) -> list[str]:
    """What may go otherwise than its user thinks, each once.

    Args:
        gpus: Those of this machine.
    """
    nvml = _missing_nvml(submission, gpus)
    all_doubts = (
        nvml,
        *_missing_gpus(submission, gpus),
        _out_of_reach(submission),
        _emulated_guests(submission),
    )
    return list(dict.fromkeys(filter(None, all_doubts)))


def _missing_nvml(submission: Submission, gpus: Sequence[Gpu]) -> str:
    """Why no GPU of this machine is found, where a job may use one."""
    asked = any(job.limits.gpus != 0 for job in submission.jobs)
    if submission.engine != LOCAL or gpus or not asked or (missing := missing_nvml()) is None:
        return ""
    return missing.in_words()


def _missing_gpus(submission: Submission, gpus: Sequence[Gpu]) -> list[str]:
    """What the user's environment, or a job's own, names that is no GPU here."""
    if submission.engine != LOCAL or submission.nodes:
        return []
    return [
        gpu_visibility.missing({**submission.environment, **job.env}, gpus)
        for job in submission.jobs
    ]


def _out_of_reach(submission: Submission) -> str:
    """What tasks on this machine cannot have of the terminal that submitted them, since this hub
    may not give it.
    """
    if submission.attributes is None or submission.engine != LOCAL:
        return ""
    missed = ", ".join(submission.attributes.out_of_reach(OWN))
    cure = "end that hub first, or set HEADGATE_HOME to another folder, which has a hub of its own"
    return (
        f"the hub was started elsewhere and may not give its tasks {missed}; {cure}"
        if missed
        else ""
    )


def _emulated_guests(submission: Submission) -> str:
    """Which jobs run in guests that are emulated; empty where none does."""
    from headgate.isolation.vm import probe

    named = [
        job.name
        for job in submission.jobs
        if job.isolation in isolation.IN_GUESTS and submission.engine == LOCAL
    ]
    return f"{', '.join(named)}: {emulation}" if named and (emulation := probe.emulation()) else ""
