"""Guarantees under any policy: valid shares, a floor for each job, and few changes a minute."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind, Refusal, RefusalKind
from headgate.model.shares import FIELDS, NOTHING, WEIGHT_DEFAULT, Share
from headgate.policies.base import Arrived, Change, Left, Placed, Policy
from headgate.policies.placements import ONE_NODE, Placements
from headgate.policies.weights import KEPT, ChangeHistory

_ABOVE = 4.0
"""A raised job gets this many times its floor, so that it need not be raised again soon."""
_SLIGHTLY = 1e-9
_LITTLE = 1e-3
"""Cores for jobs on a node that is all taken by pinned jobs."""
_MOST_WEIGHT = 10_000.0
_STRANGERS = JobId("")
"""Stands for all unknown jobs; they share one warning."""

_LIFTED = Reason(ReasonKind.LIFTED)

Granted = dict[JobId, tuple[Share, Reason]]


@dataclass(slots=True)
class _JobGrant:
    """What a job was granted, and what the policy wants that could not be granted yet. `nodes`: its
    places as told to the policy; if these are GPUs, `hosts` are their nodes.
    """

    changes: ChangeHistory
    nodes: Mapping[str, float] = field(default_factory=lambda: ONE_NODE)
    hosts: Mapping[str, float] = field(default_factory=lambda: ONE_NODE)
    granted: Share = NOTHING
    wanted: Share = NOTHING
    why: Reason = _LIFTED


class Safeguards:
    """Turns a policy's decision into valid grants.

    1. An entry that is not a share, or is for an unknown job, is dropped.
    2. A job whose share changed too often within a minute keeps it for now. The policy's latest
       decision is granted later.
    3. Once a job has a weight, no job has less than its floor on any of its nodes, or of its GPUs
       and their nodes. Its cap and its fraction of GPU time are not below that either.
    4. If a job would fall below its floor and cannot be changed yet, the others are not raised.
       Only the end of a job can leave another below its floor, until that may be changed.

    Attributes:
        free_at: When a waiting change may be granted; None: no change waits.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._floor = min(policy.floor, 1.0)
        most = policy.most_changes
        self._most = most
        if most != math.inf:
            self._most = math.floor(most) if most >= 1 else 1
        self._present: dict[JobId, _JobGrant] = {}
        self._waiting: dict[JobId, None] = {}
        self._warned: set[JobId] = set()
        self._has_granted = False
        self._is_stuck = False
        self.free_at: float | None = None

    def hold(
        self, now: float, cores: float, changes: Iterable[Change], shares: Mapping[JobId, object]
    ) -> tuple[Granted, dict[JobId, Refusal]]:
        """The grants, and why entries of the policy were dropped, at most once for each job.

        Args:
            now: Seconds; never goes back.
            cores: Cores that all jobs share.
            changes: What happened since the last call.
            shares: The policy's decision.
        """
        moved = self._note(changes)
        dropped = self._take(shares)
        granted: Granted = {}
        for id in list(self._waiting):
            self._grant(now, id, granted)
        self._has_granted = self._has_granted or bool(granted)
        stuck: list[float] = []
        if self._has_granted and self._floor > 0.0 and (moved or granted or self._is_stuck):
            hosts = Placements({id: held.hosts for id, held in self._present.items()})
            nodes = Placements({id: held.nodes for id, held in self._present.items()})
            stuck = self._lift(now, granted, hosts)
            if any(held.hosts is not held.nodes for held in self._present.values()):
                stuck += self._lift(now, granted, nodes)
            stuck += self._lift_limits(now, cores, granted, hosts, nodes)
        self._is_stuck = any(time > now for time in stuck)
        for id, (share, _) in list(granted.items()):
            held = self._present[id]
            after = held.granted.merged(share)
            if after == held.granted:
                del granted[id]
            else:
                held.granted = after
                held.changes.note(now)
        times = [*stuck, *(self._present[id].changes.free_at(self._usual) for id in self._waiting)]
        self.free_at = min((time for time in times if time > now), default=None)
        return granted, dropped

    @property
    def _usual(self) -> float:
        """Changes of a job in a minute, without the reserved one."""
        return max(self._most - KEPT, 1.0)

    def _note(self, changes: Iterable[Change]) -> bool:
        """Record which jobs are there. Returns whether a job came or left."""
        moved = False
        for change in changes:
            if isinstance(change, Arrived | Left):
                moved = True
                self._present.pop(change.job, None)
                self._waiting.pop(change.job, None)
                self._warned.discard(change.job)
            if isinstance(change, Arrived):
                self._present[change.job] = _JobGrant(ChangeHistory(self._most))
            if isinstance(change, Placed) and (held := self._present.get(change.job)) is not None:
                moved = True
                held.nodes = {
                    node: max(cores, _LITTLE) for node, cores in change.cores.items()
                } or ONE_NODE
                held.hosts = held.nodes
                if change.on_gpus:
                    held.hosts = {
                        gpu.rpartition("/gpu")[0]: cores for gpu, cores in held.nodes.items()
                    }
        return moved

    def _take(self, shares: Mapping[JobId, object]) -> dict[JobId, Refusal]:
        """Record the policy's wishes. Returns why entries are refused."""
        refused: dict[JobId, Refusal] = {}
        for id, entry in shares.items():
            held = self._present.get(id)
            if held is None:
                if _STRANGERS not in self._warned:
                    self._warned.add(_STRANGERS)
                    refused[id] = Refusal(RefusalKind.NO_SUCH_JOB)
                continue
            try:
                share, why = _checked(entry)
            except Exception as error:  # noqa: BLE001  # whatever a plug-in hands in must not end the jobs
                if id not in self._warned:
                    self._warned.add(id)
                    has_text = isinstance(error, KeyError | ValueError) and bool(error.args)
                    text = str(error.args[0]) if has_text else repr(error)
                    refused[id] = Refusal(RefusalKind.NO_SHARE, {"error": text})
                continue
            held.wanted, held.why = held.wanted.merged(share), why
            self._waiting[id] = None
        return refused

    def _grant(self, now: float, id: JobId, granted: Granted) -> None:
        """Grant a waiting change if it may be made."""
        held = self._present[id]
        if held.granted.merged(held.wanted) == held.granted:
            held.wanted = NOTHING
            self._waiting.pop(id, None)
        elif held.changes.free_at(self._usual) <= now:
            granted[id] = held.wanted, held.why
            held.wanted = NOTHING
            self._waiting.pop(id, None)

    # --- floors -----------------------------------------------------------------------------------

    def _weights(self, granted: Granted) -> dict[JobId, float]:
        """The weight of each job, by default the usual one; empty if no job has a weight."""
        weights = {}
        for id, held in self._present.items():
            weight = granted[id][0].cpu_weight if id in granted else None
            weights[id] = held.granted.cpu_weight if weight is None else weight
        if all(weight is None for weight in weights.values()):
            return {}
        return {id: WEIGHT_DEFAULT if weight is None else weight for id, weight in weights.items()}

    def _low(self, nodes: Placements, weights: Mapping[JobId, float]) -> list[JobId]:
        totals, floor = nodes.totals(weights), self._floor * (1.0 - _SLIGHTLY)
        return [id for id, weight in weights.items() if weight < nodes.floor(id, floor, totals)]

    def _lift(self, now: float, granted: Granted, nodes: Placements) -> list[float]:
        """Raise jobs whose weight would be below their floor. Returns when jobs that cannot be
        changed yet may be.
        """
        weights = self._weights(granted)
        if not weights:
            return []
        low = self._low(nodes, weights)
        stuck = [
            id
            for id in low
            if id not in granted and self._present[id].changes.free_at(self._most) > now
        ]
        if stuck:
            self._put_off(nodes, stuck, granted)
            weights = self._weights(granted)
            low = [id for id in self._low(nodes, weights) if id not in stuck]
        if not low:
            return [self._present[id].changes.free_at(self._most) for id in stuck]
        for _ in nodes.on:  # a raise on one node also counts on the others
            before = dict(weights)
            for node, jobs in nodes.on.items():
                least = {id: nodes.least(id, self._floor)[node] for id in jobs}
                weights |= self._lift_on(now, least, {id: weights[id] for id in jobs}, granted)
            if weights == before:
                break
        return [self._present[id].changes.free_at(self._most) for id in self._low(nodes, weights)]

    def _lift_on(
        self,
        now: float,
        least: Mapping[JobId, float],
        weights: Mapping[JobId, float],
        granted: Granted,
    ) -> dict[JobId, float]:
        """Raise jobs on a node that are below their `least` fraction of its weights, and jobs that
        would be after that. Returns their new weights.
        """
        part = {
            id: min(_ABOVE, 1.0 / self._floor) * least_weight for id, least_weight in least.items()
        }
        total, lifted = sum(weights.values()), dict[JobId, None]()
        while True:
            low = [
                id
                for id, weight in weights.items()
                if id not in lifted
                and weight < least[id] * total * (1.0 - _SLIGHTLY)
                and (id in granted or self._present[id].changes.free_at(self._most) <= now)
            ]
            if not low or len(lifted) + len(low) == len(weights):
                break
            lifted |= dict.fromkeys(low)
            others = sum(weight for id, weight in weights.items() if id not in lifted)
            total = others / (1.0 - sum(part[id] for id in lifted))
        after = {}
        for id in lifted:
            share, _ = granted.get(id, (NOTHING, _LIFTED))
            weight, why = round(min(max(part[id] * total, 1.0), _MOST_WEIGHT), 3), _LIFTED
            if (wanted := self._present[id].wanted.cpu_weight) is not None and wanted >= least[
                id
            ] * total:
                # the policy raises it itself
                weight, why = min(wanted, weight), self._present[id].why
            granted[id] = share.merged(Share(cpu_weight=weight)), why
            after[id] = weight
        return after

    def _put_off(self, nodes: Placements, stuck: Iterable[JobId], granted: Granted) -> None:
        """Keep weights from rising on the nodes of stuck jobs; new jobs get at most the mean of the
        others. So the mean does not rise there, and no job falls below its floor.
        """
        means = {}
        for node in {node for id in stuck for node in nodes.of[id]}:
            weights = [self._present[id].granted.cpu_weight for id in nodes.on[node]]
            before = [weight for weight in weights if weight is not None] or [WEIGHT_DEFAULT]
            means[node] = sum(before) / len(before)
        for id, (share, why) in list(granted.items()):
            held = self._present[id]
            nodes_in_common = means.keys() & nodes.of[id].keys()
            if share.cpu_weight is None or not nodes_in_common:
                continue
            before_it = held.granted.cpu_weight
            most = (
                before_it if before_it is not None else min(means[node] for node in nodes_in_common)
            )
            if share.cpu_weight <= most:
                continue
            held.wanted, held.why = Share(cpu_weight=share.cpu_weight), why
            self._waiting[id] = None
            share = replace(share, cpu_weight=most if before_it is None else None)
            if share == NOTHING:
                del granted[id]
            else:
                granted[id] = share, why

    def _lift_limits(
        self, now: float, cores: float, granted: Granted, hosts: Placements, nodes: Placements
    ) -> list[float]:
        """Raise caps and fractions of GPU time that are below a floor. Returns when jobs that
        cannot be changed yet may be.
        """
        stuck = []
        for id, held in self._present.items():
            share, why = granted.get(id, (NOTHING, _LIFTED))
            after = held.granted.merged(share)
            limits = {"cpu_cap_cores": after.cpu_cap_cores, "gpu_fraction": after.gpu_fraction}
            has = {name: value for name, value in limits.items() if isinstance(value, int | float)}
            if not has:
                continue
            equal = {
                "cpu_cap_cores": hosts.equal(id)
                * (len(held.hosts) if held.hosts is not ONE_NODE else cores),
                "gpu_fraction": 1.0 / max(len(nodes.on[node]) for node in held.nodes),
            }
            low = {
                name: min(_ABOVE * self._floor, 1.0) * equal[name]
                for name, value in has.items()
                if value < self._floor * equal[name] * (1.0 - _SLIGHTLY)
            }
            if not low:
                continue
            if id in granted or held.changes.free_at(self._most) <= now:
                lifted = Share(
                    cpu_cap_cores=low.get("cpu_cap_cores"), gpu_fraction=low.get("gpu_fraction")
                )
                granted[id] = share.merged(lifted), why
            else:
                stuck.append(held.changes.free_at(self._most))
        return stuck


def _checked(entry: Any) -> tuple[Share, Reason]:
    """Check an entry of a decision.

    Raises:
        Exception: The entry is invalid.
    """
    share, why = entry
    values = {name: getattr(share, name) for name in FIELDS}
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(
                f"Share.{name} is {value!r}; expected a positive number, None or UNLIMITED"
            )
    return Share(**values), of_policy(why)


def of_policy(why: Reason | str) -> Reason:
    """A policy's reason; a plug-in may give it in words."""
    return why if isinstance(why, Reason) else Reason(ReasonKind.BY_POLICY, {"text": str(why)})
