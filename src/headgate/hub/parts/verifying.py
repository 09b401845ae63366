"""Whether jobs of several workers train what one would: looked up, or tried beside them; see docs/verify.md."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from headgate import runs
from headgate.engines import scripts
from headgate.engines.program import program, source
from headgate.events import ENDED, Action, Event, Progress, StopRequested
from headgate.hub.parts import Component
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import JOB, LiveRun, LiveRuns
from headgate.identifiers import JobId
from headgate.isolation import DEFAULT
from headgate.jobs import Job
from headgate.plans import Plan
from headgate.task import fence
from headgate.verification import store
from headgate.verification.verdict import Sameness, Verification, Why
from headgate.verification.wording import sentence

VARIABLE = "HEADGATE_VERIFY"
"""In the environment of who submits a job: what holds where the job says `auto`."""
LATER_SECONDS = 20.0
"""How long a job runs before what it trains is verified beside it: one that is over by then is not worth it."""
_MEMORY_TIMES, _MEMORY_BYTES = 3.0, 2 << 30
"""Room that a trial needs: so many times what the job holds, and as much besides."""
_PASSING = (Why.SLOW, Why.ROOM, Why.FAILED, Why.WORKERS_FAILED)
"""Causes that may be of a busy machine: such an answer is not kept."""
_AT_MOST_SECONDS = 600.0


class Verifying(Component):
    """Verifies jobs of several workers, one at a time, each by a process of its own.

    Args:
        home: Headgate's folder.
        live_runs: Where the runs are.
        step: Tells the controller.
    """

    def __init__(self, home: Path, live_runs: LiveRuns, step: Callable[[Event], None]) -> None:
        self._home = home
        self._live_runs = live_runs
        self._step = step
        self._seen: dict[JobId, int] = {}
        self._asked: set[str] = set()
        self._unknown: dict[str, Verification] = {}  # what may be known another time
        self._turn = asyncio.Lock()
        self._work: set[asyncio.Task[None]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, Progress) and event.step is not None:
            self._reported(event.task.job)

    def holds(self, job: JobId, plan: Plan) -> bool:
        """Whether a job has to wait for its verification before Headgate chooses this plan for it, or must not have it
        at all. Begins the verification."""
        run, live = self._live_runs.find(job)
        if plan.workers < 2 or not self._may(run, live) or left_out(live.spec, plan) is not None:
            return False
        key = self._key(run, live, plan)
        known = self._known(key)
        if known is None:
            self._begin(run, live, plan, key, 0.0)
            return True
        self._tell(run, live, known, again=False)
        return known.answer is Sameness.DIFFERS and known.cause is not Why.NORMALISATION

    def forget(self, run: str) -> None:
        self._seen = {job: attempt for job, attempt in self._seen.items() if job.run != run}

    def close(self) -> None:
        for task in self._work:
            task.cancel()

    # --- what is verified --------------------------------------------------------------------------------------------

    def _reported(self, job: JobId) -> None:
        """A job makes steps: of an attempt of several workers, its verdict is looked up, or a trial is to come."""
        run, live = self._live_runs.find(job)
        if live.current is None or self._seen.get(job) == live.attempt:
            return
        self._seen[job] = live.attempt
        plan = live.current.plan
        if plan.workers < 2 or not self._may(run, live):
            return
        why = left_out(live.spec, plan)
        key = self._key(run, live, plan) if why is None else ""
        known = self._known(key) if key else None
        if known is not None:
            self._tell(run, live, known)
            return
        live.verified = store.dump(_unknown(plan, why or Why.NOT_YET))
        run.record_job(live.spec.name)
        if why is None:
            self._begin(run, live, plan, key, LATER_SECONDS)

    def _may(self, run: LiveRun, live: LiveJob) -> bool:
        """Whether it is to be verified at all."""
        says = live.spec.verify
        if says == "auto" and run.submission.environment.get(VARIABLE) == "off":
            says = "off"
        return run.submission.mode == "run" and says != "off"

    def _known(self, key: str) -> Verification | None:
        return store.load(self._home / store.FOLDER, key) or self._unknown.get(key)

    def _key(self, run: LiveRun, live: LiveJob, plan: Plan) -> str:
        path = {**run.submission.environment, **live.spec.env}.get("PATH")
        return store.key(live.spec, live.profile_key, plan, path)

    # --- trying ------------------------------------------------------------------------------------------------------

    def _begin(self, run: LiveRun, live: LiveJob, plan: Plan, key: str, after: float) -> None:
        if key in self._asked:
            return
        self._asked.add(key)
        task = asyncio.get_running_loop().create_task(self._try(run, live, plan, key, after))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _try(self, run: LiveRun, live: LiveJob, plan: Plan, key: str, after: float) -> None:
        try:
            await asyncio.sleep(after)
            async with self._turn:
                if live.state in ENDED or run.id not in self._live_runs.runs:
                    return
                if not _has_room(live):
                    self._unknown[key] = _unknown(plan, Why.ROOM)
                    self._tell(run, live, self._unknown[key])
                    return
                found = await asyncio.wait_for(self._found(run, live, plan), _AT_MOST_SECONDS)
            if found.answer is Sameness.UNKNOWN and found.cause in _PASSING:
                self._unknown[key] = found
            else:
                store.save(self._home / store.FOLDER, key, found)
            if run.id in self._live_runs.runs:
                self._tell(run, live, found)
        except (OSError, ValueError, TimeoutError) as error:
            self._live_runs.failed("what its workers train could not be verified", error, run.id)
        finally:
            self._asked.discard(key)

    async def _found(self, run: LiveRun, live: LiveJob, plan: Plan) -> Verification:
        """What a process of its own finds, which has the script run."""
        few = replace(plan, workers=2, servers=min(plan.servers, 1), batch_per_worker=None)
        few = replace(few, worker_nodes=(), server_nodes=(), cores_per_worker=None, cores_per_server=None)
        job = replace(live.spec, plan=few)
        asked = {
            "job": JOB.dump_python(job, mode="json"),
            "environment": dict(run.submission.environment),
            "cwd": run.submission.cwd,
        }
        process = await asyncio.create_subprocess_exec(
            *("nice", "-n", "10", sys.executable, "-m", "headgate.hub.verifying"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HEADGATE_HOME": str(self._home), runs.HUB: str(runs.hub())},
        )
        try:
            answer, _ = await process.communicate(json.dumps(asked).encode())
        finally:
            if process.returncode is None:
                process.kill()
        return store.parse(answer.decode())

    def _tell(self, run: LiveRun, live: LiveJob, found: Verification, again: bool = True) -> None:
        """A verdict is there: it stands with the job, and a difference is warned of, or ends it."""
        text = store.dump(found)
        if not again and live.verified == text:
            return
        live.verified = text
        run.record_job(live.spec.name)
        differs = found.answer is Sameness.DIFFERS
        self._live_runs.event(run, "warning" if differs else "note", sentence(found), live.spec.name)
        running = live.current is not None and live.current.plan.workers > 1
        if differs and live.spec.verify == "strict" and running and live.state not in ENDED:
            reason = "stopped because its workers do not train what one does (`verify: strict`)"
            self._step(StopRequested(JobId.of(run.id, live.spec.name), reason=reason))


def _unknown(plan: Plan, why: Why) -> Verification:
    return Verification(Sameness.UNKNOWN, plan.workers, cause=why, strategy=plan.strategy, servers=plan.servers)


def _has_room(live: LiveJob) -> bool:
    """Whether this machine has the memory for a trial beside the job."""
    tasks = live.current.tasks.values() if live.current is not None else ()
    held = sum((task.usage or {}).get("memory_bytes", 0.0) for task in tasks)
    return bool(psutil.virtual_memory().available > _MEMORY_TIMES * held + _MEMORY_BYTES)


def left_out(spec: Job, plan: Plan) -> Why | None:
    """Why nothing can be said of a job, whatever it trains; None: it can be tried."""
    file = source(spec)
    if spec.roles or spec.isolation not in (None, DEFAULT):
        return Why.ELSEWHERE
    if program(spec) is None or file is None:
        return Why.NO_STEP
    if not plan.synchronous or plan.backup_workers or "weak" in spec.allow:
        return Why.ASYNCHRONOUS
    if spec.contract is not None and spec.batch != "global":
        return Why.OWN_BATCH
    if not fence.is_there():
        return Why.UNFENCED
    return None if spec.contract is not None or scripts.libraries(file) else Why.NO_STEP
