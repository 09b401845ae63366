"""Epochs that do not end with a loader: the script counts its batches, keeps them, or repeats them
in a cycle.

After a resume in the middle of such an epoch, the script counts from the beginning again. So
requests wait for the end of the epoch, if it is near.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from headgate.torch.iteration import Iteration
from headgate.torch.loaders import Loaders

NEAR_SECONDS = 20.0
"""Longest time that a stop waits for the end of an epoch, if a resume continues at an exact
place.
"""
_REPLAYED = 3
"""Steps in a row after a loader's end. A script that reads ahead takes one or two."""


class ManualEpochs:
    """Decides whether a request waits, and what the user of such a script should know.

    Args:
        loaders: The prepared loaders.
        note: Tells the user something, once.
        as_lowest: The value of the worker that saves. All workers of a job call it.
    """

    def __init__(
        self, loaders: Loaders, note: Callable[[str], None], as_lowest: Callable[[bool], bool]
    ) -> None:
        self._loaders = loaders
        self._note = note
        self._as_lowest = as_lowest
        self._began = 0.0
        self._took: float | None = None
        self._since: float | None = None
        self._unfed = 0

    def begin_epoch(self) -> None:
        self._began = time.monotonic()

    def end_epoch(self, was_resumed: bool) -> None:
        """End an epoch. `was_resumed`: it was resumed in its middle, if it is the first."""
        self._took = time.monotonic() - self._began
        if was_resumed and self._loaders.rejoined and not self._loaders.rejoined_to_end:
            self._note(
                "the epoch was resumed in its middle, and the script ended it by a count of its "
                "own, which had begun again: it had more batches than in a run that was not stopped"
            )

    def left_of(self, iteration: Iteration | None) -> float | None:
        """Seconds to the end of the epoch, from the pass or the last epoch; None if unknown."""
        if iteration is not None and iteration.batches and iteration.done:
            return (time.monotonic() - self._began) * (iteration.batches / iteration.done - 1.0)
        return None if iteration is not None else self._left

    def waits(self, feeding: Set[int], stopping: bool) -> bool:
        """Whether a request waits for the end of the current epoch.

        Args:
            feeding: Numbers of the iterations that fed the last step.
            stopping: Whether the script was asked to end, and not only for a checkpoint.
        """
        if not self._loaders.ends_by_count(feeding):
            return False
        if not stopping:
            self._note(
                "the script ends an epoch by its own count: a requested checkpoint is saved at the "
                "end of the epoch"
            )
            return True
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if self._as_lowest(now - self._since + (self._left or 0.0) <= NEAR_SECONDS):
            return True
        self._note(
            "the script ends an epoch by a count of its own, and is stopped in the middle of one: "
            "a resume goes on with the next batch, and the count begins again"
        )
        return False

    # --- repeated batches -------------------------------------------------------------------------

    @property
    def unfed(self) -> bool:
        """Whether steps are taken after the end of all loaders."""
        return self._unfed > 0

    def stepped(self, fed: bool) -> None:
        """Note a step. `fed`: a loader has given a batch for it."""
        states = self._loaders.states
        over = (
            not fed
            and any(s.running is not None for s in states)
            and not any(s.current() for s in states)
        )
        self._unfed = self._unfed + 1 if over else 0
        if self._unfed != _REPLAYED:
            return
        self._note(
            "steps are taken on batches that the loader gave before, as with list(loader): they "
            "are not shuffled again, and a resume in the middle of an epoch begins the epoch "
            "again. Iterate over the loader in each epoch instead"
        )
        if any(state.lacks_begin for state in states):
            self._note(
                "the script keeps the batches of a pass that was resumed in its middle: it has not "
                "those before, and trains from now on what a run that was not stopped does not. "
                "Start over with: headgate resume --from-scratch"
            )

    def replays(self, drawn: bool) -> None:
        """Note that a cycle repeats the batches of a pass. `drawn`: other ones than before, after a
        resume.
        """
        self._note(
            "itertools.cycle repeats the batches of one pass over the loader: they are not "
            "shuffled again. Iterate over the loader again instead, as "
            "`while True: yield from loader` does"
        )
        if drawn:
            self._note(
                "itertools.cycle had batches that are drawn at random as they are read: after the "
                "resume they were read again, and are others. What is trained differs from a run "
                "that was not stopped"
            )

    @property
    def _left(self) -> float | None:
        """Seconds to the end of the epoch, if it takes as long as the last one. None without a last
        one.
        """
        return (
            None if self._took is None else max(self._took - (time.monotonic() - self._began), 0.0)
        )
