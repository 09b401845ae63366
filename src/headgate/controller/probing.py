"""The first job of each script shows how much memory the others need."""

from __future__ import annotations

from collections import deque
from statistics import pstdev

from headgate.controller.free_resources import ResourceRequest
from headgate.controller.queue_orders import Claim
from headgate.controller.records import JobRecord
from headgate.controller.slots import Group, Slots
from headgate.planning.memory import PROCESS

GROWS = 1.05
"""A use of memory that grows by no more than this factor counts as settled after a while."""
_STEPPED_SECONDS, _SILENT_SECONDS = 2.0, 10.0
"""That while for the first job of a script: once it has stepped, and before."""
_LITTLE_BYTES = 128 << 20
"""A process that takes no more has loaded no framework."""
_STEPPED_LITTLE_SECONDS, _SILENT_LITTLE_SECONDS = 0.0, 3.0
_LONGEST_SECONDS = 60.0
"""Other jobs of a script wait no longer than this for the memory of the first."""
_PEAKS_KEPT = 32
_MARGIN = 0.1
_NEWS = 0.05
"""An expected need that changes by less than this part stays as it is."""


class Probing:
    """Lets one job of a script start before the others where its memory is not known.

    Args:
        slots: Slots of scripts whose memory is not known.
        first: Whether it does; else jobs are only asked for what they state, or took before.
    """

    def __init__(self, slots: Slots, first: bool) -> None:
        self._slots = slots
        self._first = first
        self._memory = MemoryOfScripts()
        self._on_gpus = MemoryOfScripts()
        self._probes: dict[str, Claim] = {}

    @property
    def ends_at(self) -> list[float]:
        """When others have waited long enough for the first job of each script."""
        return [(claim.since or 0.0) + _LONGEST_SECONDS for claim in self._probes.values()]

    def request(self, job: JobRecord, request: ResourceRequest) -> ResourceRequest:
        """The request of a waiting job, with the memory that its script was seen to take, or as one
        for which its script has one slot.
        """
        if not (self._first and job.script) or job.spec.urgent:
            return request
        if request.memory_bytes and not request.guessed:
            return request
        need = self._memory.need(job.script)
        if need is None:
            probe = Group("probe", job.script)
            self._slots.limit(probe, 1)
            return request._replace(groups=(*request.groups, probe))
        return request._replace(memory_bytes=need, guessed=False) if request.guessed else request

    def on_gpus(self, job: JobRecord, request: ResourceRequest) -> ResourceRequest:
        """The request of a waiting job, with the GPU memory that its script was seen to take."""
        on_gpus, need = request.on_gpus, self._on_gpus.need(job.script)
        if on_gpus is None or on_gpus.known or need is None or not self._first:
            return request
        if not (need or on_gpus.alone or job.spec.limits.gpus):
            return request._replace(on_gpus=None)
        return request._replace(on_gpus=on_gpus._replace(memory_bytes=need, known=need > 0))

    def started(self, claim: Claim) -> None:
        """A job has started."""
        if claim.request.is_probe:
            self._probes[claim.job.script] = claim

    def shows(self, now: float, claim: Claim) -> bool:
        """Whether a job is the first of its script, and its use of memory has settled."""
        if self._probes.get(claim.job.script) is not claim:
            return False
        seconds = _STEPPED_SECONDS, _SILENT_SECONDS
        if claim.seen_bytes <= _LITTLE_BYTES:
            seconds = _STEPPED_LITTLE_SECONDS, _SILENT_LITTLE_SECONDS
        since = max(claim.grew, claim.since or 0.0)
        return now - since >= seconds[0 if claim.job.worked else 1]

    def overdue(self, now: float) -> list[tuple[str, int]]:
        """Scripts whose first job has run long enough, with the bytes that it took so far."""
        return [
            (script, claim.seen_bytes or PROCESS)
            for script, claim in self._probes.items()
            if now - (claim.since or 0.0) >= _LONGEST_SECONDS
        ]

    def ended(self, claim: Claim) -> int | None:
        """A job has ended. Returns the bytes that it shows to be enough; None: it shows nothing."""
        job = claim.job
        was_first = self._probes.get(job.script) is claim
        if was_first:
            del self._probes[job.script]
        shows = (was_first or claim.seen_bytes) and (job.worked or job.failure is None)
        return claim.seen_bytes or PROCESS if shows else None

    def learn(self, script: str, peak: int) -> bool:
        """A job of a script was seen to take this many bytes. Returns whether those that wait ask
        for other memory from now on.
        """
        self._probes.pop(script, None)
        if not self._memory.learn(script, peak):
            return False
        self._slots.limit(Group("probe", script), None)
        return True

    def learn_on_gpu(self, script: str, peak: int) -> bool:
        """The same of each GPU that it uses; 0: it uses none."""
        return bool(script) and self._first and self._on_gpus.learn(script, peak)


class MemoryOfScripts:
    """The memory that jobs of a script were seen to take."""

    def __init__(self) -> None:
        self._peaks: dict[str, deque[int]] = {}
        self._needs: dict[str, int] = {}

    def need(self, script: str) -> int | None:
        """Bytes that the next job of a script is expected to take; None: none was seen.

        That is the most of nine tenths of the last jobs, with a margin that grows with their
        spread.
        """
        return self._needs.get(script)

    def learn(self, script: str, peak: int) -> bool:
        """A job of a script took this many bytes at most. Returns whether more or less is expected
        from now on.
        """
        peaks = self._peaks.setdefault(script, deque(maxlen=_PEAKS_KEPT))
        peaks.append(peak)
        usual = sorted(peaks)[-1 - len(peaks) // 10]
        need = round(usual * (1 + _MARGIN)) + round(pstdev(min(bytes_, usual) for bytes_ in peaks))
        before = self._needs.get(script)
        if before is not None and abs(need - before) < _NEWS * before:
            return False
        self._needs[script] = need
        return True
