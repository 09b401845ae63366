"""The pauses of a proof: which steps a job reports, how its tasks are held together, and what a pair has shown.

A thread of its own times a pause, not the hub's loop: so a busy loop makes no pause longer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headgate.isolation.base import Box

if TYPE_CHECKING:
    from headgate.analysis.proving import Gain, Outcome, Proof, Window
    from headgate.analysis.usage import Array

_KEPT_REPORTS = 4096


class StepReports:
    """The latest steps of a job, and when it reported them."""

    def __init__(self) -> None:
        self._reports: deque[tuple[float, int]] = deque(maxlen=_KEPT_REPORTS)

    def add(self, now: float, step: int) -> None:
        if self._reports and step < self._reports[-1][1]:
            self._reports.clear()  # it was started again
        if not self._reports or step > self._reports[-1][1]:
            self._reports.append((now, step))

    def seconds(self) -> float:
        """Mean seconds of a step."""
        if len(self._reports) < 2:
            return 0.0
        (begin, first), (end, last) = self._reports[0], self._reports[-1]
        return (end - begin) / (last - first)

    def arrays(self) -> tuple[Array, Array]:
        import numpy as np

        table = np.array(list(self._reports), dtype=float).reshape(-1, 2)
        return table[:, 0], table[:, 1]


class JobPause:
    """Holds all tasks of a job together.

    Args:
        boxes: The boxes of its tasks.
        gate: Holds its steps instead of its processes, on the hub's loop; None: its processes are held.
        settles: Seconds until a step that has begun is over.
    """

    def __init__(self, boxes: Sequence[Box], gate: Callable[[bool], None] | None, settles: float = 0.0) -> None:
        self._boxes = boxes
        self._gate = gate
        self._settles = settles
        self._over = threading.Event()

    def end(self) -> None:
        """Release it before its time."""
        self._over.set()

    def hold(self, seconds: float) -> Window | None:
        """Hold it for `seconds` from the first held task on. Return the window in which all tasks were held; None if
        the pause was ended early. Call it from a thread that may wait.

        Raises:
            IsolationError: A task cannot be held.
        """
        from headgate.analysis.proving import Window

        asked = time.monotonic()
        try:
            if self._gate is not None:
                self._gate(True)
                self._over.wait(min(self._settles, seconds / 2))
            elif not all(box.hold() for box in self._boxes):
                return None
            begin = time.monotonic()
            self._over.wait(max(asked + seconds - begin, 0.0))
            return None if self._over.is_set() else Window(begin, time.monotonic())
        finally:
            if self._gate is not None:
                self._gate(False)
            for box in self._boxes if self._gate is None else ():
                box.release()


@dataclass
class Pair:
    """What the pauses of a culprit have told about a victim so far."""

    culprit: str
    victim: str
    looks: Mapping[int, float]
    differences: list[float] = field(default_factory=list)
    found: Proof | None = None
    is_open: bool = True

    def add(self, difference: float, seconds: float) -> None:
        """Take in a pause, and look at the result if this count was fixed beforehand."""
        from headgate.analysis.proving import Proof, judged

        self.differences.append(difference)
        count = len(self.differences)
        if (error := self.looks.get(count)) is not None:
            gain: Gain
            outcome: Outcome
            gain, outcome = judged(self.differences, error)
            self.found = Proof(self.culprit, self.victim, count, seconds, gain, outcome)
            self.is_open = outcome == "open" and count < max(self.looks)


def planned_pair(culprit: str, victim: str, deviation: float) -> Pair:
    """A pair that has to be paused so often that an effect shows beyond the noise of the victim's steps.

    Args:
        deviation: Of the differences between two windows without a pause (`headgate.analysis.proving.noise`).
    """
    from headgate.analysis import proving

    planned = min(proving.pauses_needed(deviation), proving.MOST_PAUSES)
    return Pair(culprit, victim, proving.looks(planned))
