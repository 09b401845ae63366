"""Controllers of several users share a machine through an arbiter."""

from __future__ import annotations

from headgate.arbiter import asking
from headgate.arbiter.acts import Act
from headgate.arbiter.core import Arbiter
from headgate.arbiter.events import JobTakenBack
from headgate.arbiter.records import Hub, ResourceGrant, Resumes
from headgate.controller.core import Controller, live_controller
from headgate.model.actions import Action, MarkJob, StartTask, StopTask
from headgate.model.cluster import Gpu, Node
from headgate.model.endings import Exit
from headgate.model.events import (
    Event,
    JobPlanned,
    JobSubmitted,
    MachineShared,
    NodeJoined,
    TaskExited,
    Wake,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.reason_text import in_words
from headgate.model.sharing import Amounts, SharingRules, UserShare
from headgate.policies import make

GIB = 1 << 30
NODE = Node("m", 8, 32 * GIB, gpus=tuple(Gpu(i, "A100", 16 * GIB) for i in range(4)))


class Hubs:
    """A controller for each user, and the arbiter of their machine."""

    def __init__(self, *users: str, rules: SharingRules | None = None) -> None:
        self.now = 0.0
        self.arbiter = Arbiter(NODE, rules or SharingRules())
        self.controllers: dict[str, Controller] = {}
        self.runs: dict[str, tuple[int, ...] | None] = {}
        self.taken_back: list[Act] = []
        self.stopped: list[tuple[str, str]] = []
        for user in users:
            self.controllers[user] = live_controller(make("headgate"))
            self.step(user, NodeJoined(NODE))
            self.step(user, MachineShared(True, NODE.name))

    def step(self, user: str, event: Event) -> list[Action]:
        """A controller takes an event, and all hear what follows."""
        actions, _ = self.controllers[user].step(self.now, event)
        for action in actions:
            if isinstance(action, StartTask):
                self.runs[action.task] = action.gpus
            if isinstance(action, StopTask):
                self.stopped.append((action.task.job.name, in_words(action.reason)))
        stated = asking.demand(
            Hub(user),
            self.controllers[user],
            lambda _: 1.0,
            lambda _: None,
            lambda _: Resumes.FROM_NOW,
        )
        for answer in self.arbiter.step(self.now, stated):
            match answer:
                case ResourceGrant():
                    self.step(answer.job.hub.user, asking.granted(answer))
                case JobTakenBack(job, act):
                    self.taken_back.append(act)
                    self.step(job.hub.user, asking.given_back(act))
        return actions

    def submit(
        self, user: str, name: str, workers: int = 1, memory_bytes: int | None = None, gpus: int = 0
    ) -> list[Action]:
        spec = Job(name=name, run="true", limits=Limits(memory_bytes=memory_bytes, gpus=gpus))
        id = JobId.of("r", name)
        plan = Plan(
            strategy="single" if workers == 1 else "allreduce",
            workers=workers,
            batch_per_worker=None,
            worker_nodes=(NODE.name,) * workers,
        )
        return self.step(user, JobSubmitted(id, spec)) + self.step(user, JobPlanned(id, 1, plan))

    def end(self, user: str, name: str) -> None:
        for task in [task for task in self.runs if JobId.of("r", name) == TaskId(task).job]:
            del self.runs[task]
            self.step(user, TaskExited(TaskId(task), Exit(code=0)))

    @property
    def jobs(self) -> set[str]:
        return {TaskId(task).job.name for task in self.runs}


def test_two_users_do_not_both_take_all_memory_and_one_hands_it_on() -> None:
    hubs = Hubs("ada", "bob")
    hubs.submit("ada", "a0", memory_bytes=20 * GIB)
    waits = hubs.submit("bob", "b0", memory_bytes=20 * GIB)
    hubs.submit("bob", "b1", memory_bytes=14 * GIB)
    assert hubs.jobs == {"a0"}
    [*_, wait] = (action for action in waits if isinstance(action, MarkJob))
    assert in_words(wait.reason) == "for its turn on the machine, which users share"
    hubs.end("ada", "a0")
    assert hubs.jobs == {"b0"}


def test_users_get_different_gpus_and_each_worker_its_own() -> None:
    hubs = Hubs("ada", "bob")
    hubs.submit("ada", "a0", workers=2, gpus=1)
    hubs.submit("bob", "b0", gpus=2)
    assert hubs.runs == {
        "r/a0/worker-0": (0,),
        "r/a0/worker-1": (1,),
        "r/b0/worker-0": (2, 3),
    }


def test_a_hub_keeps_its_own_bounds_and_asks_for_no_more() -> None:
    hubs = Hubs("ada")
    for i in range(40):
        hubs.submit("ada", f"a{i}")
    assert len(hubs.jobs) < 40
    assert len(hubs.arbiter.room.grants) == len(hubs.jobs)


def test_a_job_that_gives_back_ends_waits_again_and_goes_on_when_there_is_room() -> None:
    part = UserShare(user="bob", guaranteed=Amounts(gpus=2))
    hubs = Hubs("ada", "bob", rules=SharingRules(parts=(part,)))
    hubs.submit("ada", "a0", gpus=4)
    hubs.now = 3_600.0
    hubs.submit("bob", "b0", gpus=2)
    for hubs.now in (4_200.0, 4_210.0):
        hubs.step("ada", Wake())
    assert hubs.stopped == [
        ("a0", "given back to bob, who waited 10 min 0 s for the own part"),
    ]
    assert hubs.jobs == {"a0"}
    hubs.end("ada", "a0")
    assert hubs.jobs == {"b0"}
    hubs.end("bob", "b0")
    assert hubs.jobs == {"a0"}
    [act] = hubs.taken_back
    hubs.step("ada", asking.given_back(act))  # of the attempt before
    assert len(hubs.stopped) == 1
