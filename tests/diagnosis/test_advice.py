"""What a verdict says to do next: never what the job already has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnosis.made_up import MadeUp, recording, typed
from tests.diagnosis.test_own_causes import QUICK, several

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.findings import FindingKind
from headgate.diagnosis.remedies import AloneFacts, NodesFacts, Remedy, RemedyKind, RoleFacts
from headgate.diagnosis.verdicts import verdict
from headgate.model.identifiers import TaskOfRun
from headgate.recorded.progress import ProgressSeries

INPUT = {"input": 0.06, "forward": 0.04}
STEP = {"forward": 0.04, "backward": 0.06}
EXCHANGE = {"forward": 0.03, "pull": 0.07}
SMALL = {"forward": 0.0004, "backward": 0.0006}
COSTS = {"flops_per_sample": 1e5, "batch": 4, "core_gflops": 50.0, "dense_bytes": 4000}
SETTINGS = {
    "workers": "plan.workers",
    "servers": "plan.servers",
    "threads": "env.OMP_NUM_THREADS",
    "cores": "limits.cores",
    "priority": "priority",
}
"""What a case may have, and the field of a job file that says it."""


@dataclass(frozen=True)
class Case:
    """A job with a verdict, and what it has of `SETTINGS`. Without `tasks` it has one worker."""

    name: str
    job: MadeUp
    has: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    known: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    beside: Mapping[str, MadeUp] = field(default_factory=dict)
    node: Mapping[str, Any] = field(default_factory=dict)


def remedies(account: Account) -> list[Remedy]:
    """What the verdict says to do, and what helps otherwise."""
    chain = [verdict(account).remedy]
    while (otherwise := chain[-1].otherwise) is not None:
        chain.append(otherwise)
    return chain


def proposed(account: Account) -> dict[str, list[Any]]:
    """The values that its remedies propose, by field of a job file."""
    values: dict[str, list[Any]] = {}
    for remedy in remedies(account):
        for field_name, value in remedy.settings.items():
            values.setdefault(field_name, []).append(value)
    return values


def told(path: Path, case: Case) -> Account:
    run = recording(path / "run.sqlite", {"a": case.job, **case.beside}, node=case.node)
    job, (one,) = run.jobs[0], run.jobs[0].tasks
    tasks = tuple(replace(one, id=TaskOfRun(f"a/{name}")) for name in case.tasks) or (one,)
    env = {"OMP_NUM_THREADS": str(case.has["threads"])} if "threads" in case.has else {}
    spec = {
        "script": "/t.py",
        "priority": case.has.get("priority", 1.0),
        "env": env,
        **case.spec,
    }
    plan = {"strategy": case.has.get("strategy", "allreduce")}
    plan |= {"servers": int(case.has["servers"])} if "servers" in case.has else {}
    known: dict[str, Any] = {"tasks": tasks, "spec": spec, "plan": plan, **case.known}
    changed = typed(job, known)
    return accounts((changed, *run.jobs[1:]), run.nodes, run.seconds)[0]


WAITS = MadeUp(ran=0.5, waited=0.5, spans=STEP)
EXCHANGES = MadeUp(ran=0.3, spans=EXCHANGE)
ONE_SERVED = ("worker-0", "server-0")
CASES = [
    Case("own-tasks", WAITS, {"workers": 4}, tuple(f"worker-{index}" for index in range(4))),
    Case("own-tasks", WAITS, {"workers": 1, "servers": 1, "strategy": "ps"}, ONE_SERVED),
    Case(
        "own-tasks",
        WAITS,
        {"workers": 1, "servers": 2, "strategy": "ps"},
        (*ONE_SERVED, "server-1"),
    ),
    Case("own-tasks", WAITS, {"workers": 1}, ("worker-0", "evaluator-0")),
    Case(
        "communication",
        EXCHANGES,
        {"workers": 2},
        ("worker-0", "worker-1"),
        spec={"launch": "torchrun"},
    ),
    Case(
        *("communication", EXCHANGES, {"workers": 1, "servers": 1, "strategy": "ps"}, ONE_SERVED),
        spec={"launch": "tensorflow"},
    ),
    Case(
        "communication",
        EXCHANGES,
        {"workers": 1, "servers": 1, "strategy": "ps"},
        ONE_SERVED,
        spec={"script": None},
    ),
    Case("loader", MadeUp(ran=0.3, spans=INPUT, loader_workers=0), {"loaders": 0}),
    Case("loader", MadeUp(ran=1.3, ready=0.9, spans=INPUT, loader_workers=2), {"loaders": 2}),
    Case("input", MadeUp(ran=0.4, ready=0.4, spans=INPUT, loader_workers=2), {"loaders": 2}),
    Case("own-threads", MadeUp(ran=2.0, waited=9.0), {"threads": 8}),
    Case("own-threads", MadeUp(ran=2.0, waited=9.0), {"threads": 2}),
    Case("own-threads", MadeUp(ran=1.9, spans=SMALL), {"threads": 1}, known={"profile": COSTS}),
    Case(
        "small-steps",
        MadeUp(ran=1.0, spans=SMALL, limits={"cores": 1.0}),
        {"cores": 1},
        known={"profile": COSTS},
    ),
    Case(
        "own-cap",
        MadeUp(ran=0.5, waited=0.5, throttled=0.5, cap=0.5, limits={"cores": 0.5}),
        {"cores": 0.5},
    ),
    Case("waiting", MadeUp(ran=1.0, start=20), {"priority": 2}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {dict(case.has)}")
def test_no_advice_says_to_set_what_the_job_already_has(tmp_path: Path, case: Case) -> None:
    account = told(tmp_path, case)
    assert verdict(account).kind == case.name
    assert verdict(account).remedy.kind is not RemedyKind.NONE
    values = proposed(account)
    for name, field_name in SETTINGS.items():
        assert case.has.get(name) not in values.get(field_name, [])


def test_a_job_of_one_worker_and_a_server_is_told_to_do_without_the_server(tmp_path: Path) -> None:
    account = told(
        tmp_path,
        Case("own-tasks", WAITS, {"workers": 1, "servers": 1, "strategy": "ps"}, ONE_SERVED),
    )
    assert verdict(account).remedy.settings == {"plan.strategy": "single"}


FALLS = np.linspace(0.0, 39.0, 2000)
NOTHING = np.full(2000, np.nan)
LEARNED = ProgressSeries(
    t=FALLS,
    step=np.arange(2000.0),
    epoch=NOTHING,
    samples=NOTHING,
    loss=2.0 + np.exp(-FALLS) + np.random.default_rng(0).normal(0.0, 0.03, 2000),
    count=np.ones(2000),
    task=("a/worker-0",) * 2000,
    not_number=np.zeros(2000),
    epochs=None,
    metrics={},
)
ONE_GPU = {"gpus": [{"index": 0}]}
ON_GPU = MadeUp(ran=0.9, gpu=0.4, asides={"turns": 18.0})
MORE_CASES = [
    *CASES,
    Case("own-cap", MadeUp(ran=0.5, waited=0.5, throttled=0.5, cap=0.5, limits={"cores": 0.5})),
    Case("neighbour-cores", MadeUp(ran=0.5, waited=0.5), beside={"b": MadeUp(ran=1.5)}),
    Case("neighbour-gpu", ON_GPU, beside={"b": MadeUp(ran=0.9, gpu=0.6)}, node=ONE_GPU),
    Case("decoding", MadeUp(ran=1.95, ready=0.9, spans=INPUT)),
    Case(
        "decoding", MadeUp(ran=2.0, waited=2.2, readings={"main_ready": 0.9, "helper_cores": 1.9})
    ),
    Case("not-known", MadeUp(ran=1.0, steps=0.0)),
    Case("learned", MadeUp(ran=1.0), known={"progress": LEARNED}),
    Case(
        "diverged",
        MadeUp(ran=1.0),
        known={"progress": replace(LEARNED, loss=NOTHING, not_number=np.ones(2000))},
    ),
]
ROLES = {
    "roles": [
        {"name": "worker", "run": "w", "env": {"OMP_NUM_THREADS": "1"}},
        {"name": "server", "run": "s"},
    ]
}
FIXED: Mapping[str, tuple[Mapping[str, Any], frozenset[str]]] = {
    "share": ({"share": "1/4"}, frozenset({"limits.cores"})),
    "cores": ({"limits": {"cores": 0.5}}, frozenset({"share"})),
    "fewest workers": ({"limits": {"workers": [4, None]}}, frozenset({"plan.workers"})),
    "most priority": ({"priority": 100.0}, frozenset({"priority"})),
    "pattern": ({"progress": {"pattern": "at (?P<step>.*)"}}, frozenset({"print-steps"})),
    "metric": ({"progress": {"metric": "accuracy", "goal": 0.9}}, frozenset({"progress.goal"})),
    "threads": ({"env": {"OMP_NUM_THREADS": "1"}}, frozenset({"env.OMP_NUM_THREADS"})),
    "roles": (
        {**ROLES, "script": None, "launch": None},
        frozenset({"plan.workers", "plan.servers", "plan.strategy", "leave-node-out"}),
    ),
    "contract": ({"launch": "torchrun"}, frozenset({"plan.strategy"})),
}
"""Settings of a job, with the fields and remedies that each excludes, or that would change nothing
beside it.
"""


@pytest.mark.parametrize("setting", FIXED)
@pytest.mark.parametrize("case", MORE_CASES, ids=lambda case: f"{case.name} {dict(case.has)}")
def test_no_setting_of_a_job_excludes_what_it_is_told_to_do(
    tmp_path: Path, case: Case, setting: str
) -> None:
    spec, void = FIXED[setting]
    account = told(tmp_path, replace(case, spec={**case.spec, **spec}))
    set_to = {name for name, values in proposed(account).items() if any(values)}
    assert not void & {*set_to, *(remedy.kind for remedy in remedies(account))}


@pytest.mark.parametrize("case", MORE_CASES, ids=lambda case: f"{case.name} {dict(case.has)}")
def test_no_job_that_proves_already_is_told_to(tmp_path: Path, case: Case) -> None:
    account = told(tmp_path, replace(case, spec={**case.spec, "prove": True}))
    facts = [remedy.facts for remedy in remedies(account)]
    assert not any(isinstance(fact, AloneFacts) and fact.provable for fact in facts)


@pytest.mark.parametrize("case", MORE_CASES, ids=lambda case: f"{case.name} {dict(case.has)}")
def test_without_these_settings_each_case_has_its_verdict(tmp_path: Path, case: Case) -> None:
    assert verdict(told(tmp_path, case)).kind == case.name


@pytest.mark.parametrize(
    ("spec", "limits", "proposed"),
    [
        ({"share": "1/4"}, {}, "share"),
        ({"share": "1/4"}, {"cores": 1.0}, "share"),
        ({"share": "1/2"}, {"cores": 0.5}, "limits.cores"),
        ({}, {"cores": 0.5}, "limits.cores"),
    ],
)
def test_what_a_job_loses_to_its_own_settings_beside_a_neighbour_is_nobody_elses_fault(
    tmp_path: Path, spec: Mapping[str, Any], limits: Mapping[str, Any], proposed: str
) -> None:
    capped = MadeUp(ran=0.5, waited=0.5, throttled=0.5, cap=0.5, limits=limits)
    case = Case("own-cap", capped, spec=spec, beside={"b": MadeUp(ran=1.5)})
    finding = verdict(told(tmp_path, case))
    assert finding.kind is FindingKind.OWN_CAP
    assert (finding.remedy.otherwise or finding.remedy).settings == {proposed: None}


def test_slices_that_are_cut_down_are_lost_to_the_neighbour(tmp_path: Path) -> None:
    cut = MadeUp(ran=0.8, waited=0.2, throttled=0.2, cap=0.8)
    case = Case("neighbour-cores", cut, spec={"share": "3/4"}, beside={"b": MadeUp(ran=1.2)})
    finding = verdict(told(tmp_path, case))
    assert finding.kind is FindingKind.NEIGHBOUR_CORES
    assert (finding.remedy.job, finding.remedy.settings) == ("b", {"after": "a"})


def test_a_share_of_a_gpu_may_be_raised_before_the_neighbour_is_sent_away(tmp_path: Path) -> None:
    case = Case(
        "neighbour-gpu",
        ON_GPU,
        spec={"share": "1/4"},
        beside={"b": MadeUp(ran=0.9, gpu=0.6)},
        node=ONE_GPU,
    )
    first, second = remedies(told(tmp_path, case))
    assert (first.kind, second.kind) == (RemedyKind.RAISE_SHARE, RemedyKind.LEAVE_TOGETHER)


def test_a_neighbour_that_comes_after_another_is_told_what_it_gives_up(tmp_path: Path) -> None:
    run = recording(
        tmp_path / "run.sqlite", {"a": WAITS, "b": MadeUp(ran=1.5), "c": MadeUp(ran=0.0, end=1)}
    )
    a, b, c = run.jobs
    jobs = (a, typed(b, {"spec": {"after": "c"}}), c)
    remedy = verdict(accounts(jobs, run.nodes, run.seconds)[0]).remedy
    assert (remedy.job, remedy.settings, remedy.facts.replaced) == ("b", {"after": "a"}, "c")


@pytest.mark.parametrize(
    ("spec", "workers", "listed", "parts"),
    [
        ({"plan": {"worker_nodes": ["x", "y", "z"]}}, 2, True, False),
        (
            {"plan": {"worker_nodes": ["x", "y", "z"], "batch_per_worker": [2, 1, 2]}},
            2,
            True,
            True,
        ),
        ({"plan": {"worker_nodes": []}}, 2, False, False),
        ({"plan": {"workers": 3}, "limits": {"workers": [3, None]}}, None, False, False),
        ({}, None, False, False),
    ],
)
def test_a_slow_node_is_left_out_where_it_was_chosen(
    tmp_path: Path, spec: Mapping[str, Any], workers: int | None, listed: bool, parts: bool
) -> None:
    slow = {"forward": 0.04, "backward": 0.04, "optimizer": 0.01, "push": 0.01}
    quick = {**QUICK, "optimizer": 0.005}
    finding = verdict(several(tmp_path, {"x": quick, "y": slow, "z": quick}, spec=spec))
    assert finding.kind is FindingKind.SLOW_NODE
    assert finding.remedy.settings == ({"plan.workers": workers} if workers else {})
    assert finding.remedy.facts == NodesFacts(("x", "z"), listed, parts)


def test_a_role_gets_a_server_more_by_its_count(tmp_path: Path) -> None:
    sent = {"s": 90.0, "x": 45.0, "y": 45.0}
    finding = verdict(
        several(tmp_path, {"x": QUICK, "y": QUICK}, servers=("s",), sent=sent, spec=ROLES)
    )
    assert finding.kind is FindingKind.SERVERS
    assert finding.remedy.facts == RoleFacts("server")
