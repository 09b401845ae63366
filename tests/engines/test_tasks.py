"""Grace periods of the engine `local`'s tasks."""

from __future__ import annotations

from headgate.engines.tasks import REST_SECONDS, GracePeriod, GraceStep


def test_what_was_not_asked_is_asked_shortly_before_all_are_killed() -> None:
    grace = GracePeriod()
    assert grace.times() == []
    grace.grant(100.0, 10.0)
    grace.terminates = True
    assert grace.times() == [110.0 - REST_SECONDS]
    assert grace.due(107.9) == set()
    assert grace.due(108.0) == {GraceStep.TERMINATE}
    assert grace.times() == [110.0]
    assert grace.due(110.0) == {GraceStep.KILL}
    assert (grace.runs, grace.overdue_seconds, grace.times()) == (False, 10.0, [])


def test_a_second_request_only_shortens_it_and_what_the_first_granted_is_told() -> None:
    grace = GracePeriod()
    grace.grant(100.0, 10.0)
    grace.terminates = True
    grace.grant(101.0, 60.0)
    assert grace.times() == [108.0]
    grace.grant(102.0, 2.0)
    assert grace.times() == [103.0]
    assert grace.due(104.0) == {GraceStep.TERMINATE, GraceStep.KILL}
    assert grace.overdue_seconds == 10.0


def test_the_grace_of_a_task_that_ends_in_time_is_not_over() -> None:
    grace = GracePeriod()
    grace.grant(100.0, 10.0)
    grace.end()
    assert grace.due(200.0) == set()
    assert grace.overdue_seconds is None
