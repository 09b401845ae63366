"""The words of findings. Golden files hold them; `RENEW_GOLDEN=1` writes them anew."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.diagnosis.made_up import MadeUp, recording
from tests.diagnosis.test_advice import MORE_CASES, ON_GPU, ONE_GPU, Case, told
from tests.diagnosis.test_granted import ONE
from tests.diagnosis.test_own_causes import QUICK, several

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.findings import FindingKind
from headgate.diagnosis.remedies import RemedyKind
from headgate.model.reasons import CureKind, Reason
from headgate.model.reasons import ReasonKind as Kind
from headgate.reports import explained, findings, remedies

GOLDEN = Path(__file__).with_name("golden")
SLOW = {"forward": 0.04, "backward": 0.04, "optimizer": 0.01, "push": 0.01}
SCRIPT = {"script": "train.py"}
OUT_OF_MEMORY = Reason.of(
    Kind.OUT_OF_GPU_MEMORY,
    exit=Reason.of(Kind.EXIT, code=1, text="CUDA out of memory. Tried to allocate 45.00 GiB."),
    node="nimbus",
    gpus=[0],
    gpu_count=1,
    held_bytes=518 * 1024**2,
    cures=[{"kind": CureKind.STATE_GPU_MEMORY, "least_bytes": 46 * 1024**3}],
)
RUNS: Mapping[str, tuple[Mapping[str, MadeUp], Mapping[str, Any]]] = {
    "neighbours": (
        {
            "a": MadeUp(ran=0.5, waited=0.5),
            "b": MadeUp(ran=1.0, end=30),
            "c": MadeUp(ran=0.5, waited=0.2, end=20),
        },
        {"cores": 1.5},
    ),
    "outside": (
        {"a": MadeUp(ran=0.5, waited=0.5), "late": MadeUp(ran=0.5, start=20)},
        {"outside": 1.5},
    ),
    "own": (
        {
            "evaluates": MadeUp(
                ran=1.0, spans={"forward": 0.04, "backward": 0.06}, asides={"evaluation": 12.0}
            ),
            "reads": MadeUp(ran=0.25, spans={"input": 0.075, "forward": 0.025}, loader_workers=2),
            "silent": MadeUp(ran=1.0, steps=0.0),
            "died": MadeUp(ran=1.0, failed="exit code 1, after the line: KeyError: 'x'"),
        },
        {"cores": 8.0},
    ),
    "threads": (
        {"a": MadeUp(ran=1.0, threads={0: 1}), "b": MadeUp(ran=1.0, threads={0: 2})},
        {},
    ),
    "hypervisor": ({"a": MadeUp(ran=0.75)}, {"stolen": 0.25}),
    "failed": (
        {
            "wrong": MadeUp(
                ran=1.0, failed=f"exit code 1, after the line: ValueError: {'number ' * 20}"
            ),
            "large": MadeUp(ran=1.0, failed=OUT_OF_MEMORY),
            "killed": MadeUp(ran=1.0, failed=Reason.of(Kind.KILLED_BY_USER), state="killed"),
            "old": MadeUp(
                ran=1.0, failed=Reason.of(Kind.TEXT, text="out of memory. Next: a smaller batch")
            ),
        },
        {"cores": 8.0},
    ),
}


def printed(accounts: Sequence[Account]) -> str:
    """What `headgate explain` prints of them."""
    out = io.StringIO()
    explained.tell(list(accounts), Console(file=out, width=100, no_color=True))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def matches(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("RENEW_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_explained_in_these_words(tmp_path: Path, name: str) -> None:
    jobs, node = RUNS[name]
    folder = tmp_path / "runs" / name
    folder.mkdir(parents=True)
    matches(name, printed(explained.explained(recording(folder / "run.sqlite", jobs, **node))))


def test_each_cause_and_its_remedy_have_these_words(tmp_path: Path) -> None:
    lines = []
    for index, case in enumerate(MORE_CASES):
        folder = tmp_path / str(index)
        folder.mkdir()
        account = told(folder, case)
        lines += [str(line) for line in explained.headline(account)]
    waited = told(tmp_path, next(case for case in MORE_CASES if case.name == "waiting"))
    reason = Reason.of(Kind.AFTER_JOBS, jobs=["c"])
    around = replace(waited.around, waited_for=reason, overtaken_by=("b",))
    lines += [str(line) for line in explained.headline(replace(waited, around=around))]
    beside = {"b": MadeUp(ran=0.9, gpu=0.6)}
    case = Case("neighbour-gpu", ON_GPU, spec={"share": "1/4"}, beside=beside, node=ONE_GPU)
    lines += [str(line) for line in explained.headline(told(tmp_path, case))]
    matches("causes", "\n".join(lines) + "\n")


def test_what_fewer_threads_cost_has_these_words(tmp_path: Path) -> None:
    jobs = {"a": ONE, "c": MadeUp(ran=0.0)}
    lines: list[str] = []
    for end in (15, 40):
        run = recording(tmp_path / f"{end}.sqlite", jobs | {"b": MadeUp(ran=1.0, end=end)})
        rates = {"a": AloneRate(16.0, 15.2, 16.8, 3)}
        [account, *_] = accounts(run.jobs, run.nodes, run.seconds, alone=rates)
        lines += [str(line) for line in explained.headline(account)]
    matches("grants", "\n".join(lines) + "\n")


def test_causes_of_jobs_of_several_tasks_have_these_words(tmp_path: Path) -> None:
    workers = {"x": {**QUICK, "optimizer": 0.005}, "y": SLOW, "z": {**QUICK, "optimizer": 0.005}}
    straggler = {"x": QUICK, "y": {"forward": 0.02, "backward": 0.07, "push": 0.01}, "z": QUICK}
    pair, alike = {"x": QUICK, "y": QUICK}, {"x": QUICK, "y": QUICK, "z": QUICK}
    sent = {"s": 90.0, "x": 45.0, "y": 45.0}
    profile = {"dense_bytes": 100, "dense_table_bytes": 90, "dense_table_touched": 0.01}
    jobs = [
        several(tmp_path / "node", workers),
        several(tmp_path / "task", straggler),
        several(tmp_path / "held", alike, throttled={"y": 0.5}),
        several(tmp_path / "nic", alike, rates={"y": 20.0}, own={"y": 18.0}, spec=SCRIPT),
        several(tmp_path / "server", pair, servers=("s",), sent=sent, own=sent),
        several(tmp_path / "tables", pair, servers=("s",), profile=profile),
        several(tmp_path / "plans", pair, spec=SCRIPT),
    ]
    lines = [str(line) for job in jobs for line in explained.headline(job)]
    matches("several", "\n".join(lines) + "\n")


def test_json_has_a_finding_as_values(tmp_path: Path) -> None:
    jobs = {"a": MadeUp(ran=0.5, waited=0.5), "b": MadeUp(ran=1.5)}
    [a, _] = explained.explained(recording(tmp_path / "run.sqlite", jobs))
    told_as = json.loads(json.dumps(explained.verdict_as_json(a)))
    assert told_as["kind"] == told_as["name"] == "neighbour-cores"
    assert (told_as["resource"], told_as["culprit"]) == ("cores", "b")
    assert told_as["facts"]["slowed"] == pytest.approx(0.5)
    assert told_as["facts"]["through"] == ["cores"]
    assert told_as["remedy"]["kind"] == "leave-together"
    assert (told_as["remedy"]["job"], told_as["remedy"]["settings"]) == ("b", {"after": "a"})
    assert [end["job"] for end in told_as["remedy"]["facts"]["ends"]] == ["a", "b"]


def test_json_has_all_findings_of_a_job_as_values(tmp_path: Path) -> None:
    job = MadeUp(ran=0.5, waited=0.5, start=10, failed=OUT_OF_MEMORY)
    run = recording(tmp_path / "run.sqlite", {"a": job, "b": MadeUp(ran=1.5)})
    [of_job] = explained.as_json("r", explained.explained(run, "a"))["jobs"]
    first, *others = json.loads(json.dumps(of_job["findings"]))
    assert {"name": "failed", **first} == json.loads(json.dumps(of_job["verdict"]))
    assert first["facts"] == {"state": "failed", "reason": OUT_OF_MEMORY.plain()}
    assert [finding["kind"] for finding in others] == ["neighbour-cores", "waiting"]
    assert [finding["seconds"] for finding in others] == pytest.approx([15.0, 10.0])
    assert others[1]["remedy"]["settings"] == {"priority": 2.0}
    assert all(finding["why"] and finding["low"] <= finding["high"] for finding in others)


def test_every_kind_of_finding_and_remedy_has_its_words() -> None:
    assert set(findings.WHY) == set(FindingKind)
    assert set(remedies.NEXT_STEPS) == set(RemedyKind)
