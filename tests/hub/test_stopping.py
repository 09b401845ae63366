"""Ctrl-C, a closed terminal, `stop`, `checkpoint` and `resume`, as somebody at a terminal sees
them.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub.learning import LEARNS, STEPS
from tests.hub.user import SECONDS, User

from headgate.recorded.reader import RunReader
from headgate.testing import wait

STUBBORN = """
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("epoch 1 loss 0.5", flush=True)
    while True:
        signal.pause()
"""
PRINTS = """
    import os, time
    for epoch in range(10**6):
        print(f"epoch {epoch} loss {1 / (epoch + 1)}", flush=True)
        time.sleep(0.02)
        if os.path.exists("go"):
            break
"""


SAVES = """
    import os, time, signal, sys
    helper = os.fork()
    if helper == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it would die of it
        time.sleep(1000)
    try:
        print("ready", flush=True)
        time.sleep(1000)
    except KeyboardInterrupt:
        time.sleep(0.2)
        os.kill(helper, 0)
        assert open(f"/proc/{helper}/stat").read().split()[2] != "Z", "the helper has ended"
        print("saved", flush=True)
        os._exit(0)
"""


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> str:
    """What the script learns under plain python."""
    folder = tmp_path_factory.mktemp("plain")
    user = User(folder / "work", folder / "home", speed)
    script = user.write("learns.py", LEARNS)
    user.touch("go")
    done = subprocess.run(
        [sys.executable, script],
        cwd=user.folder,
        env=user.variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def test_ctrl_c_saves_a_checkpoint_and_resume_goes_on_to_the_same_result(
    user: User, learned: str
) -> None:
    user.write("learns.py", LEARNS)
    user.write("prints.py", PRINTS)
    terminal = user.opens("run", "learns.py", "prints.py")
    terminal.shows(r"learns +│ running +│ epoch 1/5 step \d")
    first = user.json("ps")[0]["id"]
    assert user.json("checkpoint", "learns") == {first: ["learns"]}
    assert (
        "none of these jobs uses headgate.torch"
        in user.types("checkpoint", "prints", code=1).message
    )

    def saved() -> list[dict[str, object]]:
        with RunReader(user.home / "runs" / first / "run.sqlite") as reader:
            return list(reader.rows("checkpoints"))

    asked = wait.until(
        lambda: [row for row in saved() if row["why"] == "request"], SECONDS, "it is saved"
    )
    assert len(asked) == 1
    assert user.jobs()["learns"]["state"] == "running"
    terminal.press(b"\x03")
    terminal.shows("others are asked to end and have 10 s; Ctrl-C again kills at once")
    assert terminal.ends() == 130
    jobs = user.jobs()
    assert {job["state"] for job in jobs.values()} == {"stopped"}
    assert jobs["prints"]["reason"] == "stopped by its user; last checkpoint: none"
    with RunReader(user.home / "runs" / first / "run.sqlite") as reader:
        *earlier, stopped = reader.rows("checkpoints")  # one may be of the end of an epoch
    [requested] = [row for row in earlier if row["why"] == "request"]
    assert stopped["why"] == "stop"
    assert requested["step"] < stopped["step"] < STEPS
    assert jobs["learns"]["ending"]["checkpoint"]["step"] == stopped["step"]
    saved_then = f"stopped by its user; last checkpoint: step {stopped['step']}, saved as it ended"
    assert (jobs["learns"]["reason"], jobs["learns"]["ending"]["saved"]) == (saved_then, "then")
    assert stopped["position"] is not None

    assert terminal.shows(
        f"go on with: headgate resume {first} --from-scratch, which runs prints from the beginning"
    )
    user.touch("go")
    assert user.types("resume", code=2).message.startswith(
        "job prints can only be run again from its beginning"
    )
    # of what has none; what has a checkpoint goes on from that
    done = user.types("resume", "--from-scratch")
    assert f"learns: running, going on from step {stopped['step']}" in done.stdout
    assert user.log("learns") == learned
    assert user.jobs()["learns"]["step"] == STEPS
    assert user.jobs()["prints"]["state"] == "done"
    second = user.json("ps")[-1]["id"]
    with RunReader(user.home / "runs" / second / "run.sqlite") as reader:
        assert reader.meta()["resumed_from"] == first


def test_a_second_ctrl_c_kills(user: User) -> None:
    user.write("stubborn.py", STUBBORN)
    terminal = user.opens("run", "stubborn.py")
    terminal.shows(r"stubborn +│ running +│ epoch 1 +│ +0\.5")
    terminal.press(b"\x03")
    terminal.shows("Ctrl-C again kills at once")
    user.sees_state("stubborn", "stopping")
    terminal.press(b"\x03")
    assert terminal.ends() == 130
    assert user.jobs()["stubborn"]["state"] == "killed"
    assert user.jobs()["stubborn"]["exit_code"] == 137
    assert not user.traces.tasks()


def test_ctrl_c_in_one_terminal_leaves_the_jobs_of_another(user: User) -> None:
    user.write("prints.py", PRINTS)
    user.write("other.py", PRINTS)
    other = user.detaches("other.py")
    terminal = user.opens("run", "prints.py")
    terminal.shows(r"prints +│ running")
    terminal.press(b"\x03")
    assert terminal.ends() == 130
    assert user.jobs(other)["other"]["state"] == "running"


def test_a_closed_terminal_detaches(user: User) -> None:
    user.write("prints.py", PRINTS)
    terminal = user.opens("run", "prints.py")
    terminal.shows(r"prints +│ running")
    terminal.close()
    step = user.jobs()["prints"]["epoch"] or 0
    user.sees_job("prints", lambda job: (job["epoch"] or 0) > step + 10, what="goes on")
    again = user.opens("attach")
    again.shows(r"prints +│ running +│ epoch \d+")
    user.touch("go")
    assert again.ends() == 0
    assert "Report: " in again.text


def test_a_live_view_has_share_use_and_sparkline(user: User) -> None:
    user.write("prints.py", PRINTS)
    terminal = user.opens("run", "prints.py")
    terminal.shows(
        r"prints +│ running +│ epoch \d+ +│ █[▁▂▃▄▅▆▇█]+ [\d.e-]+ +│ [\d.]+ cores +│ \d\.\d\d "
        r"+│ [\d.]+ MiB"
    )
    user.touch("go")
    assert terminal.ends() == 0
    assert terminal.shows(r"prints +done")


def test_stop_ends_one_job_and_leaves_the_other(user: User) -> None:
    user.write("prints.py", PRINTS)
    user.write("stubborn.py", STUBBORN)
    run = user.detaches("prints.py", "stubborn.py")
    user.sees_state("stubborn", "running")
    assert "no running job 'nobody'" in user.types("stop", "nobody", code=5).message
    assert (
        f"no running job {run!r}; it is a run: say --run {run}"
        in user.types("stop", run, code=5).message
    )
    assert states(user.json("stop", "prints")) == {run: {"prints": "stopped"}}
    assert user.jobs()["stubborn"]["state"] == "running"
    assert states(user.json("stop", "--run", run, "--kill")) == {run: {"stubborn": "killed"}}
    wait.until(lambda: user.json("ps")[0]["state"] == "failed", SECONDS, "the run has ended")


def test_stop_all_asks_all_runs_before_it_waits_for_one(user: User) -> None:
    user.write("stubborn.py", STUBBORN)
    user.write("prints.py", PRINTS)
    stubborn = user.detaches("stubborn.py")  # comes first
    prints = user.detaches("prints.py")
    user.sees_job("stubborn", lambda job: job["loss"] is not None, stubborn)  # it is deaf by now
    user.sees_state("prints", "running", run=prints)
    stopping = user.starts("stop", "--all", "--json")
    user.sees_state("prints", "stopped", run=prints)
    user.sees_state("stubborn", "stopping", run=stubborn)
    user.types("stop", "--run", stubborn, "--kill")
    told, _ = stopping.communicate(timeout=SECONDS)
    assert states(json.loads(told)) == {
        stubborn: {"stubborn": "killed"},
        prints: {"prints": "stopped"},
    }


@pytest.mark.parametrize(
    ("presses", "state", "detach"),
    [
        pytest.param(1, "stopped", [], id="once, watched", marks=pytest.mark.long),
        pytest.param(2, "killed", ["--detach"], id="twice, detached"),
        pytest.param(1, "stopped", ["--detach"], id="once, detached", marks=pytest.mark.long),
        pytest.param(2, "killed", [], id="twice, watched", marks=pytest.mark.long),
    ],
)
def test_a_ctrl_c_while_a_run_is_handed_in_ends_it(
    presses: int, state: str, detach: list[str], slow: User
) -> None:
    slow.write("prints.py", PRINTS)
    process = slow.starts("run", "prints.py", "--policy", "slow", *detach)
    slow.sees("asked")
    for count in range(presses):
        process.send_signal(signal.SIGINT)
        wait.until(lambda: taken(process.pid), SECONDS, f"Ctrl-C {count + 1} is taken in")
    slow.touch("answer")
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, errors
    [run] = slow.json("ps")
    assert run["id"] in output
    assert slow.jobs()["prints"]["state"] == state
    assert not slow.traces.tasks()


def states(ended: dict[str, dict[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    """The states of jobs, by run, as `stop --json` tells of their ends."""
    return {run: {name: job["state"] for name, job in jobs.items()} for run, jobs in ended.items()}


def taken(pid: int) -> bool:
    """Whether no signal waits to be delivered to a process."""
    pending = re.findall(
        r"^S[ih][gd]Pnd:\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return not any(int(mask, 16) for mask in pending)


def test_a_script_that_saves_on_its_own_signal_is_asked_by_that_and_its_helpers_live_meanwhile(
    user: User,
) -> None:
    user.write("saves.py", SAVES)
    user.write(
        "jobs.yaml", "jobs: [{name: a, run: 'python saves.py; echo after', stop_signal: int}]"
    )
    user.detaches("jobs.yaml")
    wait.until(lambda: "ready" in user.log("a"), SECONDS, "it is ready")
    user.types("stop", "a")
    assert user.sees_state("a", "stopped")["reason"] == "stopped by its user; last checkpoint: none"
    assert user.log("a").split() == ["ready", "saved", "after"]
