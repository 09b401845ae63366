"""An engine's listener for tests: records its calls, and each breach of the contract."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headgate.engines.base import Listener
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.identifiers import TaskId
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason
from headgate.sampling.columns import Column

Kind = Literal["started", "output", "message", "exited", "warned"]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call: its kind, and its argument after the task."""

    kind: Kind
    task: TaskId | None
    what: Any


class RecordingListener(Listener):
    """Keeps every call in order.

    Args:
        has_box: Whether a task's box still exists; called when the task is reported to have exited.
    """

    def __init__(self, has_box: Callable[[TaskId], bool]) -> None:
        self.breaches: list[str] = []
        """Breaches of the contract, a line each: a call during another of the same task, after its
        end or before its start; an end while its box exists.
        """
        self.nodes: list[tuple[Literal["joined", "left", "left for good"], str]] = []
        """The nodes that joined and left."""
        self.used: dict[str, Mapping[Column, float]] = {}
        """The latest usage of tasks and nodes."""
        self._has_box = has_box
        self.calls: list[RecordedCall] = []
        """All calls, in order."""
        self._busy: set[TaskId] = set()
        self._lock = threading.Lock()

    def of(self, task: TaskId | None, *kinds: Kind) -> list[RecordedCall]:
        """The calls about a task, only of these kinds if any are given."""
        with self._lock:
            return [
                call
                for call in self.calls
                if call.task == task and (not kinds or call.kind in kinds)
            ]

    def lines(self, task: TaskId) -> list[str]:
        """The lines of output."""
        return [line for call in self.of(task, "output") for line in call.what]

    def messages(self, task: TaskId, kind: str) -> list[Mapping[str, Any]]:
        """The messages of that type."""
        return [call.what for call in self.of(task, "message") if call.what.get("type") == kind]

    def exit(self, task: TaskId) -> Exit | None:
        """How it ended; None if not reported."""
        ends = self.of(task, "exited")
        end: Exit | None = ends[-1].what if ends else None
        return end

    def pid(self, task: TaskId) -> int | None:
        """The latest process id that was reported for it."""
        starts = self.of(task, "started")
        pid: int | None = starts[-1].what if starts else None
        return pid

    # --- the contract -----------------------------------------------------------------------------

    def started(self, task: TaskId, pid: int) -> None:
        self._note(RecordedCall("started", task, pid))

    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        self._note(RecordedCall("output", task, tuple(lines)))

    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        self._note(RecordedCall("message", task, message))

    def exited(self, task: TaskId, exit: Exit) -> None:
        self._note(RecordedCall("exited", task, exit))

    def warned(self, task: TaskId | None, what: Reason | str) -> None:
        text = in_words(what) if isinstance(what, Reason) else what
        self._note(RecordedCall("warned", task, text))

    def usage(self, target: str, reading: Mapping[Column, float]) -> None:
        self.used[target] = reading

    def joined(self, node: Node) -> None:
        self.nodes.append(("joined", node.name))

    def left(self, name: str, reason: str, for_good: bool = False) -> None:
        self.nodes.append(("left for good" if for_good else "left", name))

    def _note(self, call: RecordedCall) -> None:
        task = call.task
        if task is None:
            with self._lock:
                self.calls.append(call)
            return
        with self._lock:
            if task in self._busy:
                self.breaches.append(
                    f"{task}: {call.kind} was said while something else was being said"
                )
            self._busy.add(task)
            running = self._running(task)
            if call.kind == "started" and running:
                self.breaches.append(f"{task}: it was said to have started while it ran")
            if call.kind in ("output", "message") and not running:
                self.breaches.append(f"{task}: {call.kind} was said of it while it did not run")
        if call.kind == "exited" and self._has_box(task):
            self.breaches.append(f"{task}: it was said to have exited while its box was there")
        with self._lock:
            self.calls.append(call)
            self._busy.discard(task)

    def _running(self, task: TaskId) -> bool:
        kinds = [
            call.kind
            for call in self.calls
            if call.task == task and call.kind in ("started", "exited")
        ]
        return bool(kinds) and kinds[-1] == "started"
