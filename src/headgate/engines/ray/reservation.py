"""Reserves what tasks take in Ray's own accounts: a placement group for each task.

Each task has its own group, because tasks leave before others do and a group cannot shrink.

A job gets all its groups together, or none (gang scheduling). Otherwise two jobs could each hold a
part and wait for the rest for ever. If the groups do not fit at once, one group for all tasks waits
in their place. It holds nothing while it waits. Once Ray grants it, it makes room for the groups of
the tasks. Another job may be faster then, so it may take several tries.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headgate.engines.base import Slot
from headgate.engines.ray.removal import Removals
from headgate.engines.remote.wire import Granted, Impossible, Report, ReservationWaits
from headgate.model.identifiers import TaskId

PATIENCE_SECONDS = 2.0
"""A reservation that takes longer is reported."""

_LOOK_SECONDS = 0.5
_TOGETHER_SECONDS = (2.0, 4.0)
"""How long the groups of several tasks may take at the first try. It is drawn anew each time, so
that two jobs that disturb each other part. Groups take 2 ms each, and all of them up to 1 s more if
another was just removed. Each further try has twice as long, so that a slow cluster is no reason to
try for ever.
"""
_MOST_DOUBLINGS = 5

_TASK_SECONDS = 0.05
"""How much longer for each task."""

_PIN = 0.001
"""An amount of the resource that Ray gives each node by its address. Whatever asks for some of it
is put on that node.
"""


class Reservations:
    """Placement groups by key.

    Args:
        tell: Called once a reservation can be used, has to wait, or is impossible.
    """

    def __init__(self, tell: Callable[[Report], None]) -> None:
        self._tell = tell
        self._open: dict[str, _Reservation] = {}
        self._removals = Removals()

    def reserve(
        self, key: str, slots: Mapping[TaskId, Slot], nodes: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Reserve what tasks take; return at once.

        Args:
            key: The name of the reservation.
            slots: What each task takes.
            nodes: Ray's facts about each node, by name.
        """
        lacks = [
            line
            for name in _resources_by_node(slots)
            if (line := _impossible_reason(name, slots, nodes.get(name)))
        ]
        if lacks:
            self._tell(Impossible(key, "; ".join(lacks)))
            return
        reservation = self._open[key] = _Reservation(key, slots, nodes, self._tell, self._removals)
        threading.Thread(target=reservation.wait, daemon=True).start()

    def release(self, key: str, tasks: Collection[TaskId]) -> None:
        """Give back what is reserved for tasks, or what they still wait for."""
        if (reserved := self._open.get(key)) is not None and reserved.release(tasks):
            del self._open[key]

    def close(self) -> None:
        """Give everything back."""
        for reservation in self._open.values():
            reservation.release(reservation.tasks())
        self._open.clear()
        self._removals.wait()


class _Reservation:
    """A reservation for several tasks together."""

    def __init__(
        self,
        key: str,
        slots: Mapping[TaskId, Slot],
        nodes: Mapping[str, Mapping[str, Any]],
        tell: Callable[[Report], None],
        removals: Removals,
    ) -> None:
        self._key = key
        self._slots = dict(slots)
        self._nodes = nodes
        self._tell = tell
        self._removals = removals
        self._groups: dict[TaskId, Any] = {}
        self._holders: dict[TaskId, Any] = {}
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._told = False

    def tasks(self) -> list[TaskId]:
        """The tasks that it is for."""
        with self._lock:
            return list(self._slots)

    def release(self, tasks: Collection[TaskId]) -> bool:
        """Give back what tasks have; return whether no other tasks are left."""
        with self._lock:
            for task in tasks:
                self._slots.pop(task, None)
                self._holders.pop(task, None)
            groups = [self._groups.pop(task) for task in tasks if task in self._groups]
            last = not self._slots
        self._removals.remove(groups)
        return last

    def wait(self) -> None:
        """Wait until the remaining tasks have their groups, and tell the outcome."""
        try:
            tries = 0
            while not self._reserve_each(2.0 ** min(tries, _MOST_DOUBLINGS)):
                self._wait_for_room()
                tries += 1
            gpus = self._hold_gpus()
        except Exception as error:  # noqa: BLE001  # whatever it is, the job has to hear of it
            if self.tasks():
                self._tell(
                    Impossible(self._key, f"Ray could not reserve what it asks for: {error}")
                )
            return
        if self.tasks():
            self._tell(Granted(self._key, gpus))

    def _reserve_each(self, patience_factor: float) -> bool:
        """Reserve what each task takes. If that takes long for several tasks, hold nothing and
        return False.
        """
        tasks = self.tasks()
        for task in tasks:
            self._set_aside(task)
        alone = len(tasks) == 1
        patience = random.uniform(*_TOGETHER_SECONDS) + _TASK_SECONDS * len(tasks)
        deadline = math.inf if alone else time.monotonic() + patience * patience_factor
        for task in tasks:
            while not self._has_group(task):
                if time.monotonic() > deadline:
                    self._give_back()
                    return False
                if alone:
                    self._complain()
        return True

    def _wait_for_room(self) -> None:
        """Wait until there is room for all tasks, or until there are fewer tasks."""
        with self._lock:
            slots = dict(self._slots)
        if len(slots) < 2:
            return
        group = placement_group(
            [_bundle(slot, self._nodes[slot.node]) for slot in slots.values()], strategy="PACK"
        )
        try:
            while len(self.tasks()) == len(slots) and not group.wait(_LOOK_SECONDS):
                self._complain()
        finally:
            self._removals.remove([group])

    def _set_aside(self, task: TaskId) -> None:
        with self._lock:
            slot = self._slots.get(task)
        if slot is None:
            return
        group = placement_group([_bundle(slot, self._nodes[slot.node])])
        with self._lock:
            wanted = task in self._slots
            if wanted:
                self._groups[task] = group
        if not wanted:
            self._removals.remove([group])

    def _has_group(self, task: TaskId) -> bool:
        """Whether a task has its group, after a short wait; also true if nobody wants it any
        more.
        """
        with self._lock:
            group = self._groups.get(task)
        try:
            return group is None or bool(group.wait(_LOOK_SECONDS))
        except Exception:
            if task in self.tasks():
                raise
            return True

    def _give_back(self) -> None:
        with self._lock:
            groups, self._groups = self._groups, {}
        self._removals.remove(groups.values())

    def _complain(self) -> None:
        if not self._told and time.monotonic() - self._began >= PATIENCE_SECONDS:
            self._told = True
            with self._lock:
                slots = dict(self._slots)
            self._tell(ReservationWaits(self._key, f"for Ray: {_shortage(slots, self._nodes)}"))

    def _hold_gpus(self) -> dict[TaskId, tuple[str, ...]]:
        """Find out which GPUs of its node each task has: Ray tells only an actor that holds
        them.
        """
        with self._lock:
            groups = {task: group for task, group in self._groups.items() if self._slots[task].gpus}
            counts = {task: self._slots[task].gpus for task in groups}
        gpus_held = {}
        for task, group in groups.items():
            where = PlacementGroupSchedulingStrategy(group)
            holder = _holder().options(num_gpus=counts[task], scheduling_strategy=where).remote()
            with self._lock:
                if task in self._slots:
                    self._holders[task] = holder
            try:
                gpus_held[task] = tuple(ray.get(holder.gpus.remote()))
            except Exception:
                if task in self.tasks():
                    raise
        return gpus_held


def _holder() -> Any:
    """The class of an actor that holds GPUs. It travels by value, because it is made in a
    function.
    """

    class HeadgateGpus:
        def gpus(self) -> list[str]:
            return [str(id) for id in ray.get_runtime_context().get_accelerator_ids()["GPU"]]

    remote: Any = ray.remote
    return remote(num_cpus=0)(HeadgateGpus)


def _resources_by_node(slots: Mapping[TaskId, Slot]) -> dict[str, dict[str, float]]:
    """What is taken of each node, by Ray's names."""
    taken: dict[str, dict[str, float]] = {}
    for slot in slots.values():
        node = taken.setdefault(slot.node, {"CPU": 0.0, "memory": 0.0, "GPU": 0.0})
        node["CPU"] += slot.cores
        node["memory"] += slot.memory_bytes or 0
        node["GPU"] += slot.gpus
    return taken


def _bundle(slot: Slot, node: Mapping[str, Any]) -> dict[str, float]:
    wanted = {"CPU": slot.cores, "memory": float(slot.memory_bytes or 0), "GPU": float(slot.gpus)}
    return {
        f"node:{node['NodeManagerAddress']}": _PIN,
        **{name: count for name, count in wanted.items() if count > 0},
    }


def _impossible_reason(
    name: str, slots: Mapping[TaskId, Slot], node: Mapping[str, Any] | None
) -> str:
    """Why a node can never give what is asked of it; empty if it can."""
    if node is None:
        return f"node {name} is gone"
    resources = node["Resources"]
    for resource, asked in _resources_by_node(slots)[name].items():
        if asked > resources.get(resource, 0.0) + 1e-9:
            return (
                f"asked for {_amount(resource, asked)} on node {name}, where Ray has "
                f"{_amount(resource, resources.get(resource, 0))}"
            )
    return ""


def _shortage(slots: Mapping[TaskId, Slot], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    available: Any = ray._private.state.available_resources_per_node
    free = available()
    lines = []
    for name, taken in _resources_by_node(slots).items():
        left = free.get(nodes[name]["NodeID"], {})
        for resource, asked in taken.items():
            if asked > left.get(resource, 0.0):
                lines.append(
                    f"asked for {_amount(resource, asked)} on node {name}, "
                    f"{_amount(resource, left.get(resource, 0))} free"
                )
    return "; ".join(lines) or "what it asked for is being freed"


def _amount(what: str, count: float) -> str:
    if what == "memory":
        return f"{count / 2**30:.1f} GiB"
    return f"{count:g} {what if count == 1 else what + 's'}"
