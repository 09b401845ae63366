"""Check whether several workers train the same as one, from stored verdicts or by trials; see
docs/verify.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from headgate.hub.parts import Component
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import Action
from headgate.model.events import Event, StopRequested, TaskStarted
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import plain, read, text_of
from headgate.recorded import runs
from headgate.verification import store
from headgate.verification.prior_verdict import bars, is_off, standing, unknown
from headgate.verification.verdict import Sameness, Verification, Why
from headgate.verification.wording import sentence

LATER_SECONDS = 20.0
"""How long a job runs before a trial beside it; for shorter jobs a trial is not worth it."""
_MEMORY_TIMES, _MEMORY_BYTES = 3.0, 2 << 30
"""Free memory for a trial: this many times what the job holds, plus this many bytes."""
_PASSING = (Why.SLOW, Why.ROOM, Why.FAILED, Why.WORKERS_FAILED)
"""Causes that may come from a busy machine; such verdicts are not stored."""
_AT_MOST_SECONDS = 600.0


class Verifying(Component):
    """Verifies jobs of several workers, one at a time, each in its own process.

    Args:
        home: Headgate's folder.
        live_runs: The runs.
        step: Sends an event to the controller.
    """

    def __init__(self, home: Path, live_runs: LiveRuns, step: Callable[[Event], None]) -> None:
        self._home = home
        self._live_runs = live_runs
        self._step = step
        self._seen: dict[JobId, int] = {}
        # by key: jobs that wait for a trial
        self._waiting: dict[str, list[tuple[LiveRun, LiveJob]]] = {}
        # by run: inconclusive verdicts, which are not stored
        self._unknown: dict[tuple[str, str], Verification] = {}
        self._turn = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TaskStarted):
            self._begins(event.task.job)

    def barred(self, job: JobId, plan: Plan) -> Verification | None:
        """The verdict that keeps a job from a plan of Headgate's choice: its workers differ, or
        verification is pending and starts now. None: the plan is allowed.
        """
        run, live = self._live_runs.find(job)
        if plan.workers < 2 or not self._may(run, live):
            return None
        verdict = self._standing(run, live, plan)
        self._tell(run, live, verdict)
        if verdict.cause is Why.NOT_YET:
            self._begin(run, live, plan, self._key(run, live, plan), 0.0)
        return verdict if bars(verdict) else None

    def forget(self, run: str) -> None:
        self._unknown = {key: verdict for key, verdict in self._unknown.items() if key[0] != run}
        self._seen = {job: attempt for job, attempt in self._seen.items() if job.run != run}

    def close(self) -> None:
        for task in self._work:
            task.cancel()

    # --- verdicts
    # ------------------------------------------------------------------------------------

    def _begins(self, job: JobId) -> None:
        """A task starts: for an attempt with several workers, look up the verdict or schedule a
        trial.
        """
        run, live = self._live_runs.find(job)
        if live.current is None or self._seen.get(job) == live.attempt:
            return
        self._seen[job] = live.attempt
        plan = live.current.plan
        # this is reported
        shares_nothing = live.spec.contract is None and live.facts.shares_nothing
        if plan.workers < 2 or shares_nothing or not self._may(run, live):
            return
        verdict = self._standing(run, live, plan)
        self._tell(run, live, verdict)
        if verdict.cause is Why.NOT_YET:
            self._begin(run, live, plan, self._key(run, live, plan), LATER_SECONDS)

    def _may(self, run: LiveRun, live: LiveJob) -> bool:
        """Whether the job is to be verified at all."""
        return run.submission.mode == "run" and not is_off(live.spec, run.submission.environment)

    def _standing(self, run: LiveRun, live: LiveJob, plan: Plan) -> Verification:
        """The present verdict on a job under a plan."""
        verdict = standing(
            self._home, live.spec, live.facts, live.profile_key, plan, _path(run, live)
        )
        if verdict.cause is not Why.NOT_YET:
            return verdict
        return self._unknown.get((run.id, self._key(run, live, plan)), verdict)

    def _key(self, run: LiveRun, live: LiveJob, plan: Plan) -> str:
        return store.key(live.spec, live.profile_key, plan, _path(run, live))

    # --- trials ----------------------------------------------------------------------------------

    def _begin(self, run: LiveRun, live: LiveJob, plan: Plan, key: str, after: float) -> None:
        jobs = self._waiting.setdefault(key, [])
        jobs.append((run, live))
        if jobs[1:]:
            return
        task = asyncio.get_running_loop().create_task(self._try(plan, key, after))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _try(self, plan: Plan, key: str, after: float) -> None:
        jobs = self._waiting[key]
        try:
            await asyncio.sleep(after)
            async with self._turn:
                if not (left := self._left(jobs)):
                    return
                run, live = left[0]
                verification = unknown(plan, Why.ROOM)
                if _has_room(live):
                    verification = await asyncio.wait_for(
                        self._found(run, live, plan), _AT_MOST_SECONDS
                    )
            passing = verification.answer is Sameness.UNKNOWN and verification.cause in _PASSING
            if not passing:
                store.save(self._home / store.FOLDER, key, verification)
            for run, live in self._left(jobs):
                if passing:
                    self._unknown[run.id, key] = verification
                self._tell(run, live, verification, tried=True)
        except (OSError, ValueError, TimeoutError) as error:
            for run, _ in self._left(jobs):
                self._live_runs.failed(
                    "what its workers train could not be verified", error, run.id
                )
        finally:
            del self._waiting[key]

    def _left(self, jobs: Sequence[tuple[LiveRun, LiveJob]]) -> list[tuple[LiveRun, LiveJob]]:
        """Jobs that have not ended."""
        return [
            (run, live)
            for run, live in jobs
            if live.state not in ENDED and run.id in self._live_runs.runs
        ]

    async def _found(self, run: LiveRun, live: LiveJob, plan: Plan) -> Verification:
        """The verdict of a trial in a process of its own."""
        few = replace(plan, workers=2, servers=min(plan.servers, 1), batch_per_worker=None)
        few = replace(
            few, worker_nodes=(), server_nodes=(), cores_per_worker=None, cores_per_server=None
        )
        job = replace(live.spec, plan=few)
        asked = {
            "job": plain(job),
            "environment": dict(run.submission.environment),
            "cwd": run.submission.cwd,
            "without_gpus": any(task.gpus for task in live.current.tasks.values())
            if live.current
            else False,
        }
        process = await asyncio.create_subprocess_exec(
            *("nice", "-n", "10", sys.executable, "-m", "headgate.client.verifying"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HEADGATE_HOME": str(self._home), runs.HUB: str(runs.hub())},
        )
        try:
            answer, _ = await process.communicate(json.dumps(asked).encode())
        finally:
            if process.returncode is None:  # it stops the runs that it started
                process.terminate()
        return read(Verification, answer)

    def _tell(
        self, run: LiveRun, live: LiveJob, verification: Verification, tried: bool = False
    ) -> None:
        """Attach a verdict to the job. A difference causes one warning, or ends the job.

        Args:
            tried: Whether a trial gave it. If not, an unknown result is only attached.
        """
        text, differs = text_of(verification), verification.answer is Sameness.DIFFERS
        if live.verified != text:
            live.verified = text
            run.record_job(live.spec.name)
            if tried or verification.answer is not Sameness.UNKNOWN:
                facts = {"answer": str(verification.answer), "text": sentence(verification)}
                verdict = Reason(ReasonKind.VERIFIED, facts)
                kind = "warning" if differs else "note"
                self._live_runs.event(run, kind, verdict, live.spec.name)
        running = live.current is not None and live.current.plan.workers > 1
        if differs and live.spec.verify == "strict" and running and live.state not in ENDED:
            reason = Reason(ReasonKind.STOPPED_DIFFERS)
            self._step(StopRequested(JobId.of(run.id, live.spec.name), reason=reason))


def _path(run: LiveRun, live: LiveJob) -> str | None:
    """The PATH on which a job's interpreter is found."""
    return {**run.submission.environment, **live.spec.env}.get("PATH")


def _has_room(live: LiveJob) -> bool:
    """Whether this machine has the memory for a trial beside the job."""
    tasks = live.current.tasks.values() if live.current is not None else ()
    held = sum((task.usage or {}).get("memory_bytes", 0.0) for task in tasks)
    return bool(psutil.virtual_memory().available > _MEMORY_TIMES * held + _MEMORY_BYTES)
