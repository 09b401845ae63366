"""What the benchmark of live runs against simulated ones makes of what it measures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headgate.simulation import TraceJob

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    import live_simulated

    yield live_simulated
    for name in sys.modules.keys() - before:
        if str(BENCHMARKS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def seen(benchmark: ModuleType, seconds: float, cores: float, whole: float, half: float, startup: float = 4.0) -> Any:
    """A kind that took so many seconds on one core, could use so many, and how fast it was on all and half of one."""
    return benchmark.Seen(TraceJob("a", 0.0, seconds, cores=cores), startup, 1.0, whole, half)


def test_a_kind_is_told_by_the_middle_of_what_was_measured_of_it(benchmark: ModuleType) -> None:
    times = (24.0, 2.0, 1.6, 0.4, 4.0), (30.0, 1.9, 1.5, 0.3, 5.0), (20.0, 1.8, 1.2, 0.45, 3.0)
    found = benchmark.profile("vae", [seen(benchmark, *each) for each in times])
    assert found.table == ((0.5, 0.4 / 1.5), (1.0, 1 / 1.5), (2.0, 1.0))
    assert (found.job.model, found.job.seconds, found.job.cores, found.kept) == ("vae", 16.0, 2.0, 1.0)
    assert found.job.startup_core_seconds == 4.0


def test_one_that_cannot_use_a_second_core_keeps_beside_others_what_it_did_on_one_there(benchmark: ModuleType) -> None:
    found = benchmark.profile("plain", [seen(benchmark, 12.5, 1.02, 1.25, 0.4)])
    assert found.kept == 0.8
    cores, speeds = zip(*found.table, strict=True)
    assert cores == (0.5, 1.02)
    assert speeds == pytest.approx((0.4, 1.0))


def half_as_fast(start: float, end: float) -> float:
    """The pace of a machine that is half as fast as usual."""
    return (end - start) / 2


def told(benchmark: ModuleType, last: float = 130.0) -> Any:
    """Two jobs of a run that began at 100 s: what they said, and when."""
    from _elastic import Ran, Run

    ran = {"a-0": Ran(0.0, 40.0, 0.0), "b-0": Ran(5.0, 45.0, 0.0)}
    jobs = {name: TraceJob(name, 0.0, 20.0, startup_core_seconds=4.0) for name in ran}
    at = {"a-0": (110.0, 115.0, 120.0, last), "b-0": (114.0, 124.0, 145.0)}
    done = {"a-0": (1, 11, 31, 51), "b-0": (2, 7, 20)}
    return benchmark.Told(Run(100.0, ran), jobs, at, done)


def test_what_counts_of_jobs_beside_each_other_is_what_they_did_while_all_were_at_work(benchmark: ModuleType) -> None:
    found = told(benchmark)
    # From 114 s, when the second one has something to say, to 130 s, when the first one does for the last time.
    assert (found.at_once("a-0"), found.at_once("b-0")) == ((11, 51), (2, 7))
    assert found.between("a-0", 11, 51, half_as_fast) == 7.5
    assert found.seconds("a-0", half_as_fast) == 15.0
    assert found.started("b-0", half_as_fast) == 2.0


def test_jobs_that_were_not_at_work_at_once_tell_nothing(benchmark: ModuleType) -> None:
    with pytest.raises(SystemExit, match="a-0, b-0: too short"):
        told(benchmark, 120.5).at_once("b-0")


def test_speeds_are_compared_over_the_same_steps(benchmark: ModuleType) -> None:
    from _elastic import Ran, Run

    def run(name: str, at: tuple[float, ...], done: tuple[int, ...], cores: float = 1.0) -> Any:
        ran = {name: Ran(0.0, 80.0, 0.0)}
        losses = ((0.2, 3.0), (1.0, 1.0))
        jobs = {name: TraceJob(name, 0.0, 70.0, cores=cores, losses=losses, startup_core_seconds=4.0)}
        return benchmark.Told(Run(0.0, ran), jobs, {name: at}, {name: done})

    # Steps 1 to 11 take 10 s on one core, the later ones 30: alone 5 s, beside another kind 25 s.
    one = run("vae-0", (10.0, 20.0, 50.0), (1, 11, 21))
    alone = run("vae-0", (10.0, 15.0), (1, 11), cores=1.9)
    pair = run("vae-1", (12.0, 37.0), (1, 11))
    found = benchmark.seen_of("vae", one, alone, [pair, run("cnn-0", (1.0, 2.0), (1, 2))], half_as_fast)
    assert (found.whole, found.half, found.startup, found.used) == (2.0, 0.4, 2.0, 1.0)
    assert (found.job.seconds, found.job.cores, found.job.losses) == (35.0, 1.9, ((0.0, 3.0), (1.0, 1.0)))
