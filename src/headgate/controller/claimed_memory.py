"""Has running jobs' claims hold the memory that the jobs are seen to take."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, MutableMapping

from headgate.controller.free_resources import FreeResources, ResourceRequest
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.gpu_seen import PATIENCE_SECONDS, GpuUseSeen
from headgate.controller.preemption import Ranking
from headgate.controller.probing import GROWS, Probing
from headgate.controller.queue_orders import Claim
from headgate.controller.records import JobRecord
from headgate.model.events import GpuMemoryUsed, MemoryUsed
from headgate.model.identifiers import JobId

_SETTLED_SECONDS = 5.0
"""A job's memory use has settled once it has not grown for this long."""


class ClaimedMemory:
    """Corrects claims by readings, and lets other jobs of a script know what one took.

    Each method returns whether waiting jobs may have more room than before.

    Args:
        claims: All claims, by job.
        running: Those of running jobs.
        resources: What they take.
        probing: What jobs of each script were seen to take.
        learned: Called with a script whose waiting jobs ask for other memory from now on.
    """

    def __init__(
        self,
        claims: MutableMapping[JobId, Claim],
        running: Ranking,
        resources: FreeResources,
        probing: Probing,
        learned: Callable[[str], None],
    ) -> None:
        self._claims = claims
        self._running = running
        self._resources = resources
        self._probing = probing
        self._learned = learned

    # --- of a job

    def started(self, now: float, claim: Claim) -> None:
        """A job has got the places of its claim: its use is observed from now on."""
        claim.grew, claim.seen_bytes, claim.seen_on_gpu = now, 0, 0
        claim.on_gpu = None
        on_gpus = claim.request.on_gpus
        if on_gpus is None or on_gpus.known:
            return
        used = self._resources.gpu_memory.used
        before = {gpu: used(slot.node, gpu) for slot in claim.slots for gpu in slot.gpus}
        use = "yes" if claim.job.spec.limits.gpus or on_gpus.alone else claim.job.uses_gpus
        claim.on_gpu = GpuUseSeen(now, PATIENCE_SECONDS[use], before)

    def uses(self, now: float, job: JobRecord) -> bool:
        """Tasks of a job use memory. If its need was unknown, its peak use counts as taken from
        then on. If it needs more than such jobs did before, the excess counts as taken.
        """
        claim, tasks = self._claims.get(job.id), job.tasks.values()
        if claim is not None and claim.since is None:
            claim = None
        asked = claim is not None and not claim.found and claim.request.workers > 0
        if asked and job.spec.limits.memory_bytes is not None:
            return False
        most = math.ceil(sum(task.most_bytes for task in tasks) / len(tasks))
        if claim is not None:
            if most > GROWS * claim.seen_bytes:
                claim.grew, claim.seen_bytes = now, most
            if self._probing.shows(now, claim) and self._probing.learn(job.script, most):
                self._learned(job.script)
        if claim is not None and asked:
            settled = claim.request.guessed and now - claim.grew >= _SETTLED_SECONDS
            if not settled and most <= claim.request.memory_bytes:
                return False
            guessed = claim.request.guessed and not settled
            request = claim.request._replace(memory_bytes=most, guessed=guessed)
            claim.hold(self._resources, request, claim.slots)
            return True
        return self._found(now, job, claim, most)

    def _found(self, now: float, job: JobRecord, claim: Claim | None, most: int) -> bool:
        """A job that asked for nothing takes `most` bytes for each task."""
        tasks = job.tasks.values()
        request = ResourceRequest(len(tasks), 0, most, (), None)
        slots = tuple(WorkerSlot(task.node) for task in tasks)
        if claim is None:
            claim = self._claims[job.id] = Claim(job, request, since=now, found=True)
            self._running.add(claim, now)
            claim.slots = slots
            self._resources.take(request, slots)
            return False
        has_moved = slots != claim.slots
        if has_moved or most > claim.request.memory_bytes:
            claim.found = True
            request = request._replace(groups=claim.request.groups)
            claim.hold(self._resources, request, slots)
        return has_moved

    # --- of a node

    def read(self, event: MemoryUsed) -> bool:
        """Record the memory of a node that jobs and others use."""
        held = 0.0
        for claim in self._running:
            workers = sum(slot.node == event.node for slot in claim.slots)
            if taken := workers * claim.request.memory_bytes:
                tasks = (task for task in claim.job.tasks.values() if task.node == event.node)
                held += min(sum(event.held.get(task.id, 0.0) for task in tasks), taken)
        return self._resources.observe(event.node, event.available, held)

    def read_gpus(self, now: float, event: GpuMemoryUsed) -> bool:
        """Record the memory of a node's GPUs that jobs and others use."""
        memory, has_settled = self._resources.gpu_memory, False
        for claim in [claim for claim in self._running if claim.on_gpu is not None]:
            has_settled = self._observe(now, claim, event) or has_settled
        held = defaultdict[int, float](float)
        for claim in self._running:
            for gpu, bytes_held in self._held_on_gpus(claim, event).items():
                held[gpu] += bytes_held
        is_limited = memory.limit(event.node, event.single, event.closed)
        has_more = memory.observe(event.node, event.used, held)
        return has_settled or is_limited or has_more

    def _held_on_gpus(self, claim: Claim, event: GpuMemoryUsed) -> Mapping[int, float]:
        """Bytes that a job holds of each GPU it has memory of, at most that."""
        if (on_gpus := claim.request.on_gpus) is None or not claim.job.slots:
            return {}
        # memory of its tasks on other GPUs is not reserved
        workers_on = Counter(
            gpu for slot in claim.slots if slot.node == event.node for gpu in slot.gpus
        )
        held = dict[int, float]()
        for gpu, workers in workers_on.items():
            bytes_held = sum(event.held.get(task, {}).get(gpu, 0.0) for task in claim.job.tasks)
            held[gpu] = min(bytes_held, workers * on_gpus.memory_bytes)
            claim.seen_on_gpu = max(claim.seen_on_gpu, int(bytes_held / workers))
        return held

    def _observe(self, now: float, claim: Claim, event: GpuMemoryUsed) -> bool:
        """Observe a job of unknown need; once its use has settled, reserve as much."""
        on_gpus, seen = claim.request.on_gpus, claim.on_gpu
        if on_gpus is None or seen is None or all(slot.node != event.node for slot in claim.slots):
            return False
        held = defaultdict[int, float](float)
        for task in claim.job.tasks:
            for gpu, size in event.held.get(task, {}).items():
                held[gpu] += size
        if not seen.observe(now, event.used, held):
            return False
        claim.on_gpu, claim.job.needs_gpu_bytes = None, seen.bytes or None
        if seen.bytes or on_gpus.alone:
            known = on_gpus._replace(memory_bytes=seen.bytes, known=True)
            request, slots = claim.request._replace(on_gpus=known), claim.slots
        else:  # it uses no GPU
            request, claim.job.slots = claim.request._replace(on_gpus=None), ()
            claim.job.uses_gpus = "seen-none"
            slots = tuple(WorkerSlot(slot.node) for slot in claim.slots)
        claim.hold(self._resources, request, slots)
        self._resources.gpu_memory.settle(event.node, seen.held)
        if self._probing.learn_on_gpu(claim.job.script, seen.bytes):
            self._learned(claim.job.script)
        return True
