"""`headgate logs`, of a log that was begun anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.diagnosis.made_up import MadeUp, recording

from headgate.cli.logs import command
from headgate.engines import log as module
from headgate.engines.log import TaskLog

LINES = [f"line {number}" for number in range(10)]


@pytest.fixture
def log(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """That of a run whose task printed ten lines of 7 bytes, of which a log holds four."""
    folder = home / "runs" / "20260314-0900-ab12"
    (folder / "jobs" / "a").mkdir(parents=True)
    recording(folder / "run.sqlite", {"a": MadeUp(ran=0.5)})
    monkeypatch.setattr(module, "LOG_BYTES", 30)
    path = folder / "jobs" / "a" / "worker-0.log"
    task_log = TaskLog(str(path))
    for line in LINES:
        task_log.write(f"{line}\n".encode(), 0.0)
    task_log.close()
    return path


def typed(*words: str) -> Result:
    return CliRunner().invoke(command, [*words], catch_exceptions=False)


def test_what_is_left_begins_with_a_line_and_what_is_gone_is_said(log: Path) -> None:
    result = typed("a")
    assert result.stdout.splitlines() == LINES[4:]
    assert result.stderr == "the first 28 B of this log are gone; it goes on with:\n"


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_last_lines_are_those_of_all_that_is_left(log: Path, count: int) -> None:
    result = typed("a", "--tail", str(count))
    assert (result.stdout.splitlines(), result.stderr) == (LINES[-count:], "")


def test_json_says_how_much_is_gone_before_each_file(log: Path) -> None:
    former, current = json.loads(typed("a", "--json").stdout)
    assert (former["path"], former["bytes"], former["gone_bytes"]) == (f"{log}.1", 28, 28)
    assert (current["path"], current["bytes"], current["gone_bytes"]) == (str(log), 14, 0)
