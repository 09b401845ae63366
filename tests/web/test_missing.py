"""Pages of runs and jobs that are not there, or not any more: one sentence, and its status."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.diagnosis.made_up import MadeUp, recording
from tests.web.conftest import HTML
from tests.web.test_access import asked

__all__ = ["asked"]
FIRST, SECOND = "20260314-090000-000aa", "20260315-090000-000bb"


@pytest.fixture
def runs(home: Path) -> Path:
    """The folder of two runs, whose hub is gone."""
    for run in (FIRST, SECOND):
        (home / "runs" / run / "jobs" / "a").mkdir(parents=True)
        store = home / "runs" / run / "run.sqlite"
        recording(store, {"a": MadeUp(ran=0.5)})
        with closing(sqlite3.connect(store)) as connection, connection:
            connection.execute("UPDATE meta SET value = ? WHERE key = 'id'", [run])
    return home / "runs"


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/runs/x", 404, "no run 'x'"),
        ("/runs/x/jobs/a", 404, "no run 'x'"),
        (f"/runs/{FIRST}/jobs/b", 404, f"run {FIRST} has no job 'b'"),
        (f"/runs/{FIRST}/jobs/b/sections", 404, f"run {FIRST} has no job 'b'"),
        (f"/runs/{FIRST}/jobs/b/log", 404, "job 'b'"),
        (f"/runs/{FIRST}/jobs/b/why", 404, "has no event log"),
        ("/runs/2026", 400, "could be any of"),
        (f"/compare?first={FIRST}&second=x", 404, "no run 'x'"),
        (f"/compare?first={FIRST}&second=2026", 400, "could be any of"),
        ("/compare", 400, "found no two runs; choose them on the first page"),
        (f"/compare?first={FIRST}", 400, "found no two runs"),
        ("/nothing", 404, "there is no such page"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    asked: TestClient, path: str, status: int, sentence: str
) -> None:
    answer = asked.get(path)
    assert (answer.status_code, set(answer.json())) == (status, {"error"})
    assert sentence in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    page = asked.get(path, headers={"Accept": HTML})
    assert page.status_code == status
    assert "<h1>That did not work</h1>" in page.text


def test_a_run_that_was_deleted_meanwhile_is_said(asked: TestClient, runs: Path) -> None:
    paths = [f"/runs/{FIRST}{part}" for part in ("", "/sections", "/jobs/a", "/jobs/a/sections")]
    assert [asked.get(path).status_code for path in paths] == [200] * 4
    shutil.rmtree(runs / FIRST)
    for path in paths:
        answer = asked.get(path)
        assert (answer.status_code, f"no run '{FIRST}'" in answer.text) == (404, True), path


def test_a_store_that_cannot_be_read_is_said(asked: TestClient, runs: Path) -> None:
    (runs / FIRST / "run.sqlite").write_bytes(b"no database" * 1000)
    for path in ("", "/sections", "/jobs/a", "/jobs/a/sections"):
        answer = asked.get(f"/runs/{FIRST}{path}")
        assert answer.status_code == 500, path
        assert "run.sqlite" in answer.json()["error"], path
    assert SECOND in asked.get("/past").text


@pytest.mark.usefixtures("runs")
def test_two_runs_and_one_with_itself_are_compared(asked: TestClient) -> None:
    pair = asked.get(f"/compare?first={FIRST}&second={SECOND}").text
    itself = asked.get(f"/compare?first={FIRST}&second={FIRST}").text
    assert "What differs" in pair
    assert "beyond the noise" not in itself
    assert "This is one run: nothing differs." in itself
    assert "What differs" not in itself


@pytest.mark.usefixtures("runs")
def test_what_is_asked_for_is_bounded(asked: TestClient) -> None:
    own = {"Origin": "http://127.0.0.1:7411", "X-Headgate": "act"}
    for body, part in ((b"x" * 100_000, "more than"), (b"{", "no JSON"), (b"[]", "an object")):
        answer = asked.post(f"/runs/{FIRST}/stop", content=body, headers=own)
        assert (answer.status_code, part in answer.text) == (400, True), part
