"""What has changed since shares were last settled, and the messages that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from headgate.controller.jobs import in_order
from headgate.controller.records import JobRecord
from headgate.controller.safeguards import Granted
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, SetShare
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import NOTHING, Share
from headgate.policies.base import Change

_LEFT_BY_OTHERS, _NO_POLICY = Reason(ReasonKind.LEFT_BY_OTHERS), Reason(ReasonKind.NO_POLICY)


@dataclass(slots=True)
class Pending:
    """Changes since shares were last settled.

    Args:
        now: Seconds on the run's clock.
        changes: Changes for the policy.
        starting: Tasks to start.
        moved: Jobs with a task that started, ended, or outgrew its part.
        nodes: Nodes on which a task started or ended.
        sized: Nodes whose tasks may need another number of threads.
    """

    now: float
    changes: list[Change] = field(default_factory=list)
    starting: dict[TaskId, None] = field(default_factory=dict)
    moved: dict[JobId, JobRecord] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    sized: set[str] = field(default_factory=set)

    def start(self, job: JobRecord, tasks: Iterable[TaskId]) -> None:
        """Start the given tasks of a job."""
        self.starting.update(dict.fromkeys(tasks))
        self.moved[job.id] = job

    def left(self, job: JobRecord, task: TaskRecord) -> None:
        """A task has ended."""
        self.moved[job.id] = job
        self.nodes.add(task.node)

    def clear(self) -> None:
        """Drop all changes, once they are settled."""
        self.changes, self.starting, self.moved, self.nodes, self.sized = [], {}, {}, set(), set()


@dataclass(slots=True)
class Settled:
    """Results of settling, step by step.

    Args:
        granted: What the policy grants to jobs, with its reasons.
        reasons: Reasons of jobs whose share stays.
        nodes: Nodes whose cores are divided anew among their tasks.
        jobs: Jobs whose tasks may get a message.
        shares: Changes of tasks' shares.
        sizes: Entitled cores and threads of tasks.
    """

    granted: Granted
    reasons: Mapping[JobId, Reason]
    nodes: set[str]
    jobs: dict[JobId, JobRecord] = field(default_factory=dict)
    shares: dict[TaskId, Share] = field(default_factory=dict)
    sizes: dict[TaskId, tuple[float, int]] = field(default_factory=dict)


def to_send(pending: Pending, settled: Settled) -> list[Action]:
    """Starts of tasks, and messages to tasks whose share, size or reason changed."""
    actions: list[Action] = []
    for job in in_order(settled.jobs.values()):
        new_reason = (
            settled.granted[job.id][1] if job.id in settled.granted else settled.reasons.get(job.id)
        )
        for task in job.tasks.values():
            before = (task.entitled, task.threads)
            # unchanged on a lost node
            task.entitled, task.threads = settled.sizes.get(task.id, before)
            starts, changed = task.id in pending.starting, task.id in settled.shares
            stays = task.entitled == before[0] and not changed and not starts
            reason = job.why = new_reason or (job.why if stays else None) or _undecided(job)
            if starts:
                actions.append(job.starting(task, reason))
            elif changed or job.id in settled.reasons or before != (task.entitled, task.threads):
                share = settled.shares.get(task.id, NOTHING)
                actions.append(SetShare(task.id, share, task.threads, task.entitled, reason))
    return actions


def _undecided(job: JobRecord) -> Reason:
    """The reason of a share about which the policy said nothing."""
    if job.spec.share is not None:
        return Reason.of(ReasonKind.PINNED, share=job.spec.share)
    return _LEFT_BY_OTHERS if job.granted.cpu_weight is not None else _NO_POLICY


def soonest(*times: float | None) -> float | None:
    """The first of these times; None: there is none."""
    return min((time for time in times if time is not None), default=None)
