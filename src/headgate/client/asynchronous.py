"""A run for asyncio: each awaited method runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from headgate.client.explaining import Explanation, Report
from headgate.client.run import LOOK_SECONDS, Run
from headgate.client.running_jobs import JobEnd
from headgate.recorded import runs
from headgate.recorded.events import LoggedEvent
from headgate.recorded.runs import RunSummary
from headgate.recorded.status import RunStatus


class AsyncRun:
    """A `Run` whose methods are awaited."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.path = run.path
        self.id = run.id

    def __repr__(self) -> str:
        return f"AsyncRun({self.id!r})"

    def _repr_html_(self) -> str:
        return self._run._repr_html_()

    @property
    def jobs(self) -> tuple[str, ...]:
        return self._run.jobs

    async def status(self) -> RunStatus:
        return await asyncio.to_thread(self._run.status)

    async def events(
        self, job: str | None = None, *, follow: bool = False, after: int = 0
    ) -> AsyncIterator[LoggedEvent]:
        goes_on = True
        while goes_on:
            goes_on = follow and runs.alive(self.path)
            events = await asyncio.to_thread(list, self._run.events(job, after=after))
            for event in events:
                yield event
                after = event.id
            if goes_on:
                await asyncio.sleep(LOOK_SECONDS)

    async def wait(self, timeout: float | None = None) -> RunSummary:
        """Wait until every job has ended. Cancelling the wait leaves the jobs running.

        Raises:
            TimeoutError: The run has not ended in time.
            HubError: The hub died.
        """
        given_up = threading.Event()
        try:
            async with asyncio.timeout(timeout):
                await asyncio.to_thread(self._run.wait_unless, given_up.is_set)
        finally:
            given_up.set()
        return await asyncio.to_thread(self._run.summary)

    async def stop(self, *jobs: str, kill: bool = False) -> dict[str, JobEnd]:
        return await asyncio.to_thread(self._run.stop, *jobs, kill=kill)

    async def checkpoint(self, *jobs: str) -> tuple[str, ...]:
        return await asyncio.to_thread(self._run.checkpoint, *jobs)

    async def set(self, job: str | None = None, *, workers: int) -> None:
        await asyncio.to_thread(self._run.set, job, workers=workers)

    async def explain(self, job: str | None = None) -> Explanation:
        return await asyncio.to_thread(self._run.explain, job)

    async def report(self, to: str | Path | None = None) -> Report:
        return await asyncio.to_thread(self._run.report, to)

    async def logs(
        self, job: str | None = None, task: str | None = None, tail: int | None = None
    ) -> str:
        return await asyncio.to_thread(self._run.logs, job, task, tail)
