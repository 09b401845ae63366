"""A run is gone on with by one other run, whoever asks for it, in whichever hub."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.hub.user import SECONDS, User

from headgate.recorded import resuming, runs
from headgate.testing import wait

WAITS = """
    import os, signal, time
    signal.signal(signal.SIGTERM, lambda *_: exit(0))
    print("epoch 1 loss 0.5", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.02)
"""


@pytest.fixture
def stopped(user: User) -> str:
    """Id of a run that was stopped, and whose script goes on by itself."""
    user.write("waits.py", WAITS)
    user.write("jobs.yaml", "jobs: [{name: waits, script: waits.py, resumes: true}]")
    run = user.detaches("jobs.yaml")
    stops(user, run)
    return run


def stops(user: User, run: str) -> None:
    user.sees_job("waits", lambda job: job["loss"] is not None, run)
    user.types("stop", "--run", run)
    wait.until(lambda: not runs.alive(user.home / "runs" / run), SECONDS, "the run has ended")


def resumes(user: User, run: str, *cpus: str) -> subprocess.Popen[str]:
    """Resume a run, in a terminal that may use these CPUs alone where some are named."""
    command = user.command("resume", run, "--detach")
    words = ["taskset", "-c", cpus[0], *command] if cpus else command
    return subprocess.Popen(
        words, cwd=user.folder, env=user.variables, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("hubs", [pytest.param(1, marks=pytest.mark.long), 2])
def test_of_several_resumes_at_once_one_trains(hubs: int, user: User, stopped: str) -> None:
    own = str(min(os.sched_getaffinity(0)))
    cpus: list[tuple[str, ...]] = [(), (), ()] if hubs == 1 else [(), (own,), ()]
    if hubs == 2 and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("there is one CPU: a part of it makes no other allocation")
    asked = [resumes(user, stopped, *each) for each in cpus]
    said = [process.communicate(timeout=SECONDS)[1] for process in asked]
    assert sorted(process.returncode for process in asked) == [0, 2, 2], said
    assert sum(f"run {stopped} goes on already, as run" in text for text in said) == 2, said
    assert len(user.json("ps")) == 2
    assert len(user.traces.hubs()) <= hubs


@pytest.mark.slow
def test_a_run_is_not_resumed_whose_heir_s_heir_runs_or_has_done_it(
    user: User, stopped: str
) -> None:
    heir = user.json("resume", stopped, "--detach")["run"]
    refused = user.types("resume", stopped, code=2).message
    assert (
        refused
        == f"run {stopped} goes on already, as run {heir}; watch it with: headgate attach {heir}"
    )
    stops(user, heir)
    last = user.json("resume", heir, "--detach")["run"]
    refused = user.types("resume", stopped, code=2).message
    assert (
        refused
        == f"run {stopped} goes on already, as run {last}; watch it with: headgate attach {last}"
    )
    user.touch("go")
    wait.until(lambda: not runs.alive(user.home / "runs" / last), SECONDS, "it has ended")
    for former in (stopped, heir):
        assert user.types("resume", former, code=2).message == (
            f"job waits of run {former} is done already, in run {last}, which went on from it; run "
            f"it again from its beginning: headgate resume {former} --from-scratch"
        )
    assert user.json("resume", stopped, "--from-scratch")["state"] == "done"


def test_an_heir_that_begins_while_it_is_looked_for_is_no_kin_of_another_run(
    user: User, stopped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops(user, user.json("resume", stopped, "--detach")["run"])
    answers = iter([False, False])  # of the run, of its heir; whatever asks again finds it alive
    monkeypatch.setattr(runs, "alive", lambda run: next(answers, True))
    resuming.check_ended(user.home / "runs" / stopped)


@pytest.mark.slow
def test_an_heir_is_not_resumed_while_another_heir_of_the_same_run_trains(
    user: User, stopped: str
) -> None:
    first = user.json("resume", stopped, "--detach")["run"]
    stops(user, first)
    second = user.json("resume", stopped, "--detach")["run"]
    assert user.types("resume", first, code=2).message == (
        f"run {stopped}, which run {first} went on from, goes on already, as run {second}; watch "
        f"it with: headgate attach {second}"
    )
    stops(user, second)
    user.touch("go")
    assert user.json("resume", first)["state"] == "done"


def test_an_heir_that_is_not_done_is_told_of_and_a_done_job_in_it_is_not_done_twice(
    user: User, stopped: str
) -> None:
    heir = user.json("resume", stopped, "--detach")["run"]
    stops(user, heir)
    user.touch("go")
    again = user.json("resume", stopped)["id"]
    [warning] = user.warnings(again)
    assert warning.startswith(f"run {heir} went on with it before and ended as stopped")
