"""The bridge: what stands between a hub and the agents of a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from headgate.engines.remote.wire import Report, Request


class BridgeLine(Protocol):
    """The hub's end of the way to a bridge."""

    def send(self, what: Request, /) -> None:
        """Send a request. If the bridge is gone, it is lost."""

    def receive(self) -> Report | Request | None:
        """The next report; None if the bridge is gone."""

    def close(self) -> None:
        """Hang up."""


class Bridge(ABC):
    """A running bridge."""

    pipe: BridgeLine
    """The way to it."""
    is_far = False
    """Whether it runs on the cluster."""

    @abstractmethod
    def wait(self) -> str:
        """Wait for the end of a bridge that has hung up or is about to. Returns how it ended."""

    @abstractmethod
    def kill(self) -> None:
        """End a bridge that does not end by itself."""
