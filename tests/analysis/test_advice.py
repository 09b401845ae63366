"""What a verdict says to do next: never what the job already has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.made_up import MadeUp, recording

from headgate.analysis.accounts import accounts
from headgate.analysis.verdicts import Name, Verdict, verdict
from headgate.identifiers import TaskOfRun

INPUT = {"input": 0.06, "forward": 0.04}
STEP = {"forward": 0.04, "backward": 0.06}
EXCHANGE = {"forward": 0.03, "pull": 0.07}
SMALL = {"forward": 0.0004, "backward": 0.0006}
COSTS = {"flops_per_sample": 1e5, "batch": 4, "core_gflops": 50.0, "dense_bytes": 4000}
SETTINGS = {
    "workers": r"(?:--workers |\bworkers: )(\d+)",
    "servers": r"(?:--servers |\bservers: )(\d+)",
    "loaders": r"num_workers=(\d+)",
    "threads": r"OMP_NUM_THREADS: \"(\d+)\"",
    "cores": r"cores: (\d+)",
    "memory": r"memory: (\w+)",
    "priority": r"priority: (\d+)",
}
"""What an advice may set, and how it says so."""


@dataclass(frozen=True)
class Case:
    """A job with a verdict, and what it has of `SETTINGS`. Without `tasks` it has one worker."""

    name: Name
    job: MadeUp
    has: Mapping[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    known: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


def proposed(text: str) -> dict[str, set[str]]:
    """What an advice says to set."""
    return {name: found for name, pattern in SETTINGS.items() if (found := set(re.findall(pattern, text)))}


def told(path: Path, case: Case) -> Verdict:
    run = recording(path / "run.sqlite", {"a": case.job})
    job, (one,) = run.jobs[0], run.jobs[0].tasks
    tasks = tuple(replace(one, id=TaskOfRun(f"a/{name}")) for name in case.tasks) or (one,)
    env = {"OMP_NUM_THREADS": str(case.has["threads"])} if "threads" in case.has else {}
    spec = {**job.spec, "script": "/t.py", "priority": case.has.get("priority", 1.0), "env": env, **case.spec}
    plan = {"strategy": case.has.get("strategy", "allreduce"), "servers": int(case.has.get("servers", 0))}
    known: dict[str, Any] = {"tasks": tasks, "spec": spec, "plan": plan, **case.known}
    changed = replace(job, **known)
    return verdict(accounts((changed,), run.nodes, run.seconds)[0])


WAITS = MadeUp(ran=0.5, waited=0.5, spans=STEP)
EXCHANGES = MadeUp(ran=0.3, spans=EXCHANGE)
ONE_SERVED = ("worker-0", "server-0")
CASES = [
    Case("own-tasks", WAITS, {"workers": 4}, tuple(f"worker-{index}" for index in range(4))),
    Case("own-tasks", WAITS, {"workers": 1, "servers": 1, "strategy": "ps"}, ONE_SERVED),
    Case("own-tasks", WAITS, {"workers": 1, "servers": 2, "strategy": "ps"}, (*ONE_SERVED, "server-1")),
    Case("own-tasks", WAITS, {"workers": 1}, ("worker-0", "evaluator-0")),
    Case("communication", EXCHANGES, {"workers": 2}, ("worker-0", "worker-1"), spec={"launch": "torchrun"}),
    Case(
        *("communication", EXCHANGES, {"workers": 1, "servers": 1, "strategy": "ps"}, ONE_SERVED),
        spec={"launch": "tf-config"},
    ),
    Case("communication", EXCHANGES, {"workers": 1, "servers": 1, "strategy": "ps"}, ONE_SERVED, spec={"script": None}),
    Case("loader", MadeUp(ran=0.3, spans=INPUT, loader_workers=0), {"loaders": 0}),
    Case("loader", MadeUp(ran=1.3, ready=0.9, spans=INPUT, loader_workers=2), {"loaders": 2}),
    Case("input", MadeUp(ran=0.4, ready=0.4, spans=INPUT, loader_workers=2), {"loaders": 2}),
    Case("own-threads", MadeUp(ran=2.0, waited=9.0), {"threads": 8}),
    Case("own-threads", MadeUp(ran=2.0, waited=9.0), {"threads": 2}),
    Case("own-threads", MadeUp(ran=1.9, spans=SMALL), {"threads": 1}, known={"profile": COSTS}),
    Case("small-steps", MadeUp(ran=1.0, spans=SMALL, limits={"cores": 1.0}), {"cores": 1}, known={"profile": COSTS}),
    Case("own-cap", MadeUp(ran=0.5, waited=0.5, throttled=0.5, cap=0.5, limits={"cores": 0.5}), {"cores": 0.5}),
    Case("waiting", MadeUp(ran=1.0, start=20), {"priority": 2}),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name} {dict(case.has)}")
def test_no_advice_says_to_set_what_the_job_already_has(tmp_path: Path, case: Case) -> None:
    found = told(tmp_path, case)
    assert found.name == case.name, found.why
    assert found.next
    for name, values in proposed(found.next).items():
        if name in case.has:
            assert str(case.has[name]) not in values, found.next


def test_a_job_of_one_worker_and_a_server_is_told_to_do_without_the_server(tmp_path: Path) -> None:
    found = told(tmp_path, Case("own-tasks", WAITS, {"workers": 1, "servers": 1, "strategy": "ps"}, ONE_SERVED))
    assert "`headgate run --strategy single /t.py`" in found.next
