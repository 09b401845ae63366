"""Proof by pause with real processes: what it finds, and that nothing stays held whatever ends
it.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from tests.hub.traces import GUARD
from tests.hub.user import SECONDS, User

from headgate.machine import cgroup_layout
from headgate.testing import wait

STEPS = """
    import os, signal, sys, time

    def asked(*_):
        open(f"{sys.argv[1]}-asked", "w").write("yes")
        sys.exit(0)

    signal.signal(signal.SIGTERM, asked)
    if sys.argv[2] != "rests":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    step = 0
    while not os.path.exists("enough"):
        end = time.thread_time() + 0.004
        while sys.argv[2] != "rests" and time.thread_time() < end:
            pass
        time.sleep(0.01 if sys.argv[2] == "rests" else 0)
        step += 1
        print(f"step {step} loss {1 / step:.5f}", flush=True)
"""

pytestmark = pytest.mark.skipif(
    cgroup_layout.find_layout(Path("/sys/fs/cgroup")).mode == "none",
    reason="no cgroup can be made here, so nothing is held",
)


def starts(user: User, *jobs: str) -> str:
    """A run of jobs that say `name: NAME, run: COMMAND, ...`, once all of them make steps."""
    user.write("steps.py", STEPS)
    entries = "".join(f"  - {{{job}}}\n" for job in jobs)
    user.write("jobs.yaml", f"at_once: {len(jobs)}\njobs:\n{entries}")
    run = user.detaches("jobs.yaml")
    for job in jobs:
        user.sees_job(
            job.split(",")[0].removeprefix("name: "),
            lambda entry: bool(entry["step"]),
            run,
            "makes steps",
        )
    return run


def job(name: str, how: str = "works", more: str = "") -> str:
    return f"name: {name}, run: [python, steps.py, {name}, {how}]{more}"


def is_held(user: User, name: str) -> bool:
    """Whether a task of a job stands still."""
    for path in (user.home / "hub" / "boxes").glob(f"*:{name}:*.json"):
        folders = {
            controller: Path(folder)
            for controller, folder in json.loads(path.read_text())["folders"].items()
        }
        for controller, file in (("freezer", "freezer.state"), ("unified", "cgroup.freeze")):
            state = folders.get(controller, path) / file
            if state.exists() and state.read_text().strip() in ("FROZEN", "FREEZING", "1"):
                return True
    return False


def sees_held(user: User, name: str) -> None:
    wait.until(lambda: is_held(user, name), SECONDS, f"{name} is held")


def sees_released(user: User, name: str) -> None:
    wait.until(lambda: not is_held(user, name), SECONDS, f"{name} is released")


def proving(user: User, *words: str, most: str = "25%") -> list[str]:
    return ["explain", "--prove", *words, "--pause-at-most", most]


def test_whatever_ends_a_proof_or_a_job_releases_it(user: User) -> None:
    starts(user, job("a"), job("b"), job("c", more=", pausable: false"))
    lasting = proving(user, "a", "--neighbour", "b", most="10%")
    terminal = user.opens(*lasting)
    terminal.shows("pauses of 0.4 s show whether b slows a by 5 %")
    sees_held(user, "b")
    assert "a proof is under way in run" in user.types(*proving(user, "a"), code=2).message
    sees_held(user, "b")
    terminal.press(b"\x03")
    sees_released(user, "b")
    assert terminal.ends() == 130
    assert "no job is held any more" in terminal.text
    told = user.starts(*lasting, "--json")
    sees_held(user, "b")
    user.types("stop", "b")
    assert user.sees("b-asked") == "yes"
    answer = told.communicate(timeout=SECONDS)[0]
    assert told.returncode == 1, "b was the only job that may be held"
    assert json.loads(answer)["proofs"] == []
    assert user.stands("b")["state"] == "stopped"  # type: ignore[index]
    user.touch("enough")
    assert user.sees_state("a", "done", "failed")["state"] == "done"


@pytest.mark.parametrize("guard_too", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_hub_that_is_killed_during_a_pause_leaves_nothing_held(
    user: User, guard_too: bool
) -> None:
    starts(user, job("a"), job("b"))
    user.starts(*proving(user, "a"))
    sees_held(user, "b")
    if guard_too:
        user.kills(next(iter(user.traces.processes(GUARD))))
        user.kills(user.traces.hub())
        user.types("ps")
    else:
        user.kills(user.traces.hub())
        sees_released(user, "b")
        assert user.sees("b-asked") == "yes"  # it was to save what it has, and heard it
    wait.until(lambda: not user.traces.tasks(), SECONDS, "no task is left")


@pytest.mark.long
def test_a_task_that_is_killed_while_it_is_held_ends_and_the_others_go_on(user: User) -> None:
    run = starts(user, job("a"), job("b"))
    told = user.starts(*proving(user, "a"))
    sees_held(user, "b")
    pid = next(
        pid for pid, words in user.traces.tasks().items() if words[1:] == ["steps.py", "b", "works"]
    )
    user.kills(pid)
    assert user.sees_state("b", "killed", "failed", run=run)
    assert (
        "nothing can be said yet of b and a: the proof ended after"
        in told.communicate(timeout=SECONDS)[0]
    )
    user.touch("enough")
    assert user.sees_state("a", "done", "failed")["state"] == "done"


@pytest.mark.long
def test_it_is_proved_who_slows_whom_and_told_by_explain(user: User) -> None:
    starts(user, job("a"), job("b"))
    process = user.starts(*proving(user, "a"), "--json")
    told = json.loads(process.communicate(timeout=2 * SECONDS)[0])
    (proof,) = told["proofs"]
    assert (proof["culprit"], proof["victim"], proof["outcome"]) == ("b", "a", "seen")
    assert 0.0 < proof["low"] < proof["faster"] < proof["high"]
    user.touch("enough")
    user.sees_state("a", "done")
    account = next(each for each in user.json("explain")["jobs"] if each["job"] == "a")
    (loss,) = [loss for loss in account["lost"] if loss["to"] == "b"]
    assert loss["evidence"] == "proved"
    assert 0.2 * account["elapsed"] < loss["seconds"] < 0.8 * account["elapsed"]
    whole = sum(part["seconds"] for part in account["account"].values())
    assert whole == pytest.approx(account["elapsed"], rel=0.05)


@pytest.mark.long
def test_a_job_that_says_so_is_proved_without_being_asked_for(user: User) -> None:
    starts(user, job("a", "rests", ", prove: true"), job("b", "rests"))
    sees_held(user, "b")
    assert not is_held(user, "a")
    user.touch("enough")
    assert user.sees_state("b", "done", "failed")["state"] == "done"


RING = """
    import datetime, os, time
    import torch, torch.distributed as dist

    rank = int(os.environ["HEADGATE_TASK"][-1])
    meeting = f"file://{os.getcwd()}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    step, ends = 0, torch.zeros(1)
    while not ends.item():
        ends[0] = float(os.path.exists("enough"))
        dist.all_reduce(ends, group=group)
        time.sleep(0.01)
        step += 1
        if dist.get_rank() == 0:
            print(f"step {step} loss {1 / step:.5f}", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.long
def test_a_job_of_two_tasks_survives_with_a_timeout_of_its_collectives_of_one_second(
    user: User,
) -> None:
    user.write("ring.py", RING)
    starts(
        user,
        job("a", "rests"),
        "name: ring, script: ring.py, plan: {strategy: allreduce, workers: 2}",
    )
    told = user.starts(*proving(user, "a", "--neighbour", "ring"))
    for _ in range(4):
        sees_held(user, "ring")
        sees_released(user, "ring")
    told.send_signal(signal.SIGINT)
    told.communicate(timeout=SECONDS)
    user.touch("enough")
    assert user.sees_state("ring", "done", "failed", "killed")["state"] == "done"


def test_what_cannot_be_proved_is_said_in_one_message(user: User) -> None:
    run = starts(user, job("a", "rests"), job("b", "rests", ", pausable: false"))
    for words, message in (
        (["a", "--neighbour", "b"], "job 'b' says `pausable: false`; it is not held"),
        (["a"], "has no neighbour to hold: no other pausable job runs"),
        (["a", "--neighbour", "c"], f"run {run} has no job 'c'; expected one of a, b"),
        (["a", "--neighbour", "a"], "has no neighbour to hold"),
        (["nobody"], "no run and no job 'nobody'"),
    ):
        assert (
            message
            in user.types("explain", "--prove", *words, code=2 if words[0] == "a" else 5).message
        )
    for part, message in (
        ("half", "expected a part such as 10%"),
        ("90%", "expected a part above 0 and at most 25%"),
    ):
        assert (
            message in user.types("explain", "--prove", "a", "--pause-at-most", part, code=2).stderr
        )
    assert "add --prove" in user.types("explain", "--neighbour", "b", code=2).message
    user.touch("enough")
    user.sees_state("a", "done")
    assert "nothing is running" in user.types("explain", "--prove", code=5).message
    assert os.listdir(user.home / "hub" / "boxes") == []
