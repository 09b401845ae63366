"""Jobs of several tasks in containers on the nodes of a lab."""

from __future__ import annotations

import pytest
from tests.hub.team import Team
from tests.hub.test_lab import PS, pytestmark, team

from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import TASK

__all__ = ["pytestmark", "team"]

TASKS = ("server-0", "worker-0", "worker-1")


@pytest.mark.long
def test_tasks_in_containers_are_on_their_nodes_and_find_each_other(
    team: Team, daemon: str
) -> None:
    team.user.variables["DOCKER_HOST"] = daemon
    team.starts(*PS, "--nodes", "a,c", "--isolation", "container", wait_for=TASKS)
    view = team.sees("worker-0", dict.fromkeys(TASKS, (1, True)))
    assert {name: (member["node"], member["address"]) for name, member in view.items()} == {
        "server-0": ("a", "10.77.0.1"),
        "worker-0": ("a", "10.77.0.1"),
        "worker-1": ("c", "10.77.0.3"),
    }
    # Each has one of its own, and another that holds the network of its node.
    found = [container[TASK] for container in Daemon(daemon).find(TASK)]
    assert sorted(found) == sorted(2 * [f"{team.run}/team/{task}" for task in TASKS])
    team.user.touch("go")
    team.ends("done")
    assert Daemon(daemon).find(f"{TASK}={team.run}/team/server-0") == []
