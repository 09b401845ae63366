"""What a hub does for each run beside its jobs: as it begins, and after it has ended."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headgate.hub.allocations import warn_neighbours
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.watchdog import forget_boxes
from headgate.model import defaults
from headgate.model.errors import HeadgateError
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded import retention, runs

ORIGIN_SECONDS = 60.0
"""Most seconds that the end of a short run waits for what is done as it begins, since nothing of it
is recorded later: as many as an interpreter has to list its packages.
"""
REPORT = "HEADGATE_REPORT"
"""Variable in the submitting environment; `off`: no page is written at the end of the run."""
REPORT_SECONDS = 600.0
"""Most seconds for a report; a run of a month takes minutes."""
_WRITTEN_SECONDS = 10.0  # longest wait of a run's watchers for its last rows to be written


class Housekeeping:
    """Works off the hub's loop: notes the origin of a run and deletes old runs as it begins; closes
    its store and writes its report after its end.

    Args:
        live_runs: The runs, and who watches them.
        before_closing: Called with the id of an ended run while its store is still open.
        reported: Called with the id of an ended run once its report is written.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        before_closing: Callable[[str], Awaitable[None]],
        reported: Callable[[str], Awaitable[None]],
    ) -> None:
        self._live_runs = live_runs
        self._before_closing = before_closing
        self._reported = reported
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beginnings: dict[str, asyncio.Task[Any]] = {}
        self._ending: set[LiveRun] = set()
        self._unreported: dict[str, Mapping[str, Any]] = {}

    @property
    def busy(self) -> bool:
        """Whether any work is left."""
        return bool(self._tasks)

    def begin(self, run: LiveRun, is_taken_up: bool = False) -> None:
        """Do what is due as a run begins, or goes on under this hub."""
        work = self._retain(run) if is_taken_up else self._look_around(run)
        self._beginnings[run.id] = self.add(work)

    @property
    def unreported(self) -> Mapping[str, Mapping[str, Any]]:
        """Ended runs whose watchers still wait for their report: the message that tells of the end,
        by id.
        """
        return self._unreported

    def end(self, run: LiveRun, last: Mapping[str, Any]) -> None:
        """Do what is due after a run. `last`: the message that tells its watchers of its end."""
        self._ending.add(run)
        self._unreported[run.id] = {**last, "type": "end"}
        self.add(self._wind_up(run))

    def add(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Do other work that the end of the hub waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def hurry(self) -> None:
        """Stop ended runs from waiting for disk space for their records."""
        for run in self._ending:
            run.recorder.hurry()

    async def finish(self) -> None:
        """Wait for what is left."""
        self.hurry()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- as a run begins

    async def _look_around(self, run: LiveRun) -> None:
        await asyncio.gather(
            asyncio.to_thread(run.note_origin), self._retain(run), self._tell_neighbours(run)
        )

    async def _tell_neighbours(self, run: LiveRun) -> None:
        for neighbour in await asyncio.to_thread(warn_neighbours):
            self._live_runs.event(run, "warning", neighbour)

    async def _retain(self, run: LiveRun) -> None:
        keep = run.submission.environment.get("HEADGATE_KEEP_RUNS")
        try:
            gone = await asyncio.to_thread(retention.retain, keep)
        except HeadgateError as error:
            reason = Reason.of(ReasonKind.NO_RUN_DELETED, error=str(error))
            self._live_runs.event(run, "warning", reason)
            return
        if gone:
            kept = keep or str(defaults.KEEP_RUNS)
            deleted = Reason.of(ReasonKind.RUNS_DELETED, runs=gone, keep=kept)
            self._live_runs.event(run, "note", deleted)
            # into the hub's log
            text = f"{run.id}: {in_words(deleted)}: {', '.join(gone)}"
            print(text, file=sys.stderr, flush=True)

    # --- after its end

    async def _wind_up(self, run: LiveRun) -> None:
        await asyncio.wait([self._beginnings.pop(run.id)], timeout=ORIGIN_SECONDS)
        await self._before_closing(run.id)
        # a thread of its own: it may wait for disk space indefinitely
        thread = ThreadPoolExecutor(1)
        closed = asyncio.get_running_loop().run_in_executor(thread, run.close)
        thread.shutdown(wait=False)
        await asyncio.wait([closed], timeout=_WRITTEN_SECONDS)
        self._live_runs.watchers.tell(run.id, dict(self._unreported[run.id]))
        if not closed.done():  # the disk is full: watchers need not wait for space
            self._tell_report(run, None)
        page = run.folder / "report.html"
        try:
            await closed
            forget_boxes(runs.hub(), run.id)
            # trials are removed, and nobody reads reports of single calls
            unread = run.submission.mode in ("verify", "call")
            if not unread and run.submission.environment.get(REPORT) != "off":
                await asyncio.wait_for(_write_report(run.folder / runs.STORE, page), REPORT_SECONDS)
        except (OSError, sqlite3.Error, TimeoutError) as error:
            # watchers go on without a report
            traceback.print_exception(error)
        else:
            await self._reported(run.id)
        finally:
            self._ending.discard(run)
            self._tell_report(run, str(page) if page.exists() else None)

    def _tell_report(self, run: LiveRun, report: str | None) -> None:
        """Tell a run's watchers all that they wait for: the path of its report, if there is one."""
        self._unreported.pop(run.id, None)
        watchers = self._live_runs.watchers
        watchers.tell(run.id, {"type": "reported", "run": run.id, "report": report})
        watchers.drop(run.id)


async def _write_report(store: Path, page: Path) -> None:
    """Write a run's page in a process of its own, so that it delays no job of another run."""
    code = (
        "import sys, pathlib, headgate.reports.html as html; "
        "html.write_at_end(*map(pathlib.Path, sys.argv[1:]))"
    )
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(store), str(page))
    try:
        await writer.wait()
    finally:
        if writer.returncode is None:
            writer.kill()
