"""How long threads that wait for work spin, in a process of its own: OpenMP reads its settings
once.
"""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import time
import torch
from headgate.torch.spinning import Spinning

def cpu_seconds_of_waiting():
    numbers, before = torch.zeros(1 << 17), time.process_time()
    for _ in range(100):
        numbers.add_(1.0)
        time.sleep(0.002)  # the threads that helped wait for more
    return time.process_time() - before

torch.set_num_threads(2)
spinning = Spinning()
found = [cpu_seconds_of_waiting()]
for allowed in (False, True, False):
    spinning.allow(allowed)
    found.append(cpu_seconds_of_waiting())
print(*found)
"""


def waiting(**environment: str) -> list[float]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, "OMP_NUM_THREADS": "2", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return [float(word) for word in answer.stdout.split()]


@pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two cores: on one, threads never spin for long"
)
def test_threads_spin_when_allowed_and_hardly_when_not() -> None:
    at_first, not_allowed, allowed, not_again = waiting()
    assert at_first > 2 * not_allowed
    assert allowed > 2 * not_again


def test_what_the_user_set_stays() -> None:
    seconds = waiting(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0")
    assert max(seconds) < 0.2
