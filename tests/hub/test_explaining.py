"""Who slowed whom, on real jobs that share this machine's cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNTING = """
import time
end = time.monotonic() + {seconds}
step = 0
while time.monotonic() < end:
    sum(range(200_000))
    step += 1
    print(f"step {{step}} loss {{1 / step:.4f}}", flush=True)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="this kernel does not count what threads wait")
def test_more_jobs_than_cores_slow_each_other_and_are_named(tmp_path: Path) -> None:
    """One more job than there are cores, each of one thread: every one waits, and nobody else can be to blame alone."""
    names = [f"j{index}" for index in range(len(os.sched_getaffinity(0)) + 1)]
    (tmp_path / "count.py").write_text(COUNTING.format(seconds=6))
    jobs = [{"name": name, "script": "count.py", "python": sys.executable} for name in names]
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": jobs}))
    command = [sys.executable, "-m", "headgate", "run", "jobs.yaml", "--policy", "none"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)

    asked = subprocess.run(
        [sys.executable, "-m", "headgate", "explain", "--json"], check=True, capture_output=True, text=True, timeout=60
    )
    for job in json.loads(asked.stdout)["jobs"]:
        assert sum(part["seconds"] for part in job["account"].values()) == pytest.approx(job["elapsed"])
        assert job["account"]["neighbours"]["seconds"] >= 1.0
        assert job["verdict"]["name"] == "neighbour-cores", job["verdict"]
        assert {loss["to"] for loss in job["lost"]} >= {name for name in names if name != job["job"]}
        assert all(loss["evidence"] == "counted" for loss in job["lost"] if loss["resource"] == "cores")
