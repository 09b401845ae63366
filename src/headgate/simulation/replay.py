"""Replay the recorded events of a run with today's controller, and compare its decisions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headgate import policies
from headgate.controller.core import Controller, live_controller
from headgate.model import events
from headgate.model.actions import Action
from headgate.model.errors import StorageError, UsageError
from headgate.planning.interference import Interference
from headgate.recorded.events import LoggedEvent, Unreadable, as_json, encode, parse


@dataclass(frozen=True, slots=True)
class ChangedDecision:
    """An event at which today's controller decides differently.

    Args:
        event: The event.
        recorded: The recorded actions.
        today: Today's actions.
        error: Today's exception, if any.
    """

    event: LoggedEvent
    recorded: tuple[Action | Unreadable, ...]
    today: tuple[Action, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay.

    Args:
        events: Number of replayed events.
        actions: Number of recorded actions for them.
        seconds: Time from the first to the last event.
        differences: Differing decisions, in order.
        entries: The log with today's actions, renumbered.
        stopped: Why the replay stopped early; empty: it did not.
    """

    events: int
    actions: int
    seconds: float
    differences: tuple[ChangedDecision, ...]
    entries: tuple[LoggedEvent, ...]
    stopped: str = ""


def replay(entries: Mapping[int, LoggedEvent]) -> ReplayResult:
    """Feed the log of a controller to a new one.

    Args:
        entries: The log by id, from the creation of the controller.

    Raises:
        StorageError: The log's beginning is missing, or an entry has another version.
    """
    usable, stopped = _usable(entries)
    by_cause: dict[int | None, list[Any]] = {}
    for entry in usable:
        if entry.kind == "action":
            by_cause.setdefault(entry.cause, []).append(entry.what)
    world = _World()
    today: list[LoggedEvent] = []
    differences: list[ChangedDecision] = []
    given = [entry for entry in usable if entry.kind != "action"]
    for entry in given:
        today.append(replace(entry, id=len(today) + 1, cause=None))
        if entry.kind == "notice":
            world.note(entry.what)
            continue
        actions, error = world.step(entry)
        cause = len(today)
        today += [
            replace(entry, id=id, kind="action", what=action, cause=cause)
            for id, action in enumerate(actions, cause + 1)
        ]
        recorded = by_cause.get(entry.id, [])
        if error or list(map(as_json, recorded)) != list(map(as_json, actions)):
            differences.append(ChangedDecision(entry, tuple(recorded), tuple(actions), error))
    seconds = given[-1].now - given[0].now if given else 0.0
    count = sum(entry.kind == "event" for entry in given)
    recorded_actions = sum(map(len, by_cause.values()))
    return ReplayResult(count, recorded_actions, seconds, tuple(differences), tuple(today), stopped)


class _World:
    """The controller, and its inputs besides events."""

    def __init__(self) -> None:
        self._controller: Controller | None = None
        self._pairs = Interference()

    def note(self, notice: object) -> None:
        match notice:
            case events.ControllerMade(policy):
                self._pairs = Interference()
                self._controller = live_controller(policies.make(policy), lambda: self._pairs)
            case events.PairsKnown(pairs, solo):
                self._pairs = Interference(pairs, solo)
            case events.RunForgotten(run) if self._controller is not None:
                self._controller.forget(run)

    def step(self, entry: LoggedEvent) -> tuple[list[Action], str]:
        if isinstance(entry.what, Unreadable):
            raise StorageError(
                f"entry {entry.id} is a {entry.name} that this version of Headgate does not read; "
                "replay it with the version that recorded it"
            )
        assert self._controller is not None  # the log begins with it
        try:
            return self._controller.step(entry.now, entry.what)[0], ""  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001  # the hub goes on after it, too
            return [], repr(error)


def _usable(entries: Mapping[int, LoggedEvent]) -> tuple[list[LoggedEvent], str]:
    """The consecutive entries from the first on, and why there are no more."""
    first = entries.get(1)
    if first is None or not isinstance(first.what, events.ControllerMade):
        raise StorageError("the beginning of the log is missing; it cannot be replayed")
    usable: list[LoggedEvent] = []
    for id in range(1, max(entries) + 1):
        entry = entries.get(id)
        if entry is None and isinstance(_what(entries.get(id + 1)), events.ReadingsLeftOut):
            return usable, "the log leaves out readings from then on"
        if entry is None:
            return usable, "what comes next is in the log of a run that is gone, or not written yet"
        usable.append(entry)
    return usable, ""


def _what(entry: LoggedEvent | None) -> object:
    return entry.what if entry is not None else None


def save(result: ReplayResult, path: Path) -> None:
    """Write the events of a replay, with today's actions, as a file for `load`."""
    lines = [encode({"run": entry.run, **entry.as_json()}) + "\n" for entry in result.entries]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def load(path: Path) -> dict[int, LoggedEvent]:
    """Read a log that `save` has written.

    Raises:
        UsageError: The file is no such log.
    """
    try:
        return {entry.id: entry for entry in _parsed(path.read_text().splitlines())}
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} holds no recorded run: {error}; make one with: headgate replay RUN --save FILE"
        ) from error


def _parsed(lines: Iterable[str]) -> Iterator[LoggedEvent]:
    for line in lines:
        row = json.loads(line)
        yield parse(row["run"], row)
