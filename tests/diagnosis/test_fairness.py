"""Whether jobs got their share of the machines, on runs of which every number is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnosis.made_up import MadeUp, recording

from headgate.diagnosis.fairness import AloneRate, Dominance, JobSharing, MissingRate, sharing
from headgate.recorded.recording import Recording

ALONE = AloneRate(10.0, 9.5, 10.5, 3)


def job(
    run: Recording, name: str, alone: AloneRate | None = None, sliced: AloneRate | None = None
) -> JobSharing:
    known = [{name: rate} if rate is not None else {} for rate in (alone, sliced)]
    found = sharing(run.jobs, run.nodes, run.seconds, *known)
    assert found is not None
    return next(each for each in found.jobs if each.job == name)


def dominates(run: Recording) -> list[Dominance]:
    found = sharing(run.jobs, run.nodes, run.seconds, {}, {})
    assert found is not None
    return list(found.dominates)


def test_a_job_that_made_half_of_its_steps_alone_got_its_half_of_the_machine(
    tmp_path: Path,
) -> None:
    half = MadeUp(ran=0.5, waited=0.5, steps=5.0)
    found = job(recording(tmp_path / "run.sqlite", {"a": half, "b": half}, cores=1.0), "a", ALONE)
    assert found.machines == pytest.approx(0.5)
    assert found.got == pytest.approx(1.0, rel=0.05)
    assert found.low is not None and found.high is not None and found.low < 1.0 < found.high
    assert (found.against, found.runs, found.lacks) == ("alone", 3, None)


def test_a_job_that_was_squeezed_got_less_and_a_slice_counts_before_a_run_alone(
    tmp_path: Path,
) -> None:
    jobs = {"a": MadeUp(ran=0.2, waited=0.8, steps=2.0), "b": MadeUp(ran=0.8, waited=0.2)}
    run = recording(tmp_path / "run.sqlite", jobs, cores=1.0)
    found = job(run, "a", ALONE, AloneRate(4.0, 3.9, 4.1, 1))
    assert found.against == "slice"
    assert found.got == pytest.approx(0.5, rel=0.05)
    assert found.high is not None and found.high < 1.0


def test_a_machine_without_tasks_such_as_that_of_the_hub_is_not_shared(tmp_path: Path) -> None:
    half = MadeUp(ran=0.5, waited=0.5, steps=5.0)
    run = recording(tmp_path / "run.sqlite", {"a": half, "b": half}, cores=1.0)
    found = job(replace(run, nodes=(*run.nodes, replace(run.nodes[0], name="hub"))), "a", ALONE)
    assert found.machines == pytest.approx(0.5)
    assert found.got == pytest.approx(1.0, rel=0.05)


def test_only_the_time_in_which_jobs_run_together_halves_the_share(tmp_path: Path) -> None:
    jobs = {
        "a": MadeUp(ran=1.0, steps=lambda t: 5.0 if t <= 20 else 10.0),
        "b": MadeUp(ran=1.0, end=20),
    }
    found = job(recording(tmp_path / "run.sqlite", jobs), "a", ALONE)
    assert found.machines == pytest.approx(0.75, abs=0.03)
    assert found.got == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize(
    ("steps", "lack"),
    [(10.0, MissingRate.ALONE), (0.0, MissingRate.OWN_STEPS)],
    ids=["no history", "no steps"],
)
def test_what_is_missing_is_named(tmp_path: Path, steps: float, lack: MissingRate) -> None:
    same = MadeUp(ran=0.5, steps=steps)
    found = job(recording(tmp_path / "run.sqlite", {"a": same, "b": same}), "a")
    assert found.got is None
    assert found.lacks is lack


@pytest.mark.parametrize("end", [40, 20])
def test_jobs_that_never_ran_together_share_nothing(tmp_path: Path, end: int) -> None:
    jobs = {"a": MadeUp(ran=1.0, end=20)} | ({"b": MadeUp(ran=1.0, start=21)} if end == 40 else {})
    run = recording(tmp_path / "run.sqlite", jobs)
    assert sharing(run.jobs, run.nodes, run.seconds, {}, {}) is None


def test_a_job_that_takes_most_of_the_cores_while_others_wait_dominates(tmp_path: Path) -> None:
    jobs = {"a": MadeUp(ran=1.5, waited=0.1), "b": MadeUp(ran=0.5, waited=1.0)}
    (found,) = dominates(recording(tmp_path / "run.sqlite", jobs))
    assert (found.job, found.node, found.resource, found.equal) == ("a", "nimbus", "cores", 0.5)
    assert found.part == pytest.approx(0.75)
    assert found.low <= found.part <= found.high


def test_nobody_dominates_where_nobody_waits_or_parts_are_equal_within_the_noise(
    tmp_path: Path,
) -> None:
    idle = {"a": MadeUp(ran=1.5), "b": MadeUp(ran=0.3)}
    assert dominates(recording(tmp_path / "idle.sqlite", idle)) == []
    uneven = {
        "a": MadeUp(ran=lambda t: 1.9 if t % 7 == 0 else 0.5, waited=0.3),
        "b": MadeUp(ran=0.5, waited=0.3),
    }
    assert dominates(recording(tmp_path / "uneven.sqlite", uneven)) == []
