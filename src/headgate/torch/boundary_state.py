"""A copy in memory of the checkpoint at a step boundary.

Between two boundaries, for example in a validation, the models may hold other weights, and a step
may be half done. A checkpoint that is requested then is the copy of the last boundary.
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
"""Size of the largest state that is copied."""
SHARE = 0.005
"""Largest fraction of time that copying may take."""
_GRACE_SECONDS = 60.0
_ORPHANED_SECONDS = 3.0
_TO_SAVE_SECONDS = 15.0
"""Part of the time that a task has to end which is reserved for saving."""


@dataclass(frozen=True)
class BoundaryState:
    """The contents of a checkpoint.

    Args:
        steps: Steps before it.
        place: The script's place, as of `TaskSession.placed`.
        contents: All sections of the checkpoint, by name.
        notes: Notes for the user if it is saved.
    """

    steps: int
    place: Mapping[str, Any]
    contents: Mapping[str, Any]
    notes: tuple[str, ...] = ()


class LatestBoundary:
    """Holds the latest copy, and limits the time that copying takes.

    Args:
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._cost = 0.0
        self._at: float | None = None
        self._too_large = False
        self.held: BoundaryState | None = None

    @property
    def due(self) -> bool:
        """Whether a copy now would take less than `SHARE` of the time since the last one."""
        return not self._too_large and (
            self._at is None or (self._clock() - self._at) * SHARE >= self._cost
        )

    def hold(self, now: BoundaryState) -> None:
        """Copy a state in place of the last one, unless it is too large."""
        begun = self._clock()
        self._too_large = (
            sum(t.numel() * t.element_size() for t in batches.tensors(now.contents)) > MOST_BYTES
        )
        self.held = None if self._too_large else replace(now, contents=_copied(now.contents))
        self._at = self._clock()
        self._cost = self._at - begun


class BoundarySaver:
    """Saves the state of the last step boundary when the script is not at a boundary.

    Args:
        channel: Channel with the requests for checkpoints and for an end.
        saver: Writes checkpoints.
        weights: Knows whether the models hold other weights than the last step left.

    Attributes:
        validates_within: Whether the script was seen to read other data within a pass over training
            data.
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
        """Note that a batch of other data than that of the last step is read; `within` a pass over
        that data.
        """
        self.validates_within = self.validates_within or within

    @property
    def due(self) -> bool:
        """Whether another copy is due."""
        return self._holding.due

    def hold(self, held: BoundaryState) -> None:
        """Copy what a checkpoint would hold now, unless it is too large."""
        self._holding.hold(held)
        if not self._watched and self._holding.held is not None:
            self._watched = True
            threading.Thread(target=self._save_late, name="headgate-held", daemon=True).start()

    @property
    def waits(self) -> bool:
        """Whether requests wait for the next step boundary: the models do not hold the trained
        weights now, and there is no copy.
        """
        return self._holding.held is None and self._weights.changed

    def gives_up(self) -> bool:
        """Whether a stop has waited so long that the script has to end without a checkpoint."""
        waited = time.monotonic() - self._channel.pending_since
        return bool(self._channel.stopping) and waited > self._most_seconds

    def tell_unsaved(self) -> None:
        """Tell the user that the script ends without a checkpoint."""
        self._channel.send(
            {
                "type": "checkpoint_failed",
                "error": f"no step ended within {self._most_seconds:g} s, and the models do not "
                "hold the weights of the last step, for example because an average is validated",
                "why": self._channel.stopping,
            }
        )

    @property
    def held(self) -> BoundaryState | None:
        return self._holding.held

    def in_place_of(
        self, after: int | None, epochs: int | None, note: Callable[[str], None]
    ) -> BoundaryState | None:
        """The copy, if it is to be saved in place of the present state.

        Args:
            after: The epoch that has ended; None in the middle of an epoch, where no boundary is
                known.
            epochs: Number of epochs, if known.
            note: Called with a note if the present state may not be the trained one.
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
        """Save the copy. Returns whether it was saved.

        Args:
            why: As of `Saver.save`.
            held: The copy.
            note: Called with notes for the user about a resume from it.
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
        """A context for other code that saves checkpoints."""
        return self._lock

    def saved(self) -> None:
        """Note that something later than the copy was saved."""
        self._holding.held = None

    def close(self) -> None:
        """Note the end of the script."""
        self._ended = True

    @property
    def _most_seconds(self) -> float:
        """Longest time that a stop waits for a boundary."""
        if self._channel.stopping == "orphaned":
            return _ORPHANED_SECONDS
        grace = float(self._channel.welcome.get("grace") or _GRACE_SECONDS)
        return max(grace * 0.5, grace - _TO_SAVE_SECONDS)

    def _save_late(self) -> None:
        """Save the copy if a stop finds the script in work that reads no batch and reports
        nothing.
        """
        self._channel.wait_for(lambda: False, threading.TIMEOUT_MAX)
        time.sleep(self._most_seconds)
        held = self._holding.held
        if not self._ended and held is not None:
            self.save(self._channel.stopping, held)


def _copied(value: Any) -> Any:
    """A copy in main memory of tensors and containers of them."""
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
