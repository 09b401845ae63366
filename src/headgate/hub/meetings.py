"""Where the workers of an attempt meet: what each gives is handed to all once all have come (docs/channel.md)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from headgate.identifiers import TaskName
from headgate.task.standing import CURE, difference, names, place
from headgate.task.stop import PeerLost


class AttemptMeetings:
    """The meetings of one attempt.

    Args:
        workers: The names of those that a meeting needs.
        send: Sends a message to a worker, by its name.
    """

    def __init__(
        self, workers: Callable[[], Collection[TaskName]], send: Callable[[TaskName, Mapping[str, object]], None]
    ) -> None:
        self._workers = workers
        self._send = send
        self._given: dict[TaskName, Mapping[str, Any]] = {}
        self._ends: dict[TaskName, Mapping[str, Any]] = {}

    def meet(self, name: TaskName, message: Mapping[str, Any]) -> None:
        """A worker has come and waits for the others."""
        self._given[name] = {"index": name.index, "standing": message["standing"], "value": message["value"]}
        self.settle()

    def elsewhere(self, name: TaskName, standing: Mapping[str, Any]) -> None:
        """A worker tells where it is: others may wait for it in vain."""
        if standing.get("waits") and name not in self._given:
            return  # the meeting has been meanwhile
        if standing.get("ended"):
            self._ends[name] = standing
        for other in self._workers():
            if other != name:
                self._send(other, {"type": "elsewhere", "index": name.index, "standing": standing})

    def leave(self, name: TaskName) -> None:
        """A worker has ended."""
        self._given.pop(name, None)
        self.settle()

    def settle(self) -> None:
        """Hand out what was given, if nobody else is to come."""
        if not self._given or not set(self._workers()) <= self._given.keys():
            return
        given, self._given = self._given, {}
        met = {"type": "met", "given": sorted(given.values(), key=lambda each: each["index"])}
        for name in given:
            self._send(name, met)

    def fault(self, name: TaskName, code: int | None) -> str:
        """What is wrong with the end of a worker whose steps are those of all, if others have come to the end of their
        script; empty: nothing.

        Args:
            name: The worker.
            code: Its exit code.
        """
        others = {other.index: end for other, end in self._ends.items() if other != name}
        if code == PeerLost.STATUS and others:
            told = ", ".join(f"{names([index])} was {place(end)}" for index, end in others.items())
            return f"the workers do not take the same steps: {told}, and {name} in the middle of another step; {CURE}"
        ends = {other.index: end for other, end in self._ends.items()}
        return difference(ends) if code == 0 and name in self._ends else ""
