"""Jobs on several nodes: each weight counts among the jobs that are on the same node, and so do
orders and floors.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.policies.playing import Play, arrivals, loss, predicted, used

from headgate.model.identifiers import JobId
from headgate.policies import Placed
from headgate.policies.weighing import _HANDED_ON

WEIGHING = ["headgate", "srpt", "las", "themis", "slaq", "flowcon"]
FIRST = 1.0 - _HANDED_ON


def on(job: str, *nodes: str, cores: float = 2.0) -> Placed:
    return Placed(JobId(job), dict.fromkeys(nodes, cores))


def on_gpus(job: str, *gpus: int) -> Placed:
    return Placed(JobId(job), {f"n/gpu{gpu}": 64.0 for gpu in gpus}, on_gpus=True)


class Spread(Play):
    """What happens to a policy, with the part of each node that each job's weight comes to."""

    def __init__(self, name: str, *placed: Placed) -> None:
        super().__init__(name, cores=2.0 * len({node for each in placed for node in each.cores}))
        self.placed: dict[str, Placed] = {each.job: each for each in placed}
        self.at(0, *arrivals(*self.placed), *placed)

    def part(self, job: str, node: str) -> float:
        there = {
            each: self.shares[each].cpu_weight or 0.0
            for each, at in self.placed.items()
            if node in at.cores
        }
        return there[job] / sum(there.values())

    def least(self) -> float:
        """The least that a job has of a node, over an equal share of that of its nodes where most
        jobs are.
        """
        crowd = Counter(node for at in self.placed.values() for node in at.cores)
        return min(
            self.part(job, node) * max(crowd[each] for each in at.cores)
            for job, at in self.placed.items()
            for node in at.cores
        )


@pytest.mark.parametrize("name", ["srpt", "headgate:rho=1000"])
def test_on_each_node_who_is_first_there_has_most_of_it(name: str) -> None:
    jobs = [f"j{i}" for i in range(12)]
    play = Spread(name, *(on(job, f"n{i % 4}") for i, job in enumerate(jobs)))
    play.at(1, *(predicted(job, 100 * 2**i) for i, job in enumerate(jobs)))
    for i in range(4):
        assert play.part(f"j{i}", f"n{i}") == pytest.approx(FIRST, abs=0.06)
        assert play.part(f"j{i + 8}", f"n{i}") == pytest.approx(0.05 / 3, abs=0.03)


@pytest.mark.parametrize("name", ["srpt", "headgate"])
def test_on_each_gpu_who_is_first_there_has_most_of_it(name: str) -> None:
    jobs = [f"j{i}" for i in range(12)]
    play = Spread(name, *(on_gpus(job, i % 4) for i, job in enumerate(jobs)))
    play.at(1, *(predicted(job, 10 * 2**i, cores=None) for i, job in enumerate(jobs)))
    for i in range(4):
        assert play.part(f"j{i}", f"n/gpu{i}") == pytest.approx(FIRST, abs=0.06)
        assert play.part(f"j{i + 8}", f"n/gpu{i}") == pytest.approx(0.05 / 3, abs=0.03)


@pytest.mark.parametrize("name", ["srpt", "headgate", "las"])
def test_a_job_counts_by_the_time_of_all_its_gpus(name: str) -> None:
    play = Spread(name, on_gpus("wide", 0, 1, 2, 3), on_gpus("long", 0))
    play.at(1, predicted("wide", 100, cores=None), predicted("long", 200, cores=None))
    for now in range(2, 42):
        play.at(now, used("wide", 1.0), used("long", 1.0))  # 160 GPU-seconds, and 40
    assert play.part("long", "n/gpu0") >= 0.8


def test_a_fair_finish_is_by_the_gpus_that_there_are() -> None:
    play = Spread("headgate", on_gpus("first", 0), on_gpus("second", 0), on_gpus("alone", 1))
    play.at(1, *(predicted(job, 1000, cores=None) for job in ("first", "second", "alone")))
    # Alone on a third of two GPUs it would take 1500 s, and may take twice that; with an equal
    # share it takes 2000.
    play.wake_until(900)
    assert play.part("second", "n/gpu0") < 0.2
    play.wake_until(1100)
    assert play.part("second", "n/gpu0") == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("name", ["srpt", "headgate:rho=1000"])
def test_a_job_of_several_tasks_does_not_come_before_a_shorter_one_on_the_node_that_they_share(
    name: str,
) -> None:
    play = Spread(name, on("short", "a"), on("wide", "a", "b", "c", "d"))
    play.at(1, predicted("short", 10), predicted("wide", 1000))
    assert play.part("short", "a") >= 0.8
    play.at(20, predicted("wide", 1))
    assert play.part("wide", "a") >= 0.8


def test_what_a_wide_job_is_held_up_to_on_one_node_it_leaves_on_the_others() -> None:
    play = Spread("srpt", on("first", "a"), on("wide", "a", "b"), on("last", "b"))
    play.at(1, predicted("first", 10), predicted("wide", 100), predicted("last", 1000))
    assert play.part("first", "a") >= 0.8
    # `wide` is as slow as on `a`, and has no use for more of `b`
    assert play.part("last", "b") >= 0.8


def test_a_job_on_gpus_counts_by_the_workers_that_it_has_now() -> None:
    play = Spread("srpt", on_gpus("wide", 0), on_gpus("other", 0))
    play.at(1, predicted("wide", 100), predicted("other", 60))
    assert play.part("other", "n/gpu0") == pytest.approx(FIRST, abs=0.06)
    play.placed["wide"] = Placed(JobId("wide"), {f"n/gpu{gpu}": 64.0 for gpu in range(4)}, True, 4)
    play.at(30, play.placed["wide"], predicted("wide", 40))  # ten seconds of each GPU
    assert play.part("wide", "n/gpu0") == pytest.approx(FIRST, abs=0.06)


def test_who_is_alone_on_a_node_takes_nothing_from_those_elsewhere() -> None:
    crowded = Play("srpt")
    crowded.at(0, *arrivals("a", "b"), predicted("a", 10), predicted("b", 100))
    play = Spread(
        "srpt", on("a", "one"), on("b", "one"), *(on(f"c{i}", f"other{i}") for i in range(30))
    )
    play.at(1, predicted("a", 10), predicted("b", 100), *(predicted(f"c{i}", 1) for i in range(30)))
    assert play.part("a", "one") == pytest.approx(crowded.parts()["a"], abs=0.05)
    play.at(30, predicted("b", 1))
    assert play.part("b", "one") >= 0.8  # a small part of all nodes, and all of one


@pytest.mark.parametrize("name", WEIGHING)
def test_nobody_is_below_its_floor_on_any_of_its_nodes(name: str) -> None:
    chance = random.Random(3)
    nodes = [f"n{i}" for i in range(5)]
    jobs = [on(f"j{i}", *chance.sample(nodes, chance.choice([1, 1, 1, 2, 5]))) for i in range(25)]
    play = Spread(name, *jobs)
    for now in range(3, 200, 3):
        job = f"j{chance.randrange(25)}"
        play.at(
            now,
            predicted(job, chance.uniform(1, 1000)),
            used(job, 0.2),
            loss(job, chance.random(), now),
        )
        assert play.least() >= 0.05 * (1 - 1e-9)
    assert play.most_changes_in_a_minute() <= 6


def test_a_job_whose_tasks_move_competes_where_they_are_now() -> None:
    play = Spread("srpt", on("a", "one"), on("b", "two"))
    play.at(1, predicted("a", 10), predicted("b", 100))
    play.placed["b"] = on("b", "one")
    play.at(30, play.placed["b"])
    assert play.part("a", "one") >= 0.8


def test_on_a_small_node_a_job_may_use_no_more_than_it_has() -> None:
    play = Play("headgate", cores=66.0)
    small, large = Placed(JobId("small"), {"s": 2.0}), Placed(JobId("large"), {"l": 64.0})
    play.at(0, *arrivals("small", "large"), small, large, predicted("small", 600))
    for now in range(1, 100):
        play.at(now, used("small", 2.0))
    # By half of all cores it would have been done after 18 s and be late; on the two that it has it
    # takes 300 s.
    assert play.reasons["small"].startswith("first: ")
