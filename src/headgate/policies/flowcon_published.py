"""FlowCon exactly as its authors' implementation behaves."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import UNLIMITED, Share
from headgate.policies.base import Arrived, Change, Decision, Left, Policy, Reported, Used

_NEAR_SECONDS = 2.0
"""Losses are computed anew only in rounds `itval` apart, within this tolerance."""

Listed = Literal["new", "watching", "completing"]


@dataclass(slots=True, eq=False)
class _Container:
    """A job: its list, recent reports and use, its last computed progress, and its limit in whole
    CPUs.
    """

    placed: Listed = "new"
    losses: deque[tuple[float, float, int]] = field(default_factory=deque)
    cpu: deque[tuple[float, float]] = field(default_factory=deque)
    largest: float = 0.0
    progress: float = 0.0
    limit: int | None = None

    def mean_loss(self, begin: float, end: float) -> float | None:
        """Mean loss of an interval, relative to the largest magnitude so far."""
        inside = [(loss * count, count) for at, loss, count in self.losses if begin <= at <= end]
        if not inside or self.largest == 0.0:
            return None
        return sum(loss for loss, _ in inside) / sum(count for _, count in inside) / self.largest

    def mean_cpu(self, begin: float) -> float | None:
        inside = [cores for at, cores in self.cpu if at >= begin]
        return sum(inside) / len(inside) if inside else None


class PublishedFlowCon(Policy):
    """The policy `flowcon:faithful`; see `FlowConPolicy`.

    Each round has this order: judge whether all jobs are Completing; compute G of each job and
    change its list; set limits.
    """

    name = "flowcon"

    def __init__(self, alpha: float, itval: float) -> None:
        self._alpha = alpha
        self._itval = self._period = itval
        self._jobs: dict[JobId, _Container] = {}
        self._last_round: float | None = None
        self._round_at: float | None = None

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        moved = False
        for change in changes:
            if isinstance(change, Arrived):
                self._jobs[change.job] = _Container()
                moved = True
            elif (job := self._jobs.get(change.job)) is None:
                continue
            elif isinstance(change, Left):
                del self._jobs[change.job]
                moved = True
            else:
                self._note(now, job, change)
        if not self._jobs:
            self._last_round = self._round_at = None
            self._period = self._itval
            return Decision()
        if self._round_at is None:
            self._round_at = now + self._itval
        if moved and self._period > self._itval:
            self._period, self._round_at = self._itval, now
        if now < self._round_at:
            return Decision(wake_at=self._round_at)
        shares = self._round(now, cores)
        self._last_round, self._round_at = now, now + self._period
        return Decision(shares, self._round_at)

    def _note(self, now: float, job: _Container, change: Change) -> None:
        if isinstance(change, Reported) and math.isfinite(change.loss):
            job.losses.append((now, change.loss, change.count))
            job.largest = max(job.largest, abs(change.loss))
        elif isinstance(change, Used):
            job.cpu.append((now, change.cpu_cores))
        while job.losses and job.losses[0][0] < now - 2 * self._itval:
            job.losses.popleft()
        while job.cpu and job.cpu[0][0] < now - self._itval:
            job.cpu.popleft()

    def _round(self, now: float, cores: float) -> dict[JobId, tuple[Share, Reason]]:
        all_completing = all(job.placed == "completing" for job in self._jobs.values())
        last = self._last_round
        recompute = last is not None and abs(now - last - self._itval) <= _NEAR_SECONDS
        growth = {id: self._growth(now, cores, job, recompute) for id, job in self._jobs.items()}
        for id, job in self._jobs.items():
            if growth[id] >= self._alpha:
                job.placed = "new"
            elif job.placed != "completing":
                job.placed = "watching" if job.placed == "new" else "completing"
        if all_completing:
            self._period *= 2.0
            return self._lift()
        total = sum(growth.values())
        return self._limit(growth, total, cores) if total > 0.0 else {}

    def _growth(self, now: float, cores: float, job: _Container, anew: bool) -> float:
        """Growth efficiency for the machine's CPU."""
        if anew:
            recent = job.mean_loss(now - self._itval, now)
            before = job.mean_loss(now - 2 * self._itval, now - self._itval)
            known = recent is not None and before is not None
            job.progress = abs(recent - before) / self._itval if known else 0.0  # type: ignore[operator]
        cpu = job.mean_cpu(now - self._itval)
        return job.progress / (cpu / cores) if cpu is not None and cpu > 0.0 else 0.0

    def _lift(self) -> dict[JobId, tuple[Share, Reason]]:
        limited = [(id, job) for id, job in self._jobs.items() if job.limit is not None]
        for _, job in limited:
            job.limit = None
        return {
            id: (Share(cpu_cap_cores=UNLIMITED), Reason(ReasonKind.ALL_COMPLETING))
            for id, _ in limited
        }

    def _limit(
        self, growth: dict[JobId, float], total: float, cores: float
    ) -> dict[JobId, tuple[Share, Reason]]:
        shares: dict[JobId, tuple[Share, Reason]] = {}
        count = len(self._jobs)
        least = 1.0 / ((1.0 + 1.0 / count) * count)
        for id, job in self._jobs.items():
            if job.placed == "watching":
                continue
            part = growth[id] / total
            part = max(part, least) if job.placed == "completing" else min(part, 1.0)
            limit = int(part * cores + 1e-9)
            if limit == 0 or limit == job.limit:  # `--cpus 0` changes nothing
                continue
            job.limit = limit
            reason = Reason.of(
                ReasonKind.GROWTH, placed=job.placed, efficiency=growth[id], total=total
            )
            shares[id] = Share(cpu_cap_cores=float(limit)), reason
        return shares
