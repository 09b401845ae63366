"""What the benchmark of live runs against simulated ones makes of what it measures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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


def seen(benchmark: ModuleType, alone: float, cores: float, half: float, one: float) -> object:
    """A kind that took so many seconds, alone on so many cores."""
    return benchmark.Seen(TraceJob("a", 0.0, alone, cores=cores), (0.5, half), (1.0, one))


def test_a_kind_is_told_by_the_middle_of_what_was_measured_of_it(benchmark: ModuleType) -> None:
    times = (12.0, 1.9, 50.0, 17.0), (10.0, 2.0, 44.0, 20.0), (9.0, 1.8, 40.0, 18.0)
    found = benchmark.profile("vae", [seen(benchmark, *each) for each in times])
    assert found.table == ((0.5, 1 / 44), (1.0, 1 / 18), (2.0, 1 / 10))
    assert (found.job.model, found.job.seconds, found.job.cores, found.kept) == ("vae", 10.0, 2.0, 1.0)


def test_one_that_cannot_use_a_second_core_keeps_beside_others_what_it_did_on_one_there(benchmark: ModuleType) -> None:
    found = benchmark.profile("plain", [seen(benchmark, 10.0, 1.02, 30.0, 12.5)])
    assert found.kept == pytest.approx(0.8)
    cores, speeds = zip(*found.table, strict=True)
    assert cores == (0.5, 1.02)
    assert speeds == pytest.approx((1 / 24, 1 / 10))
