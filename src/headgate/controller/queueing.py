"""Jobs that wait for room: which starts when, and which is preempted for another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard

from headgate.controller.bounds import Bounds
from headgate.controller.claimed_memory import ClaimedMemory
from headgate.controller.free_resources import FreeResources, ResourceRequest
from headgate.controller.gpu_memory import GpuMemory, WorkerSlot
from headgate.controller.grants import Grants
from headgate.controller.pairing import LOOKED_AT, Pairing
from headgate.controller.preemption import Key, Preemption, Ranking
from headgate.controller.probing import Probing
from headgate.controller.queue_orders import Claim, Order
from headgate.controller.records import JobRecord
from headgate.controller.relocation import Taken, relocate
from headgate.controller.resource_requests import ResourceRequests
from headgate.controller.slots import groups_of
from headgate.controller.start_forecast import StartForecast, forecasts
from headgate.controller.waiting_jobs import WaitingJobs
from headgate.model.actions import Action, MarkJob, Resize
from headgate.model.cluster import Node
from headgate.model.events import GpuMemoryUsed, MemoryUsed
from headgate.model.identifiers import JobId
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind

_HELD_BACK = 100
"""About as many waiting jobs are held back for an urgent one at a time."""


_Hindered = Callable[[JobRecord, Sequence[WorkerSlot]], JobId | None]
"""Finds the running urgent job that a job would hinder in these places."""


class Queue:
    """Makes jobs wait until all GPUs and memory that they request are free at once (gang
    scheduling).

    Args:
        order: The order of jobs.
        gpus_are_shared: As of `ResourceRequests`.
        seconds: Expected run time of a waiting job; None: unknown.
        pairing: Picks, among waiting jobs of one priority, the one that runs best beside the
            running jobs. None: the order alone decides.
        per_core: Jobs for each core that run at once; more do while cores are idle. None: any
            number runs.
        alike: Jobs of one script are taken to be alike. Where memory is not known, the first runs
            before the others. With `per_core`, one for each core runs while none is idle.
    """

    def __init__(
        self,
        order: Order,
        gpus_are_shared: bool = False,
        seconds: Callable[[JobId], float | None] = lambda _: None,
        pairing: Pairing | None = None,
        per_core: int | None = None,
        alike: bool = False,
    ) -> None:
        self.order = order
        self._pairing = pairing
        self._seconds = seconds
        self._resources = FreeResources()
        self._claims: dict[JobId, Claim] = {}
        self._waiting = WaitingJobs()
        self._too_large: dict[JobId, JobRecord] = {}
        self._running = Ranking(order)
        self._preemption = Preemption(order, self._running, self._resources)
        self._changed = False
        self.bounds = Bounds(self._resources.slots, per_core, alike)
        self._probing = Probing(self._resources.slots, alike)
        self._probed: list[JobRecord] = []  # jobs that wait for something else from now on
        self._memory = ClaimedMemory(
            self._claims, self._running, self._resources, self._probing, self._ask_anew
        )
        self._hindered: _Hindered = lambda job, slots: None
        self._grants = Grants()
        self._requests = ResourceRequests(
            self._resources,
            self._probing,
            self._grants,
            gpus_are_shared,
            is_bounded=per_core is not None,
            by_script=alike and per_core is not None,
        )

    @property
    def wake_at(self) -> float | None:
        """When a running job's rank gets worse next, or others have waited long enough for its
        memory.
        """
        if not self._waiting:
            return None
        times = self._probing.ends_at
        if self._running.worse_at is not None:
            times.append(self._running.worse_at)
        return min(times, default=None)

    @property
    def gpu_memory(self) -> GpuMemory:
        """Memory of GPUs that jobs share by turns."""
        return self._resources.gpu_memory

    @property
    def waits(self) -> bool:
        """Whether a job waits."""
        return bool(self._waiting)

    # --- events -----------------------------------------------------------------------------------

    def sees(self, others: Callable[[str], Counter[int]]) -> None:
        """Set the function that counts tasks without a reservation on each GPU of a node."""
        self.gpu_memory.others = others

    def gives_way(self, first: _Hindered) -> None:
        """Set the function that finds the urgent job for which another waits."""
        self._hindered = first

    def join(self, node: Node) -> None:
        """Add or update a node."""
        self._resources.join(node)
        self._changed = True
        self._preemption.reconsider()
        self.bounds.have(self._resources.cores)

    def leave(self, name: str) -> None:
        """Remove a node."""
        self._resources.leave(name)
        self.bounds.have(self._resources.cores)
        self.bounds.busy(name, None)

    def at_once(self, job: JobRecord) -> None:
        """State how many jobs of its run and its sweep run at once, as a job says."""
        for group, jobs in groups_of(job):
            if jobs is not None:
                more = self.bounds.state(group, jobs, job.best_at_once)
                self._changed = more or self._changed

    def at_once_of_all(self, jobs: int | None) -> None:
        """State how many jobs of all runs run at once; None: as many as the cores are for."""
        self._changed = self.bounds.state_all(jobs) or self._changed

    def share(self, node: str | None) -> None:
        """Let the arbiter of a shared machine say when jobs start on this node; None: nobody."""
        self._changed = self._grants.share(node) or self._changed

    def grant(self, job: JobId, gpus: tuple[tuple[int, ...], ...]) -> None:
        """The arbiter lets a job start; arguments as of `JobGranted`."""
        if self._grants.is_shared and job in self._claims:
            self._grants.grant(job, gpus)
            self._changed = True

    def stated(self) -> tuple[list[Claim], list[Claim]]:
        """The waiting jobs that would start if the machine had room for all, in their order, and
        the running ones. Jobs on other nodes than the shared one are left out.
        """
        slots, waiting = self._resources.slots, []
        for claim in self._waiting.in_order():
            if self._grants.asks(claim) and slots.full(claim.request.groups) is None:
                slots.take(claim.request.groups)
                waiting.append(claim)
        for claim in waiting:
            slots.give(claim.request.groups)
        return waiting, [claim for claim in self._running if self._grants.asks(claim)]

    def enqueue(self, now: float, job: JobRecord) -> list[Action]:
        """Add a job whose time has come. A job without exclusive requests is not queued."""
        request = self._requests.of(job)
        if request is None:
            return []
        job.queued, self._changed = True, True
        if not self._resources.could(request):
            self._too_large[job.id] = job
            lacks = self._resources.as_a_whole(request).plain()
            too_large = Reason.of(ReasonKind.NEEDS_ROOM, lacks=lacks, is_too_large=True)
            return [job.mark("waiting", too_large)]
        claim = self._claims.setdefault(job.id, Claim(job, request))
        claim.job, claim.request = job, request
        self._enqueue(now, claim)
        return [job.mark("waiting", self._requests.shortage(request))]

    def move(
        self, now: float, jobs: Iterable[JobRecord], node: Node, nodes: Mapping[str, Node]
    ) -> list[Action]:
        """A node has joined: start waiting jobs there in their order, or on several nodes with room
        together.

        Args:
            now: Seconds on the run's clock.
            jobs: Jobs that may use it.
            node: The new node.
            nodes: All available nodes.
        """
        actions: list[Action] = []
        relocated: list[Taken] = []
        for job in jobs:
            claim = None if job.id in self._too_large else self._claims.get(job.id)
            guessed = claim is None or claim.request.guessed
            least_bytes = 0 if claim is None or guessed else claim.request.memory_bytes
            taken = relocate(job, node, nodes, self._requests, self._resources, least_bytes)
            if taken is None:
                continue
            relocated.append(taken)
            actions.append(Resize(job.id, job.planned()))
            if claim is not None:
                self._waiting.remove(claim)
                claim.request = taken.request
                self._enqueue(now, claim)
        for taken in relocated:
            self._resources.give(*taken)
        self._changed = self._changed or bool(relocated)
        return actions

    def take_up(self, now: float, job: JobRecord) -> None:
        """Count a job that runs already as running, whether it has room or not."""
        request = self._requests.of(job)
        if request is None:
            return
        request = request.without_probe()
        claim = self._claims[job.id] = Claim(job, request, since=now)
        claim.slots = job.slots or tuple(map(WorkerSlot, job.planned().worker_nodes))
        self._memory.started(now, claim)
        self._resources.take(request, claim.slots)
        self.bounds.started(now, job)
        self._running.add(claim, now)

    def withdraw(self, job: JobRecord) -> None:
        """Remove a waiting job; jobs behind it may start."""
        if self._too_large.pop(job.id, None) is None:
            self._waiting.remove(self._claims[job.id])
        job.queued, self._changed = False, True

    def asks_anew(self, job: JobRecord) -> None:
        """A job asks for other memory, or has another priority. One that waits is to be added
        again. For one that runs, other memory counts as taken.
        """
        if job.queued:
            self.withdraw(job)
        claim = self._claims.get(job.id)
        if claim is None or claim.since is None or claim.found:
            return
        memory = job.spec.limits.memory_bytes
        if memory is not None and memory != claim.request.memory_bytes:
            request = claim.request._replace(memory_bytes=memory, guessed=False)
            claim.hold(self._resources, request, claim.slots)
            self._changed = True
            self._preemption.reconsider()

    def freeze(self, now: float, job: JobRecord, frozen: bool) -> None:
        """A frozen job gives its slot to another. It goes on whether one is free or not."""
        claim, request = self._claims.get(job.id), self._requests.of(job)
        if claim is None or claim.since is None or request is None:
            return
        if bool(claim.request.groups) != frozen:
            return
        self._resources.slots.give(claim.request.groups)
        groups = () if frozen else request.without_probe().groups
        claim.request, self._changed = claim.request._replace(groups=groups), True
        self._resources.slots.take(groups)
        (self.bounds.left if frozen else self.bounds.started)(now, job)

    def can_resume(self) -> None:
        """A running job can be resumed from now on, so that an urgent one may take its room."""
        self._changed = True

    def uses(self, now: float, job: JobRecord) -> None:
        """Tasks of a job use memory and cores."""
        may_start = self.bounds.uses(now, job)
        if self._requests.gpus_are_shared and self._memory.uses(now, job):
            may_start = True
            self._preemption.reconsider()
        self._changed = self._changed or may_start

    def memory_used(self, now: float, event: MemoryUsed | GpuMemoryUsed) -> None:
        """Record the memory of a node, or of its GPUs, used by jobs and others."""
        if isinstance(event, GpuMemoryUsed):
            may_start = self._memory.read_gpus(now, event)
        else:
            may_start = self._memory.read(event)
            of_jobs = sum(
                task.used.cpu_cores
                for claim in self._running
                for task in claim.job.tasks.values()
                if task.node == event.node and task.used is not None
            )
            self.bounds.busy(event.node, event.busy_cores, of_jobs)
        self._changed = self._changed or may_start

    def _ask_anew(self, script: str) -> None:
        """Waiting jobs of a script ask for what its jobs were seen to take."""
        self._changed = True
        for key, claim in self._waiting.take_out(script):
            if claim.request.is_probe:
                self._probed.append(claim.job)
            claim.request = self._requests.of(claim.job) or claim.request
            self._waiting.add(key, claim)

    def _enqueue(self, now: float, claim: Claim) -> None:
        self._waiting.add(self._running.key(claim, now), claim)

    def ended(
        self, now: float, job: JobRecord, done: bool, cpu_seconds: float | None = None
    ) -> None:
        """The last task of an attempt has ended; arguments as of `Bounds.left`."""
        self.bounds.left(now, job, done, cpu_seconds)
        claim = self._claims.get(job.id)
        if claim is None or claim.since is None:
            return
        peak, on_gpu = self._probing.ended(claim), claim.seen_on_gpu
        news = peak is not None and self._probing.learn(job.script, peak)
        if (on_gpu and self._probing.learn_on_gpu(job.script, on_gpu)) or news:
            self._ask_anew(job.script)
        self._resources.give(claim.request, claim.slots)
        claim.served += now - claim.since
        claim.since, claim.slots, claim.found, claim.on_gpu = None, (), False, None
        job.slots = ()
        self._running.remove(claim)
        self._preemption.ended(job.id)
        self._changed = True

    def forget(self, jobs: Iterable[JobId]) -> None:
        """Drop ended jobs."""
        for id in jobs:
            self._claims.pop(id, None)
            self._too_large.pop(id, None)

    def ahead(self, now: float, ends: Mapping[JobId, float]) -> list[StartForecast]:
        """What each waiting job is waiting for, in their order.

        Args:
            now: Seconds on the run's clock.
            ends: Expected ends of running jobs, as far as known.
        """
        if self._grants.is_shared:
            return []
        waiting, running = list(self._waiting.in_order()), list(self._running)
        return forecasts(now, self._resources, waiting, running, ends, self._seconds)

    # --- decisions --------------------------------------------------------------------------------

    def admit(self, now: float, due: Iterable[JobRecord]) -> tuple[list[JobRecord], list[Action]]:
        """Choose the jobs that may start now, and make room for others. Due jobs may start if they
        share all they use, or have their room.
        """
        actions = [action for job in due for action in self.enqueue(now, job)]
        free = [job for job in due if not job.queued]
        admitted, more = self._admit_waiting(now)
        marks = (mark for mark in more if isinstance(mark, MarkJob))
        paused = {mark.job for mark in marks if mark.state == "paused"}
        at_once = {job.id for job in admitted} | paused  # announcing their wait would be noise
        actions = [
            self._as_it_is_now(action)
            for action in actions + more
            if not (_tells_of_wait(action) and action.job in at_once)
        ]
        return free + admitted, actions

    def _as_it_is_now(self, action: Action) -> Action:
        """Update the announced shortage of a waiting job, now that others have taken their room."""
        claim = self._claims.get(action.job) if _tells_of_wait(action) else None
        if claim is None or not claim.job.queued or claim.job.id in self._too_large:
            return action
        return claim.job.mark("waiting", self._requests.shortage(claim.request))

    def _admit_waiting(self, now: float) -> tuple[list[JobRecord], list[Action]]:
        if self._running.review(now):
            self._changed = True
            self._preemption.reconsider()
        for script, peak in self._probing.overdue(now):
            if self._probing.learn(script, peak):
                self._ask_anew(script)
        if not self._changed:
            return [], []
        self._changed = False
        actions = list[Action]()
        for job in [job for job in self._too_large.values() if self._requests.could(job)]:
            del self._too_large[job.id]
            actions += self.enqueue(now, job)
        probed, self._probed = self._probed, []
        being_planned = Reason(ReasonKind.BEING_PLANNED)
        actions += [job.mark("waiting", being_planned) for job in probed if job.queued]
        if self._grants.is_shared:
            return self._admit_granted(now, actions)
        self._preemption.settle()
        return self._admit_in_order(now, actions)

    def _admit_in_order(
        self, now: float, actions: list[Action]
    ) -> tuple[list[JobRecord], list[Action]]:
        admitted: list[JobRecord] = []
        blocked: set[ResourceRequest] = set()
        set_aside: list[Taken] = []
        while (head := self._waiting.first(blocked)) is not None:
            key, claim = head
            if self._must_wait(key, claim.job, admitted):
                break
            slots = self._resources.seize(claim.request)
            if slots is not None and (urgent := self._hindered(claim.job, slots)) is not None:
                self._resources.give(claim.request, slots)
                actions.append(self._hold_back(claim, urgent))
                blocked |= {claim.request} if len(actions) >= _HELD_BACK else set()
                continue
            if slots is not None:
                if self._pairing is not None and self._pairing.knows:
                    self._resources.give(claim.request, slots)
                    equals = self._waiting.of_priority(key, blocked, LOOKED_AT)
                    claim = self._pairing.choose(equals, list(self._running), self._resources)
                    slots = self._resources.seize(claim.request) or ()
                actions += self._start(now, claim, slots)
                admitted.append(claim.job)
                continue
            if self._lacks_slot(claim.request):  # as thousands of others may
                blocked |= set(filter(self._lacks_slot, self._waiting.requests))
                continue
            actions += self._preemption.make_room(now, key, claim)
            if self.order.overtakes:
                blocked.add(claim.request)
            elif not self._let_others_by(claim.request, blocked, set_aside):
                if claim.request.guessed:
                    break
                # jobs without such a request may overtake
                blocked |= {request for request in self._waiting.requests if not request.guessed}
        for taken in set_aside:
            self._resources.give(*taken)
        return admitted, actions

    def _must_wait(self, key: Key, job: JobRecord, admitted: Sequence[JobRecord]) -> bool:
        """Whether the head of the queue waits for one before it, whether there is room or not."""
        if self._preemption.goes_before(key):
            return True
        # it may be in the way of the urgent job, which has its tasks in the next step
        goes_after = bool(admitted) and admitted[-1].spec.urgent and not job.spec.urgent
        self._changed = self._changed or goes_after
        return goes_after

    def _admit_granted(
        self, now: float, actions: list[Action]
    ) -> tuple[list[JobRecord], list[Action]]:
        """Start the jobs that the arbiter has found room for, and those on other nodes that have
        room.
        """
        admitted = []
        for claim in self._waiting.in_order():
            slots = self._grants.take(claim)
            if slots is not None:
                self._resources.take(claim.request, slots)
            elif not self._grants.asks(claim):
                slots = self._resources.seize(claim.request)
            if slots is not None:
                actions += self._start(now, claim, slots)
                admitted.append(claim.job)
        self._grants.forget()
        return admitted, actions

    def _lacks_slot(self, request: ResourceRequest) -> bool:
        return self._resources.slots.full(request.groups) is not None

    def _hold_back(self, claim: Claim, urgent: JobId) -> Action:
        """Keep a waiting job from starting while an urgent one runs."""
        self._waiting.remove(claim)
        claim.job.queued = False
        claim.job.pause_for(urgent)
        return claim.job.mark("waiting", Reason(ReasonKind.BEING_PLANNED))

    def _let_others_by(
        self, request: ResourceRequest, blocked: set[ResourceRequest], set_aside: list[Taken]
    ) -> bool:
        """Set aside the main memory of a job that lacks only GPU memory, so that jobs not using
        these GPUs may start before it. Returns whether this was possible.
        """
        main_memory = request._replace(on_gpus=None)
        if not self._resources.shortage(request).on_gpu:
            return False
        if (slots := self._resources.seize(main_memory)) is None:
            return False
        set_aside.append(Taken(main_memory, slots))
        nodes = set(request.fixed)
        blocked |= {
            other
            for other in self._waiting.requests
            if other.on_gpus is not None and nodes.intersection(other.fixed)
        }
        return True

    def _start(self, now: float, claim: Claim, slots: tuple[WorkerSlot, ...]) -> list[Action]:
        self._waiting.remove(claim)
        job = claim.job
        job.queued = False
        claim.since, claim.slots, claim.passed = now, slots, 0
        self._memory.started(now, claim)
        self._probing.started(claim)
        self.bounds.started(now, claim.job)
        self._running.add(claim, now)
        job.slots = slots if any(slot.gpus for slot in slots) else ()
        plan, nodes = job.planned(), tuple(slot.node for slot in slots)
        if not slots or plan.worker_nodes == nodes:
            return []
        job.plan = _placed(plan, nodes)
        return [Resize(job.id, job.plan)]


@lru_cache(maxsize=4096)
def _placed(plan: Plan, nodes: tuple[str, ...]) -> Plan:
    return replace(plan, worker_nodes=nodes)


def _tells_of_wait(action: Action) -> TypeGuard[MarkJob]:
    return isinstance(action, MarkJob) and action.state == "waiting"
