"""Requests of the engine that all workers of a job have to handle at the same step."""

from __future__ import annotations

import time

from headgate.task import Channel


class AgreedRequests:
    """The requests of a `Channel`, once all workers know of them. It has the interface of a
    channel.

    A worker announces a request to stop or to save in the next round. All workers handle it at the
    step boundary after that round.

    Args:
        channel: The channel with the requests.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._asked = False
        self._stop = False
        self._checkpoint = False
        self._round_at = 0.0
        self._alone = False

    @property
    def pending(self) -> bool:
        """Whether a request is pending."""
        return self._stop or self._checkpoint or self._channel.pending

    @property
    def pending_since(self) -> float:
        """The `time.monotonic()` from which on no round could have announced the oldest request."""
        return max(self._channel.pending_since, self._round_at)

    @property
    def stopping(self) -> str:
        return (self._channel.stopping or "stop") if self._stop else ""

    def take_checkpoint(self) -> bool:
        asked, self._checkpoint = self._checkpoint, False
        return asked

    def flags(self) -> tuple[bool, bool]:
        """Whether this worker was asked to stop, and to save a checkpoint: announced in a round. A
        request to leave before the others is not announced.
        """
        self._asked = self._channel.take_checkpoint() or self._asked
        return bool(self._channel.stopping) and not self.leaving, self._asked

    def agree(self, stop: bool, checkpoint: bool) -> None:
        """Note the requests that any worker announced in a finished round."""
        self._round_at = time.monotonic()
        self._alone = False
        self._stop = self._stop or stop
        if checkpoint:
            self._checkpoint, self._asked = True, False

    @property
    def together(self) -> bool:
        """Whether the other workers come to this place at the same step."""
        return not self._alone and not self.leaving

    @property
    def leaving(self) -> bool:
        """Whether this worker ends before the others."""
        index = self._channel.welcome.get("index")
        members = self._channel.peers.get("members", ())
        return any(
            m.get("leaving") and m["role"] == "worker" and m["index"] == index for m in members
        )

    def leave(self) -> None:
        """Stop at the step boundary: the others divide the next samples among themselves."""
        self._stop = True

    def insist(self) -> None:
        """Handle requests alone, because no round comes, as in a long validation."""
        self._alone = True
        _, asked = self.flags()
        self._stop = self._stop or bool(self._channel.stopping)
        self._checkpoint, self._asked = self._checkpoint or asked, False
