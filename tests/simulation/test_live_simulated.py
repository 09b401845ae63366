"""What the benchmark of live runs against simulated ones makes of what it measures."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
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


def seen(
    benchmark: ModuleType,
    alone: float,
    cores: float,
    beside: tuple[float, float],
    half: float,
    startup: float = 4.0,
) -> Any:
    """A kind that took so many seconds alone, could use so many cores, and how long on one, and on
    half of one.
    """
    on_one = dict(zip("bc", beside, strict=True))
    return benchmark.Seen(TraceJob("a", 0.0, alone, cores=cores), startup, on_one, half, 0.48)


def test_a_kind_is_told_by_the_middle_of_what_was_measured_of_it(benchmark: ModuleType) -> None:
    times = (
        (16.0, 2.0, (20.0, 24.0), 50.0, 4.0),
        (20.0, 1.9, (18.0, 30.0), 60.0, 5.0),
        (15.0, 1.8, (22.0, 25.0), 40.0),
    )
    found = benchmark.profile(
        "vae", [seen(benchmark, *each) for each in times], {"b": 20.0, "c": 25.0}
    )
    assert found.kept == {"b": 1.0, "c": 20.0 / 25.0}  # half a core was had beside both of them
    assert found.table == ((0.48, 16.0 / 50.0 / 0.9), (1.0, 16.0 / 20.0), (2.0, 1.0))
    assert (found.job.model, found.job.seconds, found.job.cores) == ("vae", 16.0, 2.0)
    assert found.job.startup_core_seconds == 4.0


def test_one_that_cannot_use_a_second_core_keeps_beside_others_what_it_did_on_one_there(
    benchmark: ModuleType,
) -> None:
    measured = [seen(benchmark, 10.0, 1.02, (12.5, 10.0), 25.0)]
    found = benchmark.profile("plain", measured, {"": 10.0, "b": 12.5, "c": 10.0})
    assert found.kept == {"b": 0.8, "c": 1.0}
    assert found.table == ((0.48, 10.0 / 25.0 / 0.9), (1.02, 1.0))
    found = benchmark.profile("plain", measured, {"": 10.0, "b": 8.0, "c": 10.0})
    # whoever was luckier beside it
    assert (found.job.seconds, found.kept) == (10.0, {"b": 1.25, "c": 1.0})


def kinds(benchmark: ModuleType, apart: float, noise: Sequence[float]) -> dict[str, list[Any]]:
    """Three kinds on one core, that take 10, 20 and 30 s times what the one beside them costs, 1.1,
    1.2 and 1.3; one of them beside another `apart` times that; once for each noise, by which half
    of all differ each way.
    """
    own, costs = (
        dict(zip("abc", (10.0, 20.0, 30.0), strict=True)),
        dict(zip("abc", (1.1, 1.2, 1.3), strict=True)),
    )

    def once(kind: str, by: float) -> Any:
        on_one = {other: own[kind] * costs[other] * by for other in costs if other != kind}
        if kind == "a":
            on_one["b"] *= apart
        return benchmark.Seen(
            TraceJob(kind, 0.0, own[kind] * by, cores=1.0), 4.0, on_one, 30.0, 0.48
        )

    return {kind: [once(kind, by) for by in noise] for kind in own}


def test_what_all_pairs_tell_together_is_told_of_each(benchmark: ModuleType) -> None:
    found = benchmark.agreed(kinds(benchmark, 1.0, (1.0,)))
    assert found["a"] == pytest.approx({"": 10.0, "b": 12.0, "c": 13.0})
    assert found["c"] == pytest.approx({"": 30.0, "a": 33.0, "b": 36.0})


@pytest.mark.parametrize(
    ("noise", "kept"),
    [((1.0,), 1.0), ((0.99, 1.0, 1.01), 0.99), ((0.6, 1.0, 1.6), 0.0)],
    ids=["once", "small", "large"],
)
def test_what_is_peculiar_to_a_pair_counts_by_how_well_repetitions_agree(
    benchmark: ModuleType, noise: tuple[float, ...], kept: float
) -> None:
    measured = benchmark.agreed(kinds(benchmark, 1.3, noise))["a"]["b"]
    fitted = benchmark.agreed(kinds(benchmark, 1.3, (0.01, 1.0, 100.0)))["a"]["b"]
    assert 12.0 < fitted < 15.0 < 12.0 * 1.3
    assert math.log(measured / fitted) == pytest.approx(
        kept * math.log(12.0 * 1.3 / fitted), rel=0.02
    )


def test_one_that_has_both_cores_alone_says_nothing_of_one_core_by_that(
    benchmark: ModuleType,
) -> None:
    measured = [seen(benchmark, 16.0, 2.0, (20.0, 24.0), 50.0)]
    assert benchmark.agreed({"a": measured}) == {"a": pytest.approx({"b": 20.0, "c": 24.0})}


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
    used = {
        "a-0": ((113.0, 1.0), (116.0, 0.5), (120.0, 0.25), (131.0, 1.0)),
        "b-0": ((120.0, 0.5),),
    }
    return benchmark.Told(Run(100.0, ran), jobs, at, done, used)


def test_what_counts_of_jobs_beside_each_other_is_what_they_did_while_all_were_at_work(
    benchmark: ModuleType,
) -> None:
    found = told(benchmark)
    # From 114 s, when the second one has something to say, to 130 s, when the first one does for
    # the last time.
    assert (found.a_unit("a-0", half_as_fast), found.a_unit("b-0", half_as_fast)) == (
        7.5 / 40,
        5.0 / 5,
    )
    assert found.units("a-0", half_as_fast) == 50 + 5.0 / (7.5 / 40)
    assert found.started("b-0", half_as_fast) == 2.0
    assert found.cores("a-0") == 0.375


def test_jobs_that_were_not_at_work_at_once_tell_nothing(benchmark: ModuleType) -> None:
    with pytest.raises(SystemExit, match="a-0, b-0: too short"):
        told(benchmark, 120.5).a_unit("b-0", half_as_fast)
    with pytest.raises(SystemExit, match="a-0, b-0: too short"):
        told(benchmark, 114.5).cores("b-0")


def test_what_a_kind_does_in_other_runs_is_told_for_all_that_it_does(benchmark: ModuleType) -> None:
    from _elastic import Ran, Run

    def run(**jobs: tuple[tuple[float, ...], tuple[int, ...]]) -> Any:
        ran = {f"{name}-0": Ran(0.0, 80.0, 0.0) for name in jobs}
        losses = ((0.2, 3.0), (1.0, 1.0))
        at, done = ({f"{name}-0": each[part] for name, each in jobs.items()} for part in (0, 1))
        traced = {
            name: TraceJob(
                name, 0.0, 70.0, cores=1.9, losses=losses, startup_core_seconds=0.4 * at[name][0]
            )
            for name in ran
        }
        used = dict.fromkeys(ran, ((15.0, 0.5), (20.0, 0.25)))
        return benchmark.Told(Run(0.0, ran), traced, at, done, used)

    # A unit takes 1.5 s alone; what comes after the 20 from its first report to its last takes 5 s
    # more.
    alone = run(vae=((10.0, 70.0), (1, 21)))
    halved = [
        run(vae=((12.0, 62.0), (1, 6)), cnn=((12.0, 62.0), (1, 2))),
        run(cnn=((1.0, 2.0), (1, 2))),
    ]
    paired = [
        run(vae=((10.0, 20.0, 60.0), (1, 3, 13)), **{other: ((10.0, end), (1, 2))})
        for other, end in (("cnn", 20.0), ("plain", 60.0))
    ]
    found = benchmark.seen_of("vae", alone, halved, paired, half_as_fast)
    units = 20 + 5.0 / 1.5
    assert found.on_one == pytest.approx({"cnn": units * 2.5, "plain": units * 25 / 12})
    assert (found.on_half, found.half) == (pytest.approx(units * 5.0), 0.375)
    # of runs with half a core, and with one
    assert found.startup == pytest.approx((2.4 + 2.0 + 2.0) / 3)
    assert found.job.seconds == pytest.approx(units * 1.5)
    assert (found.job.cores, found.job.losses) == (1.9, ((0.0, 3.0), (1.0, 1.0)))
