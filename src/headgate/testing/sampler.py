"""What every sampler must do: a suite to subclass.

    class TestMine(SamplerContract):
        @pytest.fixture
        def sampler(self):
            return MySampler()

The tasks that it reads are real, in the best box that this machine has; `boxed` chooses another.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Literal

import pytest

from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.model.identifiers import FIRST_WORKER, JobId
from headgate.model.shares import Share
from headgate.sampling.base import Sampler, Target
from headgate.sampling.columns import COLUMNS, Column
from headgate.testing import programs
from headgate.testing.memory_sampler import RATES
from headgate.testing.wait import until

Readings = Mapping[str, Mapping[Column, float]]

_AGES = 1e12
"""Seconds after which every rate is almost zero, while a running total would be unchanged."""


class SamplerContract:
    """The behaviours, numbered. A subclass provides the fixture `sampler`; a twin overrides how
    tasks come and go.
    """

    boxed: Literal["auto", "v1", "v2", "none"] = "auto"
    """The box of the tasks: the best available, cgroups of one version, or none."""
    reads_nodes = True
    """Whether the sampler also reads the node."""

    @pytest.fixture
    def sampler(self) -> Sampler:
        raise NotImplementedError(
            "provide a fixture `sampler` that returns the sampler to hold to its contract"
        )

    @pytest.fixture(autouse=True)
    def _nothing_left(self, sampler: Sampler) -> Iterator[None]:
        self.set_up(sampler)
        yield
        self.tear_down()

    # --- what a twin overrides

    def start(self, name: str) -> Target:
        """A living task that uses CPU."""
        reading, writing = os.pipe()
        # Without a cgroup, a task of that name of another suite on this machine would be mistaken
        # for it.
        task = JobId.of(f"samplers-{os.getpid()}", name).task(FIRST_WORKER)
        launch = Launch(task, programs.argv("spin"), dict(os.environ), os.getcwd(), 1)
        try:
            box = ProcessIsolation(f"samplers-{os.getpid()}", mode=self.boxed).start(
                launch, Share(), writing
            )
            self._boxes[name] = box
            os.read(reading, 5)
        finally:
            os.close(reading)
            os.close(writing)
        return Target(name, box)

    def end(self, target: Target) -> None:
        """End a task, and remove everything of it."""
        self._boxes[target.id].close()

    def work(self) -> None:
        """Let the tasks and the node use resources."""
        end = time.monotonic() + 0.05
        until(lambda: time.monotonic() >= end, 60, "the end of a measurement")

    # --- how the tests are written

    def set_up(self, sampler: Sampler) -> None:
        self.tested = sampler
        self._boxes: dict[str, Box] = {}
        self.node = (Target("node", None),) if self.reads_nodes else ()

    def tear_down(self) -> None:
        for box in self._boxes.values():
            box.close()
        self.tested.read(0.0, ())

    def read(self, now: float, *targets: Target) -> Readings:
        """Read once, and check the rules that hold for every reading."""
        handed = (*targets, *self.node)
        readings = self.tested.read(now, handed)
        assert readings.keys() <= {target.id for target in handed}, (
            "it answers for a target that it was not handed"
        )
        for values in readings.values():
            for column, value in values.items():
                assert column in COLUMNS, f"there is no column {column!r}"
                assert math.isfinite(value), f"{column} is {value}"
                assert value >= 0, f"{column} is {value}"
        return readings

    @staticmethod
    def rates(readings: Readings, target: str) -> dict[Column, float]:
        """A target's rates, without its levels."""
        return {
            column: value for column, value in readings.get(target, {}).items() if column in RATES
        }

    # --- the behaviours

    def test_01_a_first_reading_has_no_rates(self) -> None:
        readings = self.read(0.0, self.start("a"))
        for target in readings:
            assert self.rates(readings, target) == {}, (
                "a first reading has nothing to take a rate from"
            )

    def test_02_a_second_reading_is_sound(self) -> None:
        task = self.start("a")
        self.read(0.0, task)
        self.work()
        self.read(0.05, task)

    def test_03_rates_are_for_the_time_between_two_readings(self) -> None:
        task = self.start("a")
        self.read(0.0, task)
        self.work()
        readings = self.read(_AGES, task)
        for target in readings:
            for column, rate in self.rates(readings, target).items():
                assert rate < 1e-3, (
                    f"{column} of {target} is {rate:g} after {_AGES:g} s: a running total, or "
                    "not since then"
                )

    def test_04_a_reading_at_the_same_time_has_no_rates(self) -> None:
        task = self.start("a")
        self.read(1.0, task)
        self.work()
        readings = self.read(1.0, task)
        for target in readings:
            assert self.rates(readings, target) == {}, "no time has passed that a rate could be for"

    def test_05_a_target_that_was_away_starts_anew(self) -> None:
        task = self.start("a")
        self.read(0.0, task)
        self.work()
        self.read(1.0)
        readings = self.read(2.0, task)
        assert self.rates(readings, task.id) == {}, "it was not forgotten"

    def test_06_a_task_that_ended_leaves_the_others(self) -> None:
        first, second = self.start("a"), self.start("b")
        self.read(0.0, first, second)
        self.end(first)
        self.work()
        after = self.read(1.0, first, second)
        alone = self.read(2.0, second)
        assert after.get(second.id, {}).keys() == alone.get(second.id, {}).keys()

    def test_07_tasks_that_all_ended_are_no_error(self) -> None:
        task = self.start("a")
        self.read(0.0, task)
        self.end(task)
        self.tested.read(1.0, (task,))
        self.tested.read(2.0, (task,))

    def test_08_a_task_that_ended_before_its_first_reading_is_no_error(self) -> None:
        task = self.start("a")
        self.end(task)
        self.tested.read(0.0, (task,))

    def test_09_a_second_attempt_in_a_new_box_starts_anew(self) -> None:
        task = self.start("a")
        self.read(0.0, task)
        self.work()
        self.end(task)
        again = self.start("a")
        assert again.id == task.id
        readings = self.read(1.0, again)
        assert self.rates(readings, again.id).get("cpu_cores", 0.0) < 10.0
        self.work()
        self.read(2.0, again)

    def test_10_nothing_to_read_is_nothing_read(self) -> None:
        assert dict(self.tested.read(0.0, ())) == {}

    def test_11_what_is_forgotten_leaves_no_file_open(self) -> None:
        task = self.start("a")
        before = _descriptors()
        for now in range(3):
            self.read(float(now), task)
            self.read(now + 0.5)
        self.tested.read(9.0, ())
        assert _descriptors() <= before, "files of a target that is no longer read were left open"

    def test_12_what_is_read_does_not_depend_on_who_else_is(self) -> None:
        first, second = self.start("a"), self.start("b")
        self.read(0.0, first, second)
        self.work()
        together = self.read(1.0, second, first)
        self.work()
        alone = self.read(2.0, first)
        assert together.get(first.id, {}).keys() == alone.get(first.id, {}).keys()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
