"""When the engine's requests are handled: at a step boundary or the end of an epoch, or, if neither
comes soon, wherever the script is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from headgate.task import Channel
from headgate.torch.agreed_requests import AgreedRequests
from headgate.torch.iteration import Iteration
from headgate.torch.manual_epochs import NEAR_SECONDS, ManualEpochs

PATIENCE_SECONDS = 3.0
"""Longest time that a request waits for a step boundary. After it, any report or fetch serves as
one, at the cost of the exact position.
"""


class RequestTiming:
    """Decides how long pending requests wait.

    Args:
        requests: The requests that this script handles.
        channel: The channel they come from; the other workers may not know of them yet.
        epochs: Knows when an epoch ends that the script counts by itself.
        in_epoch: Whether the script is in a loop over epochs.
        insist: Called before requests are handled that the other workers do not handle now.
    """

    def __init__(
        self,
        requests: Channel | AgreedRequests,
        channel: Channel,
        epochs: ManualEpochs,
        in_epoch: Callable[[], bool],
        insist: Callable[[], None],
    ) -> None:
        self._requests = requests
        self._channel = channel
        self._epochs = epochs
        self._in_epoch = in_epoch
        self._insist = insist

    def patience_ends(self, iteration: Iteration | None) -> bool:
        """Whether no boundary comes soon. `iteration`: the pass that feeds steps, if known."""
        waited = time.monotonic() - self._requests.pending_since
        if waited <= PATIENCE_SECONDS:
            return False
        left = self._epochs.left_of(iteration) if self._in_epoch() else None
        if left is not None and waited + left <= NEAR_SECONDS:
            return False
        self._insist()
        return True

    def waits_for_epoch_end(self, passes: Set[int]) -> bool:
        """Whether requests wait for the end of an epoch that does not end with a loader.

        Args:
            passes: Numbers of the passes that fed the last step.
        """
        stopping = bool(self._requests.stopping)
        if not self._in_epoch() or (self._channel.stopping and not stopping):
            return self._in_epoch()  # the other workers do not know it yet
        return self._epochs.waits(passes, stopping)
