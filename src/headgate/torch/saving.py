"""What of a torch script is saved in its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate import task
from headgate.torch import checkpoints
from headgate.torch.trained import Trained


class Saver:
    """Saves what is trained into the job's folder; a failure is told, not raised.

    Args:
        folder: Where to; None: nowhere, and saving fails.
        trained: What to save.
        send: Takes a message for the engine.
    """

    def __init__(self, folder: str | None, trained: Trained, send: Callable[[Mapping[str, object]], None]) -> None:
        self._trained = trained
        self._saver = task.Saver(folder, send)

    def due(self) -> bool:
        """Whether so much time has passed that saving now is worth it, see `headgate.task.saving`."""
        return bool(self._trained.models) and self._saver.due(self._trained.model_bytes())

    def save(self, why: str, step: int, place: Mapping[str, Any]) -> None:
        """Save a checkpoint and tell the engine.

        Args:
            why: `epoch`, `request`, `stop` or `orphaned`.
            step: Steps of the optimizer so far.
            place: Where the script is: `epoch`, `position` and whatever else is needed to rejoin there.
        """
        self._saver.save(
            why,
            step,
            place,
            lambda folder: checkpoints.write(folder, step, {**self._trained.state_dicts(), "step": step, **place}),
        )
