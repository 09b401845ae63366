"""Combines the pushes of several workers into steps of a sparse table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from headgate.torch.ps.transport.requests import Request


def merged(pushes: Sequence[Mapping[str, Any]]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Rows and gradients of one step, from the pushes of its workers. None if no worker used the
    table.

    Each worker's gradients are its contribution to the mean, with its fraction of the batch. If
    contributions are missing, the others are scaled up to stand for all.
    """
    used = [push for push in pushes if push["used"]]
    if not used:
        return None
    rows = torch.cat([push["rows"] for push in used])
    gradients = torch.cat([push["gradients"] for push in used])
    fractions = [push["fraction"] for push in pushes]
    if None not in fractions and 0.0 < sum(fractions) < 1.0 - 1e-6:
        gradients = gradients / sum(fractions)
    return rows, gradients


class Pushes(NamedTuple):
    """The pushes of a step.

    Args:
        requests: The pushes, by worker.
        counts: Whether they change the table.
    """

    requests: list[Request]
    counts: bool


class Steps:
    """Assigns pushes to steps of a table, if workers step together.

    Attributes:
        taken: Steps taken so far.
        late: Pushes that arrived after their step.
    """

    def __init__(self, taken: int = 0) -> None:
        self.taken = taken
        self.late = 0
        self._waiting: dict[int, dict[int, Request]] = {}

    def push(self, request: Request) -> None:
        self._waiting.setdefault(request.content["step"], {})[request.worker] = request

    def catch_up(self, step: int) -> None:
        """Note a step known to a worker, which a former life of the server took."""
        self.taken = max(self.taken, step)

    def next(self, present: frozenset[int], needed: int | None) -> Pushes | None:
        """The pushes of a step that is due now; None: no step is due.

        Args:
            present: Workers that count.
            needed: Number of pushes that make a step; None: those of all workers that took part in
                it.
        """
        for step in sorted(self._waiting)[:1]:
            pushes = self._waiting[step]
            late = step <= self.taken
            if not late and not (step == self.taken + 1 and _are_enough(pushes, present, needed)):
                return None
            del self._waiting[step]
            self.taken = max(self.taken, step)
            if late and needed is not None:
                self.late += len(pushes)
            # Late though all are needed: the others' part was taken before the server was
            # restarted.
            return Pushes(
                [pushes[worker] for worker in sorted(pushes)], counts=not late or needed is None
            )
        return None


def _are_enough(pushes: Mapping[int, Request], present: frozenset[int], needed: int | None) -> bool:
    if needed is not None:
        return len(pushes) >= min(needed, len(present))
    members = {member for push in pushes.values() for member in push.content["members"]}
    return members & present <= pushes.keys()
