"""When a worker counts as much slower than the others of its job."""

from __future__ import annotations

from headgate.hub.state.stragglers import StragglerChange, Stragglers


def steps(stragglers: Stragglers, **seconds: float) -> dict[str, StragglerChange]:
    """What follows when each worker takes two steps of which its own part takes so long."""
    found = {}
    for _ in range(2):
        for worker, own in seconds.items():
            spans = {"input": 0.2 * own, "forward": 0.3 * own, "backward": 0.5 * own, "wait": 9.0}
            if (change := stragglers.add(worker, spans)) is not None:
                found[worker] = change
    return found


def test_a_worker_that_takes_many_times_as_long_is_slow_once_until_it_is_not() -> None:
    stragglers = Stragglers()
    assert steps(stragglers, a=0.1, b=0.1, c=0.1) == {}
    found = steps(stragglers, a=0.1, b=0.12, c=1.0)
    assert list(found) == ["c"]
    assert (found["c"].slow, round(found["c"].own / found["c"].others)) == (True, 9)
    assert steps(stragglers, a=0.1, b=0.1, c=0.4) == {}  # still too slow to be well
    assert [change.slow for change in steps(stragglers, a=0.1, b=0.1, c=0.1).values()] == [False]


def test_of_two_the_slower_is_slow() -> None:
    assert list(steps(Stragglers(), a=0.1, b=1.0)) == ["b"]


def test_one_step_that_took_long_short_steps_and_one_alone_are_not_slow() -> None:
    stragglers = Stragglers()
    steps(stragglers, a=0.1, b=0.1)
    assert stragglers.add("b", {"forward": 5.0}) is None
    assert steps(Stragglers(), a=0.001, b=0.01) == {}
    assert steps(Stragglers(), a=10.0) == {}


def test_one_that_has_ended_is_compared_with_nobody() -> None:
    stragglers = Stragglers()
    steps(stragglers, a=0.1, b=1.0)
    stragglers.drop("a")
    assert steps(stragglers, b=3.0) == {}
