"""Whether several workers, or parameter servers, may share a job."""

from __future__ import annotations

from headgate.model.jobs import Job
from headgate.model.profiles import Profile

_SERVES = frozenset({"torch"})
_JOINS = frozenset({"torch", "keras", "jax"})


def serves(job: Job, profile: Profile) -> bool:
    """Whether a job can train with parameter servers, also synchronously."""
    return not alone(job, profile) and not profile.observed and profile.framework in _SERVES


def alone(job: Job, profile: Profile) -> str:
    """Why a job can train in one task only; empty: several may share the work.

    A script seen only from outside (`Profile.observed`) needs another launcher's contract for its
    workers to find each other. The user also has to say how the script splits its batch.
    """
    if not profile.observed:
        known = profile.framework in _JOINS
        named = profile.framework or "an unknown framework"
        return profile.alone or ("" if known else f"Headgate joins no workers of {named}")
    if job.contract is None:
        return (
            "nothing says how workers of its script would meet: --launch, with --batch, for "
            "one of another launcher"
        )
    if job.batch is None:
        return (
            "nobody said what its script does with its batch in several workers: --batch "
            "per-worker, or --batch global"
        )
    if job.batch == "global" and profile.batch is None:
        return "its profile does not tell the batch that workers would divide"
    return ""
