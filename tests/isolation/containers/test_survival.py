"""What a run in containers survives: its daemon killed and started again, a container that somebody
removes, and a task that does not end when it is asked to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.dockerd import own_dockerd
from tests.harness.dockerd import Dockerd
from tests.hub.user import SECONDS, User

from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import TASK
from headgate.recorded.reader import RunReader
from headgate.testing import wait

SAVES = """
    import os
    from headgate.task import Channel, ProgressReporter, TaskEnvironment

    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "plain", "1", 0)
    progress = ProgressReporter(channel.send, list)
    progress.step = int(open(environment.resume).read()) if environment.resume else 0
    print("begins at", progress.step, flush=True)
    progress.step += 5
    path = os.path.join(environment.checkpoints, f"step-{progress.step}.pt")
    with open(path, "w") as file:
        file.write(str(progress.step))
    message = {"type": "checkpoint", "path": path, "step": progress.step}
    channel.send({**message, "epoch": 0, "position": 0, "why": "time"})
    progress.report(0.5, {})
    progress.flush()
    while not os.path.exists("go"):
        channel.wait_for(lambda: False, 0.05)
"""

STUBBORN = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        signal.pause()
"""


@pytest.fixture
def dockerd() -> Iterator[Dockerd]:
    with own_dockerd() as found:
        yield found


def saves(user: User, url: str) -> str:
    """A run with a job that has a checkpoint."""
    user.variables["DOCKER_HOST"] = url
    user.write("a.py", SAVES)
    user.write("jobs.yaml", "jobs: [{script: a.py, isolation: container}]")
    run = user.detaches("jobs.yaml")
    wait.until(lambda: len(checkpoints(user, run)) == 1, SECONDS, "a checkpoint is saved")
    return run


def checkpoints(user: User, run: str) -> list[int]:
    path = user.home / "runs" / run / "run.sqlite"
    if not path.exists():
        return []
    with RunReader(path) as reader:
        return [row["step"] for row in reader.rows("checkpoints")]


def goes_on(user: User, run: str, why: str) -> None:
    """Its job is started again from its checkpoint, for that reason, and is done."""
    over = user.sees_job(
        "a",
        lambda job: checkpoints(user, run) == [5, 10] or job["state"] == "failed",
        run,
        "goes on",
    )
    assert over["state"] != "failed", over["reason"]
    user.touch("go")
    user.sees_state("a", "done", run=run)
    folder = user.home / "runs" / run
    said = "".join(path.read_text() for path in sorted(folder.glob("jobs/a/*.log")))
    assert [line for line in said.splitlines() if line.startswith("begins")] == [
        "begins at 0",
        "begins at 5",
    ]
    with RunReader(folder / "run.sqlite") as reader:
        [fault] = [
            row["text"]
            for row in reader.rows("events", "kind = 'fault' AND text LIKE '% was lost: %'")
        ]
    assert why in fault
    assert fault.endswith("; it is started again from step 5")


@pytest.mark.parametrize("end", [Dockerd.stop, pytest.param(Dockerd.kill, marks=pytest.mark.long)])
def test_a_job_whose_daemon_ends_goes_on_from_its_checkpoint_with_the_next(
    user: User, dockerd: Dockerd, end: Callable[[Dockerd], None]
) -> None:
    run = saves(user, dockerd.url)
    end(dockerd)
    dockerd.start()
    goes_on(user, run, f"the Docker daemon at {dockerd.url} stopped")
    wait.until(lambda: Daemon(dockerd.url).find(TASK) == [], SECONDS, "nothing of it is left")


def test_a_job_whose_container_somebody_removes_goes_on_from_its_checkpoint(
    user: User, daemon: str
) -> None:
    run = saves(user, daemon)
    docker = Daemon(daemon)
    (found,) = docker.find(f"{TASK}={run}/a/worker-0")
    docker.remove(found["id"])
    goes_on(user, run, "its container was removed by somebody else")


@pytest.mark.long  # the grace takes ten seconds
def test_a_task_that_does_not_end_when_asked_to_is_ended_within_its_grace(
    user: User, daemon: str
) -> None:
    user.variables["DOCKER_HOST"] = daemon
    user.write("a.py", STUBBORN)
    run = user.detaches("a.py", "--isolation", "container")
    wait.until(lambda: "ready" in user.log("a"), SECONDS, "it ignores SIGTERM")
    user.types("stop", "a")
    user.sees_state("a", "stopped")
    wait.until(
        lambda: Daemon(daemon).find(f"{TASK}={run}/a/worker-0") == [],
        SECONDS,
        "its container is removed",
    )
