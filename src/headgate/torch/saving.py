"""When checkpoints are saved, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.torch import checkpoints
from headgate.torch.trained import Trained

SHARE = 0.005
"""Most of the time that unasked checkpoints may take."""


class Saver:
    """Saves what is trained into the job's folder; a failure is told, not raised.

    Args:
        folder: Where to; None: nowhere, and saving fails.
        trained: What to save.
        send: Takes a message for the engine.
    """

    def __init__(self, folder: str | None, trained: Trained, send: Callable[[Mapping[str, object]], None]) -> None:
        self._folder = folder
        self._trained = trained
        self._send = send
        self._saved_at = time.monotonic()
        self._seconds: float | None = None

    def due(self) -> bool:
        """Whether so much time has passed that saving now takes less than `SHARE` of it."""
        if self._folder is None or not self._trained.models:
            return False
        if self._seconds is None:  # never done here: 20 ms and 200 MB/s, as a slow disk
            self._seconds = 0.02 + self._trained.model_bytes() / 200e6
        return (time.monotonic() - self._saved_at) * SHARE >= self._seconds * (1 - SHARE)

    def save(self, why: str, step: int, place: Mapping[str, Any]) -> None:
        """Save a checkpoint and tell the engine.

        Args:
            why: `epoch`, `request`, `stop` or `orphaned`.
            step: Steps of the optimizer so far.
            place: Where the script is: `epoch`, `position` and whatever else is needed to rejoin there.
        """
        begun = time.monotonic()
        try:
            if self._folder is None:
                raise checkpoints.CheckpointError("no folder for checkpoints was given in HEADGATE_CHECKPOINTS")
            payload = {**self._trained.state_dicts(), "step": step, **place}
            path, size = checkpoints.write(Path(self._folder), step, payload)
        except Exception as error:  # noqa: BLE001 - whatever a state dict may raise, training goes on
            self._send({"type": "checkpoint_failed", "error": str(error)})
            return
        finally:
            self._saved_at = time.monotonic()
            self._seconds = self._saved_at - begun
        self._send(
            {
                "type": "checkpoint",
                "path": str(path),
                "step": step,
                "epoch": place["epoch"] or 0,
                "position": place["position"],
                "bytes": size,
                "seconds": self._seconds,
                "why": why,
            }
        )
