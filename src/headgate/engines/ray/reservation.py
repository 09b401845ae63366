"""What tasks take, set aside in Ray's own accounts: a placement group for each reservation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headgate.engines.base import Slot
from headgate.engines.ray.wire import Granted, Impossible, Report, Waits
from headgate.events import TaskId

PATIENCE_SECONDS = 2.0
"""A reservation that takes longer is told of."""

_LOOK_SECONDS = 0.5
_PIN = 0.001
"""Of the resource that Ray gives each node by its address: what asks for some of it is put there."""


class Reservations:
    """Placement groups by key.

    Args:
        tell: Told once a reservation can be used, waits, or can never be had.
    """

    def __init__(self, tell: Callable[[Report], None]) -> None:
        self._tell = tell
        self._groups: dict[str, Any] = {}
        self._holders: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def reserve(self, key: str, slots: Mapping[TaskId, Slot], nodes: Mapping[str, Mapping[str, Any]]) -> None:
        """Set aside what tasks take; returns at once.

        Args:
            key: Names it from now on.
            slots: What each task takes.
            nodes: What Ray says of each node, by name.
        """
        lacks = [line for name in _taken(slots) if (line := _lacking(name, slots, nodes.get(name)))]
        if lacks:
            self._tell(Impossible(key, "; ".join(lacks)))
            return
        group = placement_group([_bundle(slot, nodes[slot.node]) for slot in slots.values()], strategy="PACK")
        with self._lock:
            self._groups[key] = group
        threading.Thread(target=self._wait, args=(key, group, dict(slots), dict(nodes)), daemon=True).start()

    def release(self, key: str) -> None:
        """Give back what was set aside, or is still waited for."""
        with self._lock:
            group = self._groups.pop(key, None)
            self._holders.pop(key, None)
        if group is not None:
            remove_placement_group(group)

    def close(self) -> None:
        """Give everything back."""
        for key in list(self._groups):
            self.release(key)

    def _wait(self, key: str, group: Any, slots: Mapping[TaskId, Slot], nodes: Mapping[str, Mapping[str, Any]]) -> None:
        waited, told = 0.0, False
        while key in self._groups:
            try:
                if group.wait(_LOOK_SECONDS):
                    gpus = self._hold_gpus(key, group, slots)
                    if key in self._groups:
                        self._tell(Granted(key, gpus))
                    return
                waited += _LOOK_SECONDS
                if waited >= PATIENCE_SECONDS and not told:
                    told = True
                    self._tell(Waits(key, _shortage(slots, nodes)))
            except Exception as error:  # noqa: BLE001  # whatever it is, the job has to hear of it
                if key in self._groups:
                    self._tell(Impossible(key, f"Ray could not set aside what it takes: {error}"))
                return

    def _hold_gpus(self, key: str, group: Any, slots: Mapping[TaskId, Slot]) -> dict[TaskId, tuple[str, ...]]:
        """Find out which GPUs of its node each task has: Ray says so to none but an actor that holds them."""
        found = {}
        for index, (task, slot) in enumerate(slots.items()):
            if slot.gpus:
                where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
                holder = _holder().options(num_gpus=slot.gpus, scheduling_strategy=where).remote()
                with self._lock:
                    self._holders.setdefault(key, []).append(holder)
                found[task] = tuple(ray.get(holder.gpus.remote()))
        return found


def _holder() -> Any:
    """The class of an actor that holds GPUs; it travels by value, as classes do that are made in a function."""

    class HeadgateGpus:
        def gpus(self) -> list[str]:
            return [str(id) for id in ray.get_runtime_context().get_accelerator_ids()["GPU"]]

    remote: Any = ray.remote
    return remote(num_cpus=0)(HeadgateGpus)


def _taken(slots: Mapping[TaskId, Slot]) -> dict[str, dict[str, float]]:
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
    return {f"node:{node['NodeManagerAddress']}": _PIN, **{name: count for name, count in wanted.items() if count > 0}}


def _lacking(name: str, slots: Mapping[TaskId, Slot], node: Mapping[str, Any] | None) -> str:
    """Why a node can never have what is taken of it; empty when it can."""
    if node is None:
        return f"node {name} is gone"
    there = node["Resources"]
    for what, asked in _taken(slots)[name].items():
        if asked > there.get(what, 0.0) + 1e-9:
            return f"asked for {_amount(what, asked)} on node {name}, where Ray has {_amount(what, there.get(what, 0))}"
    return ""


def _shortage(slots: Mapping[TaskId, Slot], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    available: Any = ray._private.state.available_resources_per_node
    free = available()
    lines = []
    for name, taken in _taken(slots).items():
        left = free.get(nodes[name]["NodeID"], {})
        for what, asked in taken.items():
            if asked > left.get(what, 0.0):
                lines.append(
                    f"asked for {_amount(what, asked)} on node {name}, {_amount(what, left.get(what, 0))} free"
                )
    return "; ".join(lines) or "what it asked for is being freed"


def _amount(what: str, count: float) -> str:
    if what == "memory":
        return f"{count / 2**30:.1f} GiB"
    return f"{count:g} {what if count == 1 else what + 's'}"
