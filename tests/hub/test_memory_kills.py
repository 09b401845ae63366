"""Processes that the kernel kills for want of memory, of jobs of a real hub."""

from __future__ import annotations

import pytest
from tests.hub.user import User

from headgate.recorded.reader import RunReader
from headgate.testing import wait

EATS = """
import multiprocessing, os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor

def eats(_=None):
    held = bytearray(b"x") * (256 << 20)
    time.sleep(60)

def one_is_killed():
    process = multiprocessing.Process(target=eats)
    process.start()
    process.join()
    print("the other ended with", process.exitcode, flush=True)

if __name__ == "__main__":
    print("ready", flush=True)
"""
JOBS = {
    "ignores": "    one_is_killed()\n",
    "waits": "    with multiprocessing.Pool(2) as pool:\n        pool.map(eats, [0])\n",
    "breaks": "    with ProcessPoolExecutor(1) as pool:\n        list(pool.map(eats, [0]))\n",
    "errs": "    one_is_killed()\n    sys.stdin.close()\n    {}['lr']\n",
    "itself": "    eats()\n",
}


@pytest.mark.hardware
def test_a_child_that_is_killed_is_told_and_is_the_reason_only_of_what_it_ended(user: User) -> None:
    if any(line.startswith("memory") for line in user.json("doctor")["uncontrolled"]):
        pytest.skip("no cgroup limits memory here")
    for name, rest in JOBS.items():
        user.write(f"{name}.py", EATS + rest)
    listed = ", ".join(f"{{script: {name}.py, limits: {{memory: 96MiB}}}}" for name in JOBS)
    user.write("jobs.yaml", f"jobs: [{listed}]")
    run = user.detaches("jobs.yaml")

    def warned() -> dict[str, str]:
        return {
            each["job"]: each["text"]
            for each in user.json("status", run)["warnings"]
            if each["job"]
        }

    wait.until(lambda: "waits" in warned(), 60, "a kill is told while its parent waits")
    assert user.sees_state("waits", "running")
    user.types("stop", "waits", "--kill")
    ended = {name: user.sees_state(name, "done", "failed", "killed") for name in JOBS}
    assert ended["ignores"]["state"] == "done"
    assert (
        ended["ignores"]["reason"]
        == "finished, but 1 of its processes was killed for want of memory"
    )
    over = "killed: over its memory limit of 96 MiB (peak "
    assert ended["breaks"]["reason"].startswith(
        f"exit code 1, after one of its processes was {over}"
    )
    assert ended["errs"]["reason"].endswith("KeyError: 'lr'")
    assert "memory" not in ended["errs"]["reason"]
    assert ended["itself"]["reason"].startswith(over)
    assert set(warned()) == {"ignores", "waits", "breaks", "errs"}
    assert all(text.startswith(f"one of its processes was {over}") for text in warned().values())
    assert "ignores" in user.types("status", run).stdout.partition("warning of")[2]
    assert len(user.json("report", run)["warnings"]) >= 4
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        exits = {row["job"]: row["exit"] for row in reader.rows("tasks")}
    assert '"kills": 1' in exits["ignores"]
