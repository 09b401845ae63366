"""The one cause that is named, of those that an account shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tests.diagnosis.made_up import MadeUp, recording, typed

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.attribution import Evidence, LostTime, Resource, TimeEstimate
from headgate.diagnosis.findings import (
    DoubtfulLoss,
    FailureFacts,
    Finding,
    FindingKind,
    LongStart,
    UnknownFacts,
    WaitedFacts,
)
from headgate.diagnosis.remedies import AloneFacts, RemedyKind
from headgate.diagnosis.steps_to_replay import NoFigure
from headgate.diagnosis.verdicts import findings, verdict
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded.jobs import Phase, Usage
from headgate.recorded.rows import EventRow
from headgate.reports.findings import why

SAME = MadeUp(ran=0.5, waited=0.5)
ALONE = MadeUp(ran=1.0)


def account(path: Path, job: MadeUp, others: Mapping[str, MadeUp] = {}, **node: Any) -> Account:
    """The account of a job beside others on two cores."""
    path.mkdir(exist_ok=True)
    run = recording(path / "run.sqlite", {"a": job, **others}, **node)
    return accounts(run.jobs, run.nodes, run.seconds)[0]


def event_of(kind: str, t: float, reason: Reason) -> EventRow:
    return EventRow(t, "a", None, kind, "", why=json.dumps(reason.plain()))


def finding_of(path: Path, job: MadeUp, others: Mapping[str, MadeUp] = {}, **node: Any) -> Finding:
    """The verdict of that."""
    return verdict(account(path, job, others, **node))


def test_a_neighbour_is_named_with_what_it_cost_and_what_to_do(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, SAME, {"b": MadeUp(ran=1.5)})
    assert (finding.kind, finding.culprit) == (FindingKind.NEIGHBOUR_CORES, "b")
    assert finding.facts.slowed == pytest.approx(0.5, rel=0.01)
    assert finding.cost.low < 20.0 < finding.cost.high
    remedy = finding.remedy
    assert (remedy.kind, remedy.job) == (RemedyKind.LEAVE_TOGETHER, "b")
    assert remedy.settings == {"after": "a"}


@pytest.mark.parametrize(
    ("cores", "limits", "threads"),
    [(4.0, {}, 4), (4.0, {"cores": 2.5}, 2), (4.0, {"cores": 0.5}, 1)],
)
def test_a_job_of_too_many_threads_is_told_how_many_have_a_core_each(
    tmp_path: Path, cores: float, limits: dict[str, float], threads: int
) -> None:
    finding = finding_of(tmp_path, MadeUp(ran=cores, waited=9.0, limits=limits), cores=cores)
    assert finding.kind is FindingKind.OWN_THREADS
    assert finding.remedy.settings == {"env.OMP_NUM_THREADS": threads}


def test_a_job_that_goes_on_is_not_told_that_it_is_short(tmp_path: Path) -> None:
    run = recording(
        tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, steps=lambda t: 10.0 if t >= 20 else 0.0)}
    )
    [ended] = accounts(run.jobs, run.nodes, run.seconds)
    [job] = run.jobs
    [goes_on] = accounts([replace(job, ended=None, state="running")], run.nodes, run.seconds)
    assert verdict(ended).kind is verdict(goes_on).kind is FindingKind.STARTING
    assert verdict(ended).remedy.kind is RemedyKind.LONGER_RUNS
    assert verdict(goes_on).remedy.kind is RemedyKind.PREPARE_DATA


def test_a_job_that_failed_is_told_its_failure_whatever_held_it_back(tmp_path: Path) -> None:
    failure = (
        "exit code 1, after the line: OutOfMemoryError: CUDA out of memory. Tried to "
        "allocate 7.45 GiB."
    )
    facts = FailureFacts("failed", Reason.of(ReasonKind.EXIT, text=failure))
    own = finding_of(tmp_path / "own", MadeUp(ran=1.0, failed=failure))
    assert (own.kind, own.facts, own.remedy.kind) == (
        FindingKind.FAILED,
        facts,
        RemedyKind.SEE_LOGS,
    )
    slowed = MadeUp(ran=0.5, waited=0.5, failed=failure)
    beside = findings(account(tmp_path / "slowed", slowed, {"b": MadeUp(ran=1.5)}))
    assert (beside[0].kind, beside[0].facts) == (FindingKind.FAILED, facts)
    assert [finding.kind for finding in beside[1:]] == [FindingKind.NEIGHBOUR_CORES]


@pytest.mark.parametrize(
    "waits", [{"a": 0.5, "b": 0.0, "c": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, {"b": 0.4, "c": 0.3}]
)
def test_all_jobs_that_slowed_each_other_are_told_one_order(
    tmp_path: Path, waits: Mapping[str, float]
) -> None:
    """Whether each of them was slowed by all others or by some."""
    jobs = {
        name: MadeUp(ran=0.5, waited=waits.get(name, 0.2), end=30 + 3 * place)
        for place, name in enumerate("abcd")
    }
    run = recording(tmp_path / "run.sqlite", jobs, cores=1.5)
    every = accounts(run.jobs, run.nodes, run.seconds)
    victims = [account for account in every if verdict(account).culprit]
    assert len(victims) > 1
    first = verdict(victims[0])
    for account in victims:
        assert (verdict(account).order, verdict(account).remedy) == (first.order, first.remedy)


def test_what_a_job_waited_for_is_told(tmp_path: Path) -> None:
    jobs = {"a": MadeUp(ran=1.0, start=30), "b": MadeUp(ran=0.1, start=20)}
    run = recording(tmp_path / "run.sqlite", jobs)
    reason = Reason.of(ReasonKind.AFTER_JOBS, jobs=["c"])
    a, b = run.jobs
    waits = event_of("waiting", 0.0, Reason.of(ReasonKind.BEING_PLANNED))
    a = replace(a, events=(waits, event_of("waiting", 0.1, reason), *a.events))
    overtook = Reason.of(ReasonKind.STARTED, attempt=1, overtook="a")
    b = replace(b, events=(event_of("running", 20.0, overtook),))
    waited, _ = accounts([a, b], run.nodes, run.seconds)
    assert verdict(waited).facts == WaitedFacts(reason, ("b",))
    assert verdict(waited).cost.seconds == 30.0


def test_what_a_job_waited_for_is_told_before_anything_was_read_of_it(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, start=20, steps=0.0)})
    job = replace(
        run.jobs[0],
        ended=None,
        state="running",
        phases=(Phase("waiting", 0.0, 0.6, 0, ""), Phase("running", 0.6, 0.9, 1, "")),
        tasks=tuple(replace(task, usage={}) for task in run.jobs[0].tasks),
    )
    lacks = Reason.of(ReasonKind.NEEDS_ROOM, lacks={"kind": "memory", "needs_bytes": 1})
    for reason, kind in (
        (lacks, FindingKind.WAITING),
        (Reason.of(ReasonKind.BEING_PLANNED), FindingKind.NOT_KNOWN),
    ):
        waited = replace(job, events=(event_of("waiting", 0.0, reason),))
        [account] = accounts([waited], run.nodes, 0.9)
        assert (verdict(account).kind, account.read) == (kind, False)
    assert why(verdict(account), account) == (
        "a was submitted 0.9 s ago, and too little was read of it yet."
    )


def test_what_a_job_of_an_earlier_version_waited_for_is_told_as_recorded(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, start=30)})
    [job] = run.jobs
    recorded = EventRow(0.1, "a", None, "waiting", "for 2 GPUs, which b has")
    job = replace(job, events=(recorded, *job.events))
    [waited] = accounts([job], run.nodes, run.seconds)
    assert verdict(waited).facts.waited_for == Reason.of(ReasonKind.TEXT, text=recorded.text)


@pytest.mark.parametrize("spec", [{"after": "b"}, {"at": 60.0}])
def test_what_its_user_asked_it_to_wait_for_held_no_job_back(
    tmp_path: Path, spec: Mapping[str, Any]
) -> None:
    """Its run was stopped before it began, or it began at last."""
    run = recording(
        tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, start=30), "b": MadeUp(ran=1.0, end=30)}
    )
    late = typed(run.jobs[0], {"spec": spec})
    never = replace(late, phases=(Phase("waiting", 0.0, 40.0, 0, "for b to finish"),), tasks=())
    for job, began in ((never, False), (late, True)):
        finding = verdict(accounts([job, run.jobs[1]], run.nodes, run.seconds)[0])
        assert (finding.kind, finding.remedy.kind) == (FindingKind.HEALTHY, RemedyKind.NONE)
        assert finding.facts.began == began
        assert finding.facts.elapsed == pytest.approx(10.0 if began else 0.0)


def test_a_job_that_was_skipped_is_not_healthy(tmp_path: Path) -> None:
    run = recording(
        tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, start=30), "b": MadeUp(ran=1.0, end=30)}
    )
    phases = (Phase("waiting", 0.0, 40.0, 0, "for b to finish"),)
    reason = Reason.of(ReasonKind.SKIPPED, job="b", state="failed")
    job = typed(run.jobs[0], {"spec": {"after": "b"}, "phases": phases, "tasks": ()})
    job = replace(job, state="skipped", reason=reason, ended=40.0)
    finding = verdict(accounts([job, run.jobs[1]], run.nodes, run.seconds)[0])
    assert (finding.kind, finding.remedy.kind) == (FindingKind.WAITING, RemedyKind.NONE)
    assert finding.facts == WaitedFacts(skipped=reason)


@pytest.mark.parametrize("evidence", get_args(Evidence))
@pytest.mark.parametrize("resource", ["cores", "memory", "disk", "network", "gpu"])
def test_nobody_is_blamed_for_what_may_be_nothing(
    tmp_path: Path, resource: Resource, evidence: Evidence
) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ALONE, "b": MadeUp(ran=0.5)})
    account = accounts(run.jobs, run.nodes, run.seconds)[0]

    def lost(to: str, seconds: float, low: float) -> LostTime:
        return LostTime(to, resource, TimeEstimate(seconds, low, 23.0), evidence)

    unsure = verdict(replace(account, losses=(lost("b", 12.0, 0.0),)))
    assert unsure.kind is FindingKind.NOT_KNOWN
    assert unsure.cost == TimeEstimate(0.0, 0.0, 23.0)
    assert unsure.facts == DoubtfulLoss("b", resource, 23.0)
    assert unsure.remedy.facts == AloneFacts(threads=False, provable=True)
    little = verdict(replace(account, losses=(lost("b", 1.0, 0.0),)))
    assert little.kind is FindingKind.HEALTHY
    both = verdict(replace(account, losses=(lost("b", 12.0, 0.0), lost("others", 5.0, 4.0))))
    assert (both.kind, both.culprit) == (f"neighbour-{resource}", "others")
    assert both.facts.others == ()
    assert both.cost.low == pytest.approx(4.0)


@pytest.mark.parametrize("outside", [1.0, 0.0], ids=["a program outside", "a job"])
def test_a_neighbour_that_came_as_steps_grew_longer_is_not_blamed_and_the_doubt_is_told(
    tmp_path: Path, outside: float
) -> None:
    """Its steps take 1.6 times as long from 20 s on, when another one came to the other core."""
    grown = MadeUp(ran=1.0, steps=lambda t: 10.0 if t <= 20 else 10.0 / 1.6 + t % 3 / 9)
    beside = {} if outside else {"b": MadeUp(ran=1.0, start=20)}
    run = recording(
        tmp_path / "run.sqlite",
        {"a": grown, **beside},
        outside=lambda t: outside if t > 20 else 0.0,
    )
    account = accounts(run.jobs, run.nodes, run.seconds)[0]
    finding = verdict(account)
    assert (finding.kind, finding.cost.low) == (FindingKind.NOT_KNOWN, 0.0)
    assert finding.facts.culprit == ("others" if outside else "b")
    assert account.parts["neighbours"].seconds == 0.0
    assert account.parts["neighbours"].high == pytest.approx(20 * (1 - 1 / 1.6), rel=0.2)


def test_the_next_cause_says_that_a_neighbour_may_have_cost_more(tmp_path: Path) -> None:
    late = MadeUp(ran=1.0, steps=lambda t: 10.0 if t >= 20 else 0.0)
    run = recording(tmp_path / "run.sqlite", {"a": late, "b": MadeUp(ran=0.5)})
    account = accounts(run.jobs, run.nodes, run.seconds)[0]

    def with_loss(seconds: float) -> Finding:
        lost = LostTime("b", "memory", TimeEstimate(seconds, 0.0, 35.0), "compared")
        return verdict(replace(account, losses=(lost,)))

    assert with_loss(30.0).kind is with_loss(5.0).kind is FindingKind.STARTING
    assert with_loss(30.0).notes == (DoubtfulLoss("b", "memory", 35.0),)
    assert with_loss(5.0).notes == ()


def test_a_job_is_slowed_only_while_it_runs(tmp_path: Path) -> None:
    late = MadeUp(ran=0.5, waited=0.5, start=10)
    finding = finding_of(tmp_path, late, {"b": MadeUp(ran=1.5)})
    assert finding.facts.slowed == pytest.approx(0.5)
    assert finding.facts.lost == pytest.approx(15.0)


def test_of_several_neighbours_the_worst_is_named_and_all_count(tmp_path: Path) -> None:
    finding = finding_of(tmp_path, SAME, {"b": MadeUp(ran=0.5), "c": MadeUp(ran=1.0)})
    assert (finding.culprit, finding.facts.others) == ("c", ("b",))
    assert finding.facts.slowed == pytest.approx(1 / 3)
    assert finding.cost.seconds == pytest.approx(20.0)


@pytest.mark.parametrize(
    ("name", "job", "node"),
    [
        ("own-cap", MadeUp(ran=0.5, waited=0.5, throttled=0.5, cap=0.5, limits={"cores": 0.5}), {}),
        ("own-threads", MadeUp(ran=2.0, waited=6.0), {}),
        ("hypervisor", MadeUp(ran=0.75), {"stolen": 0.25}),
        ("neighbour-cores", SAME, {"outside": 1.5}),
        ("input", MadeUp(ran=0.25, spans={"input": 0.075, "forward": 0.025}), {}),
        ("waiting", MadeUp(ran=1.0, start=30), {}),
        ("starting", MadeUp(ran=1.0, steps=lambda t: 10.0 if t >= 20 else 0.0), {}),
        ("healthy", ALONE, {}),
        ("not-known", MadeUp(ran=0.25), {}),
        (
            "not-known",
            MadeUp(ran=1.6, ready=0.8, readings={"any_ready": lambda t: float(t % 5 > 0)}),
            {},
        ),
        ("healthy", MadeUp(ran=1.6, ready=0.8, readings={"any_ready": 1.0}), {}),
        ("not-known", MadeUp(ran=1.0, steps=0.0), {}),
    ],
)
def test_the_cause_that_cost_most_is_named(
    tmp_path: Path, name: str, job: MadeUp, node: dict[str, float]
) -> None:
    finding = finding_of(tmp_path, job, {}, **node)
    assert finding.kind == name, finding
    assert finding.cost.low <= finding.cost.high


def test_what_holds_steps_back_comes_before_a_start_in_a_run_of_seconds_too(tmp_path: Path) -> None:
    late = MadeUp(
        ran=0.92,
        waited=0.08,
        throttled=0.08,
        cap=0.92,
        end=9,
        steps=lambda t: 10.0 if t > 3 else 0.0,
    )
    free = replace(late, ran=1.0, waited=0.0, throttled=0.0)
    assert finding_of(tmp_path / "free", free).kind is FindingKind.STARTING
    capped = replace(late, limits={"cores": 0.92})
    assert finding_of(tmp_path / "capped", capped).kind is FindingKind.OWN_CAP


def test_two_jobs_that_do_not_touch_each_other_are_both_healthy(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ALONE, "b": ALONE})
    findings = [verdict(account) for account in accounts(run.jobs, run.nodes, run.seconds)]
    assert [finding.kind for finding in findings] == [FindingKind.HEALTHY] * 2


def test_a_large_loss_that_was_counted_is_told_of_a_job_without_steps_too(tmp_path: Path) -> None:
    silent = MadeUp(ran=0.2, waited=0.8, steps=0.0)
    finding = finding_of(tmp_path, silent, {"b": MadeUp(ran=1.8)})
    assert finding.kind is FindingKind.NEIGHBOUR_CORES


@pytest.mark.parametrize(("at", "name"), [(30.0, "healthy"), (0.0, "waiting")])
def test_a_start_time_that_its_user_asked_for_is_no_loss(
    tmp_path: Path, at: float, name: str
) -> None:
    assert finding_of(tmp_path, MadeUp(ran=1.0, start=30, at=at)).kind == name


def test_a_start_that_took_most_of_the_time_is_told_beside_another_cause(tmp_path: Path) -> None:
    late = MadeUp(
        ran=0.5, waited=0.5, steps=lambda t: 0.0 if t <= 30 else 10.0, ready=lambda t: float(t > 30)
    )
    finding = finding_of(tmp_path, late, {"b": MadeUp(ran=1.5, start=30)})
    assert finding.kind is FindingKind.NEIGHBOUR_CORES
    [note] = finding.notes
    assert isinstance(note, LongStart) and note.seconds > 20.0
    assert finding_of(tmp_path / "soon", SAME, {"b": MadeUp(ran=1.5)}).notes == ()


@pytest.mark.parametrize(
    ("job", "cure"),
    [
        (MadeUp(ran=1.0, steps=0.0), RemedyKind.PRINT_STEPS),
        (
            MadeUp(ran=1.0, readings={"cpu_waiting": None, "memory_bytes": 1e9}),
            RemedyKind.TURN_ON_READINGS,
        ),
        (MadeUp(ran=0.1), RemedyKind.SEE_STACKS),
    ],
    ids=["no steps", "no readings", "idle"],
)
def test_what_is_not_known_comes_with_what_would_tell_more(
    tmp_path: Path, job: MadeUp, cure: RemedyKind
) -> None:
    finding = finding_of(tmp_path, job)
    assert (finding.kind, finding.remedy.kind) == (FindingKind.NOT_KNOWN, cure)


def test_a_job_that_ended_before_anything_was_read_of_it_lacks_no_reading_of_the_machine(
    tmp_path: Path,
) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": ALONE})
    job = run.jobs[0]
    silent = replace(job.progress, step=np.full_like(job.progress.step, np.nan))
    blank = replace(
        job, tasks=tuple(replace(task, usage={}) for task in job.tasks), progress=silent
    )
    finding = verdict(accounts((blank,), run.nodes, run.seconds)[0])
    assert finding.kind is FindingKind.NOT_KNOWN
    assert isinstance(finding.facts, UnknownFacts) and finding.facts.ended_early


def test_a_job_of_which_only_the_memory_was_read_lacks_no_reading_of_the_machine(
    tmp_path: Path,
) -> None:
    """A first reading has no rates. Of a job that ends before the second one nothing else is
    known.
    """
    run = recording(
        tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, end=4, readings={"memory_bytes": 1e6})}
    )
    job = run.jobs[0]
    [task] = job.tasks
    usage: Usage = {
        "memory_bytes": task.signal("memory_bytes").within(0.0, 1.0),
        "cpu_cores": task.signal("cpu_cores"),
    }
    [account] = accounts(
        (replace(job, tasks=(replace(task, usage=usage),)),), run.nodes, run.seconds
    )
    assert verdict(account).facts.ended_early
    assert account.around.speedups.lacks["cores"] is NoFigure.ENDED_EARLY
