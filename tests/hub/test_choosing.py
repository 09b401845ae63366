"""A hub that chooses the plans of jobs by their stored profiles, on the nodes of a lab."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator

import pytest
from tests.hub.team import Team
from tests.hub.user import User
from tests.planning.jobs import profile

from headgate.model.jobs import Job
from headgate.profiling import store
from headgate.recorded.reader import RunReader
from headgate.sampling import machine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None,
    reason="a lab needs root, and the programs ip and tc",
)

NODES = [f"  - {{name: {name}, cores: 0.2, memory: 512MiB, nic: 1Gbit}}\n" for name in "abc"]
LAB = "lab: true\nname: chosen\noversubscribe: true\nnodes:\n"

ALONE = """
    import os, signal, time
    name = os.environ["HEADGATE_TASK"].rpartition("/")[2]
    if name == "worker-1":
        while not os.path.exists("worker-0"):
            time.sleep(0.05)
        raise SystemExit("trains in one process")
    if os.path.exists(name):
        raise SystemExit(0)
    open(name, "x").close()
    signal.pause()
"""
"""Fails in several tasks; the first ends well when it is started again."""


@pytest.fixture
def team(user: User) -> Iterator[Team]:
    found = Team(user)
    user.write("lab.yaml", LAB + "".join(NODES))
    user.types("lab", "up", "lab.yaml")
    yield found
    user.types("lab", "down", "chosen")


def test_a_job_with_a_profile_runs_by_the_best_plan_on_the_nodes_that_are_free(team: Team) -> None:
    user = team.user
    here = machine.detect(user.home / "node.json")
    rest = user.write(
        "rest.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    ).read_text()
    user.write("pod.py", f"{rest}print('of another cluster')\n")
    known = profile(dense_bytes=1_000_000, memory_peak_bytes=64 << 20)
    for script in ("worker.py", "pod.py"):
        of = Job(name="a", script=str(user.folder / script), workdir=str(user.folder))
        store.save(user.home / "profiles", store.key(of, here), known)

    dry = user.json("run", "worker.py", "--cluster", "chosen", "--dry-run")
    assert [each["node"] for each in dry] == ["a", "b", "c"]
    first = user.detaches("rest.py", "--cluster", "chosen")
    user.sees_state("rest", "running", run=first)
    team.starts("--cluster", "chosen", wait_for=("worker-0", "worker-1"))
    why = team.sees_event("plan", "allreduce, 2 workers on b, c: ")
    assert "samples/s expected" in why
    assert "; 2 of 3 nodes were free" in why
    # as in a pod of one process
    user.variables |= {"MASTER_ADDR": "10.0.0.7", "WORLD_SIZE": "1", "RANK": "0"}
    assert [
        each["node"] for each in user.json("run", "pod.py", "--cluster", "chosen", "--dry-run")
    ] == ["a"]
    pod = user.detaches("pod.py", "--cluster", "chosen")
    user.touch("go")
    team.ends("done")
    user.sees_state("rest", "done", run=first)
    team.run = first
    assert "headgate profile rest.py" in team.events("plan")[0]
    user.sees_state("pod", "done", run=pod)
    team.run = pod
    assert team.events("plan")[0].startswith(
        "single, 1 worker on a, because its environment names another cluster "
        "(MASTER_ADDR=10.0.0.7, WORLD_SIZE=1, RANK=0);"
    )


@pytest.mark.slow
def test_a_job_that_its_chosen_plan_fails_at_once_goes_on_as_one_task(team: Team) -> None:
    user = team.user
    script = user.write("alone.py", ALONE)
    of = Job(name="a", script=str(script), workdir=str(user.folder))
    known = profile(dense_bytes=1_000_000, memory_peak_bytes=64 << 20)
    store.save(
        user.home / "profiles", store.key(of, machine.detect(user.home / "node.json")), known
    )
    team.run = user.detaches("alone.py", "--cluster", "chosen")
    user.sees_state("alone", "done", "failed", run=team.run)
    assert team.events("plan")[0].startswith("allreduce, 3 workers on a, b, c: ")
    why = (
        "exit code 1, after the line: trains in one process; before its first report, so "
        "tried again as one task"
    )
    assert f"worker-1: {why}" in team.events("waiting")
    job = user.jobs(team.run)["alone"]
    assert (job["state"], job["attempt"], [task["task"] for task in job["tasks"]]) == (
        "done",
        2,
        ["worker-0"],
    )


@pytest.mark.slow
def test_jobs_that_cost_each_other_much_run_on_different_nodes(user: User) -> None:
    heavy = {"heavy": 0.5, "wide": 0.5, "light": 0.9, "small": 0.9}
    light = dict.fromkeys(heavy, 0.95)
    keeps = {"heavy": heavy, "wide": heavy, "light": light, "small": light}
    table = {
        job: {"null": 1.0} | {other: [part, keeps[other][job]] for other, part in row.items()}
        for job, row in keeps.items()
    }
    (user.home / "pairs.json").write_text(json.dumps({"": table}))
    user.write("two.yaml", LAB.replace("chosen", "two") + "".join(NODES[:2]))
    waits = "until test -e go; do sleep 0.05; done"
    limits = {"memory": "64MiB"}  # else they wait until that of the first is seen
    jobs = [
        {"name": name, "run": waits, "limits": limits}
        for name in ("heavy", "light", "wide", "small")
    ]
    # said: the cores of this lab are few, and more than four a core wait for idle ones
    user.write("jobs.yaml", json.dumps({"at_once": len(jobs), "jobs": jobs}))
    user.types("lab", "up", "two.yaml")
    try:
        run = user.detaches("jobs.yaml", "--cluster", "two")
        for name in keeps:
            user.sees_state(name, "running", run=run)
        with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
            node = {row["job"]: row["node"] for row in reader.rows("tasks")}
        assert node["heavy"] != node["wide"]
        assert node["light"] != node["small"]
        user.touch("go")
        for name in keeps:
            user.sees_state(name, "done", run=run)
    finally:
        user.types("lab", "down", "two")
