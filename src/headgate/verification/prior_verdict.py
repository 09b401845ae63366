"""The verdict on a job under a plan before a trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headgate.isolation import DEFAULT
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.scripts.facts import ScriptFacts
from headgate.task import fence
from headgate.verification import store
from headgate.verification.verdict import Sameness, Verification, Why

VARIABLE = "HEADGATE_VERIFY"
"""The variable in the submitter's environment with the default for jobs that say `auto`."""
_OF_PYTORCH = ("torchrun", "deepspeed")
"""Contracts of scripts whose optimizers show their steps."""


def is_off(spec: Job, environment: Mapping[str, str]) -> bool:
    """Whether a job is not to be verified, by its own setting or by the submitter's environment."""
    return spec.verify == "off" or (spec.verify == "auto" and environment.get(VARIABLE) == "off")


def standing(
    home: Path, spec: Job, facts: ScriptFacts, profile_key: str, plan: Plan, path: str | None
) -> Verification:
    """The verdict on a job under a plan: why nothing can be said, what was found before, or that it
    is to be tried.

    Args:
        home: Headgate's folder.
        spec: The job, with absolute paths.
        facts: Of its script.
        profile_key: That of its profile.
        plan: The plan.
        path: The PATH that its interpreter is found on.
    """
    if (why := left_out(spec, facts, plan)) is not None:
        return unknown(plan, why)
    known = store.load(home / store.FOLDER, store.key(spec, profile_key, plan, path), spec)
    return known or unknown(plan, Why.NOT_YET)


def bars(verdict: Verification) -> bool:
    """Whether a verdict keeps Headgate from choosing several workers: they differ, fail, or are to
    be tried.

    A difference due to batch normalisation does not, because it occurs under every launcher.
    """
    differs = verdict.answer is Sameness.DIFFERS and verdict.cause is not Why.NORMALISATION
    return differs or verdict.cause in (Why.NOT_YET, Why.WORKERS_FAILED)


def unknown(plan: Plan, why: Why) -> Verification:
    """The verdict that a job is not verified under a plan, with the reason."""
    return Verification(
        Sameness.UNKNOWN, plan.workers, cause=why, strategy=plan.strategy, servers=plan.servers
    )


def left_out(spec: Job, facts: ScriptFacts, plan: Plan) -> Why | None:
    """Why a job cannot be verified, whatever it trains; None: it can be tried."""
    if spec.roles:
        return Why.ROLES
    if spec.isolation not in (None, DEFAULT):
        return Why.ELSEWHERE
    if facts.file is None:
        return Why.UNSEEN
    if not plan.synchronous or plan.backup_workers or "weak" in spec.allow:
        return Why.ASYNCHRONOUS
    if hides_steps(spec, facts):
        return Why.UNSEEN
    if not fence.is_there():
        return Why.UNFENCED
    return None


def hides_steps(spec: Job, facts: ScriptFacts) -> bool:
    """Whether a script is for a launcher of another framework than PyTorch. Only PyTorch's
    optimizers show their steps.
    """
    if spec.contract in (None, *_OF_PYTORCH):
        return False
    names = facts.all_packages
    return names is not None and "torch" not in names
