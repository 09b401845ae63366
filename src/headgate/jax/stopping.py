"""Has the workers of a job stop at the same step."""

from __future__ import annotations

import threading
from typing import Any

import jax
from jax._src import distributed

from headgate.task import Channel

_PATIENCE_MS = 10_000
"""Time that a worker that is asked to stop waits to hear where the others are."""


class StopTogether:
    """Agrees with the other workers on the boundary at which all stop.

    JAX steps carry no requests, so the workers agree outside of them. Each counts the boundaries
    that it passed. A worker that is asked to stop holds its count still and tells it. It does so
    from a thread, because the script may be waiting in a step for another worker. All stop at the
    boundary after the highest count, which none has passed.

    Args:
        channel: The channel on which all workers receive the request.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._workers = range(jax.process_count())
        self._passed = 0
        self._last: int | None = None
        threading.Thread(target=self._agree, name="headgate-stop", daemon=True).start()

    def passed(self) -> None:
        """Count a boundary of the script."""
        with self._lock:
            self._passed += 1

    @property
    def stopping(self) -> str:
        """As `Channel.stopping`, but empty before the boundary at which all workers stop."""
        last_passed = self._last is not None and self._passed >= self._last
        return (self._channel.stopping or "stop") if last_passed else ""

    @property
    def pending(self) -> bool:
        """Whether a request is pending."""
        return bool(self.stopping) or self._channel.pending

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint was requested since the last call. Only worker 0 saves it."""
        return self._channel.take_checkpoint()

    def _agree(self) -> None:
        self._channel.wait_for(lambda: bool(self._channel.stopping), threading.TIMEOUT_MAX)
        client: Any = distributed.global_state.client
        if not self._channel.stopping or client is None:
            return
        with self._lock:
            try:
                client.key_value_set(f"headgate/passed/{jax.process_index()}", str(self._passed))
                passed = [
                    client.blocking_key_value_get(f"headgate/passed/{i}", _PATIENCE_MS)
                    for i in self._workers
                ]
            except jax.errors.JaxRuntimeError:
                passed = [self._passed]  # one is gone: no step can be ended together any more
            self._last = max(int(count) for count in passed) + 1
