"""A run that is watched: what happens to it, until its report is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headgate.hub.connection import ANSWER_SECONDS, HubConnection
from headgate.recorded import runs


class Watch:
    """Watches a run over a connection of its own.

    Args:
        hub: The connection, which is attached to the run.
        run: The run's id.
    """

    def __init__(self, hub: HubConnection, run: str) -> None:
        self._hub = hub
        self.run = run
        self.path = runs.home() / "runs" / run

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.close()

    def follow(self, timeout: float) -> Iterator[dict[str, Any] | None]:
        """What the hub says of the run until its report is written; None whenever it says nothing
        for `timeout` seconds.

        Raises:
            HubGoneError: The hub died.
        """
        return self._hub.follow(timeout)

    def stop(self, jobs: Sequence[str] | None = None, *, kill: bool = False) -> None:
        """Have jobs stopped (None: all), without waiting for that."""
        self._hub.send("stop", run=self.run, jobs=jobs, kill=kill)

    def leave_stopped(self, *, kill: bool) -> None:
        """Have all jobs stopped, and make sure that the hub has read so before the connection
        closes.
        """
        self.stop(kill=kill)
        while (self._hub.receive(ANSWER_SECONDS) or {}).get("type") in ("snapshot", "event"):
            pass
