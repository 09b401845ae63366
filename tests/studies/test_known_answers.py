"""Studies whose answers are known before they are measured, on nodes of a lab that other load
hardly reaches.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from tests.hub.user import User

from headgate.diagnosis.attribution import ITSELF

SECONDS = 600.0

WORK = """
    import hashlib, sys
    work, steps = int(sys.argv[1]), int(sys.argv[2])
    block = b"x" * 65536
    for step in range(1, steps + 1):
        for _ in range(work):
            hashlib.sha256(block).digest()
        print(f"step {step} loss {1 / step:.4f}", flush=True)
"""
"""Steps that take a core for about work / 20 milliseconds."""

READS = """
    import os, sys, time
    how, path = sys.argv[1], "samples"
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)  # what is not yet written cannot be dropped from the cache
    for step in range(1, 26):
        for at in range(0, 2 << 20, 1 << 16) if how != "synthetic" else ():
            os.pread(file, 1 << 16, at)
        if how == "cold":
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        time.sleep(0.02)
        print(f"step {step} loss {1 / step:.4f}", flush=True)
"""
"""Steps that read two megabytes: from the disk, from the page cache, or not at all."""

LAB = """
    lab: true
    nodes: [{name: a, cores: 0.5, memory: 1GiB}]
"""
WHOLE_CORE = LAB.replace("0.5", "1")
"""A node whose cap stops nobody. Where one does, Linux 6.18 gives more to who was there first: 58 %
of twins.
"""


def measured(user: User, text: str, *options: str) -> Any:
    """What a study on the lab comes to."""
    user.write("work.py", WORK)
    user.write("reads.py", READS)
    user.write("lab.yaml", LAB)
    user.write("whole.yaml", WHOLE_CORE)
    user.write("known.yaml", text)
    process = user.starts("study", "known.yaml", "--json", *options)
    output, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    return json.loads(output)


TWINS = """
    workloads:
      - {{name: {}, script: work.py, args: ["40", "300"], priority: {}}}
      - {{name: {}, script: work.py, args: ["40", "300"], priority: {}}}
    scenarios: [simultaneous]
    cluster: whole.yaml
"""


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.long
def test_twins_get_their_due_in_either_order(user: User, names: tuple[str, str]) -> None:
    [sharing] = measured(user, TWINS.format(names[0], 1, names[1], 1))["sharing"]
    assert not sharing["dominates"], sharing
    floor = 1.02 + sharing["floor"]
    for ratio in (sharing["total"], *sharing["phi"].values()):
        assert ratio["low"] / floor <= 1.0 <= ratio["high"] * floor, sharing


@pytest.mark.long
def test_three_times_the_priority_gets_three_times_as_much_by_its_weight(user: User) -> None:
    told = measured(user, TWINS.format("a", 3, "b", 1), "--quick")
    [sharing] = told["sharing"]
    assert (sharing["most"], sharing["least"]) == ("a", "b")
    assert sharing["cause"] == "priority 3 against 1"
    together = [
        cell["figures"].values() for cell in told["cells"] if cell["scenario"] == "simultaneous"
    ]
    ratios = [
        each["jobs"]["a"]["rate"] / each["jobs"]["b"]["rate"]
        for figures in together
        for each in figures
    ]
    assert statistics.geometric_mean(ratios) == pytest.approx(3.0, rel=0.15), ratios


@pytest.mark.long
def test_a_limit_of_its_own_is_told_and_nobody_is_blamed(user: User) -> None:
    told = measured(
        user,
        """
        workloads: [{name: capped, script: work.py, args: ["40", "1500"], limits: {cores: 0.3}}]
        cluster: lab.yaml
        """,
        "--quick",
    )
    assert told["cells"] and all(cell["figures"] for cell in told["cells"])
    for cell in told["cells"]:
        for figures in cell["figures"].values():
            job = figures["jobs"]["capped"]
            assert job["verdict"] == "own-cap", job
            assert all(each["to"] == ITSELF for each in job["lost"]), job


@pytest.mark.long
def test_a_slow_disk_slows_who_reads_from_it_and_nobody_else(user: User) -> None:
    (user.folder / "samples").write_bytes(bytes(2 << 20))
    told = measured(
        user,
        """
        workloads: [{name: reader, script: reads.py}]
        cluster: lab.yaml
        warm: 3
        vary: {args: [cold, warm, synthetic], disk: [none, 40MB/s]}
        """,
        "--quick",
    )
    slower = {
        dict(each["rest"])["args"]: each["ratio"]["value"]
        for each in told["effects"]
        if each["what"] == "disk" and each["metric"] == "step"
    }
    assert slower["cold"] > 1.4, slower
    assert max(slower["warm"], slower["synthetic"]) < 1.25, slower
