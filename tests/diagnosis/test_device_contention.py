"""What a job lost through the disk, its limit of memory and its GPU; every number is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.made_up import Course, MadeUp, recording

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.findings import MissingKind
from headgate.diagnosis.remedies import RemedyKind
from headgate.diagnosis.verdicts import verdict
from headgate.recorded.recording import Recording

READER = {"psi_io": 0.75, "disk_read": 20e6}
HOG = MadeUp(ran=0.01, readings={"psi_io": 1.0, "disk_read": 180e6})


def of_look(used: float) -> Callable[[int], float]:
    """What a neighbour used from the twentieth second on; its readings are two seconds late."""
    return lambda t: used if t > 22 else 0.0


def account(run: Recording, job: str = "a") -> Account:
    found = next(each for each in accounts(run.jobs, run.nodes, run.seconds) if each.job == job)
    assert sum(part.seconds for part in found.parts.values()) == pytest.approx(
        found.elapsed, rel=1e-6, abs=1e-6
    )
    for part in found.parts.values():
        assert 0.0 <= part.low <= part.seconds * (1 + 1e-9) <= part.high * (1 + 2e-9)
    return found


def lost(found: Account) -> dict[tuple[str, str], float]:
    return {
        (loss.to, loss.resource): loss.lost.seconds
        for loss in found.losses
        if loss.resource != "cores"
    }


# --- disk -----------------------------------------------------------------------------------------


def test_what_a_disk_took_for_a_job_alone_is_its_own(tmp_path: Path) -> None:
    found = account(recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.25, readings=READER)}))
    assert lost(found) == {("node", "disk"): pytest.approx(0.75 * 40, rel=0.05)}
    assert found.parts["input"].seconds == pytest.approx(0.75 * 40, rel=0.05)
    assert found.parts["unexplained"].seconds == pytest.approx(0.0, abs=0.5)
    told = verdict(found)
    assert (told.kind, told.facts.unsure) == ("disk", False)


def test_delays_of_its_threads_tell_where_the_kernel_has_no_pressure(tmp_path: Path) -> None:
    job = MadeUp(ran=0.25, readings={"psi_io": None, "disk_waiting": 3.0, "disk_read": 20e6})
    assert verdict(account(recording(tmp_path / "run.sqlite", {"a": job}))).kind == "disk"


def test_what_the_same_bytes_took_longer_beside_a_neighbour_is_lost_to_it(tmp_path: Path) -> None:
    """Alone it reads 60 MB a second and is blocked for a quarter of it; beside `b` 20 MB/s, for
    three quarters.
    """
    course = {
        "psi_io": lambda t: 0.25 if t <= 20 else 0.75,
        "disk_read": lambda t: 60e6 if t <= 20 else 20e6,
    }
    jobs = {
        "a": MadeUp(ran=lambda t: 0.75 if t <= 20 else 0.25, readings=course),
        "b": MadeUp(ran=0.01, start=20),
    }
    jobs["b"] = MadeUp(ran=0.01, start=20, readings=HOG.readings)
    found = account(recording(tmp_path / "run.sqlite", jobs))
    assert lost(found)["b", "disk"] == pytest.approx(20 * (0.75 - 20 * 0.25 / 60), rel=0.05)
    assert verdict(found).kind == "neighbour-disk"


def test_how_long_a_job_was_blocked_before_its_steps_tells_nothing_of_what_its_steps_read(
    tmp_path: Path,
) -> None:
    """It makes its data for ten seconds, and is blocked all the time; its steps are as above."""

    def of(start: float, alone: float, beside: float) -> Callable[[int], float]:
        return lambda t: start if t <= 10 else alone if t <= 25 else beside

    course = {"psi_io": of(0.9, 0.25, 0.75), "disk_read": of(20e6, 60e6, 20e6)}
    job = MadeUp(ran=of(0.1, 0.75, 0.25), steps=of(0.0, 10.0, 4.0), readings=course)
    jobs = {"a": job, "b": MadeUp(ran=0.01, start=25, readings=HOG.readings)}
    found = account(recording(tmp_path / "run.sqlite", jobs))
    assert lost(found)["b", "disk"] == pytest.approx(15 * (0.75 - 20 * 0.25 / 60), rel=0.05)


def test_a_neighbour_that_cost_more_than_the_disk_itself_is_named_whatever_else_the_job_waited_for(
    tmp_path: Path,
) -> None:
    """`b` costs 13 s. The job itself is blocked for 8 s, and waits 6 s more for its input."""
    course = {
        "psi_io": lambda t: 0.3 if t <= 20 else 0.75,
        "disk_read": lambda t: 60e6 if t <= 20 else 20e6,
    }
    job = MadeUp(ran=0.25, ready=0.25, readings=course, spans={"input": 0.0675, "forward": 0.0325})
    jobs = {"a": job, "b": MadeUp(ran=0.01, start=20, readings=HOG.readings)}
    told = verdict(account(recording(tmp_path / "run.sqlite", jobs)))
    assert told.kind == "neighbour-disk", told


@pytest.mark.parametrize(
    ("node", "name"),
    [
        ({"disk_bytes_per_second": 200e6}, "neighbour-disk"),
        ({"disk_bytes_per_second": 3e9}, "disk"),
        ({}, "disk"),
    ],
    ids=["a full disk", "one that carries far more", "one whose rate nobody knows"],
)
def test_a_neighbour_that_was_always_there_is_blamed_only_where_the_disk_is_full(
    tmp_path: Path, node: dict[str, float], name: str
) -> None:
    run = recording(
        tmp_path / "run.sqlite", {"a": MadeUp(ran=0.25, readings=READER), "b": HOG}, node=node
    )
    assert verdict(account(run)).kind == name


@pytest.mark.parametrize(
    ("alone", "beside"),
    [(80e6, 0.3e6), (80e6, 0.0), (0.5e6, 0.02e6)],
    ids=["hardly a read ends", "none ends within a second", "a job that reads small files"],
)
def test_the_fewer_bytes_neighbours_let_a_job_read_the_more_it_lost_to_them(
    tmp_path: Path, alone: float, beside: float
) -> None:
    course = {
        "psi_io": lambda t: 0.1 if t <= 20 else 0.95,
        "disk_read": lambda t: alone if t <= 20 else beside,
    }
    job = MadeUp(ran=lambda t: 0.9 if t <= 20 else 0.05, readings=course)
    hog = {"psi_io": 1.0, "disk_read": 900e6}
    found = account(
        recording(tmp_path / "r.sqlite", {"a": job, "b": MadeUp(ran=0.1, start=20, readings=hog)})
    )
    assert lost(found)["b", "disk"] == pytest.approx(20 * (0.95 - beside / alone * 0.1), rel=0.05)
    assert verdict(found).kind == "neighbour-disk"


def test_a_job_with_data_in_memory_every_other_second_lost_its_blocked_seconds(
    tmp_path: Path,
) -> None:
    def of(alone: float, beside: float) -> Callable[[int], float]:
        return lambda t: 0.0 if t % 2 else alone if t <= 20 else beside

    job = MadeUp(
        ran=lambda t: 1.0 - of(0.2, 0.9)(t),
        readings={"psi_io": of(0.2, 0.9), "disk_read": of(40e6, 4e6)},
    )
    found = account(
        recording(
            tmp_path / "run.sqlite",
            {"a": job, "b": MadeUp(ran=0.0, start=20, readings=HOG.readings)},
        )
    )
    assert lost(found)["b", "disk"] == pytest.approx(10 * (0.9 - 0.2 / 10), rel=0.05)


def test_nobody_is_blamed_where_a_job_began_to_read_only_beside_a_neighbour(tmp_path: Path) -> None:
    """Its data came from memory before. Only the rate of the disk would tell what it was blocked
    without `b`.
    """
    course = {
        "psi_io": lambda t: 0.0 if t <= 20 else 0.7,
        "disk_read": lambda t: 1e4 if t <= 20 else 20e6,
    }
    job = MadeUp(ran=lambda t: 1.0 if t <= 20 else 0.3, readings=course)
    found = account(
        recording(
            tmp_path / "run.sqlite",
            {"a": job, "b": MadeUp(ran=0.0, start=20, readings=HOG.readings)},
        )
    )
    assert set(lost(found)) == {("node", "disk")}
    calibrates = verdict(found).remedy.otherwise
    assert calibrates is not None and calibrates.kind is RemedyKind.CALIBRATE


def test_a_burst_of_a_second_does_not_make_a_neighbour_look_small(tmp_path: Path) -> None:
    """What a cache below the disk gave in the first second is no measure of what the disk
    carries.
    """
    course = {
        "psi_io": lambda t: 0.25 if t <= 20 else 0.75,
        "disk_read": lambda t: 3e9 if t == 1 else 60e6 if t <= 20 else 20e6,
    }
    job = MadeUp(ran=0.25, readings=course)
    run = recording(
        tmp_path / "run.sqlite", {"a": job, "b": MadeUp(ran=0.0, start=20, readings=HOG.readings)}
    )
    assert verdict(account(run)).kind == "neighbour-disk"


def test_the_pressure_of_the_node_tells_what_a_job_lost_beside_a_neighbour(tmp_path: Path) -> None:
    """Where the kernel counts no pressure of the job itself. It idles for a tenth of the time in
    any case.
    """
    course = {"psi_io": None, "disk_read": lambda t: 60e6 if t <= 20 else 2e6}
    job = MadeUp(ran=lambda t: 0.75 if t <= 20 else 0.1, readings=course)
    node = {
        "psi_io": lambda t: 0.2 if t <= 20 else 1.0,
        "disk_read": lambda t: 60e6 if t <= 20 else 900e6,
    }
    found = account(recording(tmp_path / "run.sqlite", {"a": job}, readings=node))
    assert lost(found)["others", "disk"] == pytest.approx(20 * (0.9 - 2 / 60 * 0.25), rel=0.05)
    assert verdict(found).kind == "neighbour-disk"


def test_a_job_that_idles_anyway_loses_nothing_to_whom_the_disk_keeps_waiting(
    tmp_path: Path,
) -> None:
    """Nobody but the node's pressure tells of waiting, and that is the neighbour's own."""
    job = MadeUp(ran=0.4, readings={"psi_io": None, "disk_read": 2e6})
    node = {
        "psi_io": lambda t: 0.0 if t <= 20 else 1.0,
        "disk_read": lambda t: 2e6 if t <= 20 else 900e6,
    }
    found = account(recording(tmp_path / "run.sqlite", {"a": job}, readings=node))
    assert ("others", "disk") not in lost(found)


def test_programs_outside_that_read_are_culprits_and_what_a_task_wrote_is_not_theirs(
    tmp_path: Path,
) -> None:
    jobs = {"a": MadeUp(ran=0.25, readings=READER)}
    node = {"disk_bytes_per_second": 200e6}
    used = {"disk_read": 200e6, "disk_write": 10e6}
    assert ("others", "disk") in lost(
        account(recording(tmp_path / "r.sqlite", jobs, node=node, readings=used))
    )
    written = {"disk_read": 20e6, "disk_write": 180e6}
    found = lost(account(recording(tmp_path / "w.sqlite", jobs, node=node, readings=written)))
    assert set(found) == {("node", "disk")}


@pytest.mark.parametrize(
    ("neighbours", "blamed"),
    [
        ({"ada:vae": {"disk_read": of_look(900e6)}}, {"ada:vae": 1.0}),
        ({"ada:vae": {"disk_write": lambda t: 900e6 if t > 20 else 0.0}}, {"ada:vae": 0.5}),
        ({"others": {"disk_write": lambda t: 900e6 if t > 20 else 0.0}}, {"others": 1.0}),
        (
            {"ada:vae": {"disk_read": of_look(300e6)}, "ben:": {"disk_read": of_look(600e6)}},
            {"ada:vae": 1 / 3, "ben:": 2 / 3},
        ),
        ({"ada:vae": {"disk_read": of_look(90e6)}}, {"ada:vae": 0.1, "others": 0.9}),
    ],
    ids=["it reads", "it writes", "programs write", "two of them", "the rest is nobody's"],
)
def test_jobs_of_other_users_on_the_disk_are_told_apart_from_programs_outside(
    tmp_path: Path, neighbours: dict[str, Any], blamed: dict[str, float]
) -> None:
    """They are read every five seconds, with a moment's delay; the disk every second."""
    course = {
        "psi_io": lambda t: 0.25 if t <= 20 else 0.75,
        "disk_read": lambda t: 60e6 if t <= 20 else 20e6,
    }
    job = MadeUp(ran=lambda t: 0.75 if t <= 20 else 0.25, readings=course)
    readings = {"disk_read": lambda t: 60e6 if t <= 20 else 920e6}
    run = recording(tmp_path / "run.sqlite", {"a": job}, readings=readings, neighbours=neighbours)
    found = lost(account(run))
    seconds = {to: lost_seconds for (to, through), lost_seconds in found.items() if to != "node"}
    assert sum(seconds.values()) == pytest.approx(20 * (0.75 - 20 * 0.25 / 60), rel=0.05)
    for culprit, part in blamed.items():
        assert seconds[culprit] == pytest.approx(part * sum(seconds.values()), rel=0.15)
    assert verdict(account(run)).kind == "neighbour-disk"


def test_a_disk_hog_beside_a_job_that_computes_is_blamed_for_nothing(tmp_path: Path) -> None:
    """Another thread of it is blocked now and then, while the one that computes goes on."""
    jobs = {"a": MadeUp(ran=1.0, readings={"psi_io": 0.5, "disk_read": 5e6}), "b": HOG}
    found = account(recording(tmp_path / "run.sqlite", jobs, node={"disk_bytes_per_second": 200e6}))
    assert lost(found) == {}
    assert verdict(found).kind == "healthy"


def test_a_neighbour_that_moves_little_is_not_blamed(tmp_path: Path) -> None:
    """The disk gets slow by itself while `b` reads 2 MB a second."""
    job = MadeUp(
        ran=0.25, readings={"psi_io": lambda t: 0.2 if t <= 20 else 0.75, "disk_read": 20e6}
    )
    jobs = {"a": job, "b": MadeUp(ran=0.01, start=20, readings={"disk_read": 2e6})}
    assert set(lost(account(recording(tmp_path / "run.sqlite", jobs)))) == {("node", "disk")}


def test_programs_that_read_next_to_nothing_are_not_blamed_for_what_a_job_waits_with_as_few_bytes(
    tmp_path: Path,
) -> None:
    """It waits for its log to be on the disk. That takes longer from the twentieth second on, in
    which others read.
    """
    course: dict[str, Course | None] = {
        "psi_io": lambda t: 0.2 if t <= 20 else 0.7,
        "disk_read": 0.0,
        "disk_write": 2e4,
    }
    job = MadeUp(ran=lambda t: 0.8 if t <= 20 else 0.3, readings=course)
    node: dict[str, Course] = {"disk_read": lambda t: 0.0 if t <= 20 else 0.5e6}
    found = account(recording(tmp_path / "run.sqlite", {"a": job}, readings=node))
    assert set(lost(found)) == {("node", "disk")}


def test_what_sampled_steps_waited_for_input_is_not_counted_twice(tmp_path: Path) -> None:
    job = MadeUp(ran=0.25, readings=READER, spans={"input": 0.08, "forward": 0.02})
    found = account(recording(tmp_path / "run.sqlite", {"a": job}))
    assert found.parts["input"].seconds == pytest.approx(0.8 * 39, rel=0.05)
    assert found.parts["compute"].seconds == pytest.approx(0.2 * 39, rel=0.2)


# --- memory ---------------------------------------------------------------------------------------

THRASHING: dict[str, Any] = {
    "psi_io": 0.5,
    "psi_memory": 0.3,
    "disk_read": 40.96e6,
    "refaults": 10_000,
    "memory_bytes": 50e6,
    "cache_bytes": 48e6,
}


def test_pages_that_are_read_again_at_its_limit_are_lost_to_that(tmp_path: Path) -> None:
    job = MadeUp(ran=0.5, readings=THRASHING, limits={"memory_bytes": 100_000_000})
    found = account(recording(tmp_path / "run.sqlite", {"a": job, "b": HOG}))
    assert lost(found) == {("itself", "memory"): pytest.approx(20.0, rel=0.05)}
    assert found.parts["memory"].seconds == pytest.approx(20.0, rel=0.05)
    told = verdict(found)
    assert told.kind == "own-memory"
    assert told.remedy.settings == {"limits.memory": 200e6}


@pytest.mark.parametrize(
    ("limits", "readings"),
    [
        ({}, {}),
        ({"memory_bytes": 1_000_000_000}, {}),
        ({"memory_bytes": 100_000_000}, {"refaults": 0.0}),
    ],
    ids=["no limit", "far below its limit", "full of files that it reads once"],
)
def test_reading_is_the_disk_s_where_no_limit_makes_it_read_again(
    tmp_path: Path, limits: dict[str, Any], readings: dict[str, Any]
) -> None:
    job = MadeUp(ran=0.5, readings={**THRASHING, "psi_memory": 0.0, **readings}, limits=limits)
    assert verdict(account(recording(tmp_path / "run.sqlite", {"a": job}))).kind == "disk"


def test_the_kernel_s_work_to_read_dropped_pages_again_is_the_limit_s_not_the_loader_s(
    tmp_path: Path,
) -> None:
    read = {**THRASHING, "psi_io": 0.2, "psi_memory": 0.0, "cpu_system": 0.5}
    spans = {"input": 0.09, "forward": 0.005, "backward": 0.005}
    limits = {"memory_bytes": 100_000_000}
    kinds = {}
    for system in (0.5, 0.05):
        readings = {**read, "cpu_system": system}
        job = MadeUp(ran=0.8, readings=readings, limits=limits, spans=spans, loader_workers=0)
        found = account(recording(tmp_path / f"{system}.sqlite", {"a": job}))
        kinds[system] = verdict(found).kind
        assert found.parts["memory"].seconds == pytest.approx((0.2 + system) * 39, rel=0.1)
        assert found.parts["input"].seconds == pytest.approx((0.7 - system) * 39, rel=0.1)
        assert sum(part.seconds for part in found.parts.values()) == pytest.approx(40.0)
    assert kinds == {0.5: "own-memory", 0.05: "loader"}


# --- GPU ------------------------------------------------------------------------------------------

ONE_GPU = {"gpus": [{"index": 0}]}


def on_gpu(busy: Any, **given: Any) -> MadeUp:
    return MadeUp(ran=0.9, gpu=busy, **given)


def test_a_gpu_that_was_its_own_and_then_is_shared_and_full_is_lost_to_who_uses_it(
    tmp_path: Path,
) -> None:
    jobs = {"a": on_gpu(lambda t: 0.8 if t <= 20 else 0.4), "b": on_gpu(0.6, start=20)}
    found = account(recording(tmp_path / "run.sqlite", jobs, node=ONE_GPU))
    assert lost(found) == {("b", "gpu"): pytest.approx(20 * 0.5, rel=0.1)}
    assert [loss.evidence for loss in found.losses if loss.resource == "gpu"] == ["compared"]
    assert verdict(found).kind == "neighbour-gpu"


def test_what_a_job_waited_for_its_turns_on_a_gpu_is_lost_to_who_used_it_meanwhile(
    tmp_path: Path,
) -> None:
    jobs = {
        "a": on_gpu(0.4, asides={"turns": 18.0}),
        "b": on_gpu(0.4),
        "c": on_gpu(lambda t: 0.2 if t > 20 else 0.0),
    }
    found = account(recording(tmp_path / "run.sqlite", jobs, node=ONE_GPU), "a")
    assert lost(found) == {
        ("b", "gpu"): pytest.approx(18 * 0.8, rel=0.05),
        ("c", "gpu"): pytest.approx(18 * 0.2, rel=0.05),
    }
    assert {loss.evidence for loss in found.losses if loss.resource == "gpu"} == {"counted"}


@pytest.mark.parametrize(
    "waited", [0.0, 0.05], ids=["never waits for a core", "waits a little for cores"]
)
def test_what_a_gpu_s_neighbour_costs_is_not_told_by_the_cpu_time_of_a_step(
    tmp_path: Path, waited: float
) -> None:
    """A thread that waits for its kernels may spin: its steps then take as much more CPU time as
    they take longer.
    """
    slowed = on_gpu(
        lambda t: 0.8 if t <= 20 else 0.4,
        steps=lambda t: 10.0 if t <= 20 else 3.0,
        waited=lambda t: 0.0 if t <= 20 else waited,
    )
    found = account(
        recording(tmp_path / "run.sqlite", {"a": slowed, "b": on_gpu(0.6, start=20)}, node=ONE_GPU),
        "a",
    )
    assert lost(found)["b", "gpu"] == pytest.approx(20 * 0.5, rel=0.1)
    assert ("b", "memory") not in lost(found)
    assert lost(found).get(("b", "cores"), 0.0) <= 20 * waited * 1.1


def test_programs_outside_that_fill_a_gpu_are_culprits(tmp_path: Path) -> None:
    jobs = {"a": on_gpu(lambda t: 0.8 if t <= 20 else 0.4)}
    busy = {"gpu_busy": lambda t: 0.8 if t <= 20 else 1.0}
    found = lost(account(recording(tmp_path / "full.sqlite", jobs, node=ONE_GPU, readings=busy)))
    assert found == {("others", "gpu"): pytest.approx(20 * 0.5, rel=0.15)}
    busy = {"gpu_busy": lambda t: 0.83 if t <= 20 else 0.43}  # the rounding of what it used itself
    assert (
        lost(account(recording(tmp_path / "alone.sqlite", jobs, node=ONE_GPU, readings=busy))) == {}
    )


def test_a_job_on_a_gpu_that_has_not_come_to_its_steps_is_explained(tmp_path: Path) -> None:
    starting = on_gpu(0.4, steps=lambda t: 1.0 if t == 40 else 0.0)
    for name, others in (("alone", {}), ("beside", {"b": on_gpu(0.6)})):
        found = account(
            recording(tmp_path / f"{name}.sqlite", {"a": starting, **others}, node=ONE_GPU), "a"
        )
        assert lost(found) == {}
        assert verdict(found).kind == "starting"


def test_of_a_job_that_never_had_a_full_gpu_for_itself_nothing_tells_what_it_lost(
    tmp_path: Path,
) -> None:
    found = account(
        recording(tmp_path / "run.sqlite", {"a": on_gpu(0.4), "b": on_gpu(0.6)}, node=ONE_GPU), "a"
    )
    assert lost(found) == {}
    told = verdict(found)
    assert told.kind == "not-known"
    assert told.remedy.facts.provable
    [missing] = told.facts.missing
    assert (missing.kind, missing.culprit) == (MissingKind.GPU_ALONE, "b")
    assert 20.0 < missing.seconds < 30.0
    found = account(
        recording(tmp_path / "free.sqlite", {"a": on_gpu(0.4), "b": on_gpu(0.3)}, node=ONE_GPU), "a"
    )
    assert verdict(found).kind == "healthy"


@pytest.mark.parametrize(
    ("jobs", "node"),
    [
        ({"a": on_gpu(0.4), "b": on_gpu(0.6)}, ONE_GPU),
        ({"a": on_gpu(0.4), "b": on_gpu(0.3, start=20)}, ONE_GPU),
        (
            {"a": on_gpu(lambda t: 0.8 if t <= 20 else 0.4), "b": on_gpu(0.6, start=20)},
            {"gpus": [{}, {}]},
        ),
    ],
    ids=["never alone", "a GPU that is not full", "two GPUs"],
)
def test_a_gpu_s_neighbour_is_not_blamed_where_nothing_tells(
    tmp_path: Path, jobs: dict[str, MadeUp], node: dict[str, Any]
) -> None:
    assert lost(account(recording(tmp_path / "run.sqlite", jobs, node=node))) == {}


TWO_GPUS = {"gpus": [{"index": 0}, {"index": 1}]}


@pytest.mark.parametrize(
    ("gpus", "blamed"),
    [
        (([1], [1]), {("b", "gpu")}),
        (([1], [0, 1]), {("b", "gpu")}),
        (([1], [0]), set()),
        (([1], None), set()),
    ],
    ids=["the same", "one of its two", "another", "not known"],
)
def test_of_several_gpus_who_used_the_same_one_is_blamed(
    tmp_path: Path, gpus: Any, blamed: set[Any]
) -> None:
    slowed = on_gpu(lambda t: 0.8 if t <= 20 else 0.4, gpus=gpus[0])
    jobs = {"a": slowed, "b": on_gpu(0.6, start=20, gpus=gpus[1])}
    found = account(
        recording(tmp_path / "run.sqlite", jobs, node=TWO_GPUS, readings={"gpu_busy": 0.9}), "a"
    )
    assert set(lost(found)) == blamed


# --- what a run lacks -----------------------------------------------------------------------------


def test_a_run_without_pressure_and_delays_says_so_where_it_matters(tmp_path: Path) -> None:
    blind = {"psi_io": None, "disk_read": 20e6}
    found = account(recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.25, readings=blind)}))
    assert MissingKind.DISK_WAITS in {missing.kind for missing in found.missing_readings}
    assert verdict(found).kind == "not-known"
    computes = account(recording(tmp_path / "other.sqlite", {"a": MadeUp(ran=1.0, readings=blind)}))
    assert computes.missing_readings == ()


@pytest.mark.parametrize("culprit", ["ada:vae", "others"])
@pytest.mark.parametrize(
    ("node", "gpus", "on", "is_blamed"),
    [(ONE_GPU, None, 0, True), (TWO_GPUS, [1], 1, True), (TWO_GPUS, [1], 0, False)],
    ids=["one GPU", "of two the same one", "the other one"],
)
def test_a_gpu_is_lost_to_jobs_of_other_users_and_to_programs_outside_on_it(
    tmp_path: Path, culprit: str, node: Any, gpus: Any, on: int, is_blamed: bool
) -> None:
    beside = {f"{culprit}/gpu-{on}": {"gpu_busy": lambda t: 0.6 if t > 20 else 0.0}}
    run = recording(
        tmp_path / "run.sqlite",
        {"a": on_gpu(lambda t: 0.8 if t <= 20 else 0.4, gpus=gpus)},
        node=node,
        readings={"gpu_busy": lambda t: 0.8 if t <= 20 else 1.0},
        neighbours=beside,
    )
    expected = {(culprit, "gpu"): pytest.approx(20 * 0.5, rel=0.15)} if is_blamed else {}
    assert lost(account(run)) == expected


def test_turns_on_a_gpu_are_waited_for_because_of_a_job_of_another_user(tmp_path: Path) -> None:
    run = recording(
        tmp_path / "run.sqlite",
        {"a": on_gpu(0.4, asides={"turns": 18.0})},
        node=ONE_GPU,
        readings={"gpu_busy": 0.8},
        neighbours={"ada:vae/gpu-0": {"gpu_busy": 0.4}},
    )
    assert lost(account(run)) == {("ada:vae", "gpu"): pytest.approx(18.0, rel=0.05)}


def test_of_a_job_with_several_tasks_only_who_used_one_of_its_gpus_is_told(tmp_path: Path) -> None:
    run = recording(
        tmp_path / "run.sqlite",
        {"a": on_gpu(0.8, gpus=[0], server_node="nimbus")},
        node=TWO_GPUS,
        neighbours={"ada:vae/gpu-0": {"gpu_busy": 0.9}},
    )
    [missing] = account(run).missing_readings
    assert (missing.kind, missing.culprit) == (MissingKind.GPU_OF_SEVERAL_TASKS, "ada:vae")
