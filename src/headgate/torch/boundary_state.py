"""A copy in memory of what a checkpoint would have held at a step boundary.

Between two boundaries, as in a validation, a script may have other weights in its models, and has
done a part of what follows on a step. A checkpoint that is asked for then is that of the boundary
before.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from headgate.task import Channel
from headgate.task.saving import Saver
from headgate.torch import batches, checkpoints
from headgate.torch.step_weights import StepWeights

MOST_BYTES = 256 << 20
"""Largest state that a copy is held of."""
SHARE = 0.005
"""Most of the time that copying may take."""
_GRACE_SECONDS = 60.0
_ORPHANED_SECONDS = 3.0
_TO_SAVE_SECONDS = 15.0
"""How much of the time that a task has to end is left for saving."""


@dataclass(frozen=True)
class BoundaryState:
    """What a checkpoint holds.

    Args:
        steps: Steps before it.
        place: Where the script was, as of `TaskSession.placed`.
        contents: All of it, by section.
        notes: What the user should know where it is saved.
    """

    steps: int
    place: Mapping[str, Any]
    contents: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class LatestBoundary:
    """Holds the latest copy, and sees that it costs little.

    Args:
        clock: Seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._cost = 0.0
        self._at: float | None = None
        self._too_large = False
        self.held: BoundaryState | None = None

    @property
    def due(self) -> bool:
        """Whether so much time has passed that a copy of now takes less than `SHARE` of it."""
        return not self._too_large and (
            self._at is None or (self._clock() - self._at) * SHARE >= self._cost
        )

    def hold(self, now: BoundaryState) -> None:
        """Copy a state, unless it is too large, in place of the one before."""
        begun = self._clock()
        self._too_large = (
            sum(t.numel() * t.element_size() for t in batches.tensors(now.contents)) > MOST_BYTES
        )
        self.held = None if self._too_large else replace(now, contents=_copied(now.contents))
        self._at = self._clock()
        self._cost = self._at - begun


class BoundarySaver:
    """Saves what was true at a step boundary where the script is at none.

    Args:
        channel: Asks for checkpoints, and for an end.
        saver: Writes them.
        weights: Knows whether other weights are in the models than the last step left.

    Attributes:
        validates_within: Whether the script was seen to go over other data within a pass over
            training data.
    """

    def __init__(self, channel: Channel, saver: Saver, weights: StepWeights) -> None:
        self._channel = channel
        self._saver = saver
        self._weights = weights
        self._holding = LatestBoundary()
        self._lock = threading.Lock()
        self._watched = False
        self._ended = False
        self.validates_within = False

    def evaluates(self, within: bool) -> None:
        """A batch of other data is fetched than that of the last step; `within` a pass over that
        data.
        """
        self.validates_within = self.validates_within or within

    @property
    def due(self) -> bool:
        """Whether it is time for another copy."""
        return self._holding.due

    def hold(self, held: BoundaryState) -> None:
        """Copy what a checkpoint would hold now, unless it is too large."""
        self._holding.hold(held)
        if not self._watched and self._holding.held is not None:
            self._watched = True
            threading.Thread(target=self._save_late, name="headgate-held", daemon=True).start()

    @property
    def waits(self) -> bool:
        """Whether what is asked for has to wait for the next step boundary: what is trained is not
        in the models now, and there is no copy of it.
        """
        return self._holding.held is None and self._weights.changed

    def gives_up(self) -> bool:
        """Whether a stop has waited so long that the script has to end all the same."""
        waited = time.monotonic() - self._channel.pending_since
        return bool(self._channel.stopping) and waited > self._most_seconds

    def tell_unsaved(self) -> None:
        """The script ends without a checkpoint."""
        self._channel.send(
            {
                "type": "checkpoint_failed",
                "error": f"no step ended within {self._most_seconds:g} s, and the weights in the "
                f"models are not those "
                "that the last step left, as where an average is validated in their place",
                "why": self._channel.stopping,
            }
        )

    @property
    def held(self) -> BoundaryState | None:
        """The copy, if there is one."""
        return self._holding.held

    def in_place_of(
        self, after: int | None, epochs: int | None, note: Callable[[str], None]
    ) -> BoundaryState | None:
        """The copy, where that is what is to be saved and not what is there now.

        Args:
            after: The epoch that has ended; None in the middle of one, where no boundary is known.
            epochs: How many there are, if that is known.
            note: Is told where what is there now may not be what is trained.
        """
        if after is None:
            return self.held
        if epochs is None or after + 1 >= epochs or not self._weights.changed:
            return None
        if self.held is None:
            note(
                "weights were changed after the last step of the epoch: the checkpoint has "
                "them as they are at its end"
            )
        return self.held

    def save(
        self, why: str, held: BoundaryState, note: Callable[[str], None] = lambda text: None
    ) -> bool:
        """Save the copy; whether it was saved.

        Args:
            why: As of `Saver.save`.
            held: The copy.
            note: Tells the user what is to be known of a resume from it.
        """
        for text in (
            *held.notes,
            f"the checkpoint is that of step {held.steps}: what came after it is done again",
        ):
            note(text)
        with self._lock:
            return self._saver.save(
                why,
                held.steps,
                held.place,
                lambda folder: checkpoints.write(folder, held.steps, dict(held.contents)),
            )

    def saves(self) -> AbstractContextManager[Any]:
        """Entered by whoever else saves."""
        return self._lock

    def saved(self) -> None:
        """Something later than the copy was saved."""
        self._holding.held = None

    def close(self) -> None:
        """The script ends."""
        self._ended = True

    @property
    def _most_seconds(self) -> float:
        """How long a stop waits for a boundary at most."""
        if self._channel.stopping == "orphaned":
            return _ORPHANED_SECONDS
        grace = float(self._channel.welcome.get("grace") or _GRACE_SECONDS)
        return max(grace * 0.5, grace - _TO_SAVE_SECONDS)

    def _save_late(self) -> None:
        """Save the copy where a stop finds the script in what fetches no batch and reports
        nothing.
        """
        self._channel.wait_for(lambda: False, threading.TIMEOUT_MAX)
        time.sleep(self._most_seconds)
        held = self._holding.held
        if not self._ended and held is not None:
            self.save(self._channel.stopping, held)


def _copied(value: Any) -> Any:
    """Tensors in main memory and containers of them, which nobody else changes."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        copied = copy.copy(value)
        for key, item in value.items():
            copied[key] = _copied(item)
        return copied
    if type(value) in (list, tuple, set):
        return type(value)(_copied(item) for item in value)
    return value
