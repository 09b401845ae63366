"""Where the workers of a job meet: each gives a value and gets those of all, by way of the engine. Each also learns of
workers that are elsewhere, and will not come to where it waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from headgate.task.channel import Channel
from headgate.task.standing import CURE, Standing, WorkersDiffer, difference, names, place

PATIENCE_SECONDS = 3.0
"""How long a worker that is asked to stop waits for the others to come."""
_TELL_SECONDS = 1.0
"""How long a worker waits before it tells the others where it does."""
_LEAVE_SECONDS = 2.0
"""How long after the end of a loop others are told of it: one that an error ends is followed by the script's end."""


class Meetings:
    """One worker's side.

    Args:
        channel: To the engine.
        where: The worker's standing.

    Attributes:
        failure: What made this worker fail; empty while nothing did.
    """

    def __init__(self, channel: Channel, where: Callable[[], Standing]) -> None:
        self._channel = channel
        self._where = where
        self._leaving: threading.Timer | None = None
        self.failure = ""

    def exchange(self, what: str, value: Any) -> dict[int, Any] | None:
        """Wait for all workers; what each gave, by its index in ascending order. None: the job ends meanwhile.

        Args:
            what: What is called, in the script's words.
            value: What this worker gives, for JSON.

        Raises:
            WorkersDiffer: The others are elsewhere.
        """
        given = self.meet({**self._where(), "what": f"in {what}"}, value)
        if given is None:
            return None
        text = difference({index: standing for index, (standing, _) in given.items()})
        if text:
            self.fail(f"{text}; and call {what} in all workers alike")
        return {index: value for index, (_, value) in given.items()}

    def mean(self, value: float) -> float | None:
        """The mean of a number over the workers. None: the job ends meanwhile.

        Raises:
            WorkersDiffer: The others are elsewhere.
        """
        given = self.exchange("hg.mean()", value)
        return None if given is None else sum(map(float, given.values())) / len(given)

    def agree(self, flag: bool) -> bool | None:
        """Whether any worker says so. None: the job ends meanwhile.

        Raises:
            WorkersDiffer: The others are elsewhere.
        """
        given = self.exchange("hg.agree()", flag)
        return None if given is None else any(given.values())

    def meet(self, standing: Standing, value: Any = None) -> dict[int, tuple[Standing, Any]] | None:
        """Wait for all workers; standing and value of each by index. None: the job ends meanwhile."""
        channel = self._channel
        channel.meet({"type": "meet", "standing": standing, "value": value})
        told = False
        while not channel.wait_for(lambda: channel.met is not None, _TELL_SECONDS, through_stop=True):
            self.look(standing, in_step=False)
            late = channel.stopping and time.monotonic() - channel.pending_since > PATIENCE_SECONDS
            if late or not channel.connected:
                return None
            if not told:
                told = True
                channel.send({"type": "elsewhere", "standing": {**standing, "waits": True}})
        return {each["index"]: (each["standing"], each["value"]) for each in channel.met or ()}

    def look(self, standing: Standing, in_step: bool = True) -> None:
        """Called by a worker that waits for the others, in a step or at a meeting.

        Args:
            standing: Where it is.
            in_step: Whether in a step.

        Raises:
            WorkersDiffer: One of them is elsewhere, and cannot come there any more.
        """
        for index, other in list(self._channel.elsewhere.items()):
            behind = not in_step or other["rounds"] <= standing["rounds"]
            if other.get("waits"):
                past = in_step  # else at this same meeting
            elif other.get("left"):
                past = standing.get("epoch") is not None and standing["phase"] <= other["phase"]
            else:
                past = True
            if past and behind:
                self.fail(f"{names([index])} is {place(other)}, and this one waits for it {place(standing)}; {CURE}")

    def fail(self, text: str) -> None:
        """This worker cannot go on.

        Raises:
            WorkersDiffer: Always.
        """
        self.failure = text
        raise WorkersDiffer(text)

    def left(self) -> None:
        """The script has left a loop over `epochs`; the others are told if it goes on."""
        self.close()
        standing = {**self._where(), "what": "past its loop over epochs", "left": True}
        self._leaving = threading.Timer(
            _LEAVE_SECONDS, self._channel.send, [{"type": "elsewhere", "standing": standing}]
        )
        self._leaving.daemon = True
        self._leaving.start()

    def ended(self, standing: Standing) -> None:
        """The script has come to its end, by itself."""
        self._channel.send({"type": "elsewhere", "standing": {**standing, "what": "at its end", "ended": True}})

    def close(self) -> None:
        """The script ends, and nobody is told any more that it left a loop before."""
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
