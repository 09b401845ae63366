"""Jobs that wait for room: which starts when, and which is preempted for another."""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from heapq import merge
from itertools import chain, islice

from headgate.controller.bounds import Bounds
from headgate.controller.free_resources import FreeResources, ResourceRequest, request_of
from headgate.controller.gpu_memory import GpuMemory, WorkerSlot
from headgate.controller.gpu_seen import PATIENCE_SECONDS, GpuUseSeen
from headgate.controller.pairing import LOOKED_AT, Pairing
from headgate.controller.preemption import Key, Ranking
from headgate.controller.probing import GROWS, Probing
from headgate.controller.queue_orders import Claim, Order
from headgate.controller.records import JobRecord
from headgate.controller.shortage import Shortage
from headgate.controller.slots import ALL, URGENT, groups_of
from headgate.controller.start_forecast import StartForecast, beside, expected_starts
from headgate.model.actions import Action, MarkJob, Resize
from headgate.model.cluster import Node
from headgate.model.events import GpuMemoryUsed, MemoryUsed
from headgate.model.identifiers import JobId
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.planning.memory import PROCESS
from headgate.planning.placement import place, place_within, unplaced

_SETTLED_SECONDS = 5.0
"""A job's memory use has settled once it has not grown for this long."""

_HELD_BACK = 100
"""About as many waiting jobs are held back for an urgent one at a time."""


def _unknown(_: JobId) -> None:
    """Nothing is known of how long a job takes."""


def _nobody(_: JobRecord, __: Sequence[WorkerSlot]) -> None:
    """No urgent job runs."""


class Queue:
    """Makes jobs wait until all GPUs and memory that they request are free at once (gang
    scheduling).

    Args:
        order: The order of jobs.
        gpus_are_shared: Jobs take turns on GPUs. A job then waits only for GPU memory, if its need
            is known. Its memory request is the most that it may take, at most the node's memory.
        seconds: Expected run time of a waiting job; None: unknown.
        pairing: Picks, among waiting jobs of one priority, the one that runs best beside the
            running jobs. None: the order alone decides.
        per_core: Jobs for each core that run at once; more do while cores are idle. None: any
            number runs.
        probes: Where memory is not known, the first job of a script runs before the others.
    """

    def __init__(
        self,
        order: Order,
        gpus_are_shared: bool = False,
        seconds: Callable[[JobId], float | None] = _unknown,
        pairing: Pairing | None = None,
        per_core: int | None = None,
        probes: bool = False,
    ) -> None:
        self.order = order
        self._pairing = pairing
        self._seconds = seconds
        self._gpus_are_shared = gpus_are_shared
        self._resources = FreeResources()
        self._claims: dict[JobId, Claim] = {}
        self._waiting: dict[ResourceRequest, list[tuple[Key, Claim]]] = {}
        self._too_large: dict[JobId, JobRecord] = {}
        self._running = Ranking(order)
        self._reserved: tuple[Key, Claim] | None = None
        self._leaving: set[JobId] = set()
        self._hopeless: dict[
            ResourceRequest, Key
        ] = {}  # ranks whose request does not fit, even with the resources of jobs that rank behind
        self._changed = False
        self._bounded = per_core is not None
        self.bounds = Bounds(self._resources.slots, per_core)
        self._probing = Probing(self._resources.slots, probes)
        self._probed: list[JobRecord] = []  # jobs that wait for something else from now on
        self._hindered: Callable[[JobRecord, Sequence[WorkerSlot]], JobId | None] = _nobody
        # GPUs of granted jobs that have not started; None: nobody else decides
        self._granted: dict[JobId, tuple[tuple[int, ...], ...]] | None = None
        self._shared_node = ""

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

    def gives_way(self, first: Callable[[JobRecord, Sequence[WorkerSlot]], JobId | None]) -> None:
        """Set the function that finds the running urgent job that a job would hinder in these
        places.
        """
        self._hindered = first

    def join(self, node: Node) -> None:
        """Add or update a node."""
        self._resources.join(node)
        self._changed = True
        self._hopeless.clear()
        self.bounds.have(self._resources.cores)

    def leave(self, name: str) -> None:
        """Remove a node."""
        self._resources.leave(name)
        self.bounds.have(self._resources.cores)

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
        if (node is not None) != (self._granted is not None):
            self._granted, self._changed = ({} if node is not None else None), True
            self._shared_node = node or ""

    def grant(self, job: JobId, gpus: tuple[tuple[int, ...], ...]) -> None:
        """The arbiter lets a job start; arguments as of `JobGranted`."""
        if self._granted is not None and job in self._claims:
            self._granted[job], self._changed = gpus, True

    def stated(self) -> tuple[list[Claim], list[Claim]]:
        """The waiting jobs that would start if the machine had room for all, in their order, and
        the running ones. Jobs on other nodes than the shared one are left out.
        """
        slots, waiting = self._resources.slots, []
        for _, claim in sorted(chain.from_iterable(self._waiting.values())):
            if self._asks(claim) and slots.full(claim.request.groups) is None:
                slots.take(claim.request.groups)
                waiting.append(claim)
        for claim in waiting:
            slots.give(claim.request.groups)
        return waiting, [claim for claim in self._running if self._asks(claim)]

    def _asks(self, claim: Claim) -> bool:
        """Whether a job needs a grant."""
        nodes = claim.request.fixed or claim.job.planned().worker_nodes
        return not self._shared_node or not nodes or self._shared_node in nodes

    def enqueue(self, now: float, job: JobRecord) -> list[Action]:
        """Add a job whose time has come. A job without exclusive requests is not queued."""
        request = self._request_of(job)
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
        return [job.mark("waiting", self._lacks(request))]

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
        taken: list[tuple[ResourceRequest, tuple[WorkerSlot, ...]]] = []
        for job in jobs:
            elsewhere = self._elsewhere(job, node, nodes)
            if elsewhere is None:
                continue
            request = elsewhere[0]
            taken.append(elsewhere)
            actions.append(Resize(job.id, job.planned()))
            if job.id not in self._too_large:
                claim = self._claims[job.id]
                self._dequeue(claim)
                claim.request = request
                self._enqueue(now, claim)
        for request, slots in taken:
            self._resources.give(request, slots)
        self._changed = self._changed or bool(taken)
        return actions

    def take_up(self, now: float, job: JobRecord) -> None:
        """Count a job that runs already as running, whether it has room or not."""
        request = self._request_of(job)
        if request is None:
            return
        request = _beside_probes(request)
        claim = self._claims[job.id] = Claim(job, request, since=now)
        claim.slots = job.slots or tuple(map(WorkerSlot, job.planned().worker_nodes))
        claim.grew, claim.on_gpu = now, self._unseen(now, claim)
        self._resources.take(request, claim.slots)
        self.bounds.started(now, job)
        self._running.add(claim, now)

    def withdraw(self, job: JobRecord) -> None:
        """Remove a waiting job; jobs behind it may start."""
        if self._too_large.pop(job.id, None) is None:
            self._dequeue(self._claims[job.id])
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
            self._resources.give(claim.request, claim.slots)
            claim.request = claim.request._replace(memory_bytes=memory, guessed=False)
            self._resources.take(claim.request, claim.slots)
            self._changed = True
            self._hopeless.clear()

    def freeze(self, now: float, job: JobRecord, frozen: bool) -> None:
        """A frozen job gives its slot to another. It goes on whether one is free or not."""
        claim, request = self._claims.get(job.id), self._request_of(job)
        if claim is None or claim.since is None or request is None:
            return
        if bool(claim.request.groups) != frozen:
            return
        self._resources.slots.give(claim.request.groups)
        groups = () if frozen else _beside_probes(request).groups
        claim.request, self._changed = claim.request._replace(groups=groups), True
        self._resources.slots.take(groups)
        (self.bounds.ended if frozen else self.bounds.started)(now, job)

    def can_resume(self) -> None:
        """A running job can be resumed from now on, so that an urgent one may take its room."""
        self._changed = True

    def uses(self, now: float, job: JobRecord) -> None:
        """Tasks of a job use memory. If its need was unknown, its peak use counts as taken from
        then on. If it needs more than such jobs did before, the excess counts as taken.
        """
        claim, tasks = self._claims.get(job.id), job.tasks.values()
        runs = claim is not None and claim.since is not None
        has_request = runs and claim is not None and not claim.found and claim.request.workers > 0
        self._changed = self.bounds.uses(now, job) or self._changed
        if not self._gpus_are_shared or (has_request and job.spec.limits.memory_bytes is not None):
            return
        most = math.ceil(sum(task.most_bytes for task in tasks) / len(tasks))
        if claim is not None and runs:
            if most > GROWS * claim.seen_bytes:
                claim.grew, claim.seen_bytes = now, most
            if self._probing.shows(now, claim) and self._probing.learn(job.script, most):
                self._ask_anew(job.script)
        if claim is not None and has_request:
            settled = claim.request.guessed and now - claim.grew >= _SETTLED_SECONDS
            if settled or most > claim.request.memory_bytes:
                self._resources.give(claim.request, claim.slots)
                guessed = claim.request.guessed and not settled
                claim.request = claim.request._replace(memory_bytes=most, guessed=guessed)
                self._resources.take(claim.request, claim.slots)
                self._changed = True
            return
        request, slots = (
            ResourceRequest(len(tasks), 0, most, (), None),
            tuple(WorkerSlot(task.node) for task in tasks),
        )
        if claim is None or claim.since is None:
            claim = self._claims[job.id] = Claim(job, request, since=now, found=True)
            self._running.add(claim, now)
        elif most <= claim.request.memory_bytes and slots == claim.slots:
            return
        else:
            self._resources.give(claim.request, claim.slots)
            self._changed = self._changed or slots != claim.slots
            self._hopeless.clear()
            request, claim.found = request._replace(groups=claim.request.groups), True
        claim.request, claim.slots = request, slots
        self._resources.take(request, slots)

    def _ask_anew(self, script: str) -> None:
        """Waiting jobs of a script ask for what its jobs were seen to take."""
        self._changed = True
        moved: list[tuple[Key, Claim]] = []
        for request, waiting in list(self._waiting.items()):
            of_script = [entry for entry in waiting if entry[1].job.script == script]
            if of_script:
                moved += of_script
                left = [entry for entry in waiting if entry[1].job.script != script]
                self._waiting[request] = left
                if not left:
                    del self._waiting[request]
        for key, claim in moved:
            if any(group.kind == "probe" for group in claim.request.groups):
                self._probed.append(claim.job)
            claim.request = self._request_of(claim.job) or claim.request
            insort(self._waiting.setdefault(claim.request, []), (key, claim))

    def _enqueue(self, now: float, claim: Claim) -> None:
        insort(self._waiting.setdefault(claim.request, []), (self._running.key(claim, now), claim))

    def memory_used(self, now: float, event: MemoryUsed | GpuMemoryUsed) -> None:
        """Record the memory of a node, or of its GPUs, used by jobs and others."""
        if isinstance(event, GpuMemoryUsed):
            self._gpu_memory_used(now, event)
            return
        holds = 0.0
        for claim in self._running:
            taken = (
                sum(slot.node == event.node for slot in claim.slots) * claim.request.memory_bytes
            )
            tasks = claim.job.tasks.values() if taken else ()
            held_bytes = sum(
                event.held.get(task.id, 0.0) for task in tasks if task.node == event.node
            )
            holds += min(held_bytes, taken)
        if self._resources.observe(event.node, event.available, holds):
            self._changed = True

    def _gpu_memory_used(self, now: float, event: GpuMemoryUsed) -> None:
        memory = self.gpu_memory
        for claim in [claim for claim in self._running if claim.on_gpu is not None]:
            self._see(now, claim, event)
        held: defaultdict[int, float] = defaultdict(float)
        for claim in self._running:
            if (on_gpus := claim.request.on_gpus) is None or not claim.job.slots:
                continue
            kept = Counter(
                gpu for slot in claim.slots if slot.node == event.node for gpu in slot.gpus
            )
            # memory of its tasks on other GPUs is not reserved
            for gpu, workers in kept.items():
                held_bytes = sum(event.held.get(id, {}).get(gpu, 0.0) for id in claim.job.tasks)
                held[gpu] += min(held_bytes, workers * on_gpus.memory_bytes)
                claim.seen_on_gpu = max(claim.seen_on_gpu, int(held_bytes / workers))
        changed = memory.limit(event.node, event.single, event.closed)
        if memory.observe(event.node, event.used, held) or changed:
            self._changed = True

    def _see(self, now: float, claim: Claim, event: GpuMemoryUsed) -> None:
        """Observe a job of unknown need; once its use has settled, reserve as much."""
        on_gpus, seen = claim.request.on_gpus, claim.on_gpu
        if on_gpus is None or seen is None or all(slot.node != event.node for slot in claim.slots):
            return
        held: defaultdict[int, float] = defaultdict(float)
        for task in claim.job.tasks:
            for gpu, size in event.held.get(task, {}).items():
                held[gpu] += size
        if not seen.observe(now, event.used, held):
            return
        self._resources.give(claim.request, claim.slots)
        claim.on_gpu, claim.job.needs_gpu_bytes = None, seen.bytes or None
        if seen.bytes or on_gpus.alone:
            claim.request = claim.request._replace(
                on_gpus=on_gpus._replace(memory_bytes=seen.bytes, known=True)
            )
        else:  # it uses no GPU
            claim.request, claim.job.slots = claim.request._replace(on_gpus=None), ()
            claim.job.uses_gpus = "seen-none"
            claim.slots = tuple(WorkerSlot(slot.node) for slot in claim.slots)
        self._resources.take(claim.request, claim.slots)
        self.gpu_memory.settle(event.node, seen.held)
        self._changed = True
        if self._probing.learn_on_gpu(claim.job.script, seen.bytes):
            self._ask_anew(claim.job.script)

    def ended(self, now: float, job: JobRecord) -> None:
        """The last task of an attempt has ended."""
        self.bounds.ended(now, job)
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
        self._leaving.discard(job.id)
        self._running.remove(claim)
        self._changed = True
        self._hopeless.clear()

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
        if self._granted is not None:
            return []
        running = list(self._running)
        in_turn = sorted(chain.from_iterable(self._waiting.values()))
        waiting = [claim for _, claim in in_turn]
        have = [(claim, claim.slots) for claim in running]
        starts = expected_starts(now, self._resources, waiting, running, ends, self._seconds)
        lacking: dict[ResourceRequest, tuple[Shortage, tuple[JobId, ...]]] = {}
        # thousands of jobs may make the same request
        for request in dict.fromkeys(claim.request for claim in waiting):
            lacks = self._resources.shortage(request)
            lacking[request] = lacks, beside(request, have, lacks)
        forecasts = [
            StartForecast(claim.job.id, *lacking[claim.request], start.at, start.unknown)
            for claim, start in zip(waiting, starts, strict=True)
        ]
        keep = {claim.job.id: why for claim in running if (why := claim.job.keeps_room) is not None}
        for i, claim in enumerate(waiting):
            if claim.job.spec.urgent:
                kept = tuple((job, keep[job]) for job in forecasts[i].holders if job in keep)
                forecasts[i] = forecasts[i]._replace(kept=kept)
        return forecasts

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
            announced
            for announced in actions + more
            if not (
                isinstance(announced, MarkJob)
                and announced.state == "waiting"
                and announced.job in at_once
            )
        ]
        return free + admitted, [self._as_it_is_now(announced) for announced in actions]

    def _as_it_is_now(self, action: Action) -> Action:
        """Update the announced shortage of a waiting job, now that others have taken their room."""
        claim = (
            self._claims.get(action.job)
            if isinstance(action, MarkJob) and action.state == "waiting"
            else None
        )
        if claim is None or not claim.job.queued or claim.job.id in self._too_large:
            return action
        return claim.job.mark("waiting", self._lacks(claim.request))

    def _lacks(self, request: ResourceRequest) -> Reason:
        if self._granted is not None and (
            not (self._shared_node and request.fixed) or self._shared_node in request.fixed
        ):
            return Reason.of(ReasonKind.NEEDS_ROOM, lacks=Shortage("grant").plain())
        return Reason.of(ReasonKind.NEEDS_ROOM, lacks=self._resources.shortage(request).plain())

    def _admit_waiting(self, now: float) -> tuple[list[JobRecord], list[Action]]:
        if self._running.review(now):
            self._changed = True
            self._hopeless.clear()
        for script, peak in self._probing.overdue(now):
            if self._probing.learn(script, peak):
                self._ask_anew(script)
        actions: list[Action] = []
        if not self._changed:
            return [], actions
        self._changed = False
        for job in [job for job in self._too_large.values() if self._could(job)]:
            del self._too_large[job.id]
            actions += self.enqueue(now, job)
        probed, self._probed = self._probed, []
        being_planned = Reason(ReasonKind.BEING_PLANNED)
        actions += [job.mark("waiting", being_planned) for job in probed if job.queued]
        if self._granted is not None:
            return self._admit_granted(now, self._granted, actions)
        self._settle()
        return self._admit_in_order(now, actions)

    def _admit_in_order(
        self, now: float, actions: list[Action]
    ) -> tuple[list[JobRecord], list[Action]]:
        admitted: list[JobRecord] = []
        blocked: set[ResourceRequest] = set()
        set_aside: list[tuple[ResourceRequest, tuple[WorkerSlot, ...]]] = []
        while (head := self._head(blocked)) is not None:
            claim = head[1]
            if self._must_wait(head, admitted):
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
                    claim = self._paired(head, blocked, self._pairing)
                    slots = self._resources.seize(claim.request) or ()
                actions += self._start(now, claim, slots)
                admitted.append(claim.job)
                continue
            if (full := self._resources.slots.full(claim.request.groups)) is not None:
                blocked.add(claim.request)  # other groups have slots
                if full == ALL:  # thousands of runs may wait for one
                    blocked |= {request for request in self._waiting if self._lacks_slot(request)}
                continue
            actions += self._preempt(now, head)
            if self.order.overtakes:
                blocked.add(claim.request)
            elif not self._let_others_by(claim.request, blocked, set_aside):
                if claim.request.guessed:
                    break
                # jobs without such a request may overtake
                blocked |= {waiting_job for waiting_job in self._waiting if not waiting_job.guessed}
        for request, slots in set_aside:
            self._resources.give(request, slots)
        return admitted, actions

    def _must_wait(self, head: tuple[Key, Claim], admitted: Sequence[JobRecord]) -> bool:
        """Whether the head of the queue waits for one before it, whether there is room or not."""
        if self._reserved is not None and head[0] > self._reserved[0]:
            return True
        # it may be in the way of the urgent job, which has its tasks in the next step
        goes_after = bool(admitted) and admitted[-1].spec.urgent and not head[1].job.spec.urgent
        self._changed = self._changed or goes_after
        return goes_after

    def _admit_granted(
        self,
        now: float,
        granted: dict[JobId, tuple[tuple[int, ...], ...]],
        actions: list[Action],
    ) -> tuple[list[JobRecord], list[Action]]:
        """Start the jobs that the arbiter has found room for, and those on other nodes that have
        room.
        """
        admitted = []
        for _, claim in sorted(chain.from_iterable(self._waiting.values())):
            gpus, slots = granted.pop(claim.job.id, None), None
            if gpus is not None:
                nodes = claim.request.fixed or claim.job.planned().worker_nodes
                slots = tuple(map(WorkerSlot, nodes, gpus))
                self._resources.take(claim.request, slots)
            elif not self._asks(claim):
                slots = self._resources.seize(claim.request)
            if slots is not None:
                actions += self._start(now, claim, slots)
                admitted.append(claim.job)
        granted.clear()
        return admitted, actions

    def _lacks_slot(self, request: ResourceRequest) -> bool:
        return self._resources.slots.full(request.groups) is not None

    def _preempt(self, now: float, head: tuple[Key, Claim]) -> list[Action]:
        """Stop running jobs for the head of the queue, if that makes room for it."""
        key, claim = head
        if claim.job.spec.urgent and not self.order.preempts:
            return self._make_room(head)
        hopeless = self._hopeless.get(claim.request)
        if (
            not self.order.preempts
            or self._reserved is not None
            or (hopeless is not None and key >= hopeless)
        ):
            return []
        victims = self._running.victims(now, key, claim.request, self._resources)
        if victims:
            self._reserved = head
        else:
            self._hopeless[claim.request] = key
        return [action for victim in victims for action in self._stop(victim, claim)]

    def _hold_back(self, claim: Claim, urgent: JobId) -> Action:
        """Keep a waiting job from starting while an urgent one runs."""
        self._dequeue(claim)
        claim.job.queued = False
        claim.job.pause_for(urgent)
        return claim.job.mark("waiting", Reason(ReasonKind.BEING_PLANNED))

    def _make_room(self, head: tuple[Key, Claim]) -> list[Action]:
        """End jobs with a checkpoint for an urgent one, if that makes room for it."""
        claim, actions = head[1], list[Action]()
        lacks = self._resources.shortage(claim.request)
        if self._reserved is not None or lacks.of_jobs or lacks.kind == "gpu-unseen":
            return []
        for other in self._running.ended_for(claim.request, self._resources):
            self._reserved = head
            self._running.remove(other)
            self._leaving.add(other.job.id)
            if other.job.undisturbed:
                actions += other.job.release(claim.job.id)
        return actions

    def _paired(
        self, head: tuple[Key, Claim], blocked: set[ResourceRequest], pairing: Pairing
    ) -> Claim:
        """The head of the queue, which fits, or another job of its priority that runs better
        there.
        """
        free = (waiting for request, waiting in self._waiting.items() if request not in blocked)
        equal = (claim for key, claim in merge(*free) if key[0] == head[0][0])
        return pairing.choose(list(islice(equal, LOOKED_AT)), list(self._running), self._resources)

    def _let_others_by(
        self,
        request: ResourceRequest,
        blocked: set[ResourceRequest],
        set_aside: list[tuple[ResourceRequest, tuple[WorkerSlot, ...]]],
    ) -> bool:
        """Set aside the main memory of a job that lacks only GPU memory, so that jobs not using
        these GPUs may start before it. Returns whether this was possible.
        """
        main_memory = request._replace(on_gpus=None)
        slots = (
            self._resources.seize(main_memory) if self._resources.shortage(request).on_gpu else None
        )
        if slots is None:
            return False
        set_aside.append((main_memory, slots))
        nodes = set(request.fixed)
        blocked |= {
            waiting_job
            for waiting_job in self._waiting
            if waiting_job.on_gpus is not None and nodes.intersection(waiting_job.fixed)
        }
        return True

    def _could(self, job: JobRecord) -> bool:
        request = self._request_of(job)
        return request is None or self._resources.could(request)

    def _request_of(self, job: JobRecord) -> ResourceRequest | None:
        request = self._own_request(job)
        if request is None and self._granted is not None:
            return ResourceRequest(0, 0, 0, (), None)
        return request

    def _own_request(self, job: JobRecord) -> ResourceRequest | None:
        request = request_of(job, self._gpus_are_shared)
        if not self._gpus_are_shared:
            return request
        if request is not None:
            request = self._probing.on_gpus(job, request)
        nodes = job.planned().worker_nodes
        on_gpus = request.on_gpus if request is not None else None
        seen = bool(nodes) and self.gpu_memory.observed(nodes)
        if (
            request is not None
            and on_gpus is not None
            and not (on_gpus.known or on_gpus.alone or seen or self._granted is not None)
        ):
            request = request._replace(on_gpus=None)
        if nodes and not job.spec.roles and self._resources.observed(nodes):
            request = request or ResourceRequest(len(nodes), 0, 0, nodes, None)
            if not request.memory_bytes:
                request = request._replace(memory_bytes=PROCESS, guessed=True)
        request = self._resources.trimmed(request) if request is not None else None
        if request is not None and not (request.memory_bytes or request.on_gpus is not None):
            request = None
        groups = [group for group, jobs in groups_of(job) if jobs is not None]
        if not self._bounded and not groups:
            return request
        request = (request or ResourceRequest(0, 0, 0, (), None))._replace(
            groups=(ALL, *(group for group, _ in groups_of(job)))
        )
        if job.spec.urgent:
            return request._replace(groups=(*request.groups, URGENT))
        asks = self._probing.request(job, request)
        return asks if asks.guessed or not asks.memory_bytes else self._resources.trimmed(asks)

    def _elsewhere(
        self, job: JobRecord, node: Node, nodes: Mapping[str, Node]
    ) -> tuple[ResourceRequest, tuple[WorkerSlot, ...]] | None:
        """Switch a job to another plan that has room. None, with nothing changed: there is none."""
        before = job.planned()
        waits = self._claims.get(job.id)
        least = (
            waits.request.memory_bytes if waits is not None and job.id not in self._too_large else 0
        )
        if waits is not None and waits.request.guessed:
            least = 0
        for plan in (place(unplaced(before), [node]), self._spread(job, node, nodes)):
            if plan is None:
                continue
            job.plan = plan
            request = self._request_of(job)
            # On smaller nodes than those of its plan, the job would get along with less memory.
            taken = (
                self._resources.seize(request)
                if request is not None and request.memory_bytes >= least
                else None
            )
            if request is not None and taken is not None:
                return request, taken
        job.plan = before
        return None

    def _spread(self, job: JobRecord, node: Node, nodes: Mapping[str, Node]) -> Plan | None:
        """A plan over all nodes with partial room for a job, after a node joined; None: not enough
        for all of it.
        """
        before = job.planned()
        left = [
            node,
            *(
                reachable_node
                for reachable_node in job.reachable(nodes)
                if reachable_node.name != node.name
            ),
        ]
        job.plan = unplaced(before)
        request = request_of(job, self._gpus_are_shared)
        job.plan = before
        if request is None:
            return None
        plan = place_within(
            before, left, lambda name, workers, _: self._resources.has_place(request, name, workers)
        )
        return plan if plan is not None and node.name in plan.worker_nodes else None

    def _settle(self) -> None:
        """Stop making room once the waiting job no longer waits or all preempted jobs have
        ended.
        """
        if self._reserved is None:
            return
        job = self._reserved[1].job
        if not self._leaving or not job.queued:
            self._reserved = None

    def _head(self, blocked: set[ResourceRequest]) -> tuple[Key, Claim] | None:
        """The first waiting job with a request that is not blocked."""
        best: tuple[Key, Claim] | None = None
        for request, waiting in self._waiting.items():
            if request not in blocked and (best is None or waiting[0] < best):
                best = waiting[0]
        return best

    def _dequeue(self, claim: Claim) -> None:
        waiting = self._waiting[claim.request]
        del waiting[next(i for i, (_, waiting_job) in enumerate(waiting) if waiting_job is claim)]
        if not waiting:
            del self._waiting[claim.request]

    def _start(self, now: float, claim: Claim, slots: tuple[WorkerSlot, ...]) -> list[Action]:
        self._dequeue(claim)
        job = claim.job
        job.queued = False
        claim.since, claim.slots, claim.passed = now, slots, 0
        claim.grew, claim.seen_bytes, claim.seen_on_gpu = now, 0, 0
        self._probing.started(claim)
        self.bounds.started(now, claim.job)
        claim.on_gpu = self._unseen(now, claim)
        self._running.add(claim, now)
        job.slots = slots if any(slot.gpus for slot in slots) else ()
        plan, nodes = job.planned(), tuple(slot.node for slot in slots)
        if not slots or plan.worker_nodes == nodes:
            return []
        job.plan = _placed(plan, nodes)
        return [Resize(job.id, job.plan)]

    def _unseen(self, now: float, claim: Claim) -> GpuUseSeen | None:
        """An observation of a job that just got GPUs; None: its need is known."""
        on_gpus = claim.request.on_gpus
        if on_gpus is None or on_gpus.known:
            return None
        before = {
            gpu: self.gpu_memory.used(slot.node, gpu) for slot in claim.slots for gpu in slot.gpus
        }
        use = "yes" if claim.job.spec.limits.gpus or on_gpus.alone else claim.job.uses_gpus
        return GpuUseSeen(now, PATIENCE_SECONDS[use], before)

    def _stop(self, claim: Claim, other: Claim) -> list[Action]:
        """Preempt a job for another; it waits again."""
        job = claim.job
        self._running.remove(claim)
        self._leaving.add(job.id)
        if not job.undisturbed:
            return []
        job.restart = Reason.of(ReasonKind.MADE_ROOM, job=other.job.spec.name)
        reason = Reason.of(ReasonKind.MAKES_ROOM, job=other.job.spec.name)
        return [job.mark("stopping", reason), *(task.stop(reason) for task in job.tasks.values())]


def _beside_probes(request: ResourceRequest) -> ResourceRequest:
    """A request of a job that does not wait for the memory of its script."""
    groups = tuple(group for group in request.groups if group.kind != "probe")
    return request._replace(groups=groups)


@lru_cache(maxsize=4096)
def _placed(plan: Plan, nodes: tuple[str, ...]) -> Plan:
    return replace(plan, worker_nodes=nodes)
