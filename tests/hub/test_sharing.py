"""One hub for all terminals: who starts it, who joins it, what they share, and when it ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.testing import wait

WAITS = """
    import os, time
    print("epoch 1 loss 0.5", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_two_terminals_share_one_hub_and_what_there_is(user: User) -> None:
    user.write("a.py", WAITS)
    user.write("b.py", WAITS)
    first = user.starts("run", "a.py", "--policy", "equal")
    wait.until(user.traces.tasks, what="a is started")
    hub = user.traces.hub()
    user.sees_state("a", "running")
    [alone] = user.jobs().values()
    assert alone["entitled_cores"] == os.cpu_count()
    run = user.json("ps")[0]["id"]

    second = user.starts("run", "b.py")
    user.sees_state("b", "running")
    assert len(user.traces.processes("headgate.hub.server")) == 1
    assert user.traces.hub() == hub
    assert user.jobs()["b"]["entitled_cores"] == alone["entitled_cores"] / 2
    assert user.jobs(run)["a"]["entitled_cores"] == alone["entitled_cores"] / 2
    assert "policy equal, 2 runs going on" in user.types("doctor").stdout
    refused = user.types("run", "a.py", "--policy", "none", code=2).message
    assert refused.startswith("jobs run under policy 'equal'; wait for them")

    assert user.types("stop", "b").stdout.endswith(
        "/b: stopped by its user; last checkpoint: none\n"
    )
    user.sees_job(
        "a", lambda job: job["entitled_cores"] == alone["entitled_cores"], run, "has all again"
    )
    user.touch("go")
    out, _ = first.communicate(timeout=120)
    assert first.returncode == 0
    assert "a: done, finished" in out
    out, _ = second.communicate(timeout=120)
    assert second.returncode == 1
    assert "b: stopped by its user" in out


@pytest.mark.slow
def test_whoever_starts_first_at_the_same_moment_one_hub_serves_all(user: User) -> None:
    user.write("a.py", WAITS)
    started = [user.starts("run", "--detach", "--json", "a.py") for _ in range(3)]
    for process in started:
        process.communicate(timeout=120)
        assert process.returncode == 0
    # One that came second sees it and goes, a moment after the first has taken in the run.
    wait.until(
        lambda: len(user.traces.processes("headgate.hub.server")) == 1, what="one hub is left"
    )
    assert len(user.json("ps")) == 3
    assert set(user.json("stop", "--all", "--kill")) == {run["id"] for run in user.json("ps")}
    wait.until(
        lambda: (
            {job["state"] for run in user.json("ps") for job in run["jobs"]}
            <= {"killed", "stopped"}
        ),
        what="all are killed",
    )


def test_detached_it_is_followed_and_attached_to_from_elsewhere(user: User) -> None:
    user.write("a.py", WAITS)
    run = user.detaches("a.py")
    user.sees_state("a", "running")
    watching = user.starts("attach")
    following = user.starts("logs", "a", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "epoch 1 loss 0.5\n"
    assert watching.stdout is not None
    assert "a: epoch 1, loss 0.5" in watching.stdout.readline()
    user.sees_job("a", lambda job: job["loss"] == 0.5, what="has its loss recorded")
    assert user.json("metrics", "a")["targets"][0]["learned"]["loss"] == 0.5
    refused = user.types("resume", run, code=2).message
    assert refused == f"run {run} is running; watch it with: headgate attach {run}"
    user.touch("go")
    out, _ = watching.communicate(timeout=120)
    assert watching.returncode == 0
    assert "a: done, finished" in out
    assert following.wait(60) == 0


def test_a_hub_ends_when_there_is_nothing_to_do(user: User) -> None:
    user.variables["HEADGATE_IDLE_SECONDS"] = "0.2"
    user.write("a.py", WAITS)
    run = user.detaches("a.py")
    user.sees_state("a", "running")
    hub, began = user.traces.hub(), time.monotonic()
    wait.until(
        lambda: time.monotonic() > began + 1, what="idle long enough, were it not for the job"
    )
    assert user.traces.hub() == hub
    user.touch("go")
    user.finds_nothing_left()
    assert user.jobs(run)["a"]["state"] == "done"
    assert user.types("doctor").stdout.find("not running; it starts with the first job") > 0


@pytest.mark.slow
def test_asked_to_end_a_hub_stops_its_jobs_first(user: User) -> None:
    user.variables.pop("HEADGATE_REPORT")
    user.write("a.py", WAITS)
    user.write("late.py", WAITS)
    user.write("jobs.yaml", "jobs: [{script: a.py}, {script: late.py, at: 1h}]")
    user.detaches("jobs.yaml")
    user.sees_state("a", "running")
    hub = user.traces.hub()
    assert hub is not None
    os.kill(hub, signal.SIGTERM)
    user.finds_nothing_left()
    jobs = user.jobs()
    assert (jobs["a"]["state"], jobs["late"]["state"]) == ("stopped", "stopped")
    assert user.json("ps")[0]["state"] == "stopped"
    assert (user.home / "runs" / user.json("ps")[0]["id"] / "report.html").exists()


def test_only_its_user_can_reach_a_hub(user: User) -> None:
    user.write("a.py", WAITS)
    user.detaches("a.py")
    assert stat.S_IMODE(user.home.stat().st_mode) == 0o700
    for path in user.traces.sockets():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(user.traces.sockets()) == 2


def test_a_home_with_a_long_path_has_its_sockets_elsewhere(user: User) -> None:
    user.home = user.home / ("x" * 60) / ("y" * 60)
    user.home.mkdir(parents=True, mode=0o700)
    user.variables["HEADGATE_HOME"] = str(user.home)
    user.traces = type(user.traces)(user.home)
    user.write("a.py", WAITS)
    user.detaches("a.py")
    user.sees_state("a", "running")
    [folder] = user.traces.sockets()
    assert folder.parent == Path("/tmp")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name for path in folder.iterdir()} == {"hub.sock", "channel.sock"}


def test_what_no_hub_understands_is_answered_and_what_is_no_request_ends_only_its_connection(
    user: User,
) -> None:
    user.write("a.py", WAITS)
    user.detaches("a.py")
    for nonsense in (
        b"\xff\xfe\n",
        b"[]\n",
        b'"text"\n',
        b'{"op": "submit", "submission": {}}\n',
        b'{"op": "submit"}\n',
        b'{"op": "dance"}\n',
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(user.home / "hub" / "hub.sock"))
            connection.sendall(nonsense)
            answer = connection.recv(1 << 16)
            assert answer == b"" or b'"error"' in answer, (nonsense, answer)
    user.sees_state("a", "running")
    log = (user.home / "hub" / "hub.log").read_text()
    assert log == ""


SPINS = """
    import os
    from headgate.task import Channel, TaskEnvironment

    channel = Channel.open(TaskEnvironment.claim(), "plain", "1", 0)
    spins = None
    while not os.path.exists("go"):
        channel.wait_for(lambda: channel.welcome and channel.spin != spins, 0.1)
        if channel.welcome and channel.spin != spins:
            spins = channel.spin
            print("spins", spins, flush=True)
"""


@pytest.mark.slow
def test_threads_may_spin_while_no_other_task_wants_the_cores(user: User) -> None:
    user.write("a.py", SPINS)
    user.write("b.py", WAITS)
    user.detaches("a.py", "--policy", "none")
    following = user.starts("logs", "a", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "spins True\n"
    user.detaches("b.py")
    assert following.stdout.readline() == "spins False\n"
    user.types("stop", "b", "--kill")
    assert following.stdout.readline() == "spins True\n"
    user.touch("go")


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has room for one thread")
@pytest.mark.parametrize("of", ["job", pytest.param("role", marks=pytest.mark.long)])
def test_a_task_is_told_of_the_threads_that_its_job_states(user: User, of: str) -> None:
    user.write(
        "a.py",
        SPINS.replace("spins True", "spins").replace(
            '"spins", spins', 'channel.welcome["threads"]'
        ),
    )
    env = "env: {OMP_NUM_THREADS: '1'}"
    text = (
        f"script: a.py, {env}" if of == "job" else f"roles: [{{name: work, script: a.py, {env}}}]"
    )
    file = str(user.write("a.yaml", f"jobs: [{{name: a, {text}}}]"))
    assert {entry["threads"] for entry in user.json("run", "--dry-run", file)} == {1}
    user.detaches(file, "--policy", "equal")
    task = "a/work-0" if of == "role" else "a"
    following = user.starts("logs", task, "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "1\n"
    user.sees_job("a", lambda job: job["threads"] == 1)
    user.touch("go")


@pytest.mark.slow
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has room for one thread")
def test_a_script_that_cannot_change_its_threads_is_recorded_with_those_it_began_with(
    user: User,
) -> None:
    """Whatever it is granted later; one that can has what it is granted."""
    user.write("plain.py", WAITS)
    user.write("follows.py", SPINS)
    user.detaches("plain.py", "--policy", "equal")
    cores = os.cpu_count() or 1
    user.sees_job("plain", lambda job: job["threads"] == cores)
    user.detaches("follows.py")
    granted = user.sees_job("follows", lambda job: job["threads"] is not None)
    assert granted["threads"] < cores
    user.sees_job(
        "plain",
        lambda job: job["entitled_cores"] == granted["entitled_cores"] and job["threads"] == cores,
    )
    user.types("stop", "plain", "--kill")
    user.sees_job("follows", lambda job: job["threads"] == cores)
    user.touch("go")


@pytest.mark.slow
def test_threads_may_spin_beside_others_where_each_has_a_core_by_weight(user: User) -> None:
    for name, script in (("a", SPINS), ("b", WAITS), ("c", WAITS)):
        user.write(f"{name}.py", script)
    user.detaches("a.py", "--policy", "equal")
    following = user.starts("logs", "a", "-f")
    assert following.stdout is not None
    assert following.stdout.readline() == "spins True\n"
    user.detaches("b.py")
    user.sees_state("b", "running")
    user.write("c.yaml", "jobs: [{name: c, script: c.py, priority: 100}]")
    user.detaches("c.yaml")
    assert following.stdout.readline() == "spins False\n", (
        "it has a core beside b, hardly any of one beside c too"
    )
    user.types("stop", "c", "--kill")
    assert following.stdout.readline() == "spins True\n", "b is still there"
    user.sees_state("b", "running")
    user.touch("go")


@pytest.mark.long
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has room for one thread")
def test_threads_may_spin_on_the_cores_of_others_as_long_as_those_are_idle(user: User) -> None:
    user.write("a.py", SPINS.replace("0.1)", "0.0)"))  # it does not wait, and is busy
    for name in "bc":
        user.write(f"{name}.py", WAITS)
    user.write("c.yaml", "jobs: [{name: c, script: c.py, priority: 100}]")
    user.detaches("b.py", "--policy", "equal")
    user.detaches("c.yaml")
    user.detaches("a.py")
    wait.until(lambda: user.log("a") == "spins False\nspins True\n", what="c is idle")
    wait.until(lambda: (user.stands("a") or {})["threads"] > 1, what="b is idle too")
    assert user.log("a").endswith("spins True\n")
    user.touch("go")
