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


class Stage:
    """Where runs of so many jobs under a policy take so long, each job on so many cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType, entitled: float = 1.7) -> None:
        self.found: dict[tuple[str, int], tuple[float, float]] = {}
        monkeypatch.setattr(benchmark, "_measured", self.measured)
        monkeypatch.setattr(benchmark, "_entitled", lambda *_: entitled)

    def start(self, jobs: list[object], policy: str) -> tuple[str, int]:
        return policy, len(jobs)

    def measured(self, _there: object, run: tuple[str, int], jobs: list[object], *_: object) -> list[TraceJob]:
        seconds, cores = self.found[run]
        return [TraceJob("a", 0.0, seconds, cores=cores) for _ in jobs]


def test_what_a_job_keeps_in_company_is_measured_where_it_has_most_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType
) -> None:
    there = Stage(monkeypatch, benchmark)
    # Alone it takes 10 s on both cores; beside another 20 s on one core, 14 s on 1.7.
    there.found = {("equal", 1): (10.0, 2.0), ("equal", 2): (20.0, 1.0), ("equal", 4): (50.0, 0.5)}
    there.found["srpt", 2] = (14.0, 1.7)
    found = benchmark.profile(there, "vae", 1.0, 2)
    # On both cores it would do 1/14 and as much more a core as from one to 1.7.
    assert found.kept == pytest.approx(10 * (1 / 14 + (1 / 14 - 1 / 20) * 0.3 / 0.7))
    cores, speeds = zip(*found.table, strict=True)
    assert (cores, found.job.cores) == ((0.5, 1.0, 2.0), 2.0)
    assert [speed * found.kept for speed in speeds] == pytest.approx([1 / 50, 1 / 20, found.kept / 10])


def test_what_a_job_uses_only_alone_is_spent_on_spinning(
    monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType
) -> None:
    there = Stage(monkeypatch, benchmark)
    there.found = {("equal", 1): (10.0, 2.0), ("equal", 2): (20.0, 1.0), ("equal", 4): (50.0, 0.5)}
    there.found["srpt", 2] = (14.0, 1.3)  # of 1.7 that it might have used
    found = benchmark.profile(there, "vae", 1.0, 2)
    assert found.kept == pytest.approx(10 / 14)
    assert found.job.cores == 1.3
    assert found.table[-1] == (1.3, pytest.approx(0.1))


def test_of_a_job_that_cannot_use_a_second_core_the_one_beside_others_tells_what_it_keeps(
    monkeypatch: pytest.MonkeyPatch, benchmark: ModuleType
) -> None:
    there = Stage(monkeypatch, benchmark)
    there.found = {("equal", 1): (10.0, 1.02), ("equal", 2): (12.5, 1.0), ("equal", 4): (30.0, 0.5)}
    found = benchmark.profile(there, "plain", 1.0, 2)
    assert found.kept == pytest.approx(0.8)
    cores, speeds = zip(*found.table, strict=True)
    assert cores == (0.5, 1.02)
    assert speeds == pytest.approx((1 / 24, 1 / 10))


@pytest.mark.parametrize(
    ("most", "kept"),
    [
        ((1.0, 0.06), 0.6),  # no more cores than one: nothing tells of more
        ((1.9, 0.04), 0.4),  # slower on more cores than on one
        ((2.0, 0.09), 0.9),
        ((1.2, 0.065), 0.65 * 2.0 / 1.2),  # a steep line
        ((1.9, 0.2), 1.0),
    ],
)
def test_no_job_is_taken_to_keep_less_than_it_was_seen_to_or_more_than_its_cores_bring(
    benchmark: ModuleType, most: tuple[float, float], kept: float
) -> None:
    assert benchmark.kept_of((1.0, 0.05), most, (2.0, 0.1)) == pytest.approx(min(kept, 1.0))
