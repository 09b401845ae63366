"""What is told of times in which a worker waited for others much longer than it usually does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from headgate.torch.straggler_wait import StragglerWait


class Told:
    """Rounds of a worker, and what it told of them."""

    def __init__(self) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.waits = StragglerWait(self.messages.append)
        self.now = 0.0
        self.step = 0

    def rounds(
        self, count: int, waited: float, work: float = 0.1, names: Iterable[str] = ()
    ) -> None:
        for _ in range(count):
            self.step += 1
            begin = self.now + work
            self.now = begin + waited
            self.waits.add(begin, self.now, self.step, names)

    @property
    def costs(self) -> list[float]:
        return [message["seconds"] for message in self.messages]


@pytest.fixture
def told() -> Told:
    """A worker whose rounds take 0.1 s of its own and 0.05 s of waiting."""
    found = Told()
    found.rounds(10, 0.05)
    return found


def test_a_long_wait_is_told_once_it_is_over_and_what_it_cost(told: Told) -> None:
    told.rounds(1, 5.05, names=("worker-1",))
    told.rounds(2, 0.05)
    assert told.messages == []
    told.rounds(20, 0.05)
    (message,) = told.messages
    assert (message["type"], message["text"], message["steps"]) == (
        "fault",
        "waited for worker-1 in step 11",
        0,
    )
    assert message["seconds"] == pytest.approx(5.0)


def test_many_slow_rounds_are_one_wait(told: Told) -> None:
    for _ in range(10):
        told.rounds(3, 0.65)
        told.rounds(1, 0.05)  # one that is as usual by chance
    told.rounds(5, 0.05)
    (message,) = told.messages
    assert message["text"] == "waited for the others in steps 11 to 49"
    assert message["seconds"] == pytest.approx(30 * 0.6)


def test_a_wait_is_told_at_the_end_of_the_script_too(told: Told) -> None:
    told.rounds(5, 1.05)
    told.waits.close()
    told.waits.close()
    assert told.costs == [pytest.approx(5.0)]


def test_what_costs_little_or_is_usual_is_not_told(told: Told) -> None:
    told.rounds(3, 0.3)  # 0.75 s in all
    told.rounds(10, 0.05, work=3.0)  # this worker's own work
    told.rounds(50, 0.1)
    told.waits.close()
    assert told.messages == []


def test_waits_of_large_models_count_by_their_own_pace() -> None:
    told = Told()
    told.rounds(10, 2.0, work=2.0)
    told.rounds(2, 8.0, work=2.0)  # twelve seconds: three usual rounds
    told.rounds(5, 2.0, work=2.0)
    assert told.messages == []


def test_the_first_rounds_and_those_in_which_tasks_come_or_go_are_not_told() -> None:
    told = Told()
    told.rounds(3, 20.0)
    told.rounds(10, 0.05)
    told.now += 30.0
    told.waits.skip(told.now)
    told.rounds(10, 0.05)
    told.waits.close()
    assert told.messages == []
