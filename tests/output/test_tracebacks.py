"""A traceback's lines tell nothing of progress, and nothing near it."""

from __future__ import annotations

import pytest

from headgate.model.progress_rule import ProgressRule
from headgate.output.patterns import ProgressReader
from headgate.output.tracebacks import TracebackLines

TRACEBACK = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    loss = 0.5 * criterion(model(x), y)  # epoch 3
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/model.py", line 40, in forward
    error = 1.25

RuntimeError: loss 0.75 is too high at step 3"""


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "worker | "])
def test_all_of_it_is_held_and_what_follows_is_not(prefix: str) -> None:
    lines = [prefix + line for line in TRACEBACK.splitlines()]
    reader = TracebackLines()
    assert [reader.holds(line) for line in lines] == [True] * len(lines)
    assert not reader.holds(f"{prefix}epoch 4 loss 0.25")


def test_a_heading_that_is_only_spoken_of_holds_nothing_else() -> None:
    reader = TracebackLines()
    assert reader.holds("look for Traceback (most recent call last) in the log")
    assert not reader.holds("epoch 1 loss 0.5")


@pytest.mark.parametrize("rule", [ProgressRule(), ProgressRule(metric="error")])
def test_it_is_no_progress_and_no_hint(rule: ProgressRule) -> None:
    reader = ProgressReader(rule)
    lines = TRACEBACK.splitlines()
    assert reader.feed(["starting", *lines]) == []
    assert "nearest came" not in (reader.hint() or "")


def test_training_goes_on_behind_one_that_was_caught() -> None:
    reader = ProgressReader(ProgressRule())
    readings = reader.feed(["epoch 1/3 loss 0.5", *TRACEBACK.splitlines(), "epoch 2/3 loss 0.25"])
    assert [reading.loss for reading in readings] == [0.5, 0.25]
