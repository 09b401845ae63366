"""A node that joins the cluster while jobs wait for others."""

from __future__ import annotations

import pytest
from tests.ray.hill import RAY, Hill, Somebody

from headgate.testing import wait

# raylets take their time to start, and to be missed
pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

HOLDS = "import time\nprint('holding', flush=True)\ntime.sleep(10_000)\n"
ALL = ("--cores", "2")


def test_what_waits_for_ray_starts_on_a_node_that_joins_and_only_there_if_it_may(
    user: Somebody, hill: Hill
) -> None:
    for name in ("first", "second", "picky", "waits"):
        user.write(f"{name}.py", HOLDS)

    def begins(name: str, *words: str) -> str:
        return str(
            user.types("run", "--detach", "--json", f"{name}.py", *ALL, *words, *RAY).json["run"]
        )

    first = begins("first", "--nodes", "b")
    hill.loses("c")
    user.sees_event(first, "fault", "node c is gone")
    begins("second", "--nodes", "a")
    picky, waits = begins("picky", "--nodes", "b"), begins("waits")
    for run in (picky, waits):
        user.sees_event(run, "waiting", "for Ray: asked for 2 CPUs")
    hill.starts("c")
    user.sees_event(waits, "note", "node c has come, with 2 cores")
    wait.until(lambda: user.log(f"{waits}/waits") == "holding\n", 60, "it starts")
    assert user.rows(waits, "tasks")[-1]["node"] == "c"
    assert {task["node"] for task in user.rows(picky, "tasks")} == {"b"}
    wait.until(
        lambda: any(row["target"] == "node:c" for row in user.rows(waits, "usage")),
        60,
        "the use of the node",
    )
    for name in ("first", "second", "picky", "waits"):
        user.types("stop", "--kill", name)
