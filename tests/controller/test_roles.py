"""Jobs made of roles: who starts when, and whose end ends the job."""

from __future__ import annotations

from tests.controller.driver import A, Driver, job_marked

from headgate.model.actions import Action, MarkJob, StartTask, StopTask
from headgate.model.endings import Exit
from headgate.model.events import JobPlanned, JobSubmitted, TaskExited, TaskReady, TaskStarted
from headgate.model.identifiers import TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.roles import Ready, Role

FETCH, SERVER, DRIVER = (A.task(TaskName(f"{role}-0")) for role in ("fetch", "server", "driver"))
ROLES = (
    Role(name="fetch", run="true"),
    Role(name="server", run="true", ready=Ready(port=True)),
    Role(name="driver", run="true", after=("fetch", "server")),
)
PLAN = Plan(strategy="roles", workers=3, batch_per_worker=None, worker_nodes=("here",) * 3)
WELL = Exit(code=0)


def begun() -> tuple[Driver, list[Action]]:
    """A controller that has started what waits for nothing, and what it said then."""
    driver = Driver()
    driver.step(0.0, JobSubmitted(A, Job(name="a", roles=ROLES)))
    return driver, driver.step(0.0, JobPlanned(A, 1, PLAN))


def started(actions: list[Action]) -> list[str]:
    return [action.task for action in actions if isinstance(action, StartTask)]


def test_a_role_starts_once_those_it_comes_after_are_ready_and_its_end_ends_the_others() -> None:
    driver, actions = begun()
    assert started(actions) == [FETCH, SERVER]
    assert started(driver.step(1.0, TaskStarted(SERVER, 1))) == []
    assert started(driver.step(1.0, TaskStarted(FETCH, 2))) == []
    assert not [
        each
        for each in driver.step(2.0, TaskExited(FETCH, WELL))
        if isinstance(each, StopTask | MarkJob)
    ]
    assert started(driver.step(3.0, TaskReady(SERVER))) == [DRIVER]
    (stop,) = [
        each for each in driver.step(4.0, TaskExited(DRIVER, WELL)) if isinstance(each, StopTask)
    ]
    assert stop.task == SERVER
    assert driver.step(5.0, TaskExited(SERVER, Exit(code=None, signal=15)))[0] == job_marked(
        A, "done", "finished", 0
    )


def test_a_role_that_ends_before_it_is_ready_fails_the_job_and_dependents_never_start() -> None:
    driver, _ = begun()
    driver.step(1.0, TaskStarted(SERVER, 1))
    actions = driver.step(2.0, TaskExited(SERVER, WELL))
    assert [each.task for each in actions if isinstance(each, StopTask)] == [FETCH]
    actions = driver.step(3.0, TaskExited(FETCH, WELL))
    assert started(actions) == []
    assert actions[0] == job_marked(A, "failed", "server-0: ended before it was ready", 1)
