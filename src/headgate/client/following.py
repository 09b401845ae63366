"""Follow all live runs of this user at once."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.hub.connection import HubConnection, HubGoneError, connect
from headgate.model.errors import HeadgateError
from headgate.recorded import runs

LOOK_SECONDS = 1.0
"""How often it looks for new runs."""

Told = Callable[[Mapping[str, Any]], None]


class Follower:
    """Passes on what hubs tell of all live runs, from a thread of its own.

    It is connected to a hub only while that has a run: a hub without work may end.

    Args:
        tell: Called with each message, from several threads: those of `Watch.follow`, each with
            `run`. With `{"type": "attached"}` once the store of a run has what happened before its
            first message. With `{"type": "gone"}` once a run's hub is gone without a word of its
            end; with `{"type": "silent"}` and the reason as `text` while a hub cannot be followed.
            With `{"type": "hub"}`, the hub's name and its `pid` while it is followed, and None
            then.
    """

    def __init__(self, tell: Told) -> None:
        self._tell = tell
        self._ending = threading.Event()
        self._followed: dict[Path, threading.Thread] = {}
        self._thread = threading.Thread(target=self._look, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End; returns once no message will come any more."""
        self._ending.set()
        for thread in (self._thread, *self._followed.values()):
            thread.join()

    def _look(self) -> None:
        while not self._ending.is_set():
            try:
                self._follow_all()
            except (HeadgateError, OSError) as error:  # the next look tries again
                self._tell({"type": "silent", "run": "", "text": str(error)})
            self._ending.wait(LOOK_SECONDS)

    def _follow_all(self) -> None:
        """Follow each hub, if any run is live."""
        if not any(map(runs.alive, runs.listing())):
            return
        for folder in runs.hubs():
            thread = self._followed.get(folder)
            if thread is None or not thread.is_alive():
                thread = threading.Thread(target=self._follow, args=(folder,), daemon=True)
                self._followed[folder] = thread
                thread.start()

    def _follow(self, folder: Path) -> None:
        """Pass on what a hub tells until it has no runs any more, or is gone."""
        attached: set[str] = set()
        try:
            hub = connect(folder)
            if hub is not None:
                with hub:
                    self._tell({"type": "hub", "run": "", "hub": folder.name, "pid": hub.pid})
                    self._receive(hub, attached)
        except HubGoneError:
            pass
        except HeadgateError as error:  # of another version, or it does not answer
            self._tell({"type": "silent", "run": "", "text": str(error)})
            self._ending.wait(LOOK_SECONDS)  # then the next look tries again
        self._tell({"type": "hub", "run": "", "hub": folder.name, "pid": None})
        for run in attached:
            self._tell({"type": "gone", "run": run})

    def _receive(self, hub: HubConnection, attached: set[str]) -> None:
        """Attach to each run of a hub; `attached` has those whose end was not told yet."""
        ended: set[str] = set()
        asked = -math.inf
        while not self._ending.is_set():
            if time.monotonic() - asked >= LOOK_SECONDS:
                asked = time.monotonic()
                hub.send("runs")
            message = hub.receive(LOOK_SECONDS) or {}
            match message:
                case {"type": "runs", "runs": [*running]}:
                    for run in attached.difference(running):
                        if not runs.alive(runs.home() / "runs" / run):
                            self._tell({"type": "gone", "run": run})
                            ended.add(run)
                    attached -= ended
                    for run in set(running) - attached - ended:
                        attached.add(run)
                        hub.send("attach", run=run, written=True)
                    if not running and not attached:
                        return
                case {"type": "attached" | "snapshot" | "event" | "end", "run": _}:
                    self._tell(message)
                case {"type": "reported", "run": run}:
                    self._tell(message)
                    ended.add(run)
                    attached.discard(run)
