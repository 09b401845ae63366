"""Keeps the board up to date: follows hubs, and looks up now and then what they do not tell."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, ParamSpec, TypeVar

from headgate.client.client import Client
from headgate.client.following import Follower
from headgate.client.idle_nodes import IdleNodes
from headgate.client.machine import SharedMachine, machine_as_json
from headgate.client.run import Run
from headgate.model.errors import HeadgateError
from headgate.recorded.events import LoggedEvent
from headgate.recorded.rows import EventRow
from headgate.recorded.status import NodeReading
from headgate.reports import event_words
from headgate.web.board import MOST_EVENTS, Board, RunDetails

_OF_A_RUN = ("command", "began", "host", "cluster", "engine", "address")
P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)
PUBLISH_SECONDS = 0.5
LOOK_SECONDS = 5.0
"""How often verdicts are made anew, at most."""
_REST = 10.0
"""And so many times as long as making them took."""
_MOST_DECISIONS = 30
"""Latest decisions of all live runs that the first page shows."""
_MOST_PREDICTED = 12
"""Jobs of a run whose end is predicted in one look; the others follow."""


class Lookout:
    """Keeps a board up to date while browsers look at it, and for `/metrics`.

    Args:
        board: What is kept up to date.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._client = Client()
        self._machine = SharedMachine()
        self._idle_nodes = IdleNodes()
        self._predicted: dict[str, int] = {}
        self._seen: set[str] = set()
        self._decisions: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Go on until it is cancelled."""
        loop = asyncio.get_running_loop()
        follower = Follower(lambda message: _pass(loop, self._board, message))
        follower.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._publish())
                tasks.create_task(self._look())
        finally:
            await asyncio.to_thread(follower.close)
            self._client.close()

    async def _publish(self) -> None:
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            self._board.publish()

    async def _look(self) -> None:
        while True:
            began = time.monotonic()
            nodes: dict[str, dict[str, Any]] = {}
            attached = self._board.attached_runs
            self._seen.intersection_update(attached)
            self._predicted = {id: self._predicted.get(id, 0) for id in attached}
            for id in attached:
                run = await _looked_up(self._client.find, id)
                if run is not None:
                    await self._look_at(run)
                    nodes |= _by_name(await _looked_up(run.nodes))
            nodes |= _by_name(await _looked_up(self._idle_nodes.read, tuple(nodes)))
            self._board.add(nodes=nodes, decisions=self._newest_decisions())
            if self._machine.has_arbiter:
                seen = await _looked_up(self._machine.look)
                self._board.add(machine=machine_as_json(seen) if seen is not None else {})
            took = time.monotonic() - began
            await self._wait(max(LOOK_SECONDS, _REST * took))

    async def _wait(self, seconds: float) -> None:
        """Wait until the next look: so long, or until there is a run that was not looked at."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._seen.issuperset(self._board.attached_runs):
            await asyncio.sleep(PUBLISH_SECONDS)

    async def _look_at(self, run: Run) -> None:
        """Look up what held the jobs of a run back, and when they are expected to start and end."""
        if run.id not in self._seen:
            self._seen.add(run.id)
            events = await _looked_up(run.recorded_events, MOST_EVENTS)
            self._board.add_past(_event(run.id, event) for event in events or ())
        if any("arguments" not in job for job in self._board.state(run.id).values()):
            for job, spec in (await _looked_up(run.specs) or {}).items():
                self._board.add_to_job(run.id, job, arguments=spec.arguments)
        details = self._board.details(run.id)
        verdicts = await _looked_up(run.verdicts)
        for job, verdict in verdicts.verdicts.items() if verdicts is not None else ():
            self._board.add_to_job(run.id, job, verdict=verdict)
        summary = await _looked_up(run.summary)
        if summary is not None:
            self._board.add_to_run(run.id, **{name: getattr(summary, name) for name in _OF_A_RUN})
            await self._look_at_decisions(run, summary.began)
        for row in summary.jobs if summary is not None else ():
            self._board.add_to_job(run.id, row.name, expected=row.expected, waits=row.waits)
        decided, last = await _looked_up(run.decisions, details.last) or ({}, details.last)
        self._board.set_details(
            run.id,
            RunDetails(
                {row.name: row.submitted or 0.0 for row in summary.jobs} if summary else {},
                verdicts.accounts if verdicts is not None else details.accounts,
                Counter(details.decisions) + Counter(decided),
                last,
            ),
        )
        running = [name for name, job in self._board.state(run.id).items() if _is_running(job)]
        first = self._predicted.get(run.id, 0) % max(len(running), 1)
        for job in (running[first:] + running[:first])[:_MOST_PREDICTED]:
            prediction = await _looked_up(run.predict, job)
            if prediction is not None:
                self._board.add_to_job(run.id, job, ends=prediction.as_json()["ends"])
        self._predicted[run.id] = first + _MOST_PREDICTED

    async def _look_at_decisions(self, run: Run, began: float) -> None:
        after = max((line["id"] for line in self._decisions if line["run"] == run.id), default=0)
        entries = await _looked_up(run.newest_decisions, after, _MOST_DECISIONS)
        self._decisions += (_decision(entry, began) for entry in entries or () if entry.job)

    def _newest_decisions(self) -> list[dict[str, Any]]:
        """Decisions about live runs, the latest last."""
        live = [line for line in self._decisions if line["run"] in self._board.runs]
        self._decisions = sorted(live, key=lambda line: line["at"])[-_MOST_DECISIONS:]
        return list(self._decisions)


def _by_name(nodes: Iterable[NodeReading] | None) -> dict[str, dict[str, Any]]:
    return {node.name: asdict(node) for node in nodes or ()}


def _decision(entry: LoggedEvent, began: float) -> dict[str, Any]:
    """A decision as a page shows it; `at` in seconds since the epoch."""
    job = entry.job.name if entry.job is not None else ""
    facts = {"run": entry.run, "id": entry.id, "job": job, "text": event_words.text(entry)}
    return facts | {"at": round(began + entry.t, 2)}


def _event(run: str, row: EventRow) -> dict[str, Any]:
    return {"run": run, "t": row.t, "kind": row.kind, "text": row.text or "", "job": row.job}


def _is_running(job: Any) -> bool:
    return bool(job["state"] == "running")


def _pass(loop: asyncio.AbstractEventLoop, board: Board, message: Any) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(board.take, message)


async def _looked_up(look: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a function returns, called beside the event loop; None where there is nothing to see.

    A run may be deleted meanwhile, and its records be damaged: the page goes on with the others.
    """
    try:
        return await asyncio.to_thread(look, *args, **kwargs)
    except HeadgateError as error:
        _log.info("%s", error)
    except Exception:  # noqa: BLE001  # one run's fault must not stop the looks at others
        _log.exception("a look failed")
    return None
