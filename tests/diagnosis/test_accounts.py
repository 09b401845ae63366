"""Accounts of runs of which every number is known."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnosis.made_up import Course, MadeUp, recording

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.findings import MissingKind, MissingReading
from headgate.recorded.jobs import Phase
from headgate.recorded.proofs import OUTCOMES, Gain, Proof
from headgate.recorded.recording import Recording, read
from headgate.recorded.store import Recorder


def account(run: Recording, job: str) -> Account:
    found = next(each for each in accounts(run.jobs, run.nodes, run.seconds) if each.job == job)
    assert sum(part.seconds for part in found.parts.values()) == pytest.approx(
        found.elapsed, rel=1e-6, abs=1e-6
    )
    for part in found.parts.values():
        assert 0.0 <= part.low <= part.seconds * (1 + 1e-9) <= part.high * (1 + 2e-9)
    return found


def comes_and_goes(there: float, away: float) -> Callable[[int], float]:
    """A quantity beside a neighbour that is there for five seconds of ten, and without it."""
    return lambda t: there if (t - 1) % 10 < 5 else away


PRESENT = MadeUp(ran=comes_and_goes(1.0, 0.0))
"""That neighbour."""


def lost(found: Account) -> dict[tuple[str, str], float]:
    return {(loss.to, loss.resource): loss.lost.seconds for loss in found.losses}


def test_two_jobs_on_one_core_lose_half_of_their_time_to_each_other(tmp_path: Path) -> None:
    same = MadeUp(ran=0.5, waited=0.5)
    run = recording(tmp_path / "run.sqlite", {"a": same, "b": same}, cores=1.0)
    for name, other in (("a", "b"), ("b", "a")):
        found = account(run, name)
        assert lost(found) == {(other, "cores"): pytest.approx(20.0, rel=0.02)}
        assert [loss.evidence for loss in found.losses] == ["counted"]
        assert found.parts["compute"].seconds == pytest.approx(20.0, rel=0.05)


def test_what_was_lost_is_shared_out_by_the_cores_that_each_used_meanwhile(tmp_path: Path) -> None:
    jobs = {
        "a": MadeUp(ran=0.5, waited=0.5),
        "b": MadeUp(ran=lambda t: 1.0 if t <= 20 else 0.5),
        "c": MadeUp(ran=lambda t: 0.5 if t <= 20 else 1.0),
    }
    found = account(recording(tmp_path / "run.sqlite", jobs), "a")
    assert lost(found) == {("b", "cores"): pytest.approx(10.0), ("c", "cores"): pytest.approx(10.0)}


def test_programs_outside_headgate_are_culprits_too(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.5, waited=0.5)}, outside=1.5)
    assert lost(account(run, "a")) == {("others", "cores"): pytest.approx(20.0)}


def test_a_job_alone_blames_nobody_however_many_threads_it_has(tmp_path: Path) -> None:
    found = account(recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=2.0, waited=6.0)}), "a")
    assert lost(found) == {}
    assert found.around.excess_threads == pytest.approx(6.0)
    assert found.parts["compute"].seconds == pytest.approx(40.0, rel=0.05)


@pytest.mark.parametrize(
    "neighbours", [{}, {"b": MadeUp(ran=1.5)}], ids=["alone", "beside another"]
)
def test_its_own_cap_is_not_put_down_to_a_neighbour(
    tmp_path: Path, neighbours: dict[str, MadeUp]
) -> None:
    capped = MadeUp(ran=0.5, waited=0.5, throttled=0.5, cap=0.5, limits={"cores": 0.5})
    found = account(recording(tmp_path / "run.sqlite", {"a": capped, **neighbours}), "a")
    assert lost(found) == {}
    assert found.parts["cap"].seconds == pytest.approx(20.0)


def test_what_a_cap_held_back_counts_though_the_kernel_does_not_call_it_waiting(
    tmp_path: Path,
) -> None:
    """Two threads that would run on 1.9 cores have 0.7: for the rest they stand."""
    capped = MadeUp(ran=0.7, waited=0.3, throttled=1.2, ready=0.55, cap=0.7, limits={"cores": 0.7})
    found = account(recording(tmp_path / "run.sqlite", {"a": capped}), "a")
    assert found.parts["cap"].seconds == pytest.approx(40 * 1.2 / 1.9, rel=0.1)
    assert found.parts["unexplained"].seconds == pytest.approx(0.0, abs=2.0)


def test_a_cap_below_what_its_user_allows_is_on_behalf_of_the_neighbours(tmp_path: Path) -> None:
    capped = MadeUp(ran=0.5, waited=0.5, throttled=0.5, cap=0.5, limits={"cores": 2})
    found = account(recording(tmp_path / "run.sqlite", {"a": capped, "b": MadeUp(ran=1.5)}), "a")
    assert lost(found) == {("b", "cores"): pytest.approx(20.0)}
    assert found.parts["cap"].seconds == 0.0


def test_what_the_hypervisor_kept_is_the_node_s(tmp_path: Path) -> None:
    found = account(recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.75)}, stolen=0.25), "a")
    assert found.parts["hypervisor"].seconds == pytest.approx(0.75 * 0.25 * 40)
    assert lost(found) == {("node", "cores"): pytest.approx(0.75 * 0.25 * 40)}


def test_waiting_to_start_and_starting_come_before_the_steps(tmp_path: Path) -> None:
    job = MadeUp(ran=1.0, start=10, steps=lambda t: 10.0 if t >= 20 else 0.0)
    found = account(recording(tmp_path / "run.sqlite", {"a": job}), "a")
    assert found.parts["waiting"].seconds == pytest.approx(10.0)
    # the first report comes at 20 s, a second after that
    assert found.parts["starting"].seconds == pytest.approx(9.0)
    assert found.parts["compute"].seconds == pytest.approx(21.0)


def test_time_that_nothing_explains_is_shown_as_that(tmp_path: Path) -> None:
    found = account(recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.25)}), "a")
    assert found.parts["unexplained"].seconds == pytest.approx(0.75 * 39, rel=0.05)


@pytest.mark.parametrize(
    ("seen", "unexplained"),
    [(lambda t: float(t % 7 % 2 == 0), 0.43), (1.0, 0.0)],
    ids=["they sleep", "they take turns"],
)
def test_two_threads_that_run_for_half_of_the_time_each_do_so_together_or_in_turn(
    tmp_path: Path, seen: Course, unexplained: float
) -> None:
    """The busiest of them is ready for 0.57 of the time. So is any of them where they compute
    together.
    """
    half = MadeUp(ran=1.1, ready=0.57, end=43, readings={"any_ready": seen})
    found = account(recording(tmp_path / "run.sqlite", {"a": half}), "a")
    part = found.parts["unexplained"]
    assert part.seconds == pytest.approx(unexplained * 42, abs=2.0)
    assert part.low <= unexplained * 42 <= part.high


def test_time_in_which_its_gpu_was_busy_is_compute(tmp_path: Path) -> None:
    found = account(recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.25, gpu=0.9)}), "a")
    assert found.parts["compute"].seconds == pytest.approx(0.9 * 39 + 1, rel=0.05)


def test_readings_that_come_to_more_than_a_second_still_add_up(tmp_path: Path) -> None:
    jobs = {
        "a": MadeUp(ran=0.1, waited=3.9, throttled=0.5, cap=1.0, limits={"cores": 1}),
        "b": MadeUp(ran=1.9),
    }
    account(recording(tmp_path / "run.sqlite", jobs, stolen=4.0), "a")


def test_waiting_for_input_is_not_unexplained(tmp_path: Path) -> None:
    waits = MadeUp(ran=0.25, spans={"input": 0.075, "forward": 0.025})
    found = account(recording(tmp_path / "run.sqlite", {"a": waits}), "a")
    assert found.parts["input"].seconds == pytest.approx(0.75 * 39, rel=0.05)
    assert found.parts["unexplained"].seconds == pytest.approx(0.0, abs=0.5)


def test_a_neighbour_that_makes_steps_dearer_costs_memory(tmp_path: Path) -> None:
    """With `b` there a step takes 0.15 CPU seconds, without it 0.1, and neither waits for a
    core.
    """
    jobs = {"a": MadeUp(ran=1.0, steps=comes_and_goes(1 / 0.15, 10.0)), "b": PRESENT}
    found = account(recording(tmp_path / "run.sqlite", jobs), "a")
    assert lost(found) == {("b", "memory"): pytest.approx(20 * 0.05 / 0.15, rel=0.1)}
    assert [loss.evidence for loss in found.losses] == ["compared"]


def test_a_thread_s_loss_with_a_core_is_memory_s_however_rough_its_cpu_time_reads(
    tmp_path: Path,
) -> None:
    """Beside `b` it waits a tenth of the time, and a step takes a fifth more besides."""
    jobs = {
        "a": MadeUp(
            ran=lambda t: comes_and_goes(0.9, 1.0)(t) + (0.3 if t % 3 else -0.6),
            waited=comes_and_goes(0.1, 0.0),
            ready=1.0,
            end=26,
            steps=comes_and_goes(10.0 * 0.9 / 1.2, 10.0),
        ),
        "b": replace(PRESENT, end=26),
    }
    found = lost(account(recording(tmp_path / "run.sqlite", jobs), "a"))
    assert found["b", "memory"] > found["b", "cores"] > 0.0
    assert found["b", "memory"] + found["b", "cores"] == pytest.approx(16 / 4, abs=0.8)


def test_programs_that_are_never_all_away_are_compared_by_what_more_of_them_costs(
    tmp_path: Path,
) -> None:
    """Half of the seconds take half as long again, beside a program of one core."""
    steps = MadeUp(ran=1.0, steps=comes_and_goes(10.0 / 1.5, 10.0))
    run = recording(tmp_path / "run.sqlite", {"a": steps}, outside=comes_and_goes(1.0, 0.08))
    assert lost(account(run, "a")) == {("others", "memory"): pytest.approx(20.0 / 3.0, rel=0.05)}


@pytest.mark.parametrize(
    ("instructions", "losses"),
    [(1.0, {"memory": 20 / 3}), (1.5, {})],
    ids=["the same work", "more work"],
)
def test_cycles_per_instruction_tell_dearer_steps_from_larger_ones(
    tmp_path: Path, instructions: float, losses: dict[str, float]
) -> None:
    """Beside `b` a step takes half as much again of CPU time: through it, or because there is more
    to do.
    """
    counted: dict[str, Course | None] = {
        "cpu_cycles": 3e9,
        "cpu_instructions": comes_and_goes(instructions * 2e9, 1.5 * 2e9),
    }
    steps = {"a": MadeUp(ran=1.0, steps=comes_and_goes(1 / 0.15, 10.0), readings=counted)}
    found = account(recording(tmp_path / "run.sqlite", {**steps, "b": PRESENT}), "a")
    assert lost(found) == {
        ("b", through): pytest.approx(seconds, rel=0.1) for through, seconds in losses.items()
    }


@pytest.mark.parametrize(
    ("shared", "really"), [(9.0, 2.0), (2.5, 15.0)], ids=["less than counted", "more"]
)
def test_steps_with_and_without_a_neighbour_tell_more_than_waiting(
    tmp_path: Path, shared: float, really: float
) -> None:
    """Beside `b` it waits for half of the time, and does 9 or 2.5 of its 10 steps a second."""

    jobs = {
        "a": MadeUp(
            ran=comes_and_goes(0.5, 1.0),
            waited=comes_and_goes(0.5, 0.0),
            steps=comes_and_goes(shared, 10.0),
        ),
        "b": PRESENT,
    }
    found = account(recording(tmp_path / "run.sqlite", jobs, cores=1.5), "a")
    assert found.parts["neighbours"].seconds == pytest.approx(really, abs=0.6)
    assert sum(part.seconds for part in found.parts.values()) == pytest.approx(40.0)
    assert {loss.evidence for loss in found.losses} == {"compared"}


def test_of_what_was_counted_no_more_is_taken_back_than_there_was(tmp_path: Path) -> None:
    """It does four times as many steps while `b` runs, for which it waited; the hypervisor takes
    from it all along.
    """
    jobs = {
        "a": MadeUp(
            ran=0.4, waited=comes_and_goes(0.2, 0.0), ready=1.0, steps=comes_and_goes(40.0, 10.0)
        ),
        "b": PRESENT,
    }
    found = account(recording(tmp_path / "run.sqlite", jobs, stolen=0.3), "a")
    assert sum(part.seconds for part in found.parts.values()) == pytest.approx(40.0)
    assert found.parts["neighbours"].seconds == pytest.approx(0.0, abs=0.1)


def test_a_job_never_alone_loses_what_was_counted_not_what_its_steps_suggest(
    tmp_path: Path,
) -> None:
    """Beside `b` or `c` a step takes a third of what it takes beside both: beside neither, less
    than nothing.
    """
    jobs = {
        "a": MadeUp(ran=0.5, waited=0.5, steps=lambda t: 3.0 if 10 < t <= 20 else 10.0, end=30),
        "b": MadeUp(ran=1.0, end=20),
        "c": MadeUp(ran=1.0, start=10, end=30),
    }
    found = account(recording(tmp_path / "run.sqlite", jobs), "a")
    assert {loss.evidence for loss in found.losses} == {"counted"}
    assert found.parts["compute"].seconds == pytest.approx(15.0, abs=1.0)


@pytest.mark.parametrize("end", [40, 2], ids=["always there", "there for a moment"])
def test_a_neighbour_that_cannot_be_compared_is_not_blamed(tmp_path: Path, end: int) -> None:
    jobs = {"a": MadeUp(ran=1.0, steps=lambda t: 8.0 + t % 3), "b": MadeUp(ran=1.0, end=end)}
    assert lost(account(recording(tmp_path / "run.sqlite", jobs), "a")) == {}


def test_a_neighbour_that_changes_nothing_is_not_blamed(tmp_path: Path) -> None:
    jobs = {"a": MadeUp(ran=1.0, steps=lambda t: 8.0 + t * 7 % 5), "b": MadeUp(ran=1.0, end=20)}
    assert lost(account(recording(tmp_path / "run.sqlite", jobs), "a")) == {}


def test_what_a_run_lacks_is_told(tmp_path: Path) -> None:
    found = account(recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, steps=0.0)}), "a")
    assert [missing.kind for missing in found.missing_readings] == [MissingKind.STEPS]


@pytest.mark.parametrize("other", ["epoch", "samples"])
def test_a_script_that_tells_no_steps_is_followed_by_what_it_counts(
    tmp_path: Path, other: str
) -> None:
    accounts = []
    for counter in ("step", other):
        late = MadeUp(ran=0.5, waited=0.5, steps=lambda t: 2.0 if t > 10 else 0.0, counter=counter)
        path = tmp_path / f"{counter}.sqlite"
        accounts.append(
            account(recording(path, {"a": late, "b": MadeUp(ran=1.0, end=20)}, cores=1.5), "a")
        )
    by_steps, by_others = accounts
    assert by_others == replace(by_steps, record=by_others.record)
    assert (
        not by_others.missing_readings
        and by_others.around.speedups.figures
        and by_others.parts["starting"].seconds > 0.0
    )


def test_a_job_of_one_epoch_is_followed_by_its_samples(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    recording(path, {"a": MadeUp(ran=1.0, counter="samples")})
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE progress SET epoch = 1, epochs = 1")
    assert account(read(path), "a").around.speedups.figures


def test_a_loss_that_was_proved_takes_the_place_of_what_was_counted_and_the_parts_still_add_up(
    tmp_path: Path,
) -> None:
    jobs = {"a": MadeUp(ran=0.5, waited=0.5), "b": MadeUp(ran=0.5, waited=0.5)}
    run = recording(tmp_path / "run.sqlite", jobs, cores=1.0)
    counted = account(run, "a")
    seen, none, _ = OUTCOMES
    for part, outcome in ((0.25, seen), (3.0, seen), (0.0, none)):
        proof = Proof("b", "a", 16, 0.4, Gain(part, part - 0.02, part + 0.02), outcome)
        job = replace(run.jobs[0], proofs=(proof,))
        (found, _) = accounts((job, run.jobs[1]), run.nodes, run.seconds)
        assert sum(each.seconds for each in found.parts.values()) == pytest.approx(found.elapsed)
        proved = [loss for loss in found.losses if loss.to == "b"]
        assert [loss.evidence for loss in proved] == (["proved"] if part else [])
        if part:
            assert proved[0].lost.seconds == pytest.approx(39.0 * part / (1.0 + part), rel=0.1)
    assert [loss.evidence for loss in counted.losses] == ["counted"]


def test_on_a_crowded_node_a_proof_takes_from_counted_causes_before_compute(tmp_path: Path) -> None:
    """Six jobs of one thread on two cores: without one of them each of the others is faster by a
    fifth.
    """
    run = recording(
        tmp_path / "run.sqlite", dict.fromkeys("abcdef", MadeUp(ran=1 / 3, waited=2 / 3))
    )
    seen, *_ = OUTCOMES
    proofs = tuple(Proof(to, "a", 16, 0.4, Gain(0.2, 0.15, 0.25), seen) for to in "bcdef")
    for count in (0, 2, 5):
        (found, *_) = accounts(
            (replace(run.jobs[0], proofs=proofs[:count]), *run.jobs[1:]), run.nodes, run.seconds
        )
        assert sum(each.seconds for each in found.parts.values()) == pytest.approx(found.elapsed)
        assert found.parts["compute"].seconds == pytest.approx(40 / 3, rel=0.05)


def test_proofs_are_read_from_the_run_the_latest_of_each_culprit(tmp_path: Path) -> None:
    jobs = {"a": MadeUp(ran=0.5, waited=0.5), "b": MadeUp(ran=0.5, waited=0.5)}
    recording(tmp_path / "run.sqlite", jobs, cores=1.0)
    recorder = Recorder(tmp_path / "run.sqlite")
    for t, gain, outcome in (
        (5.0, 0.5, "open"),
        (9.0, 0.2, "seen"),
        (12.0, 0.3, "nonsense"),
        (13.0, None, "seen"),
    ):
        row = {"gain": gain, "low": 0.1, "high": 0.4, "outcome": outcome}
        recorder.add("proofs", t=t, culprit="b", victim="a", pauses=16, seconds=0.4, **row)
    recorder.close()
    run = read(tmp_path / "run.sqlite")
    assert [job.proofs for job in run.jobs] == [
        (Proof("b", "a", 16, 0.4, Gain(0.2, 0.1, 0.4), "seen"),),
        (),
    ]
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as old:
        old.execute("DROP TABLE proofs")
        old.commit()
    assert [job.proofs for job in read(tmp_path / "run.sqlite").jobs] == [(), ()]


def test_of_the_last_part_of_a_run_the_account_is_of_that_part_alone(tmp_path: Path) -> None:
    """`b` was there for the first 60 s, and comes again for the last 10 s."""

    def together(there: float, away: float) -> Callable[[int], float]:
        return lambda t: there if t <= 60 or t > 90 else away

    jobs = {
        "a": MadeUp(
            ran=together(0.5, 1.0), waited=together(0.5, 0.0), steps=together(5.0, 10.0), end=100
        ),
        "b": MadeUp(ran=together(0.5, 0.0), end=100),
    }
    recording(tmp_path / "run.sqlite", jobs, cores=1.0)
    run = read(tmp_path / "run.sqlite", 40)
    found = next(
        each for each in accounts(run.jobs, run.nodes, run.seconds, run.since) if each.job == "a"
    )
    assert run.since == 60.0
    assert found.elapsed == pytest.approx(40.0)
    assert sum(part.seconds for part in found.parts.values()) == pytest.approx(40.0)
    assert found.parts["starting"].seconds == found.parts["waiting"].seconds == 0.0
    assert lost(found) == {("b", "cores"): pytest.approx(5.0, rel=0.1)}


def test_a_job_that_still_starts_in_the_last_part_of_a_run_is_starting_there(
    tmp_path: Path,
) -> None:
    jobs = {"a": MadeUp(ran=1.0, end=100, steps=lambda t: 10.0 if t >= 80 else 0.0)}
    recording(tmp_path / "run.sqlite", jobs)
    run = read(tmp_path / "run.sqlite", 40)
    found = accounts(run.jobs, run.nodes, run.seconds, run.since)[0]
    assert found.parts["starting"].seconds == pytest.approx(19.0)


@pytest.mark.parametrize(
    ("end", "steps"),
    [(40, lambda t: float(t == 20)), (40, lambda t: 0.0), (9000, lambda t: float(t % 3600 == 0))],
    ids=["one step", "no steps", "steps of an hour"],
)
def test_few_steps_or_none_still_add_up_and_nobody_is_blamed_for_them(
    tmp_path: Path, end: int, steps: Callable[[int], float]
) -> None:
    jobs = {
        "a": MadeUp(ran=1.0, steps=steps, end=end),
        "b": MadeUp(ran=0.9, start=end // 3, end=2 * end // 3),
    }
    found = account(recording(tmp_path / "run.sqlite", jobs), "a")
    assert lost(found) == {}
    lacks_steps = steps(20) == steps(3600) == 0.0
    assert (MissingReading(MissingKind.STEPS) in found.missing_readings) is lacks_steps


def test_a_clock_that_jumps_back_and_forth_leaves_an_account_that_adds_up(tmp_path: Path) -> None:
    recording(
        tmp_path / "run.sqlite", {"a": MadeUp(ran=0.5, waited=0.5), "b": MadeUp(ran=0.5)}, cores=1.0
    )
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
        for table in ("usage", "progress"):
            db.execute(f"UPDATE {table} SET t = t - 15 WHERE t BETWEEN 20 AND 25")
            db.execute(f"UPDATE {table} SET t = t + 500 WHERE t BETWEEN 30 AND 32")
        db.commit()
    for since in (None, 60.0):
        run = read(tmp_path / "run.sqlite", since)
        made = accounts(run.jobs, run.nodes, run.seconds, run.since)
        assert [account.job for account in made] == ["a", "b"]
        for account in made:
            assert sum(part.seconds for part in account.parts.values()) == pytest.approx(
                account.elapsed
            )


@pytest.mark.parametrize("every", [1, 10])
def test_the_band_of_a_start_holds_it_however_seldom_a_script_prints(
    tmp_path: Path, every: int
) -> None:
    """Steps begin 15 s after the start; what is printed is read each second, or each ten."""
    job = MadeUp(
        ran=1.0, steps=lambda t: 10.0 * every if t > 15 and t % every == 0 else 0.0, end=60
    )
    recording(tmp_path / "run.sqlite", {"a": job})
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
        db.execute(f"DELETE FROM progress WHERE t % {every} != 0")
        db.commit()
    run = read(tmp_path / "run.sqlite")
    starting = account(run, "a").parts["starting"]
    assert starting.low <= 15.0 <= starting.high
    assert starting.high - starting.low == pytest.approx(2.0 * every, abs=3.5)


def test_an_idle_job_on_full_cores_has_an_account_and_figures(tmp_path: Path) -> None:
    jobs = {"a": MadeUp(ran=0.0), "b": MadeUp(ran=2.0)}
    idle = account(recording(tmp_path / "run.sqlite", jobs), "a")
    assert idle.parts["unexplained"].seconds == pytest.approx(40.0)
    speedup = idle.around.speedups.figures["cores"]["x2"]
    assert speedup is not None and speedup.speedup == pytest.approx(1.0)


def test_to_wait_for_a_start_after_a_pause_is_no_fault(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0)})
    [job] = run.jobs
    times = ("running", 0.0, 20.0, 1), ("paused", 20.0, 25.0, 0), ("waiting", 25.0, 35.0, 0)
    phases = tuple(Phase(*time, "") for time in (*times, ("running", 35.0, 40.0, 2)))
    [account] = accounts([replace(job, phases=phases)], run.nodes, run.seconds)
    parts = {part: account.parts[part].seconds for part in ("waiting", "paused", "faults")}
    assert parts == {"waiting": 10.0, "paused": 5.0, "faults": 0.0}
