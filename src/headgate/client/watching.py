"""Follow the events of a run until its report is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headgate.hub.connection import ANSWER_SECONDS, HubConnection
from headgate.recorded import runs


class Watch:
    """Watches a run over a connection of its own.

    Args:
        hub: A connection that is attached to the run.
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
        """The hub's messages about the run, until its report is written. Yields None whenever the
        hub is silent for `timeout` seconds.

        Raises:
            HubGoneError: The hub died.
        """
        return self._hub.follow(timeout)

    def stop(self, jobs: Sequence[str] | None = None, *, kill: bool = False) -> None:
        """Ask the hub to stop jobs (None: all) and return at once."""
        self._hub.send("stop", run=self.run, jobs=jobs, kill=kill)

    def leave_stopped(self, *, kill: bool) -> None:
        """Ask the hub to stop all jobs. Returns once the hub has read the request, so that the
        connection may close.
        """
        self.stop(kill=kill)
        while (self._hub.receive(ANSWER_SECONDS) or {}).get("type") in ("snapshot", "event"):
            pass
