"""How the tasks of an attempt see each other and synchronize over the task channel
(docs/channel.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.task.script_position import CURE, difference, names, place
from headgate.task.stop import PeerLost


@dataclass(slots=True)
class _Member:
    node: str
    address: str
    life: int = 0
    framework: str = ""
    endpoints: Sequence[str] | None = None
    listened: Sequence[str] = ()  # before its restart, on the same node
    active: bool = True
    leaving: bool = False
    here: bool = False


class Peers:
    """The tasks of one attempt by name (`worker-0`), and the keys by which they recognize each
    other.

    A view lists the present tasks. Each change gives it a higher number, so that tasks can tell
    different views apart.

    Args:
        plan: The job's plan.
        encrypt: Whether traffic between the tasks is encrypted.
    """

    def __init__(self, plan: Plan, encrypt: bool = True) -> None:
        self.plan = plan
        self._encrypt = encrypt
        self._members: dict[TaskName, _Member] = {}
        self._view = 0

    def start(self, name: TaskName, node: str, address: str, joins: bool = False) -> None:
        """A task starts, for the first time or again.

        Args:
            name: `worker-0`, `server-1`.
            node: Name of its node.
            address: Address of that node.
            joins: It joins running tasks: it counts once it has their state (`activate`).
        """
        former = self._members.get(name)
        life = former.life if former is not None else 0
        listened = (
            tuple(former.endpoints or former.listened)
            if former is not None and former.node == node
            else ()
        )
        self._members[name] = _Member(
            node, address, life + 1, active=not joins, here=True, listened=listened
        )
        self._view += 1

    def meet(self, name: TaskName, framework: str) -> None:
        """A task connected and named its framework: `torch`, `keras` or `jax`.

        The view keeps its number: workers that already have it would not hear of a new one, and
        would wait for each other. A server is announced once it listens.
        """
        self._members[name].framework = framework

    def listen(self, name: TaskName, endpoints: Sequence[str]) -> None:
        """A task reported where it listens."""
        self._members[name].endpoints = tuple(endpoints)
        self._view += 1

    def activate(self, *names: TaskName) -> None:
        """Joining tasks received the state of the others and count from now on."""
        for name in names:
            self._members[name].active = True
        self._view += 1

    def mark_leaving(self, name: TaskName) -> None:
        """A worker is to end while the others go on."""
        self._members[name].leaving = True
        self._view += 1

    def remove(self, name: TaskName) -> None:
        """A task has ended."""
        self._members[name].here = False
        self._view += 1

    def donor(self) -> TaskName | None:
        """The worker that gives its state to a joining one: the first that counts."""
        workers = [
            name for name, m in self._members.items() if m.here and m.active and name.is_worker
        ]
        return min(
            workers, key=lambda name: (self._members[name].leaving, name.index), default=None
        )

    def workers(self) -> set[TaskName]:
        """Workers that count and are not leaving."""
        return {
            n
            for n, m in self._members.items()
            if m.here and m.active and not m.leaving and n.is_worker
        }

    def view(self) -> dict[str, Any]:
        """The `peers` message: servers first, then workers, by index."""
        members_shown = sorted(
            ((name, member) for name, member in self._members.items() if member.here),
            key=lambda item: (item[0].role, item[0].index),
        )
        members = [
            {
                "task": name,
                "role": name.role,
                "index": name.index,
                "node": member.node,
                "address": member.address,
                "life": member.life,
                "framework": member.framework,
                "active": member.active,
                "leaving": member.leaving,
                "endpoints": member.endpoints,
            }
            for name, member in members_shown
        ]
        return {
            "type": "peers",
            "view": self._view,
            "workers": self.plan.workers,
            "members": members,
        }

    def welcome(self, name: TaskName, threads: int) -> dict[str, Any]:
        """The `welcome` message for a task that connected."""
        member = self._members[name]
        message: dict[str, Any] = {
            "type": "welcome",
            "v": 1,
            "role": name.role,
            "index": name.index,
            "plan": asdict(self.plan),
            "threads": threads,
            "node": member.node,
            "address": member.address,
            "joins": not member.active,
            "listened": member.listened,
        }
        if self.plan.trains_together:
            message["secrets"] = self._secrets(name)
        return message

    @cached_property
    def _keys(self) -> Mapping[str, tuple[str, str]]:
        """The public and the secret key of each role."""
        import zmq  # only jobs that train together need it

        pairs = {role: zmq.curve_keypair() for role in ("server", "client")}
        return {
            role: (public.decode(), secret.decode()) for role, (public, secret) in pairs.items()
        }

    def _secrets(self, name: TaskName) -> Mapping[str, Any]:
        role = "server" if name.is_server else "client"
        return {
            "encrypt": self._encrypt,
            **{f"{other}_public": public for other, (public, _) in self._keys.items()},
            f"{role}_secret": self._keys[role][1],
        }


class AttemptSyncPoints:
    """Points at which the workers of an attempt wait for each other.

    Args:
        workers: Gives the names of all workers that have to come.
        send: Sends a message to a worker, by its name.
    """

    def __init__(
        self,
        workers: Callable[[], Collection[TaskName]],
        send: Callable[[TaskName, Mapping[str, object]], None],
    ) -> None:
        self._workers = workers
        self._send = send
        self._given: dict[TaskName, Mapping[str, Any]] = {}
        self._ends: dict[TaskName, Mapping[str, Any]] = {}

    def wait(self, name: TaskName, message: Mapping[str, Any]) -> None:
        """A worker has arrived and waits for the others."""
        self._given[name] = {
            "index": name.index,
            "standing": message["standing"],
            "value": message["value"],
        }
        self.settle()

    def pass_position(self, name: TaskName, position: Mapping[str, Any]) -> None:
        """Tell the other workers where a worker is: they may wait for it in vain."""
        if position.get("waits") and name not in self._given:
            return  # all have arrived meanwhile
        if position.get("ended"):
            self._ends[name] = position
        for other in self._workers():
            if other != name:
                self._send(other, {"type": "position", "index": name.index, "standing": position})

    def remove(self, name: TaskName) -> None:
        """A worker has ended."""
        self._given.pop(name, None)
        self.settle()

    def settle(self) -> None:
        """Distribute the contributions if no more workers are to come."""
        if not self._given or not set(self._workers()) <= self._given.keys():
            return
        given, self._given = self._given, {}
        met = {
            "type": "met",
            "given": sorted(given.values(), key=lambda end_of_task: end_of_task["index"]),
        }
        for name in given:
            self._send(name, met)

    def fault(self, name: TaskName, code: int | None) -> str:
        """Why the end of a synchronous worker is a fault although others finished their script;
        empty: it is not.

        Args:
            name: The worker.
            code: Its exit code.
        """
        others = {other.index: end for other, end in self._ends.items() if other != name}
        if code == PeerLost.STATUS and others:
            places = ", ".join(
                f"{names([index])} was {place(end)}" for index, end in others.items()
            )
            return (
                f"the workers do not take the same steps: {places}, and {name} in the middle "
                f"of another step; {CURE}"
            )
        ends = {other.index: end for other, end in self._ends.items()}
        return difference(ends) if code == 0 and name in self._ends else ""
