"""More jobs than anybody would start on a few cores, of which some never learn anything."""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict

import pytest
from tests.hub.user import User

from headgate.model.job_states import ENDED
from headgate.recorded.reader import RunReader
from headgate.testing import wait

JOBS, EPOCHS = 50, 20
SCRIPT = f"""
    import math, sys, time
    losses = (
        lambda epoch: 1 + 5 / epoch,
        lambda epoch: epoch,
        lambda epoch: 0.7,
        lambda epoch: math.nan,
        lambda epoch: 1 / epoch if epoch < {EPOCHS} / 2 else 100 / epoch,
    )
    loss = losses[int(sys.argv[1]) % len(losses)]
    for epoch in range(1, {EPOCHS} + 1):
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        print(f"epoch {{epoch}}/{EPOCHS} loss {{loss(epoch)}}", flush=True)
"""


WAITS = """
    import os, time
    print("begins", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.1)
    print("loss 0.5", flush=True)
"""


@pytest.mark.parametrize(
    ("limit", "all_run"), [("-n 160", False), pytest.param("-Sn 160", True, marks=pytest.mark.long)]
)
def test_where_too_few_files_may_be_open_those_that_fit_run_whole_and_the_others_say_what_to_raise(
    limit: str, all_run: bool, user: User
) -> None:
    user.write("waits.py", WAITS)
    names = [f"j{i}" for i in range(14)]
    user.write(
        "jobs.yaml", f"jobs: [{', '.join(f'{{name: {name}, script: waits.py}}' for name in names)}]"
    )
    command = user.command("run", "--detach", "--policy", "none", "jobs.yaml")
    start = ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *command]
    subprocess.run(
        start, cwd=user.folder, env=user.variables, stdout=subprocess.DEVNULL, check=True
    )
    states = {name: user.sees_state(name, "running", "failed") for name in names}
    user.touch("go")
    ran = [name for name, job in states.items() if job["state"] == "running"]
    assert 4 <= len(ran) < len(names) or (all_run and ran == names)
    for name in ran:
        assert user.sees_state(name, "done")["loss"] == 0.5
        assert user.log(name) == "begins\nloss 0.5\n"
    for job in states.values():
        if job["state"] == "failed":
            assert job["reason"].startswith(
                "could not be started: 160 open files are allowed here (`ulimit -Hn`)"
            )
            assert "raise it to 4096 (`ulimit -n`" in job["reason"]


@pytest.mark.long
@pytest.mark.parametrize("policy", ["headgate", "slaq"])
def test_fifty_jobs_at_once_all_end_above_their_floors_and_seldom_moved(
    policy: str, user: User
) -> None:
    user.write("train.py", SCRIPT)
    lines = [
        f"  - {{name: j{i}, script: train.py, args: ['{i}'], at: {i % 5}}}" for i in range(JOBS)
    ]
    user.write("jobs.yaml", "\n".join(["jobs:", *lines]))
    run = user.detaches("jobs.yaml", "--policy", policy)
    wait.until(
        lambda: all(job["state"] in ENDED for job in user.jobs(run).values()), 400, "all have ended"
    )
    jobs = user.jobs(run).values()
    assert {(job["state"], job["attempt"], job["epoch"]) for job in jobs} == {("done", 1, EPOCHS)}
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        shares = list(reader.rows("shares"))
    assert min(row["entitled_cores"] for row in shares) > 0.99 * 0.05 * (os.cpu_count() or 1) / JOBS
    weights: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in shares:
        known = weights[row["task"]]
        if row["cpu_weight"] is not None and (not known or known[-1][1] != row["cpu_weight"]):
            known.append((row["t"], row["cpu_weight"]))
    for changes in weights.values():
        times = [t for t, _ in changes[1:]]  # the first is what it starts with
        assert all(sum(begin <= t < begin + 60 for t in times) <= 6 for begin in times)
