"""What jobs that wait for room are told to be waiting for, and until when."""

from __future__ import annotations

import time
from collections.abc import Sequence

from headgate.controller.start_forecast import StartForecast
from headgate.events import JobId
from headgate.hub.ledger import Ledger
from headgate.units import say_time

_NAMED = 3
"""Jobs that are named as having what another one waits for."""


def tell(ledger: Ledger, ahead: Sequence[StartForecast]) -> None:
    """Write to the runs of the jobs that wait what each waits for, where that has changed.

    Args:
        ledger: The runs.
        ahead: The jobs that wait, in their turn, each with when it is expected to start as of `time.monotonic`.
    """
    for place, each in enumerate(ahead):
        run, live = ledger.find(each.job)
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
    run = job.split("/")[0]
    known = [other.split("/")[1] if other.split("/")[0] == run else other for other in others]
    more = len(known) - _NAMED
    return ", ".join(known) if more <= 0 else f"{', '.join(known[:_NAMED])} and {more} more"
