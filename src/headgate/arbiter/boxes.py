"""What the arbiter decides, made so by the kernel: each user's cgroup, and readings of it."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from headgate.arbiter import gpu_readings
from headgate.arbiter.daemon import Boxes
from headgate.arbiter.disk_readings import DiskReadings
from headgate.arbiter.events import ArbiterAction, JobReleased, MachineUsed, UserUsed
from headgate.arbiter.records import DiskMoved, Hub, ResourceGrant, UserPart
from headgate.arbiter.turn_files import TurnFiles
from headgate.arbiter.user_box import HOME, PREFIX, BoxUse, UserBox, hub_folder
from headgate.arbiter.user_names import name_of
from headgate.machine.arbiter_socket import Peer
from headgate.machine.cgroup_layout import CGROUPS, CURE, CgroupLayout, find_layout
from headgate.machine.cgroups import within
from headgate.machine.processes import Process
from headgate.model.cluster import PARTS
from headgate.model.errors import IsolationError
from headgate.sampling.available import AvailableMemory
from headgate.sampling.gpu import device_numbers

_LAST_SECONDS = 1.0
_NVIDIA = 195
"""The major number of NVIDIA's device files (Documentation/admin-guide/devices.txt)."""


class UserBoxes(Boxes):
    """The cgroups of all users. Those of an earlier arbiter are taken up as they are.

    Args:
        turns: The files by which jobs of several users take turns.
        grants: What jobs hold.
        nvml: The module `pynvml`, initialised; None: there are no GPUs.
        layout: The parents of cgroups; None: those of this process.
        home: Folder of all users, in each hierarchy.
        uids: Numbers of users who were named before.
    """

    def __init__(
        self,
        turns: TurnFiles,
        grants: Iterable[ResourceGrant] = (),
        nvml: Any | None = None,
        layout: CgroupLayout | None = None,
        home: str = HOME,
        uids: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._turns, self._home = turns, home
        self._grants = {grant.job: grant for grant in grants}
        self._devices = {gpu: (_NVIDIA, minor) for gpu, minor in device_numbers(nvml).items()}
        self._layout = layout or find_layout(CGROUPS, also=("pids",))
        self._lock = threading.Lock()  # `read` comes from another thread
        self._boxes: dict[str, UserBox] = {}
        self._parts: dict[str, UserPart] = {}
        self._above: set[str] = set()
        self._unused = set[tuple[str, str]]()
        self._before: dict[str, tuple[float, float]] = {}
        self._available, self._nvml = AvailableMemory(), nvml
        self._disk = DiskReadings()
        for base in self._layout.bases.values():
            for folder in (base / home).glob(f"{PREFIX}*"):
                uid = int(folder.name.removeprefix(PREFIX))
                self._boxes[name_of(uid, uids)] = UserBox(uid, self._layout, home)

    def joins(self, hub: Hub, peer: Peer, process: Process | None) -> None:
        if process is None:
            raise ProcessLookupError(f"process {peer.pid} has ended")
        if self._layout.mode == "none":
            raise OSError(f"{next(iter(self._layout.missing.values()))}; {CURE}")
        with self._lock:
            box = self._boxes.get(hub.user)
            if box is None or box.uid != peer.uid:
                box = UserBox(peer.uid, self._layout, self._home)
            if not box.is_made:
                self._make(hub.user, box)
            box.admit(hub_folder(hub), process)
            self._open_gpus(hub.user)

    def apply(self, action: ArbiterAction) -> None:
        with self._lock:
            match action:
                case UserPart(user):
                    self._parts[user] = action
                    self._limit(user)
                case ResourceGrant(job):
                    self._grants[job] = action
                    self._open_gpus(job.hub.user)
                case JobReleased(job):
                    self._grants.pop(job, None)
                    self._open_gpus(job.hub.user)

    def is_empty(self, hub: Hub, uid: int) -> bool:
        box = next((box for box in list(self._boxes.values()) if box.uid == uid), None)
        is_populated = box.is_populated(hub_folder(hub)) if box is not None else None
        return super().is_empty(hub, uid) if is_populated is None else not is_populated

    def used(self) -> dict[str, BoxUse]:
        """What each user's box has used so far."""
        return {user: box.used() for user, box in list(self._boxes.items()) if box.is_made}

    def read(self) -> MachineUsed | None:
        now, free = time.monotonic(), self._available.read()
        with self._lock:
            uses = self.used()
            for user in list(self._above):
                self._limit(user)
            self._remove_unused()
            gpus = {}
            if self._nvml is not None:
                gpus = gpu_readings.read(self._nvml, self._user_of, self._granted())
        users, held = {}, 0
        for user, use in uses.items():
            at, seconds = self._before.get(user, (now, use.cpu_seconds))
            cores = max(use.cpu_seconds - seconds, 0.0) / max(now - at, 1.0)
            users[user] = UserUsed(cores, frozenset(g for g in gpus if user in gpus[g].busy))
            if user in self._parts:
                held += min(use.memory_bytes, self._parts[user].memory_bytes)
        self._before = {user: (now, use.cpu_seconds) for user, use in uses.items()}
        outside = frozenset(gpu for gpu, reading in gpus.items() if reading.is_outside)
        if free is None:
            return None
        memory = {gpu: reading.memory for gpu, reading in gpus.items()}
        return MachineUsed(free, held, memory, outside, users)

    def moved(self) -> DiskMoved:
        return self._disk.read()

    def close(self) -> None:
        """Remove what is empty; boxes with processes stay, for the next arbiter."""

        def is_done(box: UserBox) -> bool:
            return box.remove() or any(map(box.is_populated, box.hubs()))

        with self._lock:  # the kernel lets go of the last process a moment after its end
            for box in self._boxes.values():
                within(_LAST_SECONDS, partial(is_done, box))
            if not self._grants:
                self._turns.remove()

    def _user_of(self, pid: int) -> str | None:
        return next((user for user, box in self._boxes.items() if box.has(pid)), None)

    def _granted(self) -> dict[int, dict[str, float]]:
        """Bytes of each GPU that each user's jobs were granted; infinite: all."""
        granted = defaultdict[int, dict[str, float]](dict)
        for job, grant in self._grants.items():
            share, user = grant.demand.gpu_memory_bytes, job.hub.user
            for slot in grant.slots:
                for gpu in slot.gpus:
                    before = granted[gpu].get(user, 0.0)
                    granted[gpu][user] = before + (math.inf if share is None else share)
        return granted

    def _make(self, user: str, box: UserBox) -> None:
        try:
            box.make()
        except IsolationError as error:
            raise OSError(str(error)) from error
        self._boxes[user] = box
        self._limit(user)

    def _limit(self, user: str) -> None:
        box, part = self._boxes.get(user), self._parts.get(user)
        if box is None or part is None or not box.is_made:
            self._above.discard(user)
            return
        (self._above.discard if box.limit(part) else self._above.add)(user)
        parts = self._parts.values()
        box.weigh_all(sum(part.weight for part in parts), sum(part.memory_bytes for part in parts))

    def _open_gpus(self, user: str) -> None:
        """Let a user's jobs open the GPUs that they hold, and no other."""
        if not self._devices or user not in self._boxes:
            return
        users = {gpu: set[int]() for gpu in self._devices}
        for job, grant in self._grants.items():
            for gpu in {_whole(gpu) for gpu in grant.gpus} & self._devices.keys():
                if job.hub.user in self._boxes:
                    users[gpu].add(self._boxes[job.hub.user].uid)
        box = self._boxes[user]
        box.close_devices([self._devices[gpu] for gpu in users if box.uid not in users[gpu]])
        for gpu, uids in users.items():
            self._turns.let(gpu, uids)

    def _remove_unused(self) -> None:
        """Remove parts of hubs that have been empty since the last reading, and then boxes without
        any. What they held is freed in between.
        """
        unused = {
            (user, name)
            for user, box in self._boxes.items()
            for name in box.hubs()
            if box.is_populated(name) is False
        }
        for user, name in unused & self._unused:
            self._boxes[user].remove(name)
        self._unused = unused
        for user, box in list(self._boxes.items()):
            if not box.hubs() and box.remove():
                del self._boxes[user]


def _whole(gpu: int) -> int:
    """The GPU of a part (MIG), or the GPU itself."""
    return gpu if gpu < PARTS else gpu // PARTS - 1
