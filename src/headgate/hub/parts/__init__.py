"""The parts of a hub (docs/architecture.md): each hears every event and sees to one thing."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.model.events import Action, Event


class Component:
    """A part of the hub. The hub tells all of its parts of each event, of each run that has ended,
    and of its own end. An error in one part does not affect the others.
    """

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        """Take in an event, and what the controller did about it."""

    def forget(self, run: str) -> None:
        """A run has ended."""

    def close(self) -> None:
        """The hub ends."""
