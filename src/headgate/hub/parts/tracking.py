"""Figures of live jobs in trackers of experiments, which `track:` asks for.

Libraries of trackers run in processes of their own: none delays the hub or a job.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence

from headgate.hub.parts import Component
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import Action
from headgate.model.events import Event, TaskStarted
from headgate.model.reasons import Reason, ReasonKind
from headgate.scripts.variables import of_companion

_END_SECONDS = 15.0
"""Longest that the end of a run waits for its trackers."""
_FOLLOWER = "headgate.exports.live"
_PREFIXES = ("MLFLOW_", "WANDB_", "TRACKIO_", "HF_", "DATABRICKS_", "AWS_", "AZURE_", "GOOGLE_")
"""Beginnings of the variables that trackers and their stores go by."""


class ExperimentTracking(Component):
    """Starts the processes that send the figures of a run's jobs, and passes on what they tell."""

    def __init__(self, live_runs: LiveRuns) -> None:
        self._live_runs = live_runs
        self._processes: dict[str, list[asyncio.Task[None]]] = {}
        self._over: dict[str, asyncio.Event] = {}

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TaskStarted) and event.task.run not in self._processes:
            self._begin(self._live_runs.runs[event.task.run])

    def forget(self, run: str) -> None:
        if (over := self._over.pop(run, None)) is not None:
            over.set()

    async def ended(self, run: str) -> None:
        """Wait a while until the trackers of a run that has ended know it all."""
        if tasks := self._processes.pop(run, None):
            await asyncio.wait(tasks, timeout=_END_SECONDS)

    def _begin(self, run: LiveRun) -> None:
        groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = defaultdict(list)
        for name, job in run.jobs.items() if run.submission.mode == "run" else ():
            if job.spec.track:
                own = {
                    key: value for key, value in job.spec.env.items() if key.startswith(_PREFIXES)
                }
                groups[job.spec.workdir, tuple(sorted(own.items()))].append(name)
        if not groups:
            self._processes[run.id] = []
            return
        over = self._over[run.id] = asyncio.Event()
        self._processes[run.id] = [
            asyncio.get_running_loop().create_task(
                self._follow(run, names, folder, dict(variables), over)
            )
            for (folder, variables), names in groups.items()
        ]

    async def _follow(
        self,
        run: LiveRun,
        names: Sequence[str],
        folder: str,
        variables: Mapping[str, str],
        over: asyncio.Event,
    ) -> None:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _FOLLOWER, str(run.folder), *names),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=folder,
                env={**of_companion(run.submission.environment), **variables},
                start_new_session=True,  # it writes the end, also of a hub that dies
            )
        except OSError as error:
            facts = {"tracker": "track", "error": error.strerror or str(error)}
            self._tell(run, names[0], Reason(ReasonKind.TRACKER_FAILS, facts))
            return
        assert process.stdin is not None and process.stdout is not None
        closing = asyncio.get_running_loop().create_task(_close(process.stdin, over))
        while line := await process.stdout.readline():
            notice = json.loads(line)
            facts = {"tracker": notice["destination"]}
            kind = ReasonKind.TRACKER_WRITES
            if notice["error"] is not None:
                facts["error"] = notice["error"]
                kind = ReasonKind.TRACKER_FAILS
            if notice["has_missed"]:
                facts["run"] = run.id
                kind = ReasonKind.TRACKER_MISSES
            self._tell(run, notice["job"], Reason(kind, facts))
        code = await process.wait()
        closing.cancel()
        if code and not over.is_set():
            facts = {"tracker": "track", "error": f"exit code {code}", "run": run.id}
            self._tell(run, names[0], Reason(ReasonKind.TRACKER_MISSES, facts))

    def _tell(self, run: LiveRun, job: str, reason: Reason) -> None:
        kind = "note" if reason.kind is ReasonKind.TRACKER_WRITES else "warning"
        self._live_runs.event(run, kind, reason, job)


async def _close(stdin: asyncio.StreamWriter, over: asyncio.Event) -> None:
    await over.wait()
    stdin.close()
