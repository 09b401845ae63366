"""Ray's own accounts hold what tasks take, no more, no less, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.engines.ray.accounts import Accounts, Table, reader
from tests.engines.ray.running import Running, bridge

from headgate.engines.base import Slot
from headgate.model.identifiers import JobId, TaskId
from headgate.testing import programs

MIB = 2**20
JOB = JobId(f"ray-{os.getpid()}/pair")
FIRST, SECOND = TaskId(f"{JOB}/worker-0"), TaskId(f"{JOB}/worker-1")


@pytest.fixture(scope="module")
def running(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(ray_address, tmp_path_factory.mktemp("accounts") / "logs")
    running.folder.mkdir()
    yield running
    running.engine.close()


@pytest.fixture(scope="module")
def accounts(ray_address: str) -> Iterator[Accounts]:
    with reader(ray_address) as accounts:
        yield accounts


def cpus(*counts: float) -> list[dict[str, float]]:
    return [{"CPU": count} for count in counts]


def bundles(table: Table, state: str = "CREATED") -> list[dict[str, float]]:
    return [bundle for _, bundle in table.set_aside(state)]


def test_a_node_is_of_the_kind_that_its_resources_say(running: Running) -> None:
    [node] = running.engine.cluster().nodes
    assert node.kind == "fast,near"


def test_what_a_task_takes_is_set_aside_and_given_back_when_it_ends(
    running: Running, accounts: Accounts
) -> None:
    accounts.show(lambda table: table.whole, "agents and bridge take nothing")
    [node] = running.engine.cluster().nodes
    slots = {FIRST: Slot(node.name, 1.25, 64 * MIB), SECOND: Slot(node.name, 0.5, gpus=1)}
    running.engine.reserve(JOB, 1, slots)
    both = [{"CPU": 0.5, "GPU": 1}, {"CPU": 1.25, "memory": 64 * MIB}]
    taken = {node.name: {"CPU": 1.75, "memory": 64 * MIB, "GPU": 1}}
    accounts.show(lambda table: table.taken == taken and bundles(table) == both, "it is set aside")
    running.engine.release(JOB, 1, [FIRST])
    accounts.show(
        lambda table: table.taken == {node.name: {"CPU": 0.5, "GPU": 1}}, "one is given back"
    )
    running.engine.release(JOB, 1, [SECOND])
    accounts.show(lambda table: table.whole, "all is given back")


def test_what_is_set_aside_anew_takes_the_place_of_what_was(
    running: Running, accounts: Accounts
) -> None:
    [node] = running.engine.cluster().nodes
    running.engine.reserve(JOB, 1, {FIRST: Slot(node.name, 1.0), SECOND: Slot(node.name, 1.0)})
    accounts.show(lambda table: bundles(table) == cpus(1, 1), "both are set aside")
    running.engine.reserve(JOB, 1, {SECOND: Slot(node.name, 0.25)})
    accounts.show(lambda table: bundles(table) == cpus(0.25, 1), "one of them gave back")
    running.engine.reserve(JOB, 2, {FIRST: Slot(node.name, 0.5), SECOND: Slot(node.name, 0.5)})
    running.engine.release(JOB, 1, [FIRST, SECOND])  # of the former attempt
    accounts.show(lambda table: bundles(table) == cpus(0.5, 0.5), "the next attempt has its own")
    running.engine.release(JOB, 2, [FIRST, SECOND])
    accounts.show(lambda table: table.whole, "all is given back")


def test_a_job_that_cannot_have_all_it_takes_holds_nothing_of_it(
    running: Running, accounts: Accounts
) -> None:
    [node] = running.engine.cluster().nodes
    running.reserve("first", 1.5)
    accounts.show(lambda table: bundles(table) == cpus(1.5), "the first has its part")
    running.engine.reserve(JOB, 1, {FIRST: Slot(node.name, 0.5), SECOND: Slot(node.name, 0.5)})
    accounts.show(
        lambda table: (
            bundles(table, "PENDING") == cpus(0.5, 0.5) and table.taken == {node.name: {"CPU": 1.5}}
        ),
        "both wait, and have nothing",
    )
    running.reserve("small", 0.25)
    small = running.start(programs.argv("rest"), "small")
    running.said(small, "ready")
    running.release("first")
    accounts.show(lambda table: bundles(table) == cpus(0.25, 0.5, 0.5), "both are had")
    running.engine.stop(small, 0)
    running.ended(small)
    running.release("small")
    running.engine.release(JOB, 1, [FIRST, SECOND])
    accounts.show(lambda table: table.whole, "all is given back")


GIVES_UP = """
import sys
import ray
from ray.util.placement_group import placement_group
from headgate.engines.ray.removal import Removals

ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
removals = Removals()
for _ in range(150):
    removals.remove([placement_group([{"CPU": 0.5}])])
removals.wait()
"""


def test_what_is_given_up_while_ray_sets_it_aside_is_not_lost(
    ray_address: str, accounts: Accounts
) -> None:
    subprocess.run([sys.executable, "-c", GIVES_UP, ray_address], check=True, timeout=200)
    accounts.show(lambda table: table.whole, "all is given back")


def test_with_a_killed_bridge_all_is_given_back(running: Running, accounts: Accounts) -> None:
    running.reserve("holds", 0.75)
    accounts.show(lambda table: bundles(table) == cpus(0.75), "the first has its part")
    running.reserve("waits", 1.5)
    accounts.show(
        lambda table: bundles(table) == cpus(0.75) and len(table.groups) == 2, "one is set aside"
    )
    os.kill(bridge(), signal.SIGKILL)
    accounts.show(lambda table: table.whole, "all is given back")
