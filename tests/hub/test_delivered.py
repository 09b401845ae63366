"""The share that a policy grants is the share that the kernel delivers: from a real hub down to CPU
time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
import pytest
from tests.hub.traces import variables
from tests.hub.user import SECONDS, User

from headgate.testing import wait

SPINS = """
    import os
    first, *others = sorted(os.sched_getaffinity(0))
    core = next((core for core in others if os.fork() == 0), first)
    os.sched_setaffinity(0, {core})
    while True:
        pass
"""
"""A process on each core: what else runs on the machine takes from all jobs alike."""
WITHIN = 0.05
MEASURED_CPU_SECONDS = 4.0


def used(user: User) -> dict[str, float]:
    """CPU seconds of the processes of each job, as the kernel counts them."""
    found: dict[str, float] = {}
    for pid in user.traces.tasks():
        name = variables(pid)["HEADGATE_TASK"].split("/")[1]
        times = psutil.Process(pid).cpu_times()
        found[name] = found.get(name, 0.0) + times.user + times.system
    return found


def sees_delivered(user: User, fits: Callable[[dict[str, float]], bool]) -> None:
    """Wait until the cores that each job has had since now fit. What others do in a moment counts
    less with each second.
    """
    began, before = time.monotonic(), used(user)
    cores: dict[str, float] = {}

    def fit() -> bool:
        seconds = {name: had - before[name] for name, had in used(user).items()}
        cores.update({name: had / (time.monotonic() - began) for name, had in seconds.items()})
        return sum(seconds.values()) > MEASURED_CPU_SECONDS and fits(cores)

    try:
        wait.until(fit, SECONDS, "what is delivered fits")
    except TimeoutError as error:
        raise AssertionError(f"{error}: {cores}") from None


def near(value: float, expected: float) -> bool:
    return abs(value - expected) <= WITHIN * expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("process", "process", marks=pytest.mark.long),
        ("process", "container"),
        pytest.param("container", "container", marks=pytest.mark.long),
    ],
)
def test_jobs_get_the_cpu_that_they_are_entitled_to(
    daemon: str, user: User, first: str, second: str
) -> None:
    user.variables["DOCKER_HOST"] = daemon
    user.write("spins.py", SPINS)
    user.write(
        "jobs.yaml",
        f"""
        jobs:
          - {{name: a, script: spins.py, priority: 3, isolation: {first}}}
          - {{name: b, script: spins.py, isolation: {second}}}
        """,
    )
    user.write(
        "pinned.yaml", f"jobs: [{{name: c, script: spins.py, share: 1/3, isolation: {second}}}]"
    )
    cores = psutil.cpu_count() or 1

    def spin(names: str) -> None:
        wait.until(
            lambda: (
                used(user).keys() == set(names) and len(user.traces.tasks()) == cores * len(names)
            ),
            SECONDS,
        )

    def entitled(name: str) -> float:
        job = user.sees_job(name, lambda job: job["entitled_cores"] is not None, what="has a share")
        return float(job["entitled_cores"])

    user.detaches("jobs.yaml", "--policy", "equal")
    spin("ab")
    assert entitled("a") + entitled("b") == pytest.approx(cores)
    sees_delivered(
        user,
        lambda had: all(
            near(had[name] / sum(had.values()), entitled(name) / cores) for name in "ab"
        ),
    )

    user.detaches("pinned.yaml")
    spin("abc")
    for name, share in (("a", cores / 2), ("c", cores / 3)):
        user.sees_job(
            name,
            lambda job, share=share: (job["entitled_cores"] or cores) < share + 0.01,  # type: ignore[misc]
            what="has its share beside a third",
        )
    assert entitled("c") == pytest.approx(cores / 3)
    # No less than a third of what the jobs have, which is less than all where something else runs,
    # and no more of all.
    sees_delivered(
        user,
        lambda had: (
            sum(had.values()) / 3 * (1 - WITHIN) < had["c"] < cores / 3 * (1 + WITHIN)
            and near(had["a"] / had["b"], entitled("a") / entitled("b"))
        ),
    )
    user.types("stop", "--all", "--kill")
