"""Where the tasks of a stated plan go."""

from __future__ import annotations

from headgate.model.cluster import Cluster, Node
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.planning import candidates
from headgate.planning.placement import place

LARGE, SMALL, TINY = Node("large", 4.0, 2**30), Node("small", 2.0, 2**30), Node("tiny", 0.5, 2**30)


def ps(workers: int, servers: int, **fields: object) -> Plan:
    return Plan(strategy="ps", workers=workers, servers=servers, batch_per_worker=None, **fields)  # type: ignore[arg-type]


def test_workers_go_where_cores_are_and_servers_where_few_workers_are() -> None:
    placed = place(ps(4, 2), [TINY, SMALL, LARGE])
    assert placed.worker_nodes == ("large", "small", "large", "large")
    assert placed.server_nodes == ("tiny", "tiny")


def test_cores_that_are_stated_for_each_are_counted() -> None:
    placed = place(ps(4, 1, cores_per_worker=1.5), [SMALL, LARGE])
    assert placed.worker_nodes == ("large", "large", "small", "large")
    assert placed.server_nodes == ("small",)


def test_nodes_that_are_alike_are_taken_in_turn() -> None:
    twins = [Node("a", 1.0, 2**30), Node("b", 1.0, 2**30)]
    placed = place(ps(3, 2), twins)
    assert (placed.worker_nodes, placed.server_nodes) == (("a", "b", "a"), ("b", "b"))


def test_nodes_that_the_user_names_stay() -> None:
    placed = place(ps(2, 1, worker_nodes=("tiny", "tiny")), [LARGE, TINY])
    assert (placed.worker_nodes, placed.server_nodes) == (("tiny", "tiny"), ("large",))


def test_a_stated_plan_is_the_only_candidate() -> None:
    plan = ps(2, 1)
    assert candidates(Cluster((LARGE, SMALL)), Job(name="a", run="true", plan=plan)) == [
        place(plan, [LARGE, SMALL])
    ]
