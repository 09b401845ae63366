"""A round of sampling: every sampler, each kept from harming the others; and plug-ins found through
entry points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from tests.installing import install

from headgate.model import registry
from headgate.sampling.base import Sampler, Target
from headgate.sampling.columns import Column
from headgate.sampling.round import LIST_EVERY, RETRY_SECONDS, SamplingRound, samplers
from headgate.testing.memory_sampler import InMemoryBox, InMemorySampler

NODE = Target("node", None)


class Broken(InMemorySampler):
    name = "broken"

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.mended = False

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        self.asked += 1
        if not self.mended:
            raise RuntimeError("no such sensor")
        return super().read(now, targets)


def holding(**levels: float) -> InMemorySampler:
    sampler = InMemorySampler()
    sampler.hold("node", cast("Mapping[Column, float]", levels))
    return sampler


def test_readings_of_all_samplers_are_merged() -> None:
    warnings: list[str] = []
    round_ = SamplingRound([holding(memory_bytes=1.0), holding(cache_bytes=2.0)], warnings.append)
    assert round_.read(0.0, [NODE]) == {"node": {"memory_bytes": 1.0, "cache_bytes": 2.0}}
    assert warnings == []


def test_one_failing_sampler_leaves_the_others_and_is_reported_once() -> None:
    warnings: list[str] = []
    round_ = SamplingRound([Broken(), holding(memory_bytes=1.0)], warnings.append)
    for now in (0.0, 1.0, RETRY_SECONDS, 2 * RETRY_SECONDS):
        assert round_.read(now, [NODE]) == {"node": {"memory_bytes": 1.0}}
    assert warnings == ["sampler 'broken' failed: RuntimeError: no such sensor"]


def test_a_failing_sampler_is_tried_again_rarely() -> None:
    broken = Broken()
    round_ = SamplingRound([broken], lambda _: None)
    for now in (0.0, 1.0, RETRY_SECONDS - 1):
        round_.read(now, [NODE])
    assert broken.asked == 1
    broken.mended = True
    broken.hold("node", {"memory_bytes": 3.0})
    assert round_.read(RETRY_SECONDS, [NODE]) == {"node": {"memory_bytes": 3.0}}


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_value_that_breaks_the_contract_is_dropped_and_reported_once(value: float) -> None:
    warnings: list[str] = []
    round_ = SamplingRound([holding(memory_bytes=value, cache_bytes=2.0)], warnings.append)
    for now in (0.0, 1.0):
        assert round_.read(now, [NODE]) == {"node": {"cache_bytes": 2.0}}
    assert len(warnings) == 1
    assert "memory_bytes" in warnings[0]


def test_an_unknown_column_is_dropped() -> None:
    warnings: list[str] = []
    assert SamplingRound([holding(watts=300.0)], warnings.append).read(0.0, [NODE]) == {}
    assert "watts" in warnings[0]


def test_of_two_samplers_with_one_column_the_earlier_counts() -> None:
    round_ = SamplingRound([holding(memory_bytes=1.0), holding(memory_bytes=2.0)], lambda _: None)
    assert round_.read(0.0, [NODE]) == {"node": {"memory_bytes": 1.0}}


def test_the_processes_of_a_task_are_listed_once_a_round_and_rarely_where_that_is_dear() -> None:
    class Counting(InMemoryBox):
        listed = 0

        def pids(self) -> list[int]:
            self.listed += 1
            return super().pids()

    class Grouped(Counting):
        @property
        def cgroups(self) -> Mapping[str, object]:
            return {"unified": "/nowhere"}

    loose, grouped = Counting(), Grouped()
    round_ = SamplingRound([InMemorySampler(), InMemorySampler()], lambda _: None)
    for now in range(2 * LIST_EVERY):
        round_.read(float(now), [Target("a", loose), Target("b", grouped)])
    assert grouped.listed == 2 * LIST_EVERY
    assert loose.listed == 2


def test_the_built_in_samplers_read_this_machine() -> None:
    warnings: list[str] = []
    round_ = SamplingRound(samplers(warnings.append), warnings.append)
    round_.read(0.0, [NODE])
    values = round_.read(1.0, [NODE])["node"]
    assert values.keys() >= {
        "cpu_cores",
        "cpu_fullest_core",
        "memory_bytes",
        "cache_bytes",
        "disk_read",
        "net_in",
    }
    assert warnings == []
    round_.read(2.0, [])


# --- plug-ins

PLUGINS = """
from headgate.testing.memory_sampler import InMemorySampler
class Power(InMemorySampler):
    name = "power"
def fails():
    raise RuntimeError("no licence")
def strange():
    return 3
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with one sound sampler and several broken ones, as pip would have installed it."""
    entries = (
        "[headgate.samplers]\n"
        "power = someones_plugins:Power\n"
        "absent = someones_plugins:Absent\n"
        "missing = someones_missing:Sampler\n"
        "exits = someones_exit:Sampler\n"
        "fails = someones_plugins:fails\n"
        "strange = someones_plugins:strange\n"
    )
    install(
        tmp_path, {"someones_plugins": PLUGINS, "someones_exit": "import sys; sys.exit(3)"}, entries
    )
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed")
def test_a_plug_in_that_cannot_be_loaded_becomes_a_warning_that_names_it() -> None:
    found, warnings = registry.load("headgate.samplers")
    assert set(found) == {"power", "fails", "strange"}
    assert len(warnings) == 3
    for name, cause in (
        ("absent", "AttributeError"),
        ("missing", "ModuleNotFoundError"),
        ("exits", "SystemExit"),
    ):
        assert [
            name in text and cause in text and "someones-package" in text for text in warnings
        ].count(True) == 1


@pytest.mark.usefixtures("installed")
def test_a_sound_plug_in_is_sampled_and_a_broken_one_is_reported() -> None:
    warnings: list[str] = []
    made = samplers(warnings.append)
    assert [sampler.name for sampler in made][-1] == "power"
    assert all(isinstance(sampler, Sampler) for sampler in made)
    assert len(warnings) == 5
    assert any("'fails'" in text and "no licence" in text for text in warnings)
    assert any("'strange'" in text and "int" in text for text in warnings)


def test_a_group_that_nobody_registers_under_is_empty() -> None:
    assert registry.load("headgate.nothing") == ({}, ())
