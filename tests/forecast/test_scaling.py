"""How much faster a job gets with more cores."""

from __future__ import annotations

import math

import pytest

from headgate.forecast.scaling import Scaling


def run(
    scaling: Scaling,
    begin: float,
    seconds: int,
    threads: int,
    rate: float,
    cores: float,
    entitled: float,
) -> None:
    """A job that reports twice a second and whose use is read once a second."""
    scaling.used(begin, cores, threads, entitled)
    for half in range(1, 2 * seconds + 1):
        now = begin + half / 2
        if half % 2 == 0:
            scaling.used(now, cores, threads, entitled)
        scaling.reported(now, round(rate * now))


def test_nothing_is_told_before_it_ran_with_two_numbers_of_threads() -> None:
    scaling = Scaling()
    assert scaling.useful() is None
    run(scaling, 0, 10, threads=2, rate=100, cores=1.8, entitled=2)
    assert scaling.useful() is None
    run(scaling, 10, 3, threads=1, rate=100, cores=0.9, entitled=1)
    assert scaling.useful() is None, "of three seconds one is for it to settle"
    run(scaling, 13, 3, threads=1, rate=100, cores=0.9, entitled=1)
    assert scaling.useful() is not None


# Steps a second on a core, and on so many more cores; what follows from a power through both.
@pytest.mark.parametrize(
    ("one", "threads", "many", "useful"),
    [
        (100.0, 2, 90.0, 1.0),  # it only gets in its own way
        (100.0, 2, 149.0, 1.0),
        (100.0, 2, 151.0, 2.0),  # 2 ** 0.595; a third core would add 0.42
        (100.0, 2, 170.0, 6.0),  # k ** 0.766 grows by 0.51 to 6, by 0.49 to 7
        (100.0, 2, 205.0, math.inf),
        (100.0, 4, 200.0, 1.0),  # the root: a second core adds 0.41
        (100.0, 3, 245.0, 14.0),
        # k ** 0.963: a core adds half of the first up to some fifty million
        (100.0, 4, 380.0, math.inf),
        (100.0, 4, 399.0, math.inf),
    ],
)
def test_cores_that_add_half_of_what_the_first_brings_are_useful(
    one: float, threads: int, many: float, useful: float
) -> None:
    scaling = Scaling()
    run(scaling, 0, 8, threads=1, rate=one, cores=1.0, entitled=1.0)
    run(scaling, 8, 8, threads=threads, rate=many, cores=float(threads), entitled=float(threads))
    assert scaling.useful() == useful


def test_threads_for_what_others_leave_tell_nothing() -> None:
    scaling = Scaling()
    run(scaling, 0, 8, threads=1, rate=100.0, cores=1.0, entitled=1.0)
    run(scaling, 8, 8, threads=2, rate=100.0, cores=1.0, entitled=1.0)  # it gains nothing by them
    assert scaling.useful() is None
    run(scaling, 16, 8, threads=2, rate=110.0, cores=1.9, entitled=2.0)
    assert scaling.useful() == 1.0


def test_what_it_could_not_have_does_not_count_against_it() -> None:
    scaling = Scaling()
    run(scaling, 0, 8, threads=1, rate=10.0, cores=0.1, entitled=0.1)  # 100 a core-second
    run(scaling, 8, 8, threads=2, rate=150.0, cores=1.5, entitled=1.5)  # 100 as well
    assert scaling.useful() == math.inf
    idle = Scaling()
    run(idle, 0, 8, threads=1, rate=100.0, cores=1.0, entitled=1.0)
    # a second thread that has nothing to do
    run(idle, 8, 8, threads=2, rate=100.0, cores=1.0, entitled=2.0)
    assert idle.useful() == 1.0


def test_a_step_that_goes_back_begins_anew() -> None:
    scaling = Scaling()
    run(scaling, 0, 4, threads=1, rate=100.0, cores=1.0, entitled=1.0)
    for second in range(4, 10):
        scaling.used(second, 1.0, 2, 2.0)
        scaling.reported(second, 10 * second)  # another attempt, from its checkpoint on
    assert scaling.useful() == 1.0


@pytest.mark.parametrize("reported_first", [True, False])
def test_a_machine_that_stood_still_for_an_hour_spoils_nothing(reported_first: bool) -> None:
    scaling = Scaling()
    run(scaling, 0, 8, threads=1, rate=100.0, cores=1.0, entitled=1.0)
    after = 3600.0
    if reported_first:
        scaling.reported(8 + after, 850)
    scaling.used(8 + after, 0.9, 1, 1.0)  # read as the mean of an hour, of which it used moments
    for second in range(1, 8):
        scaling.used(8 + after + second, 1.0, 1, 1.0)
        scaling.reported(8 + after + second, 850 + 100 * second)
    run(scaling, 16 + after, 8, threads=2, rate=151.0, cores=2.0, entitled=2.0)
    assert scaling.useful() == 2.0


def test_seconds_in_which_others_had_its_cores_tell_nothing() -> None:
    scaling, now, step = Scaling(), 0.0, 0.0

    def runs(threads: int, rate: float, cores: float, waits: float) -> None:
        nonlocal now, step
        for _ in range(16):
            now, step = now + 0.5, step + rate / 2
            scaling.used(now, cores, threads, float(threads), waits)
            scaling.reported(now, step)

    runs(threads=1, rate=100.0, cores=1.0, waits=0.0)
    runs(threads=2, rate=50.0, cores=0.4, waits=1.6)
    assert scaling.power() is None
    runs(threads=2, rate=160.0, cores=2.0, waits=0.1)
    assert scaling.power() == pytest.approx(math.log2(1.6), abs=0.1)
