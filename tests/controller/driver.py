"""Drives a controller: events in, actions out, with jobs of one task or of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headgate.controller.core import Controller
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, Fault, MarkJob, SetShare, StartTask, StopTask, Warn
from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint, Ending, Saved, StopAnswer
from headgate.model.events import Event, JobPlanned, JobSubmitted, NodeJoined, TaskConnected
from headgate.model.identifiers import FIRST_WORKER, JobId, TaskId, TaskName
from headgate.model.job_states import JobState
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Share
from headgate.policies import NoPolicy, Policy
from headgate.policies.base import Change, Decision

PLAN = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=("here",))
NODES = tuple(
    Node(name, cores=cores, memory_bytes=2**30)
    for name, cores in (("a", 1.0), ("b", 1.0), ("c", 2.0))
)
"""The nodes of jobs of several tasks, two alike and one larger."""

A, B = JobId("r/a"), JobId("r/b")
A_0, A_1, B_0 = A.task(FIRST_WORKER), A.task(TaskName.of("worker", 1)), B.task(FIRST_WORKER)
"""The jobs that most tests have, and their workers."""


class Recording(Policy):
    """Grants nothing, and keeps what it was told."""

    name = "recording"

    def __init__(self) -> None:
        self.calls: list[tuple[float, float, tuple[Change, ...]]] = []
        self.answer = Decision()

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        self.calls.append((now, cores, tuple(changes)))
        return self.answer


class Driver:
    """A controller with a node of two cores, and the jobs it was handed."""

    def __init__(self, policy: Policy | None = None, cores: float = 2.0) -> None:
        self.controller = Controller(policy or NoPolicy())
        self.wake_at: float | None = None
        self.step(0.0, NodeJoined(Node("here", cores=cores, memory_bytes=2**30)))

    def step(self, now: float, event: Event) -> list[Action]:
        """The actions, with their reasons in words."""
        actions, self.wake_at = self.controller.step(now, event)
        return [worded(action) for action in actions]

    def submit(self, now: float, spec: Job, resume: Checkpoint | None = None) -> list[Action]:
        """Submit and plan; the actions that follow the plan."""
        self.step(now, JobSubmitted(JobId(f"r/{spec.name}"), spec, resume))
        return self.step(now, JobPlanned(JobId(f"r/{spec.name}"), 1, PLAN))

    def task(self, name: str) -> TaskRecord:
        """What is known of the task of a job that has one."""
        return self.controller._jobs.all[JobId(f"r/{name}")].tasks[TaskId(f"r/{name}/worker-0")]


def ended(
    name: str, state: JobState, reason: str, code: int, answer: StopAnswer = StopAnswer.ENDED
) -> MarkJob:
    """The end of a job that was asked to end, and has saved nothing."""
    ending = Ending(answer, saved=Saved.NOTHING)
    return job_marked(JobId(f"r/{name}"), state, f"{reason}; last checkpoint: none", code, ending)


def plain_words(text: str) -> Reason:
    """A reason as people read it."""
    return Reason(ReasonKind.TEXT, {"text": text})


def worded(action: Action) -> Action:
    """An action with its reason in words, as people read it."""
    reason = getattr(action, "reason", None)
    if not isinstance(reason, Reason):
        return action
    return replace(action, reason=plain_words(in_words(reason)))  # type: ignore[arg-type]


def job_marked(
    job: JobId, state: JobState, text: str, code: int | None = None, ending: Ending | None = None
) -> MarkJob:
    return MarkJob(job, state, plain_words(text), code, ending)


def task_lost(job: JobId, task: TaskId, text: str, restarts: bool = False) -> Fault:
    return Fault(job, task, plain_words(text), restarts)


def share_set(task: TaskId, share: Share, threads: int, cores: float, text: str) -> SetShare:
    return SetShare(task, share, threads, cores, plain_words(text))


def task_stopped(task: TaskId, grace: float, text: str, leaves: bool = False) -> StopTask:
    return StopTask(task, grace, plain_words(text), leaves)


def user_warned(text: str, job: JobId | None = None) -> Warn:
    return Warn(plain_words(text), job)


def job(name: str = "a", **fields: object) -> Job:
    return Job(name=name, run="true", **fields)  # type: ignore[arg-type]


def start(
    spec: Job, share: Share, threads: int, entitled: float, reason: str, **fields: object
) -> StartTask:
    known = {"attempt": 1, "resume": None, **fields}
    return StartTask(
        task=TaskId(f"r/{spec.name}/worker-0"),
        job=JobId(f"r/{spec.name}"),
        spec=spec,
        plan=PLAN,
        node="here",
        share=share,
        threads=threads,
        entitled_cores=entitled,
        reason=plain_words(reason),
        **known,  # type: ignore[arg-type]
    )


def running(driver: Driver, now: float, *specs: Job) -> None:
    for spec in specs:
        driver.step(now, JobSubmitted(JobId(f"r/{spec.name}"), spec))
    for spec in specs:
        driver.step(now, JobPlanned(JobId(f"r/{spec.name}"), 1, PLAN))


class Team(Driver):
    """A running job `r/a` of several tasks on `NODES`, all of them connected unless it is said that
    none is.
    """

    def __init__(
        self,
        plan: Plan,
        policy: Policy | None = None,
        /,
        *,
        connected: bool = True,
        framework: str = "torch",
        resume: Checkpoint | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(policy)
        self.framework = framework
        for node in NODES:
            self.step(0.0, NodeJoined(node))
        self.spec = job(**fields)
        names = tuple(node.name for node in NODES)
        self.step(0.0, JobSubmitted(A, self.spec, resume, names))
        self.begun = self.step(0.0, JobPlanned(A, 1, plan))
        if connected:
            self.connect(*(action.task for action in self.begun if isinstance(action, StartTask)))

    def connect(self, *tasks: str) -> None:
        for task in tasks:
            self.step(0.0, TaskConnected(TaskId(task), self.framework))


def ps(workers: int = 2, servers: int = 1, **fields: object) -> Plan:
    """A plan with its workers on `a` and `b` in turn, its servers on `c`."""
    places = {"worker_nodes": ("a", "b") * workers, "server_nodes": ("c",) * servers}
    return _plan("ps", workers, servers, places | fields)


def allreduce(workers: int = 2, **fields: object) -> Plan:
    """A plan with its workers on `a` and `b` in turn."""
    return _plan("allreduce", workers, 0, {"worker_nodes": ("a", "b") * workers, **fields})


def _plan(strategy: str, workers: int, servers: int, fields: dict[str, object]) -> Plan:
    fields = {
        "batch_per_worker": None,
        **fields,
        "worker_nodes": tuple(fields["worker_nodes"])[:workers],  # type: ignore[arg-type]
    }
    return Plan(strategy=strategy, workers=workers, servers=servers, **fields)  # type: ignore[arg-type]
