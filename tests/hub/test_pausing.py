"""Jobs that are paused with real processes, and that nothing stays frozen whatever ends them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.hub.test_outliving import next_hub
from tests.hub.test_proving import is_held, job, sees_held, starts
from tests.hub.user import SECONDS, User

from headgate.client.client import Client
from headgate.machine import cgroup_layout
from headgate.recorded.reader import RunReader
from headgate.testing import wait

pytestmark = pytest.mark.skipif(
    cgroup_layout.find_layout(Path("/sys/fs/cgroup")).mode == "none",
    reason="no cgroup can be made here, so nothing is frozen",
)


def test_a_paused_job_stands_still_until_it_is_unpaused_or_ended(user: User) -> None:
    names = [job(name, "rests") for name in "abe"]
    run = starts(user, *names, job("c", "rests", ", pausable: false"))
    user.write("more.yaml", f"jobs:\n  - {{{job('d', 'rests', ', at: 1h')}}}\n")
    more = user.detaches("more.yaml")
    assert user.json("pause", "a", "b", "--run", run) == {run: {"paused": ["a", "b"]}}
    for name in "ab":
        assert is_held(user, name)
        stands = user.sees_state(name, "paused")
        assert stands["reason"] == "by its user; it keeps its memory"
    steps = [-1]

    def stands_still() -> bool:
        """Whether its step is the same as a second ago; what it printed before is told later."""
        steps.append(user.stands("a")["step"])  # type: ignore[index]
        return steps[-10:] == steps[-1:] * 10

    wait.until(stands_still, SECONDS, "a stands still")
    step = steps[-1]
    assert user.json("pause", "d") == {more: {"paused": ["d"]}}
    assert user.stands("a")["step"] == step  # type: ignore[index]
    for words, message in (
        (("pause", "a"), "job 'a' is paused already; `headgate unpause a` lets it go on"),
        (("pause", "c"), "job 'c' says `pausable: false`; add --release"),
        (("pause", "c", "--release"), "Headgate knows of no checkpoint of it; leave out --release"),
        (("unpause", "c"), "job 'c' is running; only a paused one can be unpaused"),
        (("set", "c", "memory=1MiB"), "found memory 1 MiB; job 'c' holds"),
        (("set", "c", "memory=8"), "expected 1 MiB or more, with its unit"),
        (("set", "c", "timeout=soon"), "expected a time such as 30, 30s, 5m or 2h"),
    ):
        assert message in user.types(*words, code=2).message
    changed = user.types("set", "c", "memory=1GiB", "timeout=2h").stdout
    assert "memory 1 GiB, timeout 2 h" in changed
    user.types("unpause", "a")
    assert not is_held(user, "a")
    user.sees_job("a", lambda entry: (entry["step"] or 0) > step, None, "makes steps again")
    user.types("stop", "b")
    assert user.sees("b-asked") == "yes"
    assert user.json("pause", "e") == {run: {"paused": ["e"]}}
    user.kills(user.traces.hub())
    wait.until(lambda: not is_held(user, "e"), SECONDS, "e is released")
    wait.until(lambda: not user.traces.tasks(), SECONDS, "no task is left")


def test_the_name_of_a_sweep_stands_for_its_jobs_that_have_not_ended(user: User) -> None:
    user.write(
        "tries.py",
        """
        import itertools, os, sys, time
        if sys.argv[2] == "1":
            sys.exit()
        for step in itertools.count(1):
            print(f"step {step} loss {1 / step}", flush=True)
            time.sleep(0.01)
        """,
    )
    run = user.detaches("tries.py", "--memory", "64MiB", "--sweep", "lr=1..8", "--at-once", "2")
    user.sees_state("tries-lr-1", "done")
    left = [f"tries-lr-{i}" for i in range(2, 9)]
    states = Counter[str]()

    def are(**counts: int) -> bool:
        states.clear()
        states.update(job["state"] for job in user.json("status", run)["jobs"])
        return states == counts

    wait.until(lambda: are(done=1, running=2, waiting=5), SECONDS, "two of them run")
    assert f"{run}/tries-lr-2 and 6 others: paused" in user.types("pause", "tries").stdout
    wait.until(lambda: are(done=1, paused=7), SECONDS, "all are paused")
    assert is_held(user, "tries-lr-2")
    assert (
        "job 'tries-lr-1' is done" in user.types("pause", *left[:1], "tries-lr-1", code=2).message
    )
    assert "; and 3 others" in user.types("pause", "tries", code=2).message
    changed = user.json("set", "tries", "at_once=4", "priority=2")
    assert (changed["job"], changed["jobs"], changed["at_once"]) == ("tries", left, 4)
    assert Client().find(run).unpause("tries") == tuple(left)
    wait.until(lambda: are(done=1, running=4, waiting=3), SECONDS, "four of them run")
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        told = [row["text"] for row in reader.rows("events", "kind = ?", ["note"])]
    assert "jobs of sweep tries were changed by their user: priority 2, at_once 4" in told
    assert "no running job 'tires'" in user.types("stop", "tires", code=5).message
    assert sorted(user.json("stop", "tries", "--kill")[run]) == left
    assert are(done=1, killed=4, stopped=3), states


PAIR = """
    import os
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    step, ends = 0, torch.zeros(1)
    while not ends.item():
        step += 1
        ends = torch.tensor([float(os.path.exists("enough"))])
        dist.all_reduce(ends)
        if dist.get_rank() == 0 and step % 100 == 0:
            print(f"step {step} loss {1 / step}", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.long
@pytest.mark.slow
def test_two_workers_that_are_frozen_in_their_all_reduces_go_on_together(user: User) -> None:
    user.write("pair.py", PAIR)
    run = user.detaches("pair.py", "--workers", "2", "--launch", "torchrun")
    user.sees_job("pair", lambda job: (job["step"] or 0) > 0, run, "makes steps")
    assert user.json("pause", "pair") == {run: {"paused": ["pair"]}}
    step = user.sees_state("pair", "paused", run=run)["step"]
    user.types("unpause", "pair")
    user.sees_job("pair", lambda job: job["step"] > step, run, "makes steps again")
    user.json("pause", "pair")
    user.touch("enough")
    assert user.sees_state("pair", "paused", run=run)["attempt"] == 1
    user.types("unpause", "pair")
    user.sees_state("pair", "done", run=run)


def test_an_urgent_job_goes_first_and_what_was_in_its_way_goes_on_after_it(user: User) -> None:
    user.variables["HEADGATE_ON_HUB_DEATH"] = "go-on"
    run = starts(user, job("a", "rests"), job("c", "rests", ", pausable: false"))
    command = "until [ -e ready ]; do sleep 0.05; done"
    user.write("u.yaml", f"jobs:\n  - {{name: u, run: '{command}'}}\n")
    dry = user.types("run", "--urgent", "--dry-run", "u.yaml").stdout
    assert "u goes first: running jobs in the way are paused meanwhile" in dry
    urgent = user.detaches("--urgent", "u.yaml")
    reason = f"for urgent job {urgent}/u; it keeps its memory"
    assert user.sees_state("a", "paused", run=run)["reason"] == reason
    sees_held(user, "a")
    assert not is_held(user, "c")
    hub = user.traces.hub()
    user.kills(hub)
    next_hub(user, hub or 0)
    assert user.sees_state("a", "paused", run=run)["reason"] == reason
    sees_held(user, "a")
    user.touch("ready")
    user.sees_state("a", "running", run=run)
    wait.until(lambda: not is_held(user, "a"), SECONDS, "a goes on")
