"""`headgate verify`: runs a script for a few steps, alone and under a plan, and compares the
training.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from headgate.client import submitting
from headgate.client.verification_trial import SINGLE, STEPS, Asked, VerificationTrial
from headgate.machine import gpu_visibility
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.records import parse, text_of
from headgate.profiling import store as profiles
from headgate.recorded import runs
from headgate.sampling import machine
from headgate.scripts import inspection
from headgate.scripts.facts import facts_of
from headgate.scripts.program import program
from headgate.verification import store
from headgate.verification.prior_verdict import hides_steps
from headgate.verification.verdict import Sameness, Verification, Why

RESUME_STEPS = 24
ASIDE_SECONDS = 180.0
"""Most seconds of each run beside other jobs, which leave it few resources."""


def verify(asked: Asked, watcher: Callable[[str], None] = lambda _: None) -> Verification:
    """Check whether a script trains the same under its job's plan, or after a resume.

    Args:
        asked: What to verify.
        watcher: Called with a line about each run that starts.

    Raises:
        UsageError: The job cannot be verified: it is no Python program, has a container or roles,
            or its library cannot run the plan.
        HubError: No hub runs.
    """
    _check(asked.job)
    begun = time.monotonic()
    job = _by_itself(asked.job)
    facts = facts_of(job)
    inspection.check(job, facts, {**os.environ, **job.env})
    plan = job.plan or SINGLE
    if not plan.synchronous and not asked.resume:
        verification = Verification(Sameness.UNKNOWN, plan.workers, cause=Why.ASYNCHRONOUS)
    elif hides_steps(job, facts):
        verification = Verification(Sameness.UNKNOWN, plan.workers, cause=Why.UNSEEN)
    else:
        with VerificationTrial(replace(asked, job=job), watcher) as trial:
            verification = trial.resume() if asked.resume else trial.plan()
    seconds = time.monotonic() - begun
    return replace(
        verification,
        strategy=plan.strategy,
        servers=plan.servers,
        workers=plan.workers,
        seconds=seconds,
    )


def keep(asked: Asked, verdict: Verification) -> None:
    """Store a verdict on a plan for later runs of the job. Skipped if the verdict is inconclusive
    or compares too few steps.

    Raises:
        OSError: The file cannot be written.
    """
    if asked.resume or asked.steps < STEPS or verdict.answer is Sameness.UNKNOWN:
        return
    job = _by_itself(asked.job)
    node = gpu_visibility.within(machine.detect(runs.home() / "node.json"), os.environ)
    key = store.key(
        job, profiles.key(job, node), job.plan or SINGLE, {**os.environ, **job.env}.get("PATH")
    )
    store.save(runs.home() / store.FOLDER, key, verdict)


def _by_itself(job: Job) -> Job:
    """A copy of a job, with the hub's defaults, that waits for no other job and shares no GPU."""
    [settled] = submitting.submission([replace(job, after=None, share=None)]).jobs
    return settled


def _check(job: Job) -> None:
    if job.roles:
        raise UsageError(
            f"job {job.name!r} is made of roles, whose steps Headgate does not compare"
        )
    if job.isolation not in (None, "process"):
        raise UsageError(
            f"job {job.name!r} runs in isolation {job.isolation}; expected process, to be verified"
        )
    if program(job) is None:
        raise UsageError(
            f"job {job.name!r} runs no Python script, or a shell's line; expected a "
            "script to verify"
        )


def main() -> None:
    """Verify the job given on standard input and print the answer as JSON. A hub starts this beside
    its jobs.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the runs that it has started
    request = json.loads(sys.stdin.read())
    own_variables = {
        name: os.environ[name] for name in ("HEADGATE_HOME", runs.HUB) if name in os.environ
    }
    os.environ.clear()
    os.environ.update({**request["environment"], **own_variables})
    os.chdir(request["cwd"])
    job = parse(Job, request["job"])
    print(
        text_of(
            verify(
                Asked(job, seconds=ASIDE_SECONDS, aside=True, without_gpus=request["without_gpus"])
            )
        )
    )


if __name__ == "__main__":
    main()
