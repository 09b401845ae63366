"""Who is there: the job's tasks as the hub last told (docs/channel.md, `peers`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Member:
    """A task that is there.

    Args:
        index: Of its role.
        node: Name of its node.
        life: How often it was started.
        active: Whether it counts, or is still to be given the state of the others.
        endpoint: Where it is reached; empty before it listens.
        leaving: Whether it ends before the others: it takes no samples any more.
        beside: Where tasks on its node may reach it as well; empty: nowhere.
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
    """The tasks that were there at one time.

    Args:
        number: Grows with every change.
        planned: How many workers there are to be.
        workers: By index.
        servers: By index.
    """

    number: int = -1
    planned: int = 0
    workers: Mapping[int, Member] = field(default_factory=dict)
    servers: Mapping[int, Member] = field(default_factory=dict)

    @classmethod
    def read(cls, message: Mapping[str, Any]) -> View:
        """The view in a `peers` message; the empty one if there is none in it.

        Raises:
            RuntimeError: The servers are another library's.
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
        """Contributions that make a sum where those of so many workers may be left out; None: those
        of all.
        """
        leaving = len(self.active) - len(self.staying)  # they count while they are there
        return self.planned + leaving - backups if backups else None

    @property
    def active(self) -> frozenset[int]:
        """Indices of the workers that count."""
        return frozenset(index for index, member in self.workers.items() if member.active)

    @property
    def staying(self) -> frozenset[int]:
        """Those of them between which the next samples are divided."""
        return frozenset(index for index in self.active if not self.workers[index].leaving)
