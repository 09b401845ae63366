"""The threads of libraries that a script has loaded, counted by threadpoolctl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import headgate

SCRIPT = """
import ctypes, json, os, sys
from importlib.util import find_spec

import numpy
import threadpoolctl

from headgate.task.thread_pools import ThreadPools

if sys.argv[1] == "environment":
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
ctypes.CDLL(find_spec("torch").submodule_search_locations[0] + "/lib/libgomp.so.1")
pools, counts = ThreadPools(), []

def follow(threads):
    pools.follow(threads)
    now = {pool["user_api"]: pool["num_threads"] for pool in threadpoolctl.threadpool_info()}
    counts.append([now["blas"], now["openmp"]])

follow(2)
follow(1)
if sys.argv[1] == "call":
    with threadpoolctl.threadpool_limits(3, "blas"):
        follow(2)
    follow(1)
follow(4)
print(json.dumps(counts))
"""


def counts(way: str, own: str = "OMP_NUM_THREADS,OPENBLAS_NUM_THREADS") -> list[list[int]]:
    """Threads of OpenBLAS and of OpenMP as a script begins with two, and is granted others."""
    variables = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
    path = str(Path(headgate.__file__).parents[1])
    environment = {**os.environ, **variables, "HEADGATE_THREADS": f"2:{own}", "PYTHONPATH": path}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, way],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    told: list[list[int]] = json.loads(ended.stdout)
    return told


def test_libraries_follow_a_grant_except_where_the_user_set_threads() -> None:
    assert counts("") == [[2, 2], [1, 1], [4, 4]]
    assert counts("call") == [[2, 2], [1, 1], [3, 2], [1, 1], [4, 4]]
    assert counts("", own="OMP_NUM_THREADS") == [[2, 2], [2, 1], [2, 4]]
    assert counts("environment") == [[2, 2], [2, 1], [2, 4]]
    assert counts("", own="OPENBLAS_NUM_THREADS") == [[2, 2], [2, 2], [2, 2]]
