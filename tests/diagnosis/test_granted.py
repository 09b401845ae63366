"""What fewer threads cost a job, by its own steps, by those of others, or by none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.made_up import MadeUp, recording, typed

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.findings import FindingKind
from headgate.diagnosis.remedies import AloneFacts, RemedyKind
from headgate.diagnosis.verdicts import verdict
from headgate.model.job_states import TRIAL
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.recording import Recording
from headgate.recorded.rows import EventRow

SPANS = {"input": 0.0, "forward": 0.1}
"""Of a script that connected: its threads follow what it is granted."""
ONE = MadeUp(ran=1.0, threads={0: 1})
"""It had one thread throughout."""


def when(few: float, many: float, turns: Callable[[int], bool]) -> Callable[[int], float]:
    """A quantity with one thread, and with two."""
    return lambda t: few if turns(t) else many


def first_half(t: int) -> bool:
    return t <= 20


def now_and_then(t: int) -> bool:
    return (t - 1) % 14 < 7


def granted(
    speeds: tuple[float, float], used: float = 2.0, turns: Callable[[int], bool] = first_half
) -> MadeUp:
    """A job that has one thread while another one runs, and two else."""
    threads = {
        t - 1: 1 if turns(t) else 2 for t in range(1, 41) if t == 1 or turns(t) != turns(t - 1)
    }
    return MadeUp(
        ran=when(1.0, used, turns), steps=when(*speeds, turns), threads=threads, spans=SPANS
    )


def beside(turns: Callable[[int], bool]) -> MadeUp:
    return MadeUp(ran=when(1.0, 0.0, turns))


def tried(t: int) -> bool:
    """All but five seconds of a trial."""
    return not 20 < t <= 25


def told(
    run: Recording, changed: Mapping[str, Mapping[str, Any]] = {}, **alone: AloneRate
) -> Account:
    """The account of `a`; fields of what was recorded of a job may be changed."""
    jobs = [typed(job, changed.get(job.name, {})) for job in run.jobs]
    account = accounts(jobs, run.nodes, run.seconds, 0.0, alone)[0]
    assert sum(part.seconds for part in account.parts.values()) == pytest.approx(account.elapsed)
    return account


def lost(account: Account) -> float:
    return sum(loss.lost.seconds for loss in account.losses if loss.to == "b")


@pytest.mark.parametrize("turns", [first_half, now_and_then])
def test_fewer_threads_while_another_job_runs_are_lost_to_it(
    tmp_path: Path, turns: Callable[[int], bool]
) -> None:
    """Beside `b` it has one thread, and does half as many steps a second as with two."""
    run = recording(
        tmp_path / "run.sqlite", {"a": granted((10.0, 20.0), turns=turns), "b": beside(turns)}
    )
    account = told(run)
    seconds = sum(map(turns, range(1, 41))) / 2
    assert lost(account) == pytest.approx(seconds, rel=0.15)
    assert account.parts["neighbours"].low <= seconds <= account.parts["neighbours"].high
    assert verdict(account).kind == "neighbour-cores"


def test_a_second_thread_that_brings_nothing_costs_nothing(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": granted((10.0, 10.0)), "b": beside(first_half)})
    account = told(run)
    assert lost(account) == pytest.approx(0.0, abs=0.1)
    assert account.parts["neighbours"].low == 0.0
    assert verdict(account).kind == "healthy"


@pytest.mark.parametrize("speeds", [(5.0, 40.0), (20.0, 20.0)], ids=["dearer then", "cheaper then"])
def test_steps_that_changed_by_themselves_just_then_cost_no_more_than_the_cores_say(
    tmp_path: Path, speeds: tuple[float, float]
) -> None:
    """It used 1.6 cores with two threads: at the most it was 1.6 times as fast on them."""
    run = recording(
        tmp_path / "run.sqlite", {"a": granted(speeds, used=1.6), "b": beside(first_half)}
    )
    account = told(run)
    assert lost(account) <= 20 * (1 - 1 / 1.6) + 0.5
    assert account.parts["neighbours"].low <= 20 * (1 - 1 / 1.6) * 0.6
    assert account.parts["neighbours"].high >= 20 * (1 - 1 / 1.6)


def test_of_a_job_of_one_number_of_threads_it_is_told_that_nothing_tells(tmp_path: Path) -> None:
    """More threads might bring nothing, as to a program of one thread, or twice the speed."""
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    account = told(run)
    finding = verdict(account)
    assert lost(account) == 0.0
    assert account.parts["neighbours"].high == pytest.approx(20.0, rel=0.05)
    assert (finding.kind, finding.cost.low) == (FindingKind.NOT_KNOWN, 0.0)
    grant = finding.facts
    assert (grant.threads, grant.alone, grant.beside, grant.source) == (1, 2, ("b",), None)
    assert finding.remedy.facts == AloneFacts(threads=True, fixed=True)


@pytest.mark.parametrize(
    ("ready", "threads", "env"),
    [(0.5, {0: 1}, {}), (1.0, {0: 2}, {}), (1.0, {0: 1}, {"OMP_NUM_THREADS": "1"})],
    ids=["it idles", "it has all", "its user said so"],
)
def test_a_job_that_has_all_that_it_can_use_lacks_no_threads(
    tmp_path: Path, ready: float, threads: Mapping[int, int], env: Mapping[str, str]
) -> None:
    job = MadeUp(ran=ready, threads=threads, readings={"any_ready": ready})
    run = recording(tmp_path / "run.sqlite", {"a": job, "b": MadeUp(ran=1.0)})
    account = told(run, {"a": {"spec": {"env": env}}})
    assert account.around.grant is None
    assert verdict(account).notes == ()


@pytest.mark.parametrize(
    "profile", [None, {"batch": 8}], ids=["a plain script", "one that follows its grant"]
)
def test_threads_that_the_shell_stated_are_all_that_a_plain_script_would_have(
    tmp_path: Path, profile: Mapping[str, Any] | None
) -> None:
    (tmp_path / "environment.json").write_text(json.dumps({"OMP_NUM_THREADS": "1"}))
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    assert (told(run, {"a": {"profile": profile}}).around.grant is None) is (profile is None)


@pytest.mark.parametrize(("alone", "seconds"), [(16.0, 40 * (1 - 10 / 16)), (10.0, 0.0)])
def test_earlier_runs_alone_tell_it(tmp_path: Path, alone: float, seconds: float) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    account = told(run, a=AloneRate(alone, 0.95 * alone, 1.05 * alone, 3))
    assert lost(account) == pytest.approx(seconds, abs=1.2)
    assert verdict(account).kind == ("neighbour-cores" if seconds else "healthy")


def test_its_profile_tells_it_where_that_has_several_numbers_of_threads(tmp_path: Path) -> None:
    times = [
        {"threads": count, "batch": 8, "seconds": seconds}
        for count, seconds in ((1, 0.16), (2, 0.1))
    ]
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    account = told(run, {"a": {"profile": {"step_times": times}}})
    assert lost(account) == pytest.approx(40 * (1 - 10 / 16), abs=0.8)
    assert told(run, {"a": {"profile": {"step_times": times[:1]}}}).around.grant is not None
    assert verdict(told(run, {"a": {"profile": {"step_times": times[:1]}}})).kind == "not-known"


@pytest.mark.parametrize("seconds", [{}, {1: 0.16, 2: 0.1}], ids=["not known", "by its profile"])
def test_a_limit_of_its_own_that_took_threads_too_may_have_cost_more_than_it_throttled(
    tmp_path: Path, seconds: Mapping[int, float]
) -> None:
    """At 0.7 cores it has one thread. On two it would be up to 2.86 times as fast."""
    capped = MadeUp(
        ran=0.7, waited=0.3, throttled=0.3, cap=0.7, limits={"cores": 0.7}, threads={0: 1}
    )
    run = recording(tmp_path / "run.sqlite", {"a": capped})
    times = [{"threads": count, "batch": 8, "seconds": each} for count, each in seconds.items()]
    account = told(run, {"a": {"profile": {"step_times": times}}})
    cap = account.parts["cap"]
    assert verdict(account).kind == "own-cap"
    assert cap.seconds == pytest.approx(40 * (1 - 0.7 / 1.6) if seconds else 12.0, abs=1.0)
    assert cap.low <= 12.5 or seconds
    assert cap.high >= 40 * (1 - 0.7 / 1.6)
    assert (verdict(account).facts.fewer_threads is not None) is (not seconds)


@pytest.mark.parametrize("script", ["train.py", "other.py"])
def test_another_job_of_the_same_script_tells_it(tmp_path: Path, script: str) -> None:
    run = recording(
        tmp_path / "run.sqlite",
        {"a": ONE, "b": MadeUp(ran=when(1.0, 0.0, first_half)), "c": granted((10.0, 16.0), 1.6)},
    )

    def with_script(job: RecordedJob, name: str) -> Mapping[str, Any]:
        return {"spec": {"script": name}}

    account = told(
        run, {"a": with_script(run.jobs[0], "train.py"), "c": with_script(run.jobs[2], script)}
    )
    assert account.around.grant is not None
    assert (account.around.grant.power is not None) is (script == "train.py")
    assert (account.around.grant.may_have_lost > 0.0) is (script == "other.py")


@pytest.mark.parametrize(
    ("speeds", "saves"), [((10.0, 16.0), 35 * (1 - 10 / 16)), ((10.0, 10.0), 0.0)]
)
def test_a_trial_of_five_seconds_tells_it_with_its_event(
    tmp_path: Path, speeds: tuple[float, float], saves: float
) -> None:
    job = granted(speeds, used=speeds[1] / speeds[0], turns=tried)
    run = recording(tmp_path / "run.sqlite", {"a": job, "b": MadeUp(ran=when(1.0, 0.1, tried))})
    event = EventRow(20.0, "a", None, TRIAL, "")
    account = told(run, {"a": {"events": (*run.jobs[0].events, event)}})
    assert account.around.grant is not None
    assert account.around.grant.source == "trial"
    assert account.around.grant.lost.low - 0.5 <= saves <= account.around.grant.lost.high + 0.5
    assert account.around.grant.lost.seconds == pytest.approx(saves, abs=2.0)
    assert account.around.grant in verdict(account).notes
    assert verdict(account).kind == ("neighbour-cores" if saves else "healthy")


def test_what_the_grant_cost_is_told_with_whom_the_cores_went_to(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    account = told(run, a=AloneRate(16.0, 15.2, 16.8, 3))
    [grant] = verdict(account).notes
    assert grant == account.around.grant
    assert (grant.threads, grant.alone, grant.beside) == (1, 2, ("b",))
    assert grant.source == "runs-alone"
    assert grant.lost == pytest.approx((15.6, 14.3, 16.8), abs=0.05)


def test_a_run_of_the_same_job_whose_threads_changed_tells_it_by_its_profile(
    tmp_path: Path,
) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    account = told(run, {"a": {"profile": {"thread_power": 0.678}}})
    assert account.around.grant is not None
    assert account.around.grant.source == "profile"
    assert lost(account) == pytest.approx(40 * (1 - 10 / 16), abs=0.8)


def test_threads_that_stay_as_it_began_beside_another_cost_it_time_after_that_has_ended(
    tmp_path: Path,
) -> None:
    run = recording(
        tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0, end=15), "c": MadeUp(ran=0.0)}
    )
    account, alone = told(run), told(run, a=AloneRate(16.0, 15.2, 16.8, 3))
    assert account.around.grant is not None
    assert account.around.grant.stayed
    assert account.around.grant.may_have_lost == pytest.approx(20.0, rel=0.05)
    assert lost(alone) == pytest.approx(40 * (1 - 10 / 16), abs=1.2)
    assert alone.around.grant is not None and alone.around.grant.beside == ("b",)


def test_where_nothing_tells_what_more_threads_bring_a_run_alone_would(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    remedy = verdict(told(run)).remedy
    assert (remedy.kind, remedy.facts.threads) == (RemedyKind.RUN_ALONE, True)


@pytest.mark.parametrize(
    "profile", [None, {"batch": 8}], ids=["a plain script", "one that reports itself"]
)
def test_where_its_threads_cannot_change_it_is_said_that_no_trial_tells_it(
    tmp_path: Path, profile: Mapping[str, Any] | None
) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ONE, "b": MadeUp(ran=1.0)})
    finding = verdict(told(run, {"a": {"profile": profile}}))
    assert finding.kind is FindingKind.NOT_KNOWN
    assert finding.remedy.facts.fixed is (profile is None)


@pytest.mark.parametrize(
    ("waited", "batch", "source"), [(0.0, 8, "profile"), (0.3, 8, None), (0.0, 4, None)]
)
def test_steps_of_a_profile_that_was_taken_alone_tell_it(
    tmp_path: Path, waited: float, batch: int, source: str | None
) -> None:
    """It takes 0.1 s a step beside `b` on one thread, and took 0.0625 s alone on two."""
    job = replace(ONE, spans={"input": 0.0, "forward": 0.1})
    run = recording(tmp_path / "run.sqlite", {"a": job, "b": MadeUp(ran=1.0)})
    times = [{"threads": 2, "batch": batch, "seconds": 0.0625, "waited": waited}]
    account = told(run, {"a": {"profile": {"batch": 8, "step_times": times}}})
    assert account.around.grant is not None
    assert account.around.grant.source == source
    assert lost(account) == pytest.approx(40 * (1 - 10 / 16) if source else 0.0, abs=1.5)
