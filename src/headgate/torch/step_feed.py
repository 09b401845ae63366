"""Which passes over data feed the steps of the optimizer."""

from __future__ import annotations

from typing import NamedTuple

from headgate.torch.iteration import Iteration
from headgate.torch.loaders import Loaders


class StepSamples(NamedTuple):
    """Samples of a step: those of all workers together, and this worker's own."""

    of_all: int
    own: int


class StepFeed:
    """Follows the batches between two steps.

    Args:
        loaders: The prepared loaders.

    Attributes:
        stepped: Whether a step has ended since the last boundary.
        passes: Numbers of the passes that fed the last step.
    """

    def __init__(self, loaders: Loaders) -> None:
        self._loaders = loaders
        self._fetched: set[int] = set()  # numbers of passes, since the last step
        self._samples: dict[int, StepSamples] = {}  # by loader, since the last step
        self._trains_on = -1
        self.stepped = False
        self.passes: set[int] = set()

    def fetched(self, iteration: Iteration, samples: StepSamples | None) -> None:
        """Note a batch of a pass, with its samples; None: unknown."""
        if samples is not None:
            loader = iteration.state.index
            before = self._samples.get(loader)
            if before is not None:
                samples = StepSamples(before.of_all + samples.of_all, before.own + samples.own)
            self._samples[loader] = samples
        self._fetched.add(iteration.number)

    def ended(self, iteration: Iteration) -> None:
        """Note the end of a pass. What it gave last feeds no step."""
        self._samples.pop(iteration.state.index, None)

    @property
    def has_batch(self) -> bool:
        """Whether a batch was fetched since the last step."""
        return bool(self._fetched)

    def step(self) -> Iteration | None:
        """Note a step. Returns the pass whose next fetch is its boundary; None: none is known."""
        self.stepped = True
        self.passes, self._fetched = self._fetched, set()
        anchor = self.anchor()
        if anchor is not None:
            self._trains_on = anchor.state.index
        return anchor

    def take_samples(self) -> StepSamples | None:
        """The samples of the step that has ended, of the first loader that fed it; None:
        unknown.
        """
        if not self._samples:
            return None
        samples = self._samples[min(self._samples)]
        self._samples = {}
        return samples

    def anchor(self) -> Iteration | None:
        """The pass whose next fetch is the boundary after the last step; None: none is known."""
        return self._loaders.anchor(self.passes)

    def is_boundary(self, iteration: Iteration) -> bool:
        """Whether the next fetch of a pass is a step boundary."""
        return self.stepped and iteration.number in self.passes

    def is_other(self, iteration: Iteration) -> bool:
        """Whether a pass reads other data than that of the last step."""
        return bool(self.passes) and iteration.number not in self.passes

    def accumulates(self, iteration: Iteration) -> bool:
        """Whether a step of batches that this pass has given is to come."""
        return iteration.state.index == self._trains_on and iteration.number in self._fetched
