"""The plan that a job runs by where its user states none, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.planning.jobs import GIB, cluster, gpus, job, nodes, profile

from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import StepTime
from headgate.planning.choosing import Choice, JobToPlan, choose, has_choice
from headgate.planning.interference import Interference
from headgate.scripts.facts import facts_of

FOUR = cluster(nodes("a", 4, nic=1.25e9))
SMALL = profile(dense_bytes=1_000_000)


def named(name: str, **fields: object) -> Job:
    return replace(Job(name=name, script=f"{name}.py", encrypt=False), **fields)  # type: ignore[arg-type]


def chosen(*asked: JobToPlan, used: tuple[str, ...] = ()) -> list[Choice]:
    return chosen_of(choose(asked, FOUR, used={node: [node] * used.count(node) for node in used}))


def chosen_of(found: list[Choice | UsageError]) -> list[Choice]:
    assert all(isinstance(each, Choice) for each in found), found
    return found  # type: ignore[return-value]


def test_by_its_profile_a_job_gets_the_best_plan_and_it_is_said_what_comes_next() -> None:
    [choice] = chosen(JobToPlan(named("train"), SMALL))
    assert (choice.plan.strategy, choice.plan.workers) == ("allreduce", 4)
    assert choice.why.startswith("allreduce, 4 workers on a0, a1, a2, a3: ")
    assert "samples/s expected (" in choice.why
    assert ", bound by compute; next best: " in choice.why


def test_it_keeps_to_the_nodes_that_are_free_as_long_as_there_are_any() -> None:
    [choice] = chosen(JobToPlan(named("train"), SMALL), used=("a0", "a2"))
    assert choice.plan.worker_nodes == ("a1", "a3")
    assert choice.why.endswith("; 2 of 4 nodes were free")
    [choice] = chosen(JobToPlan(named("train"), SMALL), used=("a0", "a1", "a2", "a3"))
    assert choice.plan.workers == 4


def test_jobs_that_start_together_divide_the_nodes_that_no_unprofiled_job_has() -> None:
    one, two, other = chosen(
        JobToPlan(named("one"), SMALL),
        JobToPlan(named("two"), SMALL),
        JobToPlan(named("other"), None),
    )
    assert other.plan.worker_nodes == ("a0",)
    assert {*one.plan.worker_nodes}.isdisjoint(two.plan.worker_nodes)
    assert {*one.plan.worker_nodes, *two.plan.worker_nodes} == {"a1", "a2", "a3"}
    assert "of what it would have alone, beside 1 more" in one.why


def test_a_job_that_starts_later_divides_no_nodes_with_those_that_start_now() -> None:
    now, later = chosen(
        JobToPlan(named("now"), SMALL), JobToPlan(named("later", after="now"), SMALL)
    )
    assert (now.plan.workers, later.plan.workers) == (4, 4)


def test_a_profile_of_a_busy_machine_is_said_to_be_one() -> None:
    busy = replace(SMALL, step_times=(StepTime("cpu", 1, 256, 0.522, 20, 0.1, 0.6),))
    [choice] = chosen(JobToPlan(named("train"), busy))
    assert (
        "; its profile was taken while others used the machine, measure it again; next best: "
        in choice.why
    )


def test_without_a_profile_it_is_one_task_and_it_is_said_how_to_get_more(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    train = named("train", workdir=str(tmp_path))
    facts = facts_of(train)
    [choice] = chosen(JobToPlan(train, None, facts=facts))
    assert choice.plan.strategy == "single"
    assert choice.why.startswith("single, 1 worker on a0, because no profile of it is stored; ")
    assert choice.why.endswith("headgate profile train.py")
    [choice] = chosen(JobToPlan(train, profile(fits=(), step_times=()), facts=facts))
    assert "its profile has no time of a step" in choice.why


def test_a_job_whose_environment_names_another_cluster_is_one_task_with_advice() -> None:
    one, two = chosen(
        JobToPlan(named("one"), SMALL, "MASTER_ADDR=10.0.0.7, RANK=0"),
        JobToPlan(named("two"), SMALL),
    )
    assert (one.plan.strategy, two.plan.workers) == ("single", 3)
    assert one.why == (
        "single, 1 worker on a0, because its environment names another cluster "
        "(MASTER_ADDR=10.0.0.7, RANK=0); unset that, and with a profile it takes the best plan"
    )


def test_a_script_that_trains_in_one_task_gets_the_best_node_and_it_is_said_why_no_more() -> None:
    alone = profile(dense_bytes=1_000_000, core_gflops=20.0, alone="Keras over torch trains in one")
    fast = nodes("b", 1, core_gflops=80.0)
    slow = nodes("a", 3, core_gflops=20.0)
    [choice] = choose([JobToPlan(named("train"), alone)], cluster(slow, fast))
    assert isinstance(choice, Choice)
    assert (choice.plan.strategy, choice.plan.worker_nodes) == ("single", ("b0",))
    assert "; one task, because Keras over torch trains in one; next best: " in choice.why
    for each in chosen(JobToPlan(named("one"), alone), JobToPlan(named("two"), alone)):
        assert each.plan.strategy == "single" and each.why.endswith(
            "; one task, because Keras over torch trains in one"
        )


def test_what_fits_nowhere_by_its_profile_runs_as_one_task_all_the_same() -> None:
    [choice] = chosen(JobToPlan(named("train"), profile(memory_peak_bytes=200 * GIB)))
    assert choice.plan.strategy == "single"
    assert (
        "because of its profile: job 'train': no plan can run: there is no room for a worker "
        "and a step of 256"
    ) in choice.why


def test_a_job_that_can_run_nowhere_is_told_why_and_the_others_get_their_plans() -> None:
    large = replace(named("large"), limits=job(gpus=1).limits)
    found = choose([JobToPlan(large, SMALL), JobToPlan(named("train"), SMALL)], FOUR)
    assert isinstance(found[0], UsageError)
    assert isinstance(found[1], Choice)
    assert found[1].plan.workers == 4


@pytest.mark.parametrize(
    ("of", "stated", "expected"),
    [
        (nodes("a", 1, cores=64), None, False),
        (nodes("a", 1, gpus=gpus("t4", 4)), None, True),
        (nodes("a", 2), None, True),
        (nodes("a", 2), Plan(strategy="single", workers=1, batch_per_worker=None), False),
    ],
)
def test_there_is_a_choice_among_nodes_or_gpus_and_none_beside_a_stated_plan(
    of: list[object], stated: Plan | None, expected: bool
) -> None:
    assert has_choice(cluster(of), replace(named("train"), plan=stated)) is expected  # type: ignore[arg-type]


def test_without_profiles_jobs_go_where_the_most_cores_are_left_for_each() -> None:
    others = [named(name) for name in "abcde"]
    one_each = chosen(*(JobToPlan(each, None) for each in others[:4]))
    assert sorted(choice.plan.worker_nodes for choice in one_each) == [
        ("a0",),
        ("a1",),
        ("a2",),
        ("a3",),
    ]
    [last] = chosen(JobToPlan(others[4], None), used=("a0", "a0", "a1", "a1", "a2", "a3", "a3"))
    assert last.plan.worker_nodes == ("a2",)
    large, small = nodes("large", 1, cores=8), nodes("small", 1, cores=2)
    several = choose([JobToPlan(each, None) for each in others], cluster(small, large))
    assert [choice.plan.worker_nodes for choice in several if isinstance(choice, Choice)].count(
        ("small0",)
    ) == 1


def test_stated_plans_without_nodes_go_beside_as_few_tasks_as_they_can() -> None:
    two = named("two", plan=Plan(strategy="allreduce", workers=2, batch_per_worker=None))
    first, second = chosen(JobToPlan(two, None), JobToPlan(replace(two, name="other"), None))
    assert {*first.plan.worker_nodes, *second.plan.worker_nodes} == {"a0", "a1", "a2", "a3"}


HEAVY = {"heavy": 0.5, "wide": 0.5, "light": 0.9, "small": 0.9}
LIGHT = dict.fromkeys(HEAVY, 0.95)
"""What jobs keep beside these, by the first one's name."""
COSTS = Interference({"": {"heavy": HEAVY, "wide": HEAVY, "light": LIGHT, "small": LIGHT}})


@pytest.mark.parametrize(
    "order", ["heavy light wide small", "heavy wide light small", "light small heavy wide"]
)
def test_jobs_that_cost_each_other_much_are_put_on_different_nodes(order: str) -> None:
    asked = [JobToPlan(named(name), None) for name in order.split()]
    found = choose(asked, cluster(nodes("a", 2)), interference=COSTS)
    where = {
        each.job.name: choice.plan.worker_nodes for each, choice in zip(asked, chosen_of(found))
    }
    assert where["heavy"] != where["wide"]
    assert where["light"] != where["small"]


def test_a_free_node_beats_any_neighbour_and_two_light_ones_beat_a_heavy_one() -> None:
    two = cluster(nodes("a", 2))
    [alone] = choose(
        [JobToPlan(named("heavy"), None)], two, used={"a0": ["light"]}, interference=COSTS
    )
    [third] = choose(
        [JobToPlan(named("heavy"), None)],
        two,
        used={"a0": ["wide"], "a1": ["light", "small"]},
        interference=COSTS,
    )
    assert isinstance(alone, Choice) and alone.plan.worker_nodes == ("a1",)
    assert isinstance(third, Choice) and third.plan.worker_nodes == ("a1",)
