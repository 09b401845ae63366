"""The job's running tasks, from the hub's latest `peers` message (docs/channel.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Member:
    """A running task.

    Args:
        index: Index in its role.
        node: Name of its node.
        life: How often it was started.
        active: Whether it counts. A task that has yet to get the others' state does not.
        endpoint: Its address; empty before it listens.
        leaving: Whether it ends before the others and takes no more samples.
        beside: Its address for tasks on its node; empty: none.
    """

    index: int
    node: str
    life: int
    active: bool
    endpoint: str
    leaving: bool = False
    beside: str = ""


@dataclass(frozen=True)
class View:
    """The running tasks at one time.

    Args:
        number: Number of the view, which grows with every change.
        planned: Planned number of workers.
        workers: Workers by index.
        servers: Servers by index.
    """

    number: int = -1
    planned: int = 0
    workers: Mapping[int, Member] = field(default_factory=dict)
    servers: Mapping[int, Member] = field(default_factory=dict)

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> View:
        """The view in a `peers` message; an empty view if it has none.

        Raises:
            RuntimeError: The servers belong to another library.
        """
        if not message:
            return cls()
        roles: dict[str, dict[int, Member]] = {"worker": {}, "server": {}}
        for entry in message["members"]:
            if entry["role"] == "server" and entry.get("framework") not in ("torch", "", None):
                raise RuntimeError(
                    "this script trains with headgate.torch, and its job's servers were started "
                    f"as those of headgate.{entry['framework']}, which the file that `script:` "
                    "names imports as well; leave that import out"
                )
            endpoint, beside = [*(entry["endpoints"] or ()), "", ""][:2]
            leaving = bool(entry.get("leaving"))
            member = Member(
                entry["index"],
                entry["node"],
                entry["life"],
                entry["active"],
                endpoint,
                leaving,
                beside,
            )
            roles[entry["role"]][member.index] = member
        return cls(message["view"], message["workers"], roles["worker"], roles["server"])

    def needed(self, backups: int) -> int | None:
        """Contributions that make a sum if those of `backups` workers may be left out; None: those
        of all workers.
        """
        leaving = len(self.active) - len(self.staying)  # they count while they are there
        return self.planned + leaving - backups if backups else None

    @property
    def active(self) -> frozenset[int]:
        """Indices of the workers that count."""
        return frozenset(index for index, member in self.workers.items() if member.active)

    @property
    def staying(self) -> frozenset[int]:
        """Indices of the active workers that are not leaving. The next samples are divided between
        them.
        """
        return frozenset(index for index in self.active if not self.workers[index].leaving)
