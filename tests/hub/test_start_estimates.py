"""Jobs that do not fit in memory wait on a real hub, by priority, and are told for what and until
when.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

import psutil
import pytest
from tests.hub.user import User

from headgate.model.units import say_bytes

SCRIPT = """
    import os, sys, time
    epoch = 0
    while not os.path.exists(sys.argv[1]):
        epoch += 1
        until = time.process_time() + 0.01
        while time.process_time() < until:
            pass
        print(f"epoch {epoch}/2000 loss {1 + 5 / epoch:.4f}", flush=True)
        time.sleep(0.1)
"""


def fits_once() -> int:
    """Bytes that are there now, and never twice: more than half of all memory, and less than what
    others leave.
    """
    memory = psutil.virtual_memory()
    return int(memory.total // 2 + memory.available) // 2


def is_told(words: str, job: Mapping[str, Any]) -> bool:
    return re.fullmatch(words, job["reason"]) is not None


@pytest.mark.long  # who waits for what is told by tests/controller/test_queueing.py
def test_jobs_that_do_not_fit_wait_by_priority_and_are_told_for_what(user: User) -> None:
    user.write("train.py", SCRIPT)
    most = fits_once()
    jobs = (("first", 3), ("low", 1), ("high", 2))
    lines = [
        (
            f"  - {{name: {name}, script: train.py, args: [{name}], priority: {priority}, limits: "
            f"{{memory: {most}}}}}"
        )
        for name, priority in jobs
    ]
    user.write(
        "jobs.yaml",
        "\n".join(["jobs:", *lines, "  - {name: free, script: train.py, args: [free]}"]),
    )
    run = user.detaches("jobs.yaml")
    user.sees_state("first", "running")
    user.sees_state("free", "running")  # what says nothing of its memory does not wait
    memory = re.escape(f"for {say_bytes(most)} of memory, which first has")
    expected = r"; expected to start at about \d\d:\d\d"
    told = {
        "high": f"{memory}{expected}",
        "low": f"{memory}; 1 before it; nothing tells yet how long high takes",
    }
    for name, words in told.items():
        assert user.sees_job(name, partial(is_told, words), run, words)["state"] == "waiting"
    high, low = (user.jobs(run)[name] for name in ("high", "low"))
    assert high["expected"] > 0 and low["expected"] is None
    assert "which first has" in user.types("status").stdout
    user.touch("free")  # of the same script: from now on something tells how long high takes
    words = f"{memory}; 1 before it{expected}"
    assert user.sees_job("low", partial(is_told, words), run, words)["expected"] > 0
    user.touch("first")
    user.sees_state("high", "running")
    low = user.sees_job(
        "low", lambda job: "which high has" in job["reason"], run, "waits for the other"
    )
    assert low["state"] == "waiting"
    user.types("stop", "low")
    user.sees_state("free", "done")
    user.touch("high")
    user.sees_state("high", "done")
    assert user.jobs(run)["low"]["state"] == "stopped"

    # What nothing was known of has told by now what it uses.
    user.write("quiet.py", "\n".join(line for line in SCRIPT.splitlines() if "print" not in line))
    user.write("quick.yaml", "jobs: [{name: quick, script: quiet.py, args: [quick]}]")
    quick = user.detaches("quick.yaml")
    user.sees_job("quick", lambda job: job["cpu_cores"], quick, "uses the CPU")
    user.touch("quick")
    user.sees_state("quick", "done", run=quick)
    most = fits_once()
    holder = (
        f"{{name: holder, script: quiet.py, args: [hold], priority: 2, limits: {{memory: {most}}}}}"
    )
    again = f"{{name: again, script: train.py, args: [free], limits: {{memory: {most}}}}}"
    user.write("holder.yaml", f"jobs: [{holder}, {again}]")
    run = user.detaches("holder.yaml")
    memory = "for .* of memory, which holder has"
    user.sees_job("again", partial(is_told, memory + expected), run, "waits for memory")
    late = partial(is_told, f"{memory}; nothing tells yet how long holder takes")
    user.sees_job(
        "again", late, run, "is told that what it waits for is late, of which nothing was heard"
    )
    user.touch("hold")
    user.sees_state("again", "done", run=run)
