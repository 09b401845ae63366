"""What the controller of the next hub makes of jobs whose hub died."""

from __future__ import annotations

import pytest
from tests.controller.driver import PLAN, A, B, job, worded

from headgate.controller.core import live_controller
from headgate.model.actions import Action, MarkJob, PlanJob, StartTask
from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint
from headgate.model.events import Event, JobPlanned, JobSubmitted, MemoryUsed, NodeJoined, TakenUp
from headgate.model.limits import Limits
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies import EqualPolicy

GIB = 1 << 30
EARLY = Reason.of(
    ReasonKind.ENDED_AS_ASKED, after=Reason.of(ReasonKind.STOPPED_EARLY, metric="loss")
)
LOST = Reason.of(ReasonKind.LOST_WITH_HUB, rebooted=True)


class NextHub:
    """The controller of the next hub, on a node of 2 GiB."""

    def __init__(self) -> None:
        self.controller = live_controller(EqualPolicy())
        self.step(NodeJoined(Node("here", cores=2.0, memory_bytes=2 * GIB)))
        self.step(MemoryUsed("here", 2.0 * GIB, {}))

    def step(self, event: Event) -> list[Action]:
        return [worded(action) for action in self.controller.step(100.0, event)[0]]


def test_a_job_that_goes_on_keeps_its_attempt_and_its_room() -> None:
    hub = NextHub()
    large = job("a", limits=Limits(memory_bytes=int(1.5 * GIB)), timeout=60.0)
    running = TakenUp("running", 3, PLAN, goes_on=True, ran=45.0)
    actions = hub.step(JobSubmitted(A, large, taken_up=running))
    [start] = [action for action in actions if isinstance(action, StartTask)]
    assert (start.attempt, start.node, start.share.memory_bytes) == (3, "here", 1.5 * GIB)
    [mark] = [action for action in actions if isinstance(action, MarkJob)]
    assert (mark.state, str(mark.reason.facts["text"])[:21]) == ("running", "went on without a hub")
    assert hub.controller._wake_at() == 115.0
    other = job("b", limits=Limits(memory_bytes=GIB))
    hub.step(JobSubmitted(B, other, taken_up=TakenUp("waiting")))
    waits = hub.step(JobPlanned(B, 1, PLAN))
    assert [action.state for action in waits if isinstance(action, MarkJob)] == ["waiting"]


def test_of_lost_jobs_those_go_on_that_can() -> None:
    hub = NextHub()
    lost = TakenUp("waiting", 2, lost=LOST)
    [mark] = hub.step(JobSubmitted(A, job("a"), taken_up=lost))
    assert isinstance(mark, MarkJob)
    text = "its task was lost when this machine stopped"
    again = "run it again from its beginning with: headgate resume r --from-scratch"
    assert (mark.state, mark.reason.facts["text"]) == ("failed", f"{text}; {again}")
    point = Checkpoint("step-9.pt", 9, 0, None)
    mark, plan = hub.step(JobSubmitted(B, job("b"), point, taken_up=lost))
    assert isinstance(mark, MarkJob)
    assert (mark.state, mark.reason.facts["text"]) == ("waiting", f"{text}; started again")
    assert isinstance(plan, PlanJob)
    starts = [
        action for action in hub.step(JobPlanned(B, 1, PLAN)) if isinstance(action, StartTask)
    ]
    assert [(start.attempt, start.resume) for start in starts] == [(3, point)]


@pytest.mark.parametrize("ended", [TakenUp("done", 1), TakenUp("stopped", 1, reason=EARLY)])
def test_a_job_waits_for_one_that_has_ended_before(ended: TakenUp) -> None:
    hub = NextHub()
    assert not hub.step(JobSubmitted(A, job("a"), taken_up=ended))
    hub.step(JobSubmitted(B, job("b", after="a"), taken_up=TakenUp("waiting")))
    assert any(isinstance(action, StartTask) for action in hub.step(JobPlanned(B, 1, PLAN)))
