"""Memory follows what jobs learn by it: `flowcon`, from a real hub down to the limit that the
kernel holds.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.traces import variables
from tests.hub.user import SECONDS, User

from headgate.testing import wait

LEARNS = """
    import os, sys, time
    held, step, loss = bytearray(32 << 20), 0, 1000.0
    while not os.path.exists("go"):
        step += 1
        until = time.process_time() + 0.02
        while time.process_time() < until:
            pass
        if os.path.exists(sys.argv[1]):
            loss -= 1.0
        print(f"step {step} loss {loss:.5f}", flush=True)
"""
MACHINE_BYTES = 900_000_000
"""That the policy is told of."""


def limit(user: User, job: str) -> int | None:
    """Bytes of memory that the kernel lets a job have; None: as many as there are."""
    [pid] = [
        pid for pid in user.traces.tasks() if variables(pid)["HEADGATE_TASK"].split("/")[1] == job
    ]
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        file = (
            "/sys/fs/cgroup/memory{}/memory.limit_in_bytes"
            if controllers
            else "/sys/fs/cgroup{}/memory.max"
        )
        if controllers in ("", "memory") and (found := Path(file.format(path))).exists():
            text = found.read_text().strip()
            return None if text == "max" or int(text) > 1 << 60 else int(text)
    raise AssertionError(f"process {pid} is in no cgroup that limits memory")


@pytest.mark.parametrize(
    "isolation", ["process", pytest.param("container", marks=pytest.mark.long)]
)
def test_who_has_stopped_learning_leaves_memory_to_the_other(
    daemon: str, user: User, isolation: str
) -> None:
    user.variables["DOCKER_HOST"] = daemon
    user.write("learns.py", LEARNS)
    user.write(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: a, script: learns.py, args: [always], isolation: {isolation}}}
          - {{name: b, script: learns.py, args: [later], isolation: {isolation}}}
        """,
    )
    user.touch("always")
    user.detaches("jobs.yaml", "--policy", f"flowcon:itval=1,alpha=0.001,memory={MACHINE_BYTES}")
    for job in "ab":
        user.sees_state(job, "running")
    wait.until(
        lambda: limit(user, "b") is not None, SECONDS, "b has ceased to learn, and is limited"
    )
    assert limit(user, "b") == pytest.approx(MACHINE_BYTES / 3, abs=4096)  # 1 / ((1 + 1/2) 2) of it
    assert limit(user, "a") is None
    user.sees_job("b", lambda job: "completing" in job["decision"]["reason"], what="is told why")

    user.touch("later")
    wait.until(lambda: limit(user, "b") is None, SECONDS, "b learns again, and has no limit")
    user.touch("go")
    for job in "ab":
        assert user.sees_state(job, "done")["attempt"] == 1
