"""What each job asks for before it may start."""

from __future__ import annotations

from headgate.controller.free_resources import FreeResources, ResourceRequest, request_of
from headgate.controller.grants import Grants
from headgate.controller.probing import Probing
from headgate.controller.records import JobRecord
from headgate.controller.shortage import Shortage
from headgate.controller.slots import ALL, URGENT, groups_of, script_group
from headgate.model.reasons import Reason, ReasonKind
from headgate.planning.memory import PROCESS

NOTHING = ResourceRequest(0, 0, 0, (), None)
"""The request of a job that shares all that it uses."""


class ResourceRequests:
    """Works out requests, from what jobs state, what such jobs took before, and what is read.

    Args:
        resources: The nodes.
        probing: What jobs of each script were seen to take.
        grants: With an arbiter, every job asks.
        gpus_are_shared: Jobs take turns on GPUs. A job then asks only for GPU memory, if its need
            is known. Its memory request is the most that it may take, at most the node's memory.
        is_bounded: The number of all running jobs is bounded.
        by_script: As of `Bounds`.
    """

    def __init__(
        self,
        resources: FreeResources,
        probing: Probing,
        grants: Grants,
        gpus_are_shared: bool,
        is_bounded: bool,
        by_script: bool,
    ) -> None:
        self._resources = resources
        self._probing = probing
        self._grants = grants
        self.gpus_are_shared = gpus_are_shared
        self._is_bounded = is_bounded
        self._by_script = by_script

    def of(self, job: JobRecord) -> ResourceRequest | None:
        """What a planned job asks for; None: it need not wait."""
        request = request_of(job, self.gpus_are_shared)
        if self.gpus_are_shared:
            request = self._slots(job, self._memory(job, request))
        return NOTHING if request is None and self._grants.is_shared else request

    def could(self, job: JobRecord) -> bool:
        """Whether a job has room if nothing else runs."""
        request = self.of(job)
        return request is None or self._resources.could(request)

    def shortage(self, request: ResourceRequest) -> Reason:
        """What a job with this request waits for."""
        if self._grants.decides(request.fixed):
            lacks = Shortage("grant")
        else:
            lacks = self._resources.shortage(request)
        return Reason.of(ReasonKind.NEEDS_ROOM, lacks=lacks.plain())

    def _memory(self, job: JobRecord, request: ResourceRequest | None) -> ResourceRequest | None:
        """A request with the memory that counts until a job's use is seen."""
        nodes = job.planned().worker_nodes
        if request is not None:
            request = self._probing.on_gpus(job, request)
            on_gpus = request.on_gpus
            seen = bool(nodes) and self._resources.gpu_memory.observed(nodes)
            is_shared = self._grants.is_shared
            if on_gpus is not None and not (on_gpus.known or on_gpus.alone or seen or is_shared):
                request = request._replace(on_gpus=None)
        if nodes and not job.spec.roles and self._resources.observed(nodes):
            request = request or ResourceRequest(len(nodes), 0, 0, nodes, None)
            if not request.memory_bytes:
                request = request._replace(memory_bytes=PROCESS, guessed=True)
        if request is None:
            return None
        request = self._resources.trimmed(request)
        return request if request.memory_bytes or request.on_gpus is not None else None

    def _slots(self, job: JobRecord, request: ResourceRequest | None) -> ResourceRequest | None:
        """A request with a slot in each group of the job."""
        groups = list(groups_of(job))
        if not self._is_bounded and all(jobs is None for _, jobs in groups):
            return request
        slots = ALL, *(group for group, _ in groups)
        uses_gpus = request is not None and (request.all_gpus or request.on_gpus is not None)
        if self._by_script and job.script and not uses_gpus:  # GPUs bound those that use them
            slots = *slots, script_group(job)
        if job.spec.urgent:
            return (request or NOTHING)._replace(groups=(*slots, URGENT))
        probed = self._probing.request(job, (request or NOTHING)._replace(groups=slots))
        if probed.guessed or not probed.memory_bytes:
            return probed
        return self._resources.trimmed(probed)
