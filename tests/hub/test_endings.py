"""Ends that are not plain: of processes that are stopped or left behind, and of shells that hide a
failure.
"""

from __future__ import annotations

import os
import signal

import pytest
from tests.hub.learning import LEARNS
from tests.hub.user import SECONDS, User

from headgate.testing import wait

WAITS = """
    import signal
    signal.signal(signal.SIGTERM, lambda *_: exit(0))
    print("epoch 1 loss 0.5", flush=True)
    while True:
        signal.pause()
"""
FAILS = """
    print("epoch 1 loss 0.5", flush=True)
    raise RuntimeError("no more data")
"""


def test_a_job_that_somebody_stopped_hears_that_it_is_to_end_and_saves(user: User) -> None:
    user.write("learns.py", LEARNS)
    user.write("waits.py", WAITS)
    user.write(
        "jobs.yaml",
        "jobs: [{script: learns.py}, {name: waits, run: 'python waits.py; echo after'}]",
    )
    user.detaches("jobs.yaml")
    user.sees_job("learns", lambda job: (job["step"] or 0) > 0)
    user.sees_job("waits", lambda job: job["loss"] is not None)
    pids = user.traces.tasks()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    wait.until(lambda: all(stands(pid) == "T" for pid in pids), SECONDS, "all have stopped")
    user.types("stop")
    jobs = user.jobs()
    assert (jobs["learns"]["state"], jobs["waits"]["state"]) == ("stopped", "stopped")
    assert jobs["learns"]["ending"]["saved"] == "then"
    assert jobs["learns"]["ending"]["checkpoint"]["step"] == jobs["learns"]["step"]


def stands(pid: int) -> str:
    """The state of a process, as the kernel has it."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    ("command", "doubt"),
    [
        ("python fails.py 2>&1 | tee log", "failure-in-output"),
        ("python fails.py; echo finished", "failure-in-output"),
        ("python fail.py 2>&1 | cat", "failure-in-output"),
        ("python waits.py & sleep 0.2", "left-processes"),
        ("setsid python waits.py < /dev/null & sleep 0.2", "left-processes"),
    ],
)
def test_a_shell_that_hides_what_became_of_its_programs_is_told_of_and_nothing_follows_it(
    command: str, doubt: str, user: User
) -> None:
    user.write("waits.py", WAITS)
    user.write("fails.py", FAILS)
    user.write(
        "jobs.yaml", f"jobs: [{{name: a, run: '{command}'}}, {{name: b, run: 'true', after: a}}]"
    )
    ended = user.json("run", "jobs.yaml", code=1)
    first, second = ended["jobs"]
    assert (first["state"], first["ending"]["doubt"]) == ("done", doubt)
    assert second["state"] == "skipped"
    assert [
        each["job"] for each in user.json("status")["warnings"] if "in doubt" in each["text"]
    ] == ["a"]
    assert not user.traces.tasks()
    user.types("resume")
    assert user.jobs()["b"]["state"] == "done"


def test_a_shell_that_waits_for_its_programs_and_gets_over_a_failure_is_done(user: User) -> None:
    user.write("fails.py", FAILS)
    goes_on = "; ".join(f"echo epoch {epoch} loss 0.{epoch}" for epoch in range(2, 9))
    user.write(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: a, run: 'python fails.py; {goes_on}; sleep 0.1 & wait'}}
          - {{name: b, run: 'true', after: a}}
        """,
    )
    ended = user.json("run", "jobs.yaml")
    assert [(job["state"], job["ending"]) for job in ended["jobs"]] == [
        ("done", None),
        ("done", None),
    ]
