"""kill -9 of a task, the hub, the guard, and all of them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.hub.learning import LEARNS, STEPS
from tests.hub.user import SECONDS, User

from headgate.hub import watchdog
from headgate.machine import processes
from headgate.recorded.reader import RunReader
from headgate.testing import wait

WAITS = """
    import os, time
    print("epoch 1 loss 0.5", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""
CATCHES = """
    import os, signal, sys, time
    def end(*_):
        os.write(1, b"asked to end\\n")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    print("epoch 1 loss 0.5", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""
FORKS = """
    import os, signal
    for _ in range(2):
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            break
    print("epoch 1 loss 0.5", flush=True)
    while True:
        signal.pause()
"""
"""Has children in sessions of their own that do not mind SIGTERM."""


def processes_of(user: User, job: str) -> list[int]:
    return [
        pid
        for pid, words in user.traces.tasks().items()
        if any(word.endswith(f"{job}.py") for word in words)
    ]


def at_work(job: dict[str, Any]) -> bool:
    return job["loss"] is not None


def learning(job: dict[str, Any]) -> bool:
    return (job["step"] or 0) > 2


def runs(user: User, *jobs: str) -> str:
    """Start jobs without waiting for them; all are at work when this returns."""
    run = user.detaches(*(f"{job}.py" for job in jobs))
    for job in jobs:
        user.sees_job(job, at_work)
    return run


def checkpoints(user: User, run: str) -> list[dict[str, object]]:
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return list(reader.rows("checkpoints"))


def test_of_a_task_fails_its_job_and_no_other(user: User) -> None:
    user.write("victim.py", WAITS)
    user.write("other.py", WAITS)
    runs(user, "victim", "other")
    [victim] = processes_of(user, "victim")
    user.kills(victim)
    failed = user.sees_state("victim", "failed")
    assert (failed["reason"], failed["exit_code"]) == ("killed by SIGKILL", 137)
    assert user.jobs()["other"]["state"] == "running"
    user.touch("go")
    assert user.sees_state("other", "done")["attempt"] == 1


@pytest.mark.long
def test_of_a_task_with_retries_goes_on_from_its_checkpoint(user: User) -> None:
    user.write("learns.py", LEARNS)
    user.write("jobs.yaml", "jobs: [{script: learns.py, retries: 1}]")
    run = user.detaches("jobs.yaml")
    user.sees_job("learns", learning)
    user.types("checkpoint")
    wait.until(lambda: checkpoints(user, run), SECONDS, "a checkpoint is recorded")
    [learns] = processes_of(user, "learns")
    user.kills(learns)
    user.touch("go")
    ended = user.sees_state("learns", "done", "failed")
    assert (ended["state"], ended["attempt"], ended["step"]) == ("done", 2, STEPS)
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        said = [row["text"] for row in reader.rows("events", "job = 'learns'")]
    saved = checkpoints(user, run)[0]["step"]
    assert said[-4:] == [
        "started",
        "killed by SIGKILL; tried again in 1 s",
        f"going on from step {saved} (attempt 2)",
        "finished",
    ]


@pytest.mark.long  # one task's saving and a hub's death have tests of tests/torch and tests/hub
def test_of_the_hub_lets_tasks_save_and_leaves_nothing(user: User) -> None:
    user.write("learns.py", LEARNS)
    user.write("asked.py", CATCHES)
    user.write("forks.py", FORKS)
    watching = user.starts("run", "learns.py", "asked.py", "forks.py")
    user.sees_job("learns", learning)
    for job in ("asked", "forks"):
        user.sees_job(job, at_work)
    run = user.json("ps")[0]["id"]
    user.kills(user.traces.hub())
    _, said = watching.communicate(timeout=SECONDS)
    assert watching.returncode == 6
    assert said == ("headgate: the hub died; `headgate status` says what became of its jobs\n")
    user.touch("go")
    user.write("forks.py", "print('alone')")
    done = user.types("resume", "--from-scratch")  # at once: it waits for what is being saved

    interrupted, resumed = user.json("ps")
    assert (interrupted["id"], interrupted["state"], resumed["state"]) == (
        run,
        "interrupted",
        "done",
    )
    jobs = user.jobs(run)
    assert {job["state"] for job in jobs.values()} == {"interrupted"}
    assert jobs["learns"]["reason"] == f"the hub died; go on with: headgate resume {run}"
    again = (
        f"the hub died; run it again from its beginning with: headgate resume {run} --from-scratch"
    )
    assert jobs["asked"]["reason"] == jobs["forks"]["reason"] == again
    assert user.types("logs", "asked", "--run", run).stdout.endswith("asked to end\n")
    assert re.search(r"learns +interrupted", user.types("attach", run, code=1).stdout)
    saved = (user.home / "runs" / run / "jobs" / "learns" / "checkpoints").glob("step-*.pt")
    latest = max(int(path.stem.removeprefix("step-")) for path in saved)
    assert f"learns: running, going on from step {latest}" in done.stdout
    assert user.jobs()["learns"]["step"] == STEPS


def test_of_the_guard_starts_another_that_knows_as_much(user: User) -> None:
    user.write("forks.py", FORKS)
    runs(user, "forks")
    first = user.traces.guard()
    user.kills(first)
    second = wait.until(
        lambda: user.traces.guard() not in (first, None) and user.traces.guard(), SECONDS, "a guard"
    )
    assert user.jobs()["forks"]["state"] == "running"
    user.kills(user.traces.hub())
    user.finds_nothing_left()
    assert second != first


def test_of_a_hub_that_had_told_its_guard_nothing_leaves_no_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.0)
    hub, guards = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with guards, subprocess.Popen(["sleep", "1000"], start_new_session=True) as task:
        try:
            found = processes.look(task.pid)
            assert found is not None
            record = {
                "isolation": "process",
                "task": "r/a/worker-0",
                "mode": "none",
                "boot": processes.boot_id(),
                "pid": task.pid,
                "started": found.started,
                "folders": {},
            }
            boxes = tmp_path / "boxes"
            boxes.mkdir()
            (boxes / "r:a:worker-0.json").write_text(json.dumps(record))
            (boxes / "r:b:worker-0.json").write_text('{"isolation": ')
            hub.close()
            watchdog._Guard(guards, tmp_path).run()
            assert task.wait(SECONDS) == -signal.SIGKILL
            assert [file.name for file in boxes.iterdir()] == ["r:b:worker-0.json"]
        finally:
            task.kill()


def test_of_hub_and_guard_is_cleaned_up_by_the_next_command(user: User) -> None:
    user.write("forks.py", FORKS)
    run = runs(user, "forks")
    hub = user.traces.hub()
    assert hub is not None
    os.kill(hub, signal.SIGSTOP)  # so that it starts no other guard
    user.kills(user.traces.guard())
    user.kills(hub)
    wait.until(lambda: not user.traces.hub(), SECONDS, "the hub is gone")
    wait.until(lambda: len(processes_of(user, "forks")) == 3, SECONDS, "all have forked")
    [told] = user.json("ps")
    assert (told["id"], told["state"]) == (run, "interrupted")
    user.finds_nothing_left()


def test_of_everything_at_once_leaves_a_run_that_can_be_read_and_resumed(user: User) -> None:
    user.write("waits.py", WAITS)
    run = runs(user, "waits")
    hub = user.traces.hub()
    assert hub is not None
    os.kill(hub, signal.SIGSTOP)
    for pid in sorted(user.traces.processes(), key=lambda pid: pid == hub):
        with suppress(ProcessLookupError):  # it ended with another
            user.kills(pid)
    wait.until(lambda: not user.traces.processes(), SECONDS, "all are gone")
    assert user.json("status")["state"] == "interrupted"
    assert user.jobs()["waits"]["loss"] == 0.5
    assert Path(user.json("report")["report"]).exists()
    user.touch("go")
    resumed = user.json("resume", run, "--from-scratch")
    assert [job["state"] for job in resumed["jobs"]] == ["done"]
    assert [told["state"] for told in user.json("ps")] == ["interrupted", "done"]


def test_of_a_watching_command_leaves_the_run(user: User) -> None:
    user.write("waits.py", WAITS)
    watching = user.starts("run", "waits.py")
    user.sees_state("waits", "running")
    user.kills(watching.pid)
    watching.communicate()
    user.touch("go")
    user.sees_state("waits", "done")
