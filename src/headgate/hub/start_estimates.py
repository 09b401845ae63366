"""What jobs that wait for room wait for, and when they are expected to start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from headgate.controller.start_forecast import StartForecast
from headgate.events import Action, Event, Fitted, TaskStarted
from headgate.hub.component import Component
from headgate.hub.live_runs import LiveRuns
from headgate.identifiers import JobId
from headgate.units import say_time

_AGAIN_SECONDS = 5.0
"""After so long all are told anew, though nothing was done: what they wait for may be late."""
_NAMED = 3
"""Jobs that are named as having what another one waits for."""


class StartEstimates(Component):
    """Writes to the runs of the jobs that wait what each waits for, where that has changed.

    Args:
        live_runs: The runs.
        waits: Whether any job does.
        ahead: The jobs that wait, in their turn, each with when it is expected to start as of `time.monotonic`.
    """

    def __init__(
        self, live_runs: LiveRuns, waits: Callable[[], bool], ahead: Callable[[float], Sequence[StartForecast]]
    ) -> None:
        self._live_runs = live_runs
        self._waits = waits
        self._ahead = ahead
        self._again_at = 0.0

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        now = time.monotonic()
        news = bool(actions) or isinstance(event, Fitted | TaskStarted)
        if self._waits() and (news or now >= self._again_at):
            self._tell(self._ahead(now))
            self._again_at = now + _AGAIN_SECONDS

    def _tell(self, ahead: Sequence[StartForecast]) -> None:
        for place, each in enumerate(ahead):
            run, live = self._live_runs.find(each.job)
            reason = _in_words(each, place)
            if live.state == "waiting" and live.reason != reason:
                live.reason = reason
                live.expected = run.clock() + each.at - time.monotonic() if each.at is not None else None
                run.record_job(live.spec.name)


def _in_words(ahead: StartForecast, place: int) -> str:
    words = f"for {ahead.what}"
    if ahead.holders:
        words += f", which {_names(ahead.job, ahead.holders)} {'have' if len(ahead.holders) > 1 else 'has'}"
    if place:
        words += f"; {place} before it"
    if ahead.unknown:
        many = len(ahead.unknown) > 1
        words += f"; nothing tells yet how long {_names(ahead.job, ahead.unknown)} {'take' if many else 'takes'}"
    if ahead.at is not None:
        words += f"; expected to start at about {say_time(time.time() + max(ahead.at - time.monotonic(), 0.0))}"
    return words


def _names(job: JobId, others: Sequence[JobId]) -> str:
    """Jobs by name, those of another run with that."""
    known = [other.name if other.run == job.run else other for other in others]
    more = len(known) - _NAMED
    return ", ".join(known) if more <= 0 else f"{', '.join(known[:_NAMED])} and {more} more"
