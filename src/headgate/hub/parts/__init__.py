"""The parts of a hub (docs/architecture.md): each hears every event and has one responsibility."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.model.actions import Action
from headgate.model.events import Event


class Component:
    """A part of the hub. The hub informs all parts of each event, of each ended run, and of its own
    end. An error in one part does not affect the others.
    """

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        """Process an event and the controller's actions."""

    def forget(self, run: str) -> None:
        """Drop a run that has ended."""

    def close(self) -> None:
        """Stop: the hub is ending."""
