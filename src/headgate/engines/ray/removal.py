"""Removes placement groups without loss to the cluster.

Ray (2.60) gives nothing back of a group that is removed after its nodes have set its bundles aside
and before they are told to keep them: what the group took is lost until the node's raylet ends
(https://github.com/ray-project/ray/issues/64693). That lasts a millisecond, and longer on a
loaded cluster. Ray does not tell when it begins such an attempt. But it counts them, and makes them
a second apart.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection
from typing import Any

from ray.util import placement_group_table
from ray.util.placement_group import remove_placement_group

_UNDER_WAY = ("PENDING", "PREPARED", "RESCHEDULING")
"""States of a group that Ray may be working on."""

_POLL_SECONDS = 0.02
_SETTLED_SECONDS = 0.2
"""A group that still waits so long after an attempt began is left alone until the next."""

_LONGEST_SECONDS = 3.0
"""Ray makes no further attempt for a group that no node could hold."""


class Removals:
    """Removes groups, each once Ray does not work on it."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def remove(self, groups: Collection[Any]) -> None:
        """Remove those at once that Ray has granted, and the others soon; return at once."""
        pending = [_Pending(group) for group in groups]
        pending = [group for group in pending if not group.removed()]
        if pending:
            thread = threading.Thread(target=self._finish, args=(pending,), daemon=True)
            self._threads.add(thread)
            thread.start()

    def wait(self) -> None:
        """Wait until all are removed."""
        for thread in list(self._threads):
            thread.join()

    def _finish(self, pending: list[_Pending]) -> None:
        while pending:
            time.sleep(_POLL_SECONDS)
            pending = [group for group in pending if not group.removed()]
        self._threads.discard(threading.current_thread())


class _Pending:
    """A group to be removed."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._deadline = time.monotonic() + _LONGEST_SECONDS
        self._attempts: int | None = None
        self._settled = math.inf

    def removed(self) -> bool:
        """Whether it is; it is removed now if that loses nothing."""
        table = placement_group_table(self._group)
        now = time.monotonic()
        if table.get("state") in _UNDER_WAY:
            attempts = table["stats"]["scheduling_attempt"]
            if attempts != self._attempts and self._attempts is not None:
                self._settled = now + _SETTLED_SECONDS
            self._attempts = attempts
            if now < min(self._settled, self._deadline):
                return False
        remove_placement_group(self._group)
        return True
