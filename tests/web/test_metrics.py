"""Figures for Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.hub.user import User
from tests.web.conftest import Pages
from tests.web.test_board import job, snapshot

from headgate.testing.wait import until
from headgate.web import metrics
from headgate.web.board import Board


def series(text: str) -> dict[tuple[str, ...], float]:
    """Values by name, and values of labels by their names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_live_jobs_and_their_losses_have_series(pages: Pages, user: User) -> None:
    user.write("job.yaml", "jobs: [{name: a, run: 'echo epoch 1 loss 0.25; sleep 600'}]")
    run = user.detaches("job.yaml")

    def has_loss() -> bool:
        return ("headgate_job_loss", "a", run) in series(pages.asks("/metrics").text)

    until(has_loss, 60, "the loss")
    values = series(pages.asks("/metrics").text)
    assert values["headgate_job_loss", "a", run] == 0.25
    assert values["headgate_jobs", "running"] == 1
    user.types("stop", "--kill", "a")
    until(lambda: not has_loss(), 60, "the end of its series")


def test_the_format_and_names_keep_prometheus_conventions() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool")
    board = Board()
    board.take(snapshot(job("a"), job('b"\\\n')))
    verdict = {"kind": "neighbour-cores", "resource": "cores", "culprit": "b", "seconds": 2.0}
    board.add_to_job("r", "a", verdict=verdict)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=metrics.exposition(board),
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    values = series(metrics.exposition(board).decode())
    assert values["headgate_job_lost_seconds", "neighbour-cores", "a", "b", "cores", "r"] == 2.0


def test_very_many_jobs_have_no_more_series_than_the_bound() -> None:
    board = Board()
    board.take(snapshot(*(job(f"j{i}") for i in range(2 * metrics.MOST_JOBS))))
    board.add_to_job(
        "r", "j999", verdict={"kind": "x", "resource": "", "culprit": "", "seconds": 9}
    )
    values = series(metrics.exposition(board).decode())
    losses = [key for key in values if key[0] == "headgate_job_loss"]
    assert len(losses) == metrics.MOST_JOBS
    assert ("headgate_job_loss", "j999", "r") in losses
    assert values["headgate_jobs", "running"] == 2 * metrics.MOST_JOBS


def test_a_file_is_written_whole(user: User, tmp_path: Path) -> None:
    file = tmp_path / "headgate.prom"
    served = Pages(user, "--port", "0", "--metrics-file", str(file))
    until(file.exists, 60, "the file")
    assert series(file.read_text())["headgate_runs",] == 0
    assert served.ends() == 0
    assert list(tmp_path.glob(".headgate*")) == []
