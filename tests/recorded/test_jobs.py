from __future__ import annotations

from headgate.recorded.jobs import phases, running


def test_phases_follow_the_recorded_states_through_a_retry() -> None:
    found = phases(
        [
            (0.0, "waiting", "being planned"),
            (0.1, "waiting", "starts in 5 s"),
            (5.0, "running", "started"),
            (7.0, "note", "not a state"),
            (9.0, "waiting", "exit code 1; tried again in 1 s"),
            (10.0, "running", "started (attempt 2)"),
            (19.0, "stopping", "stopped by its user"),
            (20.0, "stopped", "stopped by its user"),
        ],
        submitted=0.0,
        started=5.0,
        ended=20.0,
        state="stopped",
        until=20.0,
    )
    assert [(p.state, p.start, p.end, p.attempt) for p in found] == [
        ("waiting", 0.0, 5.0, 0),
        ("running", 5.0, 9.0, 1),
        ("waiting", 9.0, 10.0, 0),
        ("running", 10.0, 19.0, 2),
        ("stopping", 19.0, 20.0, 2),
    ]
    assert found[0].reason == "starts in 5 s"
    assert running(found) == [(5.0, 9.0), (10.0, 20.0)]


def test_a_job_that_is_resized_while_it_runs_stays_in_one_phase_of_one_attempt() -> None:
    marks = [
        (0.0, "waiting", ""),
        (1.0, "running", "started"),
        (4.0, "running", "resized from 2 to 3 workers"),
    ]
    found = phases(marks, submitted=0.0, started=1.0, ended=None, state="running", until=9.0)
    assert [(p.state, p.start, p.end, p.attempt) for p in found] == [
        ("waiting", 0.0, 1.0, 0),
        ("running", 1.0, 9.0, 1),
    ]


def test_a_job_that_starts_again_to_be_resized_has_another_attempt() -> None:
    marks = [
        (0.0, "running", "started"),
        (4.0, "stopping", "resized from 2 to 3 workers"),
        (5.0, "waiting", "resized from 2 to 3 workers; started again"),
        (6.0, "running", "going on from step 7 (attempt 2)"),
        (7.0, "running", "resized from 3 to 2 workers"),
    ]
    found = phases(marks, submitted=0.0, started=0.0, ended=None, state="running", until=9.0)
    assert [(p.state, p.start, p.attempt) for p in found][1:] == [
        ("stopping", 4.0, 1),
        ("waiting", 5.0, 0),
        ("running", 6.0, 2),
    ]


def test_without_recorded_states_the_times_of_the_job_tell_its_phases() -> None:
    found = phases([], submitted=1.0, started=3.0, ended=8.0, state="done", until=8.0)
    assert [(p.state, p.start, p.end) for p in found] == [
        ("waiting", 1.0, 3.0),
        ("running", 3.0, 8.0),
    ]


def test_a_job_without_an_end_runs_until_the_last_that_is_known() -> None:
    found = phases(
        [(0.0, "running", "")], submitted=0.0, started=0.0, ended=None, state="running", until=42.0
    )
    assert [(p.state, p.end) for p in found] == [("running", 42.0)]


def test_a_job_that_never_started_only_waited() -> None:
    marks = [
        (0.0, "waiting", "for a to finish"),
        (6.0, "skipped", "a, which it comes after, ended as failed"),
    ]
    found = phases(marks, submitted=0.0, started=None, ended=6.0, state="skipped", until=6.0)
    assert [(p.state, p.start, p.end) for p in found] == [("waiting", 0.0, 6.0)]
    assert running(found) == []
