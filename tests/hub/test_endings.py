"""Ends that are not plain: of processes that are stopped or left behind, and of shells that hide a
failure.
"""

from __future__ import annotations

import os
import signal

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


HIDES = {
    "piped": ("python fails.py 2>&1 | tee log", "failure-in-output"),
    "before": ("python fails.py; echo finished", "failure-in-output"),
    "missing": ("python fail.py 2>&1 | cat", "failure-in-output"),
    "left": ("python waits.py & sleep 0.2", "left-processes"),
    "apart": ("setsid python waits.py < /dev/null & sleep 0.2", "left-processes"),
}
"""Commands of a shell, by the name of a job, and why it is in doubt whether they were done."""


def test_a_shell_that_hides_what_became_of_its_programs_is_told_of_and_nothing_follows_it(
    user: User,
) -> None:
    user.write("waits.py", WAITS)
    user.write("fails.py", FAILS)
    lines = [
        f"  - {{name: {name}, run: '{command}'}}\n"
        f"  - {{name: after-{name}, run: 'true', after: {name}}}"
        for name, (command, _) in HIDES.items()
    ]
    user.write("jobs.yaml", "\n".join(["jobs:", *lines]))
    ended = {job["name"]: job for job in user.json("run", "jobs.yaml", code=1)["jobs"]}
    for name, (_, doubt) in HIDES.items():
        assert (ended[name]["state"], ended[name]["ending"]["doubt"]) == ("done", doubt)
        assert ended[f"after-{name}"]["state"] == "skipped"
    warnings = user.json("status")["warnings"]
    assert {warning["job"] for warning in warnings if "in doubt" in warning["text"]} == {*HIDES}
    assert not user.traces.tasks()
    user.types("resume")
    jobs = user.jobs()
    assert {jobs[f"after-{name}"]["state"] for name in HIDES} == {"done"}


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
