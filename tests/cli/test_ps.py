"""`headgate ps` with more runs than it shows, on a narrow terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console
from tests.output.damaging import damage

from headgate.cli import live_view
from headgate.cli.ps import SHOWN, command
from headgate.model.errors import UsageError
from headgate.recorded import runs
from headgate.recorded.store import Recorder

MORE = 3


@pytest.fixture(autouse=True)
def ids(home: Path) -> list[str]:
    names = [f"20260314-0900{i:02}-123ab" for i in range(SHOWN + MORE)]
    for name in names:
        (home / "runs" / name).mkdir(parents=True)
        recorder = Recorder(home / "runs" / name / "run.sqlite")
        facts = {
            "id": name,
            "began": "1773478800.0",
            "ended": "108.5",
            "state": "done",
            "command": "headgate run " * 9,
        }
        for key, value in facts.items():
            recorder.add("meta", key=key, value=value)
        for position, state in enumerate(["done", "stopped", "skipped"]):
            recorder.add("jobs", name=state, position=position, state=state, attempt=1)
        recorder.close()
    return names


def told(*words: str) -> str:
    return CliRunner().invoke(command, words, catch_exceptions=False).stdout


def test_what_is_left_out_is_said(ids: list[str]) -> None:
    lines = told().splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ids[MORE:]
    assert lines[-1] == f"... and {MORE} earlier; --all"
    assert "earlier" not in told("--all")
    assert [run["id"] for run in json.loads(told("--json"))] == ids


def test_a_narrow_terminal_cuts_the_command_and_never_an_id(
    ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_view, "wide_console", lambda: Console(width=80))
    shown = told("--all")
    assert all(name in shown for name in ids)
    assert "headgate run headgate run" not in shown


def test_few_of_many_candidates_are_named(ids: list[str]) -> None:
    with pytest.raises(
        UsageError, match=rf"{ids[-1]} and {len(ids) - 5} earlier ones; give more of it"
    ) as raised:
        runs.find("2026")
    assert str(raised.value).count("123ab") == 5


def test_a_run_whose_store_is_damaged_is_said_and_the_others_are_listed(
    ids: list[str], home: Path
) -> None:
    store = home / "runs" / ids[-1] / "run.sqlite"
    damage(store, "jobs")
    done = CliRunner().invoke(command, ["--json"], catch_exceptions=False)
    assert [run["id"] for run in json.loads(done.stdout)] == ids[:-1]
    assert done.stderr == f"headgate: cannot read {store}: database disk image is malformed\n"
