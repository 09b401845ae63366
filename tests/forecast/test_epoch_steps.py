"""How many steps an epoch has, and how many are left."""

from __future__ import annotations

import pytest

from headgate.forecast.epoch_steps import EpochSteps


def test_epochs_tell_what_is_left() -> None:
    epochs = EpochSteps()
    for step in range(10, 260, 10):
        epochs.add(step, 1 + (step - 1) // 100, 5)
    left = epochs.left()
    assert left is not None
    assert left.steps == pytest.approx(500 - 250, abs=5)  # half of what lies between two reports
    assert left.low <= 250 <= left.high


@pytest.mark.parametrize("beginning", [0, 1])
def test_epochs_are_counted_from_0_or_from_1(beginning: int) -> None:
    epochs = EpochSteps()
    for step in range(10, 260, 10):
        epoch = beginning + (step - 1) // 100
        epochs.add(step, epoch, beginning + 4)  # 0/4 to 4/4, or 1/5 to 5/5
        rest, left = epochs.rest((2, 0.0)), epochs.left()
        if epoch == beginning:
            assert (rest, left) == (None, None)
        else:
            assert rest == pytest.approx((200, 0.0), rel=0.06)
            assert left is not None and left.steps == pytest.approx(500 - step, abs=25)


@pytest.mark.parametrize("before", [0, 500])
def test_the_steps_of_a_resumed_script_are_its_own_or_those_of_the_whole_job(before: int) -> None:
    epochs = EpochSteps()
    for step in range(10, 160, 10):  # from the sixth epoch of ten on, 100 steps each
        epochs.add(before + step, 6 + (step - 1) // 100, 10)
    left = epochs.left()
    assert left is not None
    assert left.steps == pytest.approx(350, rel=0.15)


def test_epochs_tell_nothing_before_one_has_ended_or_after_a_restart() -> None:
    epochs = EpochSteps()
    epochs.add(50, 1, 5)
    assert epochs.left() is None
    epochs.add(110, 2, 5)
    assert epochs.left() is not None
    epochs.add(1, 1, 5)
    assert epochs.left() is None
    nobody = EpochSteps()
    nobody.add(50, 1, None)
    nobody.add(110, 2, None)
    assert nobody.left() is None
