"""Chunks go in step with the sums that come back, and at their usual rate where none do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from headgate.testing import wait
from headgate.torch.ps.rounds.chunks import Chunk
from headgate.torch.ps.rounds.window import WINDOW, SendWindow, SumInterval
from headgate.torch.ps.transport.loop import Loop

T = TypeVar("T")


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop("test", lambda error: None)
    yield made
    made.close()


def within(loop: Loop, act: Callable[[], None]) -> None:
    done = threading.Event()
    loop.call(act)
    loop.call(done.set)
    assert done.wait(60)


def chunk(number: int) -> Chunk:
    return Chunk(number, 0, 0, 1, 0, 0)


def test_few_chunks_are_under_way_and_each_sum_lets_one_more_go(loop: Loop) -> None:
    interval, gone = SumInterval(), list[int]()
    interval.seconds = 100.0
    window = SendWindow(loop, interval, lambda sent: gone.append(sent.number))
    for number in range(20):
        within(loop, lambda number=number: window.add(chunk(number)))  # type: ignore[misc]
    assert gone == list(range(WINDOW))
    within(loop, lambda: window.came(0.0))
    assert gone == list(range(WINDOW + 1))


def test_without_any_sum_chunks_go_all_the_same(loop: Loop) -> None:
    interval, gone = SumInterval(), list[int]()
    interval.seconds = 0.005
    window = SendWindow(loop, interval, lambda sent: gone.append(sent.number))
    for number in range(20):
        within(loop, lambda number=number: window.add(chunk(number)))  # type: ignore[misc]
    wait.until(lambda: gone == list(range(20)), what="all chunks to go")


def test_what_is_not_to_go_does_not(loop: Loop) -> None:
    interval, gone = SumInterval(), list[int]()
    interval.seconds = 100.0
    window = SendWindow(loop, interval, lambda sent: gone.append(sent.number))
    for number in range(WINDOW + 3):
        within(loop, lambda number=number: window.add(chunk(number)))  # type: ignore[misc]
    within(loop, lambda: window.forget([WINDOW]))
    within(loop, lambda: window.came(0.0))
    assert gone[WINDOW:] == [WINDOW + 1]
    within(loop, window.close)
    within(loop, lambda: window.came(0.0))
    assert gone[WINDOW:] == [WINDOW + 1]


def test_a_pause_is_no_pace() -> None:
    interval = SumInterval()
    for _ in range(200):
        interval.observe(0.1)
    assert interval.seconds == pytest.approx(0.1, rel=0.01)
    interval.observe(5.0)
    assert interval.seconds == pytest.approx(0.1, rel=0.01)
