"""A shared machine in which hubs state jobs to the arbiter's core, and run what is granted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headgate.arbiter.acts import Act
from headgate.arbiter.core import Arbiter
from headgate.arbiter.events import ArbiterEvent, JobTakenBack
from headgate.arbiter.records import (
    ArbiterState,
    Demand,
    Hub,
    JobDemand,
    JobWaits,
    MachineJob,
    ResourceGrant,
    Span,
    UserPart,
)
from headgate.model import records
from headgate.model.cluster import Gpu, Node
from headgate.model.sharing import SharingRules

GIB = 1 << 30
NODE = Node("m", 8, 32 * GIB, gpus=tuple(Gpu(i, "A100", 16 * GIB) for i in range(4)))
BEGIN, END = 0, 1


def job(
    id: str, gpus: int = 1, *, lasts: float | None = None, memory: int = 1, on_gpu: int = 0
) -> JobDemand:
    """A job; `memory` and `on_gpu` in GiB, `on_gpu` 0: it needs whole GPUs."""
    left = Span(lasts, lasts, lasts) if lasts is not None else None
    gpu_memory = on_gpu * GIB if on_gpu else None
    return JobDemand(
        id, memory_bytes=memory * GIB, gpus=gpus, gpu_memory_bytes=gpu_memory, left=left
    )


@dataclass
class Machine:
    """Hubs of users that state what they want, and run jobs as they are granted."""

    arbiter: Arbiter = field(default_factory=lambda: Arbiter(NODE, SharingRules()))
    now: float = 0.0
    waiting: dict[Hub, list[JobDemand]] = field(default_factory=dict)
    running: dict[Hub, dict[str, JobDemand]] = field(default_factory=dict)
    times: dict[str, list[float]] = field(default_factory=dict)
    waits: dict[str, JobWaits] = field(default_factory=dict)
    parts: dict[str, UserPart] = field(default_factory=dict)
    taken_back: list[Act] = field(default_factory=list)

    def submit(self, user: str, *jobs: JobDemand, name: str = "") -> None:
        """A hub states further jobs."""
        hub = Hub(user, name)
        self.waiting.setdefault(hub, []).extend(jobs)
        self.state(hub)

    def state(self, hub: Hub) -> None:
        """A hub states all that it runs and wants."""
        running = tuple(self._left(job) for job in self.running.get(hub, {}).values())
        self.take(Demand(hub, tuple(self.waiting.get(hub, ())), running))

    def _left(self, job: JobDemand) -> JobDemand:
        if job.left is None:
            return job
        left = max(job.left.most - (self.now - self.times[job.id][BEGIN]), 0.0)
        return replace(job, left=Span(left, left, left))

    def take(self, event: ArbiterEvent | None = None) -> None:
        """Let the arbiter act, and start what it grants."""
        for action in self.arbiter.step(self.now, event):
            match action:
                case ResourceGrant(MachineJob(hub, id), demand):
                    assert id not in self.times, "granted twice"
                    self.times[id] = [self.now]
                    self.waiting[hub] = [job for job in self.waiting[hub] if job.id != id]
                    self.running.setdefault(hub, {})[id] = demand
                    self.waits.pop(id, None)
                case JobWaits(MachineJob(_, id)):
                    self.waits[id] = action
                case UserPart(user):
                    self.parts[user] = action
                case JobTakenBack(_, act):
                    self.taken_back.append(act)

    def restart(self) -> None:
        """The arbiter is killed, and the next one reads what was kept."""
        kept = records.read(ArbiterState, records.text_of(self.arbiter.state(self.now)))
        self.arbiter = Arbiter(NODE, self.arbiter.rules, self.now, kept)
        for hub in {*self.waiting, *self.running}:
            self.state(hub)

    def end(self, *ids: str, at: float) -> None:
        """Jobs end."""
        self.now = at
        for hub, jobs in list(self.running.items()):
            for id in [id for id in jobs if id in ids]:
                del jobs[id]
                self.times[id].append(at)
                self.state(hub)

    def give_back(self, *ids: str) -> None:
        """Jobs end as they were told to, and wait again: each with a `+` behind its id."""
        for hub, jobs in list(self.running.items()):
            gone = [jobs.pop(id) for id in ids if id in jobs]
            if gone:
                self.submit(hub.user, *(replace(job, id=f"{job.id}+") for job in gone))

    @property
    def runs(self) -> set[str]:
        return {id for jobs in self.running.values() for id in jobs}


def grants(arbiter: Arbiter) -> Iterable[ResourceGrant]:
    return arbiter.room.grants.values()
