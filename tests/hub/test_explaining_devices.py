"""Who slowed whom through disks, and what a memory limit costs, on real jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.machine.cgroup_layout import find_layout

FILE_MIB = 128
READS = """
import os, sys, time
mib, compute, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
with open("data", "wb") as file:
    for _ in range({file_mib}): file.write(os.urandom(1 << 20))
    os.fsync(file.fileno())
handle = os.open("data", os.O_RDONLY)
os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
end, at, step = time.monotonic() + seconds, 0, 0
while time.monotonic() < end:
    if mib:
        os.posix_fadvise(handle, at, mib << 20, os.POSIX_FADV_DONTNEED)
        os.pread(handle, mib << 20, at)
        at = (at + (mib << 20)) % ({file_mib} << 20)
    computed = time.process_time() + compute
    while time.process_time() < computed: pass
    step += 1
    print(f"step {{step}} loss {{1 / step:.4f}}", flush=True)
"""
"""Reads so many MiB a step past the page cache, then computes for so many seconds."""
HOG = """
import mmap, os, sys, threading, time
end = time.monotonic() + float(sys.argv[1])
def read(index):
    block, handle = mmap.mmap(-1, 4 << 20), os.open("data", os.O_RDONLY | os.O_DIRECT)
    while time.monotonic() < end:
        os.preadv(handle, [block], index % ({file_mib} // 4) * (4 << 20))
        index += 7
threads = [threading.Thread(target=read, args=(index,)) for index in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
THRASHES = """
import mmap, os, random, time
with open("again", "wb") as file:
    for _ in range(256): file.write(os.urandom(1 << 20))
    os.fsync(file.fileno())
pages = mmap.mmap(os.open("again", os.O_RDONLY), 0, prot=mmap.PROT_READ)
end, step = time.monotonic() + 5.0, 0
while time.monotonic() < end:
    found = sum(pages[random.randrange(256 << 20)] for _ in range(200))
    step += 1
    print(f"step {step} loss {1 / step:.4f}", flush=True)
"""


def explained(folder: Path, *jobs: dict[str, Any]) -> dict[str, Any]:
    """What `headgate explain --json` says of these jobs after they ran."""
    (folder / "jobs.yaml").write_text(
        json.dumps({"jobs": [{"python": sys.executable, **job} for job in jobs]})
    )
    command = [sys.executable, "-m", "headgate"]
    asked = [*command, "run", "jobs.yaml", "--policy", "none"]
    subprocess.run(asked, cwd=folder, check=True, capture_output=True, timeout=120)
    told = subprocess.run(
        [*command, "explain", "--json"], check=True, capture_output=True, text=True, timeout=120
    )
    found = {job["job"]: job for job in json.loads(told.stdout)["jobs"]}
    for job in found.values():
        assert sum(part["seconds"] for part in job["account"].values()) == pytest.approx(
            job["elapsed"]
        )
    return found


def lost(job: dict[str, Any], resource: str) -> dict[str, float]:
    """Seconds that a job lost through a resource, by to whom."""
    return {loss["to"]: loss["seconds"] for loss in job["lost"] if loss["resource"] == resource}


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A folder on a disk of a machine whose kernel tells how long tasks are blocked on it."""
    layout = find_layout(Path("/sys/fs/cgroup"))
    pressure = Path("/proc/pressure/io")
    try:
        pressure.read_text()
    except OSError as error:
        pytest.skip(f"this kernel does not tell of pressure: {error}")
    if "unified" not in layout.bases:
        pytest.skip("no cgroup2 folder can be made here, so that no task's pressure is known")
    if os.major(os.stat(tmp_path).st_dev) == 0:
        pytest.skip(f"{tmp_path} is not on a disk")
    return tmp_path


@pytest.mark.long  # by made-up readings in tests/diagnosis/test_device_contention.py
def test_a_job_that_reads_loses_to_a_disk_hog_and_one_that_computes_does_not(on_disk: Path) -> None:
    (on_disk / "reads.py").write_text(READS.format(file_mib=FILE_MIB))
    (on_disk / "hog.py").write_text(HOG.format(file_mib=FILE_MIB))
    (on_disk / "own").mkdir()
    found = explained(
        on_disk,
        {"name": "reads", "script": "reads.py", "args": ["4", "0.005", "12"]},
        {
            "name": "computes",
            "script": str(on_disk / "reads.py"),
            "workdir": "own",
            "args": ["0", "0.01", "12"],
        },
        {"name": "hog", "script": "hog.py", "args": ["6"], "at": 6.0},
    )
    through_disk = lost(found["reads"], "disk")
    assert through_disk["hog"] >= 1.0, found["reads"]["lost"]
    assert through_disk["hog"] == max(through_disk.values())
    assert found["reads"]["account"]["neighbours"]["seconds"] >= through_disk["hog"] * 0.99
    assert "hog" not in lost(found["computes"], "disk")


def test_a_memory_limit_that_makes_a_job_read_again_is_told_as_that(on_disk: Path) -> None:
    if "memory" not in find_layout(Path("/sys/fs/cgroup")).bases:
        pytest.skip("no memory cgroup can be made here")
    (on_disk / "thrashes.py").write_text(THRASHES)
    found = explained(
        on_disk, {"name": "job", "script": "thrashes.py", "limits": {"memory": "128MiB"}}
    )
    [job] = found.values()
    memory = job["account"]["memory"]["seconds"]
    assert memory >= 1.0, job["account"]
    assert memory == max(
        each["seconds"]
        for part, each in job["account"].items()
        if part not in ("starting", "waiting", "compute", "neighbours")
    )
    assert lost(job, "memory")["itself"] == memory
