"""Many jobs of one script, handed in together: who runs, and who waits for what."""

from __future__ import annotations

import pytest
from tests.hub.user import SECONDS, User

from headgate.recorded.reader import RunReader
from headgate.testing import wait

LEARNS = """
    import os, sys, time
    held = bytearray(200 << 20)
    for step in range(1, 10_000):
        print(f"step {step} loss {1 / step}", flush=True)
        if os.path.exists("go"):
            break
        time.sleep(0.1)
"""


def sweep(user: User, jobs: int, more: str = "") -> list[str]:
    user.write("learns.py", LEARNS)
    names = [f"j{i:02}" for i in range(jobs)]
    entries = (f"{{name: {name}, script: learns.py{more}}}" for name in names)
    user.write("jobs.yaml", f"jobs: [{', '.join(entries)}]")
    return names


def running(user: User, names: list[str]) -> list[str]:
    return [name for name in names if (user.stands(name) or {}).get("state") == "running"]


@pytest.mark.slow
def test_two_at_once_and_the_first_alone_until_its_memory_is_seen(user: User) -> None:
    names = sweep(user, 5, ", at_once: 2")
    planned = user.types("run", "jobs.yaml", "--dry-run").stdout
    assert "at most 2 jobs of 5 at once\n" in planned
    assert "j00 first: once its memory is seen, 4 other jobs of its script may start\n" in planned
    run = user.detaches("jobs.yaml", "--policy", "equal")
    wait.until(lambda: running(user, names) == names[:2], SECONDS, "its memory is seen")
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        told = [row["text"] for row in reader.rows("events", "job = 'j01'")]
    first, then = (
        next(i for i, text in enumerate(told) if part in text)
        for part in ("first job of its script", "started")
    )
    assert first < then
    user.sees_job("j02", lambda job: "at most 2 jobs of its run" in job["reason"])
    user.types("set", "j04", "at_once=3")
    wait.until(lambda: running(user, names) == names[:3], what="another may run")
    user.touch("go")
    for name in names:
        user.sees_state(name, "done")
