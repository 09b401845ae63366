"""Apply the policy's decisions to the shares of all tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import isfinite

from headgate.controller.gpu_time import GpuTime
from headgate.controller.jobs import Jobs, in_order
from headgate.controller.memory_parts import memory_of_tasks
from headgate.controller.pending import Pending, Settled, to_send
from headgate.controller.records import JobRecord
from headgate.controller.safeguards import Granted, Safeguards, of_policy
from headgate.controller.side_by_side import SideBySide
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, TryJob, Warn
from headgate.model.cluster import Node
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reasons import Reason, ReasonKind, Refusal
from headgate.model.shares import FIELDS, NOTHING, Share, entitled, threads
from headgate.policies.base import Arrived, Change, Left, Placed, Policy

_SOONEST_SECONDS = 0.1
"""Shortest delay until a policy that wants to be asked again is asked."""
_PINNED_WEIGHT = 10_000.0
"""Weight of a pinned job, above all others, so that it gets its slice. A cap limits it to the
slice.
"""
_BESIDE_PINNED = 0.1
"""Total weight of all other jobs on the node, as a fraction of the pinned jobs' weight."""


class Allocator:
    """The nodes, and what the policy grants on them.

    Args:
        compares: Whether jobs on one GPU may run side by side where that brings more.

    Attributes:
        nodes: The available nodes, by name.
        side_by_side: Decides that.
        is_crowded: Tells whether a node's GPU has too little left for a job of unknown need.
    """

    def __init__(self, policy: Policy, jobs: Jobs, compares: bool = False) -> None:
        self.policy = policy
        self.jobs = jobs
        self.nodes: dict[str, Node] = {}
        self.is_crowded: Callable[[str, int], bool] = lambda _name, _gpu: False
        self._changed: set[str] = set()
        self._cores = 0.0
        self._asks_at: float | None = None
        self._fault = ""
        self._safeguards = Safeguards(policy)
        self._placed: dict[JobId, Placed] = {}  # as last reported to the policy
        self.side_by_side = SideBySide(self.nodes)
        self._gpu_time = GpuTime(jobs, self.side_by_side if compares else None)

    @property
    def wake_at(self) -> float | None:
        """When to settle again even if nothing happens."""
        times = self._asks_at, self._gpu_time.due_at
        return min((at for at in times if at is not None), default=None)

    def join(self, node: Node) -> None:
        """Add or update a node."""
        self.nodes[node.name] = node
        # entitled cores of its tasks follow with the next settling
        self._changed.add(node.name)
        self._count()

    def leave(self, name: str) -> None:
        """Remove a node."""
        self.nodes.pop(name, None)
        self._count()

    def _count(self) -> None:
        # Lab nodes share the cores of their machine.
        self._cores = sum(node.cores for node in self.nodes.values() if node.place is None)

    def gpus(
        self,
        job: JobRecord,
        node: Node,
        of_job: int,
        count: int | None = None,
        kept: Sequence[int] = (),
    ) -> tuple[int, ...] | None:
        """Choose GPUs of a node for a worker.

        It gets the GPUs with the fewest tasks among those that the job's environment allows;
        reserved GPUs come first. Workers under another launcher's contract see the GPUs of all, and
        each picks one by local rank.

        Args:
            job: The job.
            node: The node.
            of_job: Number of the job's workers there.
            count: How many GPUs; None: by the job's limits.
            kept: GPUs with memory reserved for the worker.

        Returns:
            The GPUs. None: it may use all, or the node has no known GPU.
        """
        indices = [gpu.index for gpu in node.gpus]
        if job.gpus is not None:
            indices = [index for index in job.gpus if index in indices]
        exclusive = self._exclusive(job, node.name)
        indices = [index for index in indices if index in kept or index not in exclusive]
        count = count if count is not None else job.spec.limits.gpus
        if count is None and job.spec.limits.exclusive:
            count = 1
        if kept:
            indices = [*kept, *(index for index in indices if index not in kept)]
        seen_by_all = job.sees_gpus_of_all
        if seen_by_all:
            count = count * of_job if count is not None else None
        elif count is None and of_job >= 2 and indices:
            count = max(1, len(indices) // of_job)
        if count is None or (count and not node.gpus):
            all_of_them = job.gpus is None and indices == [gpu.index for gpu in node.gpus]
            return None if all_of_them else tuple(indices)
        used = dict.fromkeys(indices if count else (), 0)
        crowded = {index: self.is_crowded(node.name, index) for index in used}
        for other, task in self.jobs.on.get(node.name, {}).values():
            for index in task.gpus or ():
                if index in used and not (seen_by_all and other is job):
                    used[index] += 1
        ranks = {
            index: (index not in kept, crowded[index], used[index], indices.index(index))
            for index in used
        }
        chosen = sorted(used, key=ranks.__getitem__)[:count]
        return tuple(sorted(chosen, key=indices.index))

    def _exclusive(self, job: JobRecord, name: str) -> set[int]:
        """GPUs of a node that other jobs have for themselves."""
        tasks_on_node = self.jobs.on.get(name, {}).values()
        return {
            gpu
            for other, task in tasks_on_node
            if other is not job and other.spec.limits.exclusive
            for gpu in other.gpus_of(task)
        }

    def without_slots(self, name: str) -> Counter[int]:
        """Number of tasks without reserved memory on each GPU of a node."""
        tasks_on_node = self.jobs.on.get(name, {}).values()
        return Counter(
            gpu
            for job, task in tasks_on_node
            if not job.slots
            for gpu in task.computes_on or (() if job.uses_gpus == "seen-none" else task.gpus or ())
        )

    # --- settling ---------------------------------------------------------------------------------

    def settle(self, pending: Pending) -> list[Action]:
        """Bring the shares of all tasks up to date.

        Asks the policy if there is news for it or its time has come. Then gives each task its part,
        divides GPU time, and sets thread counts.

        Returns:
            The messages to send, including the starts of pending tasks.
        """
        self._leave_out_pinned(pending)
        due = self._asks_at is not None and pending.now >= self._asks_at
        if not (due or self._is_needed(pending)):
            return []
        actions: list[Action] = []
        settled = self._ask_policy(pending, due, actions)
        self._find_concerned(pending, settled)
        self._give_parts(pending, settled)
        self._give_gpu_time(pending, settled)
        decided = self.side_by_side.decided()
        settled.reasons = {
            **{action.job: action.reason for action in decided if action.side_by_side},
            **settled.reasons,
        }
        actions += decided
        self._size_tasks(pending, settled)
        actions += to_send(pending, settled)
        pending.clear()
        return actions

    def _leave_out_pinned(self, pending: Pending) -> None:
        """Drop the changes that do not concern the policy."""
        if not self.policy.grants:
            pending.changes.clear()
        elif self.jobs.pinned:
            pending.changes = [
                change for change in pending.changes if not self._is_pinned(change.job)
            ]

    def _is_needed(self, pending: Pending) -> bool:
        """Whether the changes may have any effect."""
        sized = pending.sized or (self._changed and not self.policy.grants)
        return bool(
            pending.changes
            or pending.starting
            or pending.moved
            or sized
            or self._gpu_time.due(pending.now, pending.nodes)
        )

    def _ask_policy(self, pending: Pending, due: bool, actions: list[Action]) -> Settled:
        """Ask the policy, if it is `due` or there is news for it."""
        if self.policy.grants and (pending.moved or self._changed):
            pending.changes += self._placements(pending)
        granted, reasons = self._decide(pending, actions) if pending.changes or due else ({}, {})
        nodes, self._changed = self._changed | pending.nodes, set()
        return Settled(granted, reasons, nodes)

    def _find_concerned(self, pending: Pending, settled: Settled) -> None:
        """Find jobs whose tasks may get another share."""
        jobs = self.jobs.all
        concerned = {
            change.job: jobs[change.job] for change in pending.changes if isinstance(change, Placed)
        }
        concerned |= {id: job for id, job in pending.moved.items() if job.tasks}
        if pending.moved or settled.nodes:  # slices that exceed a node are reduced
            concerned |= {id: job for id, job in self.jobs.pinned.items() if job.tasks}
        concerned |= {id: jobs[id] for id in (*settled.granted, *settled.reasons)}
        settled.jobs = concerned

    def _give_parts(self, pending: Pending, settled: Settled) -> None:
        """Give each task its part of its job's grant."""
        for job in in_order(settled.jobs.values()):
            is_granted = job.id in settled.granted
            share = settled.granted[job.id][0] if is_granted else NOTHING
            job.granted = job.granted.merged(share)
            has_part = job.granted is not NOTHING or job.spec.share is not None
            beside = Counter(task.node for task in job.tasks.values()) if has_part else Counter()
            for task in job.tasks.values():
                # Its part also changes when another task of its job starts or ends.
                full_share = job.allowed(task).merged(self._part(job.granted, job, task, beside))
                change = _different(task.share, full_share)
                if is_granted:
                    change = change.merged(self._part(share, job, task, beside))
                if is_granted or change is not NOTHING:
                    settled.shares[task.id] = change
                if change is not NOTHING or task.id in pending.starting:
                    settled.nodes.add(task.node)
                task.share = task.share.merged(change)

    def _give_gpu_time(self, pending: Pending, settled: Settled) -> None:
        """Divide the time of GPUs that several jobs compute on."""
        divided = self._gpu_time.divide(pending.now, settled.nodes, pending.nodes)
        for id, fraction in divided.items():
            job = self.jobs.all[id.job]
            change = Share(gpu_fraction=fraction)
            settled.shares[id] = settled.shares.get(id, NOTHING).merged(change)
            job.tasks[id].share = job.tasks[id].share.merged(change)
            settled.jobs[job.id] = job

    def _size_tasks(self, pending: Pending, settled: Settled) -> None:
        """Compute entitled cores and threads of each task, and the jobs whose values change."""
        settled.nodes |= pending.sized
        settled.sizes = self._sizes(settled.nodes)
        for name in settled.nodes:
            for id, (job, task) in self.jobs.on.get(name, {}).items():
                if id in settled.sizes and settled.sizes[id] != (task.entitled, task.threads):
                    settled.jobs[job.id] = job

    # --- the policy's input and output ------------------------------------------------------------

    def _placements(self, pending: Pending) -> list[Change]:
        """Placements of jobs that arrived, whose tasks started or ended, or whose nodes gained or
        lost cores.
        """
        for change in pending.changes:
            if isinstance(change, Arrived | Left):
                self._placed.pop(change.job, None)
        nodes = set(self._changed)
        for job in pending.moved.values():
            if job.spec.share is not None:  # other jobs lose the cores that it is pinned to
                nodes.update(pending.nodes, (task.node for task in job.tasks.values()))
        moved = pending.moved
        if nodes:
            moved = moved | {
                job.id: job for name in nodes for job, _ in self.jobs.on.get(name, {}).values()
            }
        changes: list[Change] = []
        for job in in_order(moved.values()):
            if not job.tasks or job.is_frozen or job.spec.share is not None:
                continue
            tasks = [task for task in job.tasks.values() if task.node in self.nodes]
            gpus = {
                f"{task.node}/gpu{gpu}": self._free(task.node)
                for task in tasks
                for gpu in task.computes_on
            }
            cores = gpus or {task.node: self._free(task.node) for task in tasks}
            placed = Placed(
                job.id, cores, bool(gpus), sum(task.is_worker for task in job.tasks.values())
            )
            if cores and placed != self._placed.get(job.id):
                self._placed[job.id] = placed
                changes.append(placed)
        return changes

    def _decide(
        self, pending: Pending, actions: list[Action]
    ) -> tuple[Granted, Mapping[JobId, Reason]]:
        """The policy's grants to running jobs, and reasons of jobs whose share stays. If the policy
        fails, its last decision stays; the failure is announced once.
        """
        cores, shares, reasons = self._free_cores(), dict[JobId, object](), dict[JobId, Reason]()
        wake_at = None
        try:
            decision = self.policy.decide(pending.now, cores, pending.changes)
            shares, reasons = (
                dict(decision.shares),
                {id: of_policy(why) for id, why in decision.reasons.items()},
            )
            asked = decision.wake_at
            wake_at = (
                max(asked, pending.now + _SOONEST_SECONDS)
                if asked is not None and isfinite(asked)
                else None
            )
            if (trial := decision.trial) is not None and self._is_there(trial.job):
                actions.append(TryJob(trial.job, trial.cores, trial.seconds, trial.beside))
            self._fault = ""
        except Exception as error:  # noqa: BLE001  # a plug-in's fault must not end the jobs
            if self._fault != repr(error):  # not at each report of each job
                self._fault = repr(error)
                failed = {"policy": self.policy.name, "error": repr(error)}
                actions.append(Warn(Reason(ReasonKind.POLICY_FAILED, failed)))
        decided, dropped = self._safeguards.hold(pending.now, cores, pending.changes, shares)
        actions += [Warn(self._dropped(id, refusal)) for id, refusal in dropped.items()]
        self._asks_at = min(
            (at for at in (wake_at, self._safeguards.free_at) if at is not None), default=None
        )
        is_there = self._is_there
        return {id: decided_share for id, decided_share in decided.items() if is_there(id)}, {
            id: why for id, why in reasons.items() if id not in decided and is_there(id)
        }

    def _dropped(self, job: JobId, refusal: Refusal) -> Reason:
        facts = {"policy": self.policy.name, "job": str(job), "refusal": refusal}
        return Reason(ReasonKind.SHARE_DROPPED, facts)

    def _is_there(self, job: JobId) -> bool:
        """Whether a job runs and the policy decides its share."""
        known = self.jobs.all.get(job)
        return known is not None and bool(known.tasks) and not self._is_pinned(job)

    def _part(self, share: Share, job: JobRecord, task: TaskRecord, beside: Counter[str]) -> Share:
        """The share of one task of a job, never above what the user allows.

        Caps and disk rates are divided among all tasks, memory by each task's use. The weight is
        divided among the tasks on one node, counted by `beside`. A pinned job gets its slice of the
        node's cores, reduced if all slices exceed the node. The weights of the other jobs are then
        small beside its own.
        """
        if not beside:
            return NOTHING
        node, count = self.nodes.get(task.node), beside[task.node]
        cores = node.cores if node is not None else task.entitled
        pinned = sum(self._slices(task.node).values())
        most = job.allowed(task).cpu_cap_cores
        if (slice := job.spec.slice) is not None:
            own = slice / max(pinned, 1.0) * cores / count
            own = min(own, most) if isinstance(most, int | float) else own
            return Share(cpu_weight=_PINNED_WEIGHT / count, cpu_cap_cores=own)
        if share is NOTHING:
            return NOTHING
        cap, weight = share.cpu_cap_cores, share.cpu_weight
        if pinned and weight is not None:
            weight *= _BESIDE_PINNED
        if isinstance(cap, int | float):
            cap = cap / len(job.tasks)
            cap = min(cap, most) if isinstance(most, int | float) else cap
        elif cap is not None and most is not None:
            cap = most
        memory, disk = share.memory_bytes, share.disk_bytes_per_second
        if isinstance(memory, int):
            memory = memory_of_tasks(memory, job)[task.id]
        return Share(
            cpu_weight=max(weight / count, 1.0) if weight is not None else None,
            cpu_cap_cores=cap,
            memory_bytes=memory if job.spec.limits.memory_bytes is None else None,
            disk_bytes_per_second=disk / len(job.tasks) if isinstance(disk, int | float) else disk,
            gpu_fraction=share.gpu_fraction,
        )

    def _is_pinned(self, job: JobId) -> bool:
        """Whether a job has a slice of its own; the policy does not decide its share."""
        known = self.jobs.all.get(job)
        return known is not None and known.spec.share is not None

    def _free_cores(self) -> float:
        """Cores that the policy divides: all cores without the pinned slices."""
        if not self.jobs.pinned:
            return self._cores
        nodes = {
            task.node for job in self.jobs.pinned.values() for task in job.tasks.values()
        } & self.nodes.keys()
        pinned = sum(self.nodes[name].cores - self._free(name) for name in nodes)
        return max(self._cores - pinned, 0.0)

    def _free(self, name: str) -> float:
        """Cores of a node without the pinned slices."""
        cores = self.nodes[name].cores
        return (
            cores * max(1.0 - sum(self._slices(name).values()), 0.0) if self.jobs.pinned else cores
        )

    def _slices(self, name: str) -> dict[JobId, float]:
        """Slices of a node that jobs are pinned to."""
        if not self.jobs.pinned:
            return {}
        jobs_on_node = (job for job, _ in self.jobs.on.get(name, {}).values())
        return {job.id: slice for job in jobs_on_node if (slice := job.spec.slice) is not None}

    def _sizes(self, nodes: Iterable[str]) -> dict[TaskId, tuple[float, int]]:
        """Entitled cores and threads of each task on these nodes, without lost nodes. Tasks also
        get threads for the cores that others have no use for.
        """
        result: dict[TaskId, tuple[float, int]] = {}
        for name in nodes:
            if (node := self.nodes.get(name)) is not None and (tasks := self.jobs.on.get(name)):
                if all(task.share is NOTHING for _, task in tasks.values()):
                    result |= dict.fromkeys(tasks, _whole(node.cores))
                    continue
                ordered = sorted(tasks.values(), key=lambda task: task[0].number)
                shares = {task.id: task.share for _, task in ordered}
                cores = entitled(node.cores, shares)
                count = threads(node.cores, shares, cores)
                idle = {
                    task.id: Share(cpu_cap_cores=used)
                    for job, task in ordered
                    if (used := _leaves_all_but(job, task, cores[task.id])) is not None
                }
                if idle:
                    left = {id: share.merged(idle.get(id, NOTHING)) for id, share in shares.items()}
                    others = threads(node.cores, left, entitled(node.cores, left))
                    count |= {id: others[id] for id in others.keys() - idle.keys()}
                result |= {id: (cores[id], count[id]) for id in shares}
        return result


@lru_cache
def _whole(cores: float) -> tuple[float, int]:
    """Entitled cores and threads of a task on a node without any shares."""
    shares = {"": NOTHING}
    own = entitled(cores, shares)
    return own[""], threads(cores, shares, own)[""]


def _leaves_all_but(job: JobRecord, task: TaskRecord, entitled: float) -> float | None:
    """Cores of its entitled ones that a task uses at most; None: all of them, as far as known."""
    if task.idle:
        return task.idle_cores
    needed = job.needed_cores()
    own = needed / len(job.tasks) if needed is not None else entitled
    return own if own < entitled else None


def _different(now: Share, wanted: Share) -> Share:
    """The fields of `wanted` that are set and differ from `now`."""
    if wanted is now:
        return NOTHING
    values = {
        name: value
        for name in FIELDS
        if (value := getattr(wanted, name)) not in (None, getattr(now, name))
    }
    return Share(**values) if values else NOTHING
