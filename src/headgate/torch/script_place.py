"""The place of a script in its data, as a checkpoint has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headgate.torch import rng
from headgate.torch.iteration import Iteration
from headgate.torch.loaders import Loaders


class ScriptPlace:
    """Keeps the random states at the script's loops and epochs, and finds the way back to them.

    Args:
        loaders: The prepared loaders.
        resume: The checkpoint that the script resumes from; None: none.
    """

    def __init__(self, loaders: Loaders, resume: Mapping[str, Any] | None) -> None:
        self._loaders = loaders
        self._resume = resume or {}
        self._ends: list[rng.RngState] = list(self._resume.get("ends", ()))  # of loops over epochs
        self._epoch: rng.RngState | None = None  # at the beginning of the epoch

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self._epoch = self._loaders.capture_rng()

    def left(self, phase: int) -> None:
        """A loop over epochs has ended."""
        with self._loaders.drawing():
            self._ends[phase:] = [self._loaders.capture_rng()]

    def skip(self, phase: int) -> None:
        """A loop is skipped that had ended in the checkpoint: go on as after it."""
        if phase < len(self._ends):
            with self._loaders.drawing():
                self._loaders.restore_rng(self._ends[phase])

    def rejoin(self) -> bool:
        """Go to the checkpoint's place in an epoch that has begun. Returns whether that is its
        beginning.
        """
        if self._resume["position"]:
            self._loaders.restore_rng(self._resume["epoch_rng"])
            self._loaders.arm(self._resume["loaders"], self._resume["rng"], inside=True)
            return False
        with self._loaders.drawing():
            self._loaders.restore_rng(self._resume["rng"])
        return bool(self._resume["position"] == 0)

    def recorded(
        self,
        epoch: int | None,
        at: Iteration | None,
        after: int | None,
        note: Callable[[str], None],
    ) -> dict[str, Any]:
        """What a checkpoint has of the place.

        Args:
            epoch: The running epoch; None: outside of a loop.
            at: The pass whose position counts; None: no exact position is known.
            after: The epoch that has ended; None: in the middle of one.
            note: Tells the user what a resume has to repeat.
        """
        if after is None:
            epoch, done, positions = self._loaders.position(epoch, at, note)
        else:
            epoch, done, positions = after + 1, 0, self._loaders.snapshot(None) or []
        with self._loaders.drawing():
            data_rng = self._loaders.capture_rng()
        return {
            "epoch": epoch,
            "position": done,
            "loaders": positions,
            "rng": data_rng,
            "epoch_rng": self._epoch,
            "ends": self._ends,
        }
