"""Prove which jobs slow the jobs of a live run, by pausing their neighbours for moments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.client.running_jobs import RunningJobs
from headgate.model.defaults import HELD_PART

_OF_A_PAIR = ("culprit", "victim", "pauses", "needed")


@dataclass(frozen=True, slots=True)
class ProofNews:
    """The progress of a proof.

    Args:
        text: A sentence about it.
        culprit: The paused job; empty: the news is not about a pair.
        victim: The job whose steps are watched.
        pauses: Pauses so far.
        needed: Pauses in all.
    """

    text: str
    culprit: str = ""
    victim: str = ""
    pauses: int = 0
    needed: int = 0


@dataclass(frozen=True, slots=True)
class Proofs:
    """The proofs of a run: the fields of each `Proof` with its text, and why other pairs were not
    proved.
    """

    run: str
    proofs: tuple[Mapping[str, Any], ...]
    reasons: tuple[str, ...]


def prove(
    chosen: RunningJobs,
    victim: str | None,
    culprit: str | None,
    most: float | None,
    watcher: Callable[[ProofNews], None],
) -> Proofs:
    """Have the hub prove which job slows which, and wait for the result. A `KeyboardInterrupt` ends
    the proof.

    Args:
        chosen: The run.
        victim: The job whose steps are watched; None: each in turn.
        culprit: The paused job; None: each other job in turn.
        most: Fraction of its time for which a job may be paused, 0 to 0.25; None: 0.02.
        watcher: Called with news.

    Raises:
        UsageError: Such a proof is impossible.
        NotFoundError: The run is not running.
    """
    with chosen.connect() as hub:
        hub.ask(
            "prove",
            run=chosen.run,
            jobs=[victim] if victim is not None else None,
            neighbours=[culprit] if culprit is not None else None,
            most=HELD_PART if most is None else most,
        )
        while (message := hub.receive() or {}).get("type") != "proved":
            if "text" in message:
                pair = {name: message[name] for name in _OF_A_PAIR if name in message}
                watcher(ProofNews(message["text"], **pair))
    return Proofs(message["run"], tuple(message["proofs"]), tuple(message["reasons"]))
