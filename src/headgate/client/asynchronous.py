"""A run for asyncio: each awaited method runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Literal, overload

from headgate.client.explaining import Explanation, Report
from headgate.client.logs import FOLLOW_SECONDS, LogReading
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

    async def pause(self, *jobs: str, release: bool = False) -> tuple[str, ...]:
        return await asyncio.to_thread(self._run.pause, *jobs, release=release)

    async def unpause(self, *jobs: str) -> tuple[str, ...]:
        return await asyncio.to_thread(self._run.unpause, *jobs)

    async def set(self, job: str | None = None, **changes: float | str) -> None:
        await asyncio.to_thread(self._run.set, job, **changes)

    async def explain(self, job: str | None = None) -> Explanation:
        return await asyncio.to_thread(self._run.explain, job)

    async def report(self, to: str | Path | None = None) -> Report:
        return await asyncio.to_thread(self._run.report, to)

    @overload
    def logs(
        self,
        job: str | None = None,
        task: str | None = None,
        tail: int | None = None,
        *,
        follow: Literal[False] = False,
    ) -> Awaitable[str]: ...

    @overload
    def logs(
        self,
        job: str | None = None,
        task: str | None = None,
        tail: int | None = None,
        *,
        follow: Literal[True],
    ) -> AsyncIterator[str]: ...

    def logs(
        self,
        job: str | None = None,
        task: str | None = None,
        tail: int | None = None,
        *,
        follow: bool = False,
    ) -> Awaitable[str] | AsyncIterator[str]:
        """What a task printed, awaited as text; with `follow`, an `async for` over lines."""
        if follow:
            return self._lines(job, task, tail)
        return asyncio.to_thread(self._run.logs, job, task, tail)

    async def _lines(
        self, job: str | None, task: str | None, tail: int | None
    ) -> AsyncIterator[str]:
        logs = await asyncio.to_thread(self._run.job_logs, job, task)
        reading = LogReading(logs, tail)
        while not reading.ended:
            for line in await asyncio.to_thread(reading.lines):
                yield line
            if not reading.ended:
                await asyncio.sleep(FOLLOW_SECONDS)
