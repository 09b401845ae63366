from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate.cli.report import command
from headgate.model.errors import NotFoundError, StorageError
from headgate.recorded.store import Recorder


@pytest.fixture
def run(home: Path) -> Path:
    folder = home / "runs" / "20260314-0900-ab12"
    folder.mkdir(parents=True)
    recorder = Recorder(folder / "run.sqlite")
    for key, value in (
        ("id", folder.name),
        ("began", "1773478800.0"),
        ("ended", "10.0"),
        ("state", "done"),
    ):
        recorder.add("meta", key=key, value=value)
    recorder.add(
        "jobs",
        name="a",
        position=0,
        state="done",
        submitted=0.0,
        started=1.0,
        ended=10.0,
        attempt=1,
    )
    recorder.close()
    return folder


def test_the_page_is_written_beside_the_store_and_its_path_printed(run: Path) -> None:
    result = CliRunner().invoke(command, [], catch_exceptions=False)
    assert (result.exit_code, result.stdout) == (0, f"{run / 'report.html'}\n")
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_it_is_written_where_the_user_says(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        command, ["20260314", "--output", str(tmp_path / "other.html")], catch_exceptions=False
    )
    assert result.stdout == f"{tmp_path / 'other.html'}\n"
    assert (tmp_path / "other.html").exists()
    assert not (run / "report.html").exists()


def test_what_is_no_file_is_written_into_and_a_link_stays_one(run: Path, tmp_path: Path) -> None:
    pipe, link, page = tmp_path / "pipe", tmp_path / "link", tmp_path / "page.html"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    CliRunner().invoke(command, ["--output", str(pipe)], catch_exceptions=False)
    reader.join()
    assert found[0].startswith("<!doctype html>")
    assert pipe.is_fifo()
    page.write_text("before")
    link.symlink_to(page)
    CliRunner().invoke(command, ["--output", str(link)], catch_exceptions=False)
    assert link.is_symlink()
    assert page.read_text() == found[0]


def test_json_has_the_figures_of_every_job(run: Path) -> None:
    told = json.loads(CliRunner().invoke(command, ["--json"], catch_exceptions=False).stdout)
    assert (told["run"], told["state"], told["seconds"]) == (run.name, "done", 10.0)
    assert (told["jobs"][0]["name"], told["jobs"][0]["run_seconds"]) == ("a", 9.0)
    assert Path(told["report"]).exists()


def test_a_browser_is_opened_only_when_asked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def note(url: str) -> bool:
        opened.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", note)
    CliRunner().invoke(command, [], catch_exceptions=False)
    assert opened == []
    CliRunner().invoke(command, ["--open"], catch_exceptions=False)
    assert opened == [(run / "report.html").as_uri()]


def test_no_such_run_and_no_place_to_write_are_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="headgate ps"):
        CliRunner().invoke(command, ["nothing"], catch_exceptions=False)
    with pytest.raises(StorageError, match="--output"):
        CliRunner().invoke(
            command, ["--output", str(tmp_path / "missing" / "x.html")], catch_exceptions=False
        )
