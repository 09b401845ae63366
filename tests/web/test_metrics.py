"""Figures for Prometheus."""

from __future__ import annotations

import asyncio
import math
import shutil
import signal
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.hub.user import SECONDS, User
from tests.web.conftest import Pages
from tests.web.test_board import job, snapshot

from headgate.recorded.status import NodeReading
from headgate.testing.wait import until
from headgate.web import metrics, sending
from headgate.web.board import Board, RunDetails
from headgate.web.sending import MetricsFile

ACCOUNT = {
    "account": {"waiting": {"seconds": 3.0}, "compute": {"seconds": 5.0}},
    "lost": [{"to": 'b"\\\n', "resource": "cores", "seconds": 1.5}],
}
NODE = {field.name: 0.5 for field in fields(NodeReading)} | {"name": "n"}


def series(text: str) -> dict[tuple[str, ...], float]:
    """Values by name, and values of labels by their names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def figures(board: Board) -> dict[tuple[str, ...], float]:
    """What Prometheus would be served."""
    return series(metrics.exposition(metrics.read(board)).decode())


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


def test_a_hub_that_dies_is_counted_and_no_series_of_its_jobs_stays(
    pages: Pages, user: User
) -> None:
    user.write("job.yaml", "jobs: [{name: a, run: 'sleep 600'}]")
    run = user.detaches("job.yaml")
    state = ("headgate_job_state", "a", run, "running")
    until(lambda: state in series(pages.asks("/metrics").text), SECONDS, "its series")
    user.kills(user.traces.hub())
    lost = ("headgate_runs_lost_total",)
    until(lambda: series(pages.asks("/metrics").text)[lost] == 1, SECONDS, "the lost run")
    assert state not in series(pages.asks("/metrics").text)


def test_the_format_and_names_keep_prometheus_conventions() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool")
    board = Board()
    board.take(snapshot(job("a"), job('b"\\\n')))
    verdict = {"kind": "neighbour-cores", "resource": "cores", "culprit": "b", "seconds": 2.0}
    board.add_to_job("r", "a", verdict=verdict)
    board.add(nodes={"n": NODE})
    board.set_details("r", RunDetails({"a": 0.0}, {"a": ACCOUNT}, {"SetShare": 2}))
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=metrics.exposition(metrics.read(board)),
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    values = figures(board)
    assert values["headgate_job_verdict_seconds", "neighbour-cores", "a", "r"] == 2.0
    assert values["headgate_job_lost_seconds", "a", 'b"\\\n', "cores", "r"] == 1.5
    assert values["headgate_job_time_seconds", "a", "waiting", "r"] == 3.0


def test_very_many_jobs_have_no_more_series_than_the_bound() -> None:
    board = Board()
    board.take(snapshot(*(job(f"j{i}") for i in range(2 * metrics.MOST_JOBS))))
    board.add_to_job(
        "r", "j999", verdict={"kind": "x", "resource": "", "culprit": "", "seconds": 9}
    )
    values = figures(board)
    losses = [key for key in values if key[0] == "headgate_job_loss"]
    assert len(losses) == metrics.MOST_JOBS
    assert ("headgate_job_loss", "j999", "r") in losses
    assert values["headgate_jobs", "running"] == 2 * metrics.MOST_JOBS


def test_small_losses_of_a_job_are_added_up() -> None:
    board = Board()
    board.take(snapshot(job("a")))
    lost = [{"to": f"j{i}", "resource": "cores", "seconds": 100.0 - i} for i in range(30)]
    board.set_details("r", RunDetails(accounts={"a": ACCOUNT | {"lost": lost}}))
    values = figures(board)
    losses = {key[2]: value for key, value in values.items() if key[0].endswith("lost_seconds")}
    assert len(losses) == metrics.MOST_LOSSES_OF_JOB + 1
    assert losses["other jobs"] == sum(100.0 - i for i in range(metrics.MOST_LOSSES_OF_JOB, 30))


def test_a_job_that_ended_some_minutes_ago_has_no_series_and_is_still_counted() -> None:
    board = Board()
    ended = {"state": "failed", "started": 0.0, "ended": 1.0}
    board.take(snapshot(job("a"), job("b"), t=0.5))
    board.take(snapshot(job("a", **ended), job("b"), t=2.0))
    assert ("headgate_job_step", "a", "r") in series(
        metrics.exposition(metrics.read(board)).decode()
    )
    board.take(snapshot(job("a", **ended), job("b"), t=2.0 + metrics.ENDED_SECONDS))
    values = figures(board)
    assert not [key for key in values if key[1:3] == ("a", "r")]
    assert values["headgate_jobs", "failed"] == 1
    assert values["headgate_jobs_ended_total", "failed"] == 1
    assert values["headgate_jobs_without_series",] == 1


def test_counters_go_on_when_a_run_ends() -> None:
    board = Board()
    board.take(snapshot(job("a"), t=0.0))
    board.take(snapshot(job("a", state="done", ended=1.0), t=1.0) | {"type": "end"})
    board.take({"type": "reported", "run": "r"})
    board.take(snapshot(job("a"), run="s", t=0.0))
    board.take({"type": "gone", "run": "s"})
    values = figures(board)
    assert values["headgate_jobs_ended_total", "done"] == 1
    assert values["headgate_runs_lost_total",] == 1


def test_jobs_that_ended_before_these_figures_began_are_not_counted() -> None:
    board = Board()
    before = job("a", state="done", started=0.0, ended=1.0)
    board.take(snapshot(before, job("b", state="done", started=0.0, ended=90.0), t=50.0))
    assert board.ends["done"] == 1


def test_a_loss_that_is_not_a_number_is_nan() -> None:
    board = Board()
    board.take(snapshot(job("a", loss=None, nan=True)))
    assert math.isnan(figures(board)["headgate_job_loss", "a", "r"])


def test_a_file_is_written_whole_for_everybody_and_removed_in_the_end(
    user: User, tmp_path: Path
) -> None:
    file = tmp_path / "headgate.prom"
    served = Pages(user, "--port", "0", "--metrics-file", str(file))
    assert series(file.read_text())["headgate_runs",] == 0
    assert file.stat().st_mode & 0o777 == 0o644
    assert served.ends() == 0
    assert list(tmp_path.glob("*headgate*")) == []


def test_a_file_is_written_without_a_page(user: User, tmp_path: Path) -> None:
    file = tmp_path / "headgate.prom"
    sender = user.starts("web", "--no-page", "--metrics-file", str(file))
    until(file.exists, 60, "the file")
    sender.send_signal(signal.SIGTERM)
    assert sender.wait(60) == 0
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--metrics-file", "/proc/nowhere/a.prom"), "cannot write --metrics-file"),
        (("--metrics-file", "figures.txt"), "ends in .prom"),
        (("--no-page",), "expected --metrics-file or --otlp"),
    ],
)
def test_what_cannot_take_figures_is_refused(
    words: tuple[str, ...], error: str, user: User
) -> None:
    assert error in user.types("web", *words, code=2).stderr


def test_a_file_that_cannot_be_written_is_told_once_and_when_it_can_again(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    receiver = MetricsFile(folder / "headgate.prom")
    receiver.seconds = 0.0
    lines: list[str] = []

    async def send() -> None:
        said_lines = asyncio.Queue[str]()
        (folder / "headgate.prom").unlink()
        folder.rmdir()
        task = asyncio.create_task(sending.send_on(Board(), receiver, said_lines.put_nowait))
        lines.append(await said_lines.get())
        folder.mkdir()
        lines.append(await said_lines.get())
        task.cancel()

    asyncio.run(send())
    trouble = f"cannot write --metrics-file {folder}/headgate.prom: No such file or directory"
    assert lines == [f"{trouble}; trying again", "figures are handed on again"]


def test_the_page_of_the_documentation_lists_each_figure() -> None:
    rows = [
        f"| `{figure.prometheus_name}` | {' '.join(f'`{label}`' for label in figure.labels)} "
        f"| {figure.meaning} |"
        for figure in metrics.FIGURES
    ]
    page = (Path(__file__).parents[2] / "docs" / "web.md").read_text()
    assert [line for line in page.splitlines() if line.startswith("| `headgate_")] == rows
