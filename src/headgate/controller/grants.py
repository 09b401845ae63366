"""Starts that the arbiter of a shared machine grants."""

from __future__ import annotations

from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.queue_orders import Claim
from headgate.model.identifiers import JobId


class Grants:
    """Which jobs the arbiter lets start, and where. Jobs on other nodes than the shared one ask
    nobody.
    """

    def __init__(self) -> None:
        # GPUs of granted jobs that have not started; None: nobody decides
        self._granted: dict[JobId, tuple[tuple[int, ...], ...]] | None = None
        self._node = ""

    @property
    def is_shared(self) -> bool:
        """Whether an arbiter says when jobs start."""
        return self._granted is not None

    def share(self, node: str | None) -> bool:
        """Let the arbiter say when jobs start on this node; None: nobody. Returns whether that is
        new.
        """
        if (node is not None) == self.is_shared:
            return False
        self._granted, self._node = ({} if node is not None else None), node or ""
        return True

    def grant(self, job: JobId, gpus: tuple[tuple[int, ...], ...]) -> None:
        """The arbiter lets a job start; arguments as of `JobGranted`."""
        if self._granted is not None:
            self._granted[job] = gpus

    def asks(self, claim: Claim) -> bool:
        """Whether a job needs a grant if there is an arbiter."""
        nodes = claim.request.fixed or claim.job.planned().worker_nodes
        return not self._node or not nodes or self._node in nodes

    def decides(self, nodes: tuple[str, ...]) -> bool:
        """Whether a job with these settled nodes (empty: any) waits for a grant."""
        return self.is_shared and (not (self._node and nodes) or self._node in nodes)

    def take(self, claim: Claim) -> tuple[WorkerSlot, ...] | None:
        """The granted places of a job's workers; None: it has no grant. A grant is used once."""
        gpus = self._granted.pop(claim.job.id, None) if self._granted is not None else None
        if gpus is None:
            return None
        nodes = claim.request.fixed or claim.job.planned().worker_nodes
        return tuple(map(WorkerSlot, nodes, gpus))

    def forget(self) -> None:
        """Drop the grants of jobs that no longer wait."""
        if self._granted is not None:
            self._granted.clear()
