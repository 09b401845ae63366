"""Memory that creeps up, and memory that only seems to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.diagnosis.made_up import MadeUp, recording

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.creeping import growth
from headgate.diagnosis.findings import CreepFacts, FindingKind
from headgate.diagnosis.verdicts import findings, verdict
from headgate.recorded.usage import Array, readings
from headgate.reports.explained import headline
from headgate.reports.findings import why
from headgate.reports.remedies import next_step

MIB = 2.0**20


def slope(values: Array) -> float | None:
    return growth(readings(np.arange(1.0, len(values) + 1.0), values))


@settings(max_examples=150, deadline=None)
@given(
    level=st.floats(50.0, 50_000.0),
    noise=st.floats(0.0, 0.2),
    height=st.floats(0.0, 5.0),
    periods=st.floats(1.5, 40.0),
    begins=st.floats(0.0, 1.0),
    count=st.integers(2, 600),
    seed=st.integers(0, 2**32 - 1),
)
def test_steady_or_sawtooth_memory_never_creeps(
    level: float,
    noise: float,
    height: float,
    periods: float,
    begins: float,
    count: int,
    seed: int,
) -> None:
    assume(count > 2.0 * periods)  # fewer readings than that show another sawtooth
    scatter = np.random.default_rng(seed).normal(0.0, noise, count)
    sawtooth = (begins + np.linspace(0.0, periods, count)) % 1.0
    memory: Array = MIB * level * np.maximum(1.0 + scatter + height * sawtooth, 0.0)
    assert slope(memory) is None


@settings(max_examples=50, deadline=None)
@given(at=st.floats(0.0, 1.0), height=st.floats(0.0, 10.0), count=st.integers(2, 300))
def test_one_allocation_is_no_creep(at: float, height: float, count: int) -> None:
    higher = np.where(np.linspace(0.0, 1.0, count) > at, height, 0.0)
    memory: Array = MIB * 500.0 * (1.0 + higher)
    assert slope(memory) is None


@settings(max_examples=50, deadline=None)
@given(rate=st.floats(2.0, 100.0), count=st.integers(60, 600), seed=st.integers(0, 2**32 - 1))
def test_a_leak_below_a_small_sawtooth_is_told(rate: float, count: int, seed: int) -> None:
    t = np.arange(count)
    scatter = np.random.default_rng(seed).normal(0.0, 0.02, count)
    memory = 300.0 + rate * (t + 8.0 * (t / 8.0 % 1.0) + 5.0 * scatter)
    rise = slope(MIB * memory)
    assert rise == pytest.approx(MIB * rate, rel=0.1)


def account(path: Path, job: MadeUp) -> Account:
    run = recording(path / "run.sqlite", {"a": job})
    return accounts(run.jobs, run.nodes, run.seconds)[0]


def leak(**known: object) -> MadeUp:
    memory = {"memory_bytes": lambda t: MIB * (400.0 + 10.0 * t)}
    return MadeUp(ran=1.0, steps=5.0, end=60, readings=memory, **known)  # type: ignore[arg-type]


def test_a_creep_is_told_with_its_rate_and_when_its_limit_is_full(tmp_path: Path) -> None:
    leaks = account(tmp_path, leak(limits={"memory_bytes": 2 << 30}))
    creep = verdict(leaks)
    facts = creep.facts
    assert creep.kind is FindingKind.MEMORY_CREEPS and isinstance(facts, CreepFacts)
    assert facts.bytes_per_step == pytest.approx(2.0 * MIB)
    assert facts.bytes_per_second == pytest.approx(10.0 * MIB)
    assert facts.seconds_left == pytest.approx((2048.0 - 1000.0) / 10.0)
    assert why(creep, leaks) == (
        "The memory of a creeps up by 2 MiB a step, 35.16 GiB an hour: its limit of 2 GiB would "
        "have been full 1 min 45 s later."
    )
    assert "`limits: {memory: 4GiB}`" in next_step(creep, leaks)


def test_what_costs_time_comes_before_a_creep_of_an_ended_job(tmp_path: Path) -> None:
    leaks = account(tmp_path, leak(asides={"evaluation": 20.0}))
    first, *others = findings(leaks)
    assert first.kind is FindingKind.EVALUATION
    assert FindingKind.MEMORY_CREEPS in [finding.kind for finding in others]
    also = headline(leaks)[-1].plain
    assert also.startswith("  Also: The memory of a creeps up") and also.endswith("(memory-creeps)")


def test_gpu_memory_that_creeps_is_told_with_when_its_gpu_is_full(tmp_path: Path) -> None:
    creeps = {"gpu_memory_bytes": lambda t: MIB * (2000.0 + 10.0 * t)}
    job = MadeUp(ran=1.0, steps=5.0, end=60, readings=creeps, gpus=[1])
    gpus = [{"index": number, "name": "H200", "memory_bytes": 4 << 30} for number in range(2)]
    run = recording(tmp_path / "run.sqlite", {"a": job}, node={"gpus": gpus})
    [leaks] = accounts(run.jobs, run.nodes, run.seconds)
    creep = verdict(leaks)
    assert creep.kind is FindingKind.GPU_MEMORY_CREEPS
    assert creep.facts.seconds_left == pytest.approx((4096.0 - 2600.0) / 10.0)
    assert why(creep, leaks) == (
        "The GPU memory of a creeps up by 2 MiB a step, 35.16 GiB an hour: the GPU memory of 4 GiB "
        "would have been full 2 min 30 s later."
    )
    assert "limits" not in next_step(creep, leaks)
