"""Points in the script at which all workers of a job wait for each other.

Each worker gives a value and receives those of all, by way of the engine. A worker also learns of
others that are elsewhere in the script and will not come to the place where it waits.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headgate.task.channel import Channel
from headgate.task.script_position import CURE, Position, WorkersDiffer, difference, names, place

PATIENCE_SECONDS = 3.0
"""Longest wait for the others after a request to stop."""
_TELL_SECONDS = 1.0
"""Time that a worker waits before it tells the others its position."""
_NOTE_SECONDS = 30
"""Number of these waits before the user is told."""
_GRACE_SECONDS = 5.0
"""Longest wait in a step that other workers will not take. Then this worker is ended."""
_STILL = 6
"""Number of these waits after which a worker counts as waiting for long."""
_LEAVE_SECONDS = 2.0
"""Time between the end of a loop and its report to others. A loop that an error ends is followed by
the script's end.
"""


class SyncPoints:
    """One worker's side.

    Args:
        channel: The channel to the engine.
        where: Returns the worker's position.

    Attributes:
        failure: Why this worker failed; empty if it did not.
    """

    def __init__(self, channel: Channel, where: Callable[[], Position]) -> None:
        self._channel = channel
        self._where = where
        self._leaving: threading.Timer | None = None
        self._index = int(channel.welcome["index"])
        self._waits = False
        self.failure = ""

    def exchange(self, what: str, value: Any) -> dict[int, Any] | None:
        """Wait for all workers.

        Args:
            what: The name of the call, in the script's words.
            value: This worker's value, for JSON.

        Returns:
            Each worker's value by index, ascending. None: the job ended during the wait.

        Raises:
            WorkersDiffer: Other workers are elsewhere in the script.
        """
        given = self.barrier({**self._where(), "what": f"in {what}"}, value)
        if given is None:
            return None
        text = difference({index: position for index, (position, _) in given.items()})
        if text:
            self.fail(f"{text}; and call {what} in all workers alike")
        return {index: value for index, (_, value) in given.items()}

    def mean(self, value: float) -> float | None:
        """The mean of a number over the workers. None: the job ended during the wait.

        Raises:
            WorkersDiffer: Other workers are elsewhere in the script.
        """
        given = self.exchange("hg.mean()", value)
        return None if given is None else sum(map(float, given.values())) / len(given)

    def agree(self, flag: bool) -> bool | None:
        """Whether the flag is true in any worker. None: the job ended during the wait.

        Raises:
            WorkersDiffer: Other workers are elsewhere in the script.
        """
        given = self.exchange("hg.agree()", flag)
        return None if given is None else any(given.values())

    def compare(self, settings: Sequence[Mapping[str, Any]]) -> None:
        """Wait for all workers, which have to be at the same place with the same settings.

        Raises:
            WorkersDiffer: Their places or settings differ.
        """
        given = self.barrier({**self._where(), "settings": settings})
        text = (
            difference({index: position for index, (position, _) in given.items()}) if given else ""
        )
        if text:
            self.fail(text)

    def barrier(
        self, position: Position, value: Any = None
    ) -> dict[int, tuple[Position, Any]] | None:
        """Wait for all workers. Returns each one's position and value, by index.

        None: the job ended during the wait.
        """
        channel, waited = self._channel, 0
        self._waits = True
        channel.sync({"type": "meet", "standing": position, "value": value})
        while not channel.wait_for(
            lambda: channel.met is not None, _TELL_SECONDS, through_stop=True
        ):
            self.look(position, in_step=False)
            late = channel.stopping and time.monotonic() - channel.pending_since > PATIENCE_SECONDS
            if late or not channel.connected:
                return None
            waited += 1
            if waited == 1:
                channel.send({"type": "position", "standing": {**position, "waits": True}})
            elif waited == _NOTE_SECONDS:
                text = (
                    f"worker-{self._index} is {place(position)}, and has waited {waited} s "
                    "for the others"
                )
                channel.send({"type": "note", "text": f"{text}, who have to come there too"})
        self._waits = False
        return {entry["index"]: (entry["standing"], entry["value"]) for entry in channel.met or ()}

    def look(self, position: Position, in_step: bool = True, still: bool = False) -> None:
        """Check on the others while this worker waits for them, in a step or at a barrier.

        Args:
            position: Its position. `rounds` and `step` count those that it has begun.
            in_step: Whether it waits in a step.
            still: Whether it has waited for long. Then `dropped`, the number of batches without a
                step, counts as well: after another worker has dropped a batch, this one makes a
                step alone. It also counts that this worker waits in an exchange (`exchanges`),
                because nothing after an exchange takes as long.

        Raises:
            WorkersDiffer: One of the others is elsewhere and can no longer come to this place.
        """
        for index, other in list(self._channel.positions.items()):
            behind = not in_step or any(
                other[count] < position[count] for count in ("rounds", "step")
            )
            behind = behind or (
                still
                and (other["dropped"] > position["dropped"] or position.get("exchanges", False))
            )
            if other.get("waits"):
                past = in_step  # else at this same meeting
            elif other.get("left"):
                past = position.get("epoch") is not None and position["phase"] <= other["phase"]
            else:
                past = True
            if past and behind:
                waiting = f"{names([self._index])} waits for it {place(position)}"
                self.fail(f"{names([index])} is {place(other)}, and {waiting}; {CURE}")

    def fail(self, text: str) -> None:
        """End this worker's part in the job.

        Raises:
            WorkersDiffer: Always.
        """
        self.failure = text
        raise WorkersDiffer(text)

    def watch(self, where: Callable[[], Position]) -> None:
        """From now on, end this worker if it waits within a step of the framework for a worker that
        will not come.

        Args:
            where: Returns the worker's position. `rounds` or `step` counts a step that has begun.
        """
        threading.Thread(
            target=self._watch, args=(where,), name="headgate-sync-points", daemon=True
        ).start()

    def left(self) -> None:
        """Note that the script has left a loop over `epochs`. The others are told if the script
        continues.
        """
        self._stay()
        position = {**self._where(), "what": "past its loop over epochs", "left": True}
        self._leaving = threading.Timer(
            _LEAVE_SECONDS, self._channel.send, [{"type": "position", "standing": position}]
        )
        self._leaving.daemon = True
        self._leaving.start()

    def close(self, position: Position | None) -> None:
        """Note the end of the script.

        Args:
            position: Its position, if it ended by itself; None: it was asked to end.
        """
        self._stay()
        if position is not None and not self.failure and not _raised():
            self._channel.send(
                {"type": "position", "standing": {**position, "what": "at its end", "ended": True}}
            )

    def exit_failed(self) -> None:
        """End the process if the script has caught the exception that this worker failed by."""
        if self.failure and not _raised():
            self._exit(self.failure)

    def _exit(self, text: str) -> None:
        print(f"{WorkersDiffer.__module__}.{WorkersDiffer.__name__}: {text}", file=sys.stderr)
        self._channel.flush(2.0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(1)

    def _stay(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _watch(self, where: Callable[[], Position]) -> None:
        channel = self._channel
        last, times = where(), 0
        while channel.wait_for(lambda: bool(channel.positions), threading.TIMEOUT_MAX):
            channel.wait_for(lambda: False, _GRACE_SECONDS)
            if channel.stopping or not channel.connected:
                return
            position = where()
            times = times + 1 if position == last and not self._waits else 0
            last = position
            if not times:
                continue
            try:
                self.look(position, still=times >= _STILL)
            except WorkersDiffer as error:
                self._exit(str(error))


def _raised() -> bool:
    """Whether an uncaught exception ends the script."""
    return getattr(sys, "last_value", None) is not None
