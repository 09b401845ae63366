"""Several jobs at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.planning.jobs import GIB, GIGABIT, cluster, gpus, job, nodes, profile

from headgate.model.cluster import Cluster
from headgate.model.errors import UsageError
from headgate.model.profiles import TimeFit
from headgate.planning.jointly import ProfiledJob, jointly


def request(name: str, **fields: Any) -> ProfiledJob:
    return ProfiledJob(replace(job(), name=name), profile(**fields))


COMPUTE = {"dense_bytes": 1000}
"""A job that more nodes always help."""
NETWORK = {"dense_bytes": 10**9}
"""A job that more than one node never help."""


def test_a_job_that_more_nodes_do_not_help_leaves_them_to_one_that_they_do() -> None:
    where = cluster(nodes("a", 8, nic=GIGABIT))
    found = jointly([request("wide", **COMPUTE), request("narrow", **NETWORK)], where)
    wide, narrow = found.predictions
    assert len(set(narrow.plan.worker_nodes)) == 1
    assert len(set(wide.plan.worker_nodes)) == 7
    assert found.normalised[1] == pytest.approx(1.0)
    assert found.total > 1.8
    assert all(part >= fair - 1e-9 for part, fair in zip(found.normalised, found.fair))


def test_no_node_has_two_jobs_where_there_are_enough() -> None:
    where = cluster(nodes("a", 5), nodes("b", 4, 2.0))
    found = jointly([request(name, **COMPUTE) for name in ("x", "y", "z")], where, used=["a0"])
    names = [{*each.plan.worker_nodes, *each.plan.server_nodes} for each in found.predictions]
    assert sum(map(len, names)) == len(set().union(*names))
    assert "a0" not in set().union(*names)


def test_each_gets_the_nodes_that_it_makes_most_of() -> None:
    on_gpu = {"fits": (*profile().fits, TimeFit("T4", 1, 0.001, 0.00002, 0.02)), **COMPUTE}
    slow_gpu = {"fits": (*profile().fits, TimeFit("T4", 1, 0.01, 0.0018, 0.02)), **COMPUTE}
    where = cluster(nodes("g", 2, nic=10e9, gpus=gpus("T4")), nodes("c", 2, nic=10e9))
    found = jointly([request("plain", **slow_gpu), request("accelerated", **on_gpu)], where)
    assert set(found.predictions[1].plan.worker_nodes) <= {"g0", "g1"}


def test_a_job_that_fits_only_on_the_large_node_gets_it() -> None:
    where = cluster(
        nodes("small", 2, memory_bytes=2 * GIB), nodes("large", 1, memory_bytes=16 * GIB)
    )
    huge = {"memory_peak_bytes": 8 * GIB, "dense_bytes": 3 * GIB}
    found = jointly([request("light", **COMPUTE), request("huge", **huge)], where)
    assert "large0" in found.predictions[1].plan.worker_nodes
    assert "large0" not in found.predictions[0].plan.worker_nodes


def test_more_jobs_than_nodes_share_them_in_equal_parts() -> None:
    found = jointly([request(name, **COMPUTE) for name in "xyz"], cluster(nodes("a", 2, 4.0)))
    assert [each.plan.worker_nodes[0] for each in found.predictions] == ["a0", "a1", "a0"]
    granted = [
        each.plan.workers * (each.plan.cores_per_worker or 0.0) for each in found.predictions
    ]
    assert granted == [2.0, 4.0, 2.0]


def test_without_jobs_or_nodes_there_is_nothing_to_plan() -> None:
    with pytest.raises(UsageError, match="no job"):
        jointly([], cluster(nodes("a", 1)))
    with pytest.raises(UsageError, match="other jobs use all 1"):
        jointly([request("x")], cluster(nodes("a", 1)), used=["a0"])
    with pytest.raises(UsageError, match="other jobs use all 0"):
        jointly([request("x")], Cluster(()))
