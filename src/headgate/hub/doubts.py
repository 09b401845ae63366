"""Warnings about a run at its submission."""

from __future__ import annotations

from collections.abc import Sequence

from headgate import isolation
from headgate.engines.base import LOCAL
from headgate.hub.submission import Submission
from headgate.isolation.spawning import OWN
from headgate.machine import gpu_visibility
from headgate.model.cluster import Gpu
from headgate.model.reasons import Reason, ReasonKind
from headgate.sampling.gpu_holders import missing_nvml


def of(submission: Submission, gpus: Sequence[Gpu]) -> list[Reason]:
    """What may not work as the user expects, each warning once.

    Args:
        gpus: GPUs of this machine.
    """
    nvml = _missing_nvml(submission, gpus)
    missing = dict.fromkeys(_missing_gpus(submission, gpus))
    all_doubts = (
        Reason.of(ReasonKind.GPUS_NOT_SEEN, text=nvml) if nvml else None,
        *(Reason.of(ReasonKind.GPU_MISSING, text=text) for text in missing if text),
        _out_of_reach(submission),
        _emulated_guests(submission),
    )
    return [doubt for doubt in all_doubts if doubt is not None]


def _missing_nvml(submission: Submission, gpus: Sequence[Gpu]) -> str:
    """Why no GPU of this machine is found although a job may use one."""
    asked = any(job.limits.gpus != 0 for job in submission.jobs)
    if submission.engine != LOCAL or gpus or not asked or (missing := missing_nvml()) is None:
        return ""
    return missing.in_words()


def _missing_gpus(submission: Submission, gpus: Sequence[Gpu]) -> list[str]:
    """GPUs named in the environment of the user or a job that do not exist here."""
    if submission.engine != LOCAL or submission.nodes:
        return []
    return [
        gpu_visibility.missing({**submission.environment, **job.env}, gpus)
        for job in submission.jobs
    ]


def _out_of_reach(submission: Submission) -> Reason | None:
    """Resources of the submitting terminal that this hub cannot give to tasks."""
    if submission.attributes is None or submission.engine != LOCAL:
        return None
    lacks = tuple(submission.attributes.out_of_reach(OWN))
    return Reason.of(ReasonKind.OUT_OF_REACH, lacks=lacks) if lacks else None


def _emulated_guests(submission: Submission) -> Reason | None:
    """Jobs that run in emulated guests; empty: none."""
    from headgate.isolation.vm import probe

    jobs = tuple(
        job.name
        for job in submission.jobs
        if job.isolation in isolation.IN_GUESTS and submission.engine == LOCAL
    )
    if not jobs or not (emulation := probe.emulation()):
        return None
    return Reason.of(ReasonKind.GUESTS_EMULATED, jobs=jobs, text=emulation)
