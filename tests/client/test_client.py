"""`headgate.Client` and its runs: a real hub, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

import headgate
from headgate import Client, Job
from headgate.client.watching import RunReported, RunSnapshot
from headgate.hub.connection import connect
from headgate.model.actions import SetShare
from headgate.model.errors import HeadgateError, HubError, NotFoundError, UsageError
from headgate.model.shares import Share
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow

WAITS = "echo began; until [ -e go ]; do sleep 0.05; done; echo went on"


@pytest.fixture
def client(user: User, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.chdir(user.folder)
    with Client() as client:
        yield client


def job(name: str = "a", command: str = "echo hello") -> Job:
    return Job(name=name, run=command)


def read_again(values: dict[str, Any]) -> Any:
    return json.loads(json.dumps(values))


def kill_hub() -> bool:
    if (hub := connect()) is not None:
        with hub:
            os.kill(hub.ask("hello")["pid"], signal.SIGKILL)
    return False


def test_a_run_is_started_waited_for_and_read(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_REPORT")
    run = client.run(job(), job("b", "echo hello; exit 3"))
    assert run.jobs == ("a", "b")
    ended = run.wait(SECONDS)
    assert {job.name: job.state for job in ended.jobs} == {"a": "done", "b": "failed"}
    assert (run.logs("a"), run.logs("b", tail=0)) == ("hello\n", "")
    assert [job.exit_code for job in run.status().jobs] == [0, 3]
    assert (run.path / "report.html").exists()
    shown = run._repr_html_()
    assert "<th>job</th><th>state</th><th>took</th>" in shown and "<td>failed</td>" in shown
    assert "<th>loss</th>" not in shown
    events = list(run.events())
    assert next(event.name for event in run.events("b")) == "JobSubmitted"
    assert "TaskExited" in {event.name for event in events}
    assert run.id in {summary.id for summary in client.runs()}
    assert client.find(run.id).path == run.path


REPORTS_LATE = """
import sys
if any("write_at_end" in word for word in sys.orig_argv):
    open({fifo!r}).read()
"""


def test_who_comes_while_the_report_is_written_waits_for_it(
    client: Client, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = user.folder / "fifo"
    os.mkfifo(fifo)
    user.write("sitecustomize.py", REPORTS_LATE.format(fifo=str(fifo)))
    monkeypatch.setenv("PYTHONPATH", str(user.folder))
    monkeypatch.delenv("HEADGATE_REPORT")
    run = client.run(job(), job("b", "exit 3"))
    gate = fifo.open("w")  # once it is about to be written
    assert not runs.alive(run.path)
    with pytest.raises(TimeoutError):
        run.wait(0)
    with pytest.raises(NotFoundError, match="nothing is running"):
        run.ask_to_stop()
    with run.watched() as watch:
        assert watch is not None
        news = watch.follow(SECONDS)
        end = next(news)
        assert isinstance(end, RunSnapshot) and end.has_ended
        assert {job.name: job.state for job in end.jobs} == {"a": "done", "b": "failed"}
        gate.close()
        [page] = [said for said in news if isinstance(said, RunReported)]
    assert page.report == str(run.path / "report.html") and Path(page.report).exists()
    with run.watched() as watch:
        assert watch is None


def test_what_it_explains_and_reports_is_what_the_commands_print(
    client: Client, user: User, tmp_path: Path
) -> None:
    run = client.run(job())
    run.wait(SECONDS)
    assert read_again(run.explain().as_json()) == user.json("explain", run.id)
    report = run.report(tmp_path / "page.html")
    assert report.path.read_text().startswith("<!doctype html>")
    printed = user.json("report", run.id)
    assert {**read_again(report.figures()), "report": printed["report"]} == printed
    assert report._repr_html_().startswith("<iframe")


def test_a_wait_ends_in_time_and_the_job_goes_on(client: Client, user: User) -> None:
    run = client.run(job("a", WAITS))
    with pytest.raises(TimeoutError, match=run.id):
        run.wait(0.3)
    assert run.summary().state == "running"
    user.touch("go")
    assert run.wait(SECONDS).state == "done"
    assert run.logs().splitlines() == ["began", "went on"]


def test_events_are_followed_until_the_end(client: Client, user: User) -> None:
    run = client.run(job("a", WAITS))
    names = []
    for event in run.events(follow=True):
        names.append(event.name)
        user.touch("go")
    assert names.index("JobSubmitted") < names.index("TaskExited")


def test_a_log_is_followed_line_by_line(client: Client, user: User) -> None:
    run = client.run(job("a", f"{WAITS}; printf 'the last'"))
    lines = []
    for line in run.logs(follow=True):
        lines.append(line)
        user.touch("go")
    assert lines == ["began", "went on", "the last"]
    assert list(run.logs(tail=2, follow=True)) == ["went on", "the last"]


def test_cores_and_priority_of_a_running_job_are_changed(client: Client, user: User) -> None:
    jobs = (job("a", "exec sleep 3600"), job("b", "exec sleep 3600"))
    run = client.run(*jobs, policy="equal")
    user.sees_state("a", "running")
    run.set("a", priority=3, cores=0.5)
    shares = (event.what for event in run.events("a", follow=True))
    wanted = Share(cpu_weight=300.0, cpu_cap_cores=0.5)
    next(what for what in shares if isinstance(what, SetShare) and what.share == wanted)
    assert "0.50   equal share, priority 3" in user.types("status", run.id).stdout
    told = {"run": run.id, "job": "a", "jobs": ["a"], "cores": 1.0}
    assert user.json("set", "a", "cores=1") == told
    for changes, message in (
        ({"gpus": 1}, "found 'gpus'; expected `workers`, `cores`, `priority`, `at_once`, `mem"),
        ({}, "found nothing to change"),
        ({"cores": -1}, "found cores -1; expected a number above 0"),
        ({"timeout": 0}, "found timeout 0; expected a time above 0"),
        ({"memory": "100TiB"}, "fits on no node: .* are asked for"),
        ({"priority": "high"}, "expected a number"),
    ):
        with pytest.raises(UsageError, match=message):
            run.set("a", **changes)
    run.stop(kill=True)
    with RunReader(run.path / runs.STORE) as reader:
        [spec] = [row.job() for row in reader.records(JobRow, "name = 'a'")]
    assert (spec.limits.cores, spec.priority) == (1.0, 3.0)
    with pytest.raises(NotFoundError, match="nothing is running"):
        run.set("a", cores=2)


def test_a_run_whose_folder_is_gone_hides_no_job_of_another(client: Client, user: User) -> None:
    run = client.run(job("a", WAITS))
    gone = client.run(job("b", WAITS))
    user.sees_state("a", "running")
    user.sees_state("b", "running")
    shutil.rmtree(gone.path)
    assert {name: end.state for name, end in run.stop("a", kill=True).items()} == {"a": "killed"}
    assert "no running job 'c'" in user.types("stop", "c", code=5).message


def test_jobs_are_stopped_by_name(client: Client, user: User) -> None:
    run = client.run(job("a", WAITS), job("b", "exec sleep 3600"))
    user.sees_state("b", "running")
    assert {name: end.state for name, end in run.stop("b").items()} == {"b": "stopped"}
    assert {name: end.state for name, end in run.stop(kill=True).items()} == {"a": "killed"}
    with pytest.raises(NotFoundError, match="nothing is running"):
        run.stop()


@pytest.mark.slow
def test_a_job_that_cannot_do_it_is_an_error(client: Client, user: User) -> None:
    run = client.run(job("a", "exec sleep 3600"), job("b", "exec sleep 3600"))
    user.sees_state("a", "running")
    with pytest.raises(HeadgateError, match="none can save a checkpoint"):
        run.checkpoint("a")
    with pytest.raises(UsageError, match="runs as a single task"):
        run.set("a", workers=2)
    with pytest.raises(UsageError, match="several jobs: name one of a, b"):
        run.logs()
    with pytest.raises(NotFoundError, match="no job 'c'; it has a, b"):
        run.stop("c")
    with pytest.raises(NotFoundError, match="no job 'c'; it has a, b"):
        run.explain("c")
    run.stop(kill=True)


@pytest.mark.slow
def test_an_unknown_run_is_an_error(client: Client) -> None:
    client.run(job()).wait(SECONDS)
    with pytest.raises(NotFoundError, match="no run 'nowhere'"):
        client.find("nowhere")


@pytest.mark.slow
def test_a_hub_that_dies_meanwhile_is_an_error_and_the_next_run_has_another(
    client: Client, user: User
) -> None:
    run = client.run(job("a", "exec sleep 3600"))
    user.sees_state("a", "running")
    with pytest.raises(HubError, match="the hub died"):
        run.wait_unless(kill_hub)
    assert client.run(job("b")).wait(SECONDS).state == "done"
    assert run.wait(SECONDS).state == "interrupted"


def test_the_same_is_awaited(client: Client, user: User) -> None:
    async def train() -> tuple[str, list[str], str]:
        async with headgate.Client() as client:
            run = await client.run(job("a", WAITS))
            waiting = asyncio.create_task(run.wait())
            with pytest.raises(TimeoutError):
                await run.wait(0.3)
            user.touch("go")
            ended = await waiting
            names = [event.name async for event in run.events(follow=True)]
            assert [line async for line in run.logs(follow=True)] == ["began", "went on"]
            assert (await run.status()).state == ended.state
            assert (await client.find(run.id)).jobs == ("a",)
            return ended.state, names, await run.logs(tail=1)

    state, names, log = asyncio.run(train())
    assert (state, log) == ("done", "went on\n")
    assert names.index("JobSubmitted") < names.index("TaskExited")


@pytest.mark.slow
def test_a_wait_that_is_cancelled_leaves_the_job_running(client: Client, user: User) -> None:
    async def leave(run_id: str) -> None:
        async with headgate.Client() as client:
            run = await client.find(run_id)
            waiting = asyncio.create_task(run.wait())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    run = client.run(job("a", WAITS))
    asyncio.run(leave(run.id))
    assert run.summary().state == "running"
    user.touch("go")
    assert run.wait(SECONDS).state == "done"
