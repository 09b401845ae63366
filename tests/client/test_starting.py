"""Talking to the hub when the moment is a bad one: it is ending, the run has ended, what is asked
makes no sense.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.client import submitting
from headgate.client.starting import connect_or_start
from headgate.client.watching import RunSnapshot
from headgate.hub.connection import HubConnection, connect
from headgate.hub.server import idle_seconds
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.jobs import Job
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.testing import wait

STUBBORN = "trap '' TERM; touch deaf; while :; do sleep 0.05; done"


def submit(hub: HubConnection, folder: Path, command: str, **more: Any) -> str:
    job = Job(name="a", run=command, workdir=str(folder))
    data = submitting.submission([job]).plain()
    return str(hub.ask("submit", submission=data, policy=None, **more)["run"])


def refused() -> bool:
    if (hub := connect()) is not None:
        hub.close()
    return hub is None


def test_a_stop_that_comes_after_the_end_has_nothing_to_stop(user: User) -> None:
    with connect_or_start() as hub:
        run = submit(hub, user.folder, "true", attach=True)
        kinds = []
        for message in hub.follow(SECONDS):
            assert message is not None
            kinds.append(message.get("type"))
            if kinds[-1] == "end":
                hub.send("stop", run=run, kill=False)
    assert kinds[-1] == "reported"


@pytest.mark.parametrize(("kill", "state"), [(False, "stopped"), (True, "killed")])
def test_a_ctrl_c_in_python_ends_what_was_handed_in(user: User, kill: bool, state: str) -> None:
    jobs = submitting.submission([Job(name="a", run="exec sleep 3600", workdir=str(user.folder))])
    with (
        pytest.raises(KeyboardInterrupt),
        submitting.submitted(jobs, None, kill=kill) as watch,
    ):
        for news in watch.follow(SECONDS):
            if isinstance(news, RunSnapshot) and news.jobs[0].state == "running":
                raise KeyboardInterrupt
    wait.until(lambda: runs.summary(watch.path).jobs[0].state == state, SECONDS, f"a {state} job")


def test_a_ctrl_c_in_python_ends_what_is_being_handed_in(slow: User) -> None:
    jobs = submitting.submission([Job(name="a", run="exec sleep 3600", workdir=str(slow.folder))])

    def press() -> None:
        slow.sees("asked")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        slow.touch("answer")

    presser = threading.Thread(target=press)
    # whoever runs the tests may ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        presser.start()
        with (
            pytest.raises(KeyboardInterrupt),
            submitting.submitted(jobs, "slow", kill=True) as watch,
        ):
            assert all(message is not None for message in watch.follow(SECONDS))
    finally:
        signal.signal(signal.SIGINT, before)
        presser.join()
    assert slow.sees_state("a", "killed")


def test_a_request_that_makes_no_sense_is_said_and_the_hub_goes_on(user: User) -> None:
    with connect_or_start() as hub:
        for request, said in (
            ({"submission": {}, "policy": ["equal"]}, "no policy"),
            ({"submission": {}}, "this submission makes no sense"),
            ({"submission": {"jobs": [{"name": 1}]}}, "this submission makes no sense"),
        ):
            with pytest.raises(HeadgateError, match=said):
                hub.ask("submit", **request)
        hub._socket.sendall(b'{"op": "runs", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
        answer = hub.receive(SECONDS)
        assert answer is not None
        assert answer["error"].startswith("this request makes no sense: ")
        assert hub.ask("runs")["runs"] == []


@pytest.mark.parametrize("stated", ["soon", "nan", "-1", "1e400"])
def test_an_idle_time_is_a_number_of_seconds(stated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_IDLE_SECONDS", stated)
    with pytest.raises(UsageError, match=f"HEADGATE_IDLE_SECONDS='{stated}'; expected a number"):
        idle_seconds()


def test_an_idle_time_that_is_none_is_the_reason_why_no_hub_starts(user: User) -> None:
    user.variables["HEADGATE_IDLE_SECONDS"] = "soon"
    message = user.types("run", "true", code=6).message
    assert message.endswith("found HEADGATE_IDLE_SECONDS='soon'; expected a number of seconds")
    assert "Traceback" not in (user.home / "hub" / "hub.log").read_text()


def test_an_ending_hub_takes_in_nothing_and_the_next_one_waits_for_it(user: User) -> None:
    with connect_or_start() as hub:
        pid = hub.ask("hello")["pid"]
        submit(hub, user.folder, STUBBORN)
        wait.until((user.folder / "deaf").exists, SECONDS, "the job is deaf")
        os.kill(pid, signal.SIGTERM)
        wait.until(refused, SECONDS, "nobody new is let in")
        with pytest.raises(HeadgateError, match="the hub is ending"):
            submit(hub, user.folder, "true")
        os.kill(pid, signal.SIGTERM)
    with connect_or_start() as hub:
        assert hub.ask("hello")["pid"] != pid


@pytest.mark.slow
def test_a_job_whose_interpreter_has_gone_fails_and_says_so(user: User) -> None:
    user.write("b.py", "print('never')")
    (user.folder / "mine").symlink_to(sys.executable)
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {name: a, run: 'while [ ! -e go ]; do sleep 0.02; done'}
          - {name: b, script: b.py, python: ./mine, after: a}
        """,
    )
    user.detaches("jobs.yaml")
    user.sees_state("a", "running")
    (user.folder / "mine").unlink()
    user.touch("go")
    ended = user.sees_state("b", "failed")
    assert ended["reason"].startswith("could not be started: job 'b': found no ")


def test_where_old_runs_cannot_be_deleted_the_run_says_why(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_KEEP_RUNS", "many")
    with connect_or_start() as hub:
        submit(hub, user.folder, "while [ ! -e go ]; do sleep 0.02; done", attach=True)
        for message in hub.follow(SECONDS):
            if (
                message is not None
                and message.get("kind") == "warning"
                and "KEEP_RUNS" in message["text"]
            ):
                user.touch("go")
    assert user.json("ps")[0]["state"] == "done"


@pytest.mark.slow
def test_a_job_with_a_path_of_its_own_runs_and_what_it_runs_with_is_listed(user: User) -> None:
    (user.folder / "bin").mkdir()
    (user.folder / "bin" / "python").symlink_to(sys.executable)
    user.write("a.py", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)")
    user.write("jobs.yaml", f"jobs: [{{script: a.py, env: {{PATH: '{user.folder}/bin'}}}}]")
    user.types("run", "jobs.yaml", "--detach", PATH="/nowhere")
    [run] = (user.home / "runs").iterdir()
    wait.until(lambda: "packages" in meta(run), SECONDS, "what is installed is listed")
    user.touch("go")
    user.sees_state("a", "done")
    assert list(json.loads(meta(run)["packages"])) == [f"{user.folder}/bin/python"]


def meta(run: Path) -> dict[str, str]:
    with RunReader(run / "run.sqlite") as reader:
        return reader.meta()


@pytest.mark.slow
def test_a_hub_lets_go_of_all_that_a_run_needed(user: User) -> None:
    with connect_or_start() as hub:
        folder = Path(f"/proc/{hub.ask('hello')['pid']}/fd")
        before = len(list(folder.iterdir()))
        for _ in range(2):
            submit(hub, user.folder, "sleep 1.2", attach=True)
            for _ in hub.follow(SECONDS):
                pass
        wait.until(
            lambda: len(list(folder.iterdir())) <= before,
            SECONDS,
            "no more files are open than before",
        )
