"""Bytes of all kinds in paths, arguments and what jobs say, as a person at a terminal meets
them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.recorded import runs

FAILS = """
    import json, os, socket, sys
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(os.environ["HEADGATE_CHANNEL"].removeprefix("unix:"))
    task, key = os.environ["HEADGATE_TASK"], os.environ["HEADGATE_KEY"]
    for message in (
        {"type": "hello", "v": 1, "task": task, "key": key},
        {"type": "note", "text": "\\x1b]0;owned\\x07 \\x1b[2J \\x9b31m \\ud800 \\u202e"},
        {"type": "progress", "step": 1, "loss": 1, "metrics": {"\\x1b[31macc\\x07": 1}},
        {"type": "spans", "step": 1, "spans": [{"name": "\\x1b[5minput", "seconds": 1}]},
        {"type": "checkpoint_failed", "error": "\\x1b[8m"},
    ):
        channel.sendall(json.dumps(message).encode() + b"\\n")
    sys.stderr.write("\\x1b[31mRuntimeError: \\x1b]52;c;eA==\\x07gone\\n")
    sys.exit(3)
"""


def controls(text: str) -> set[str]:
    """What a terminal would not show but obey."""
    return {
        each
        for each in text
        if (ord(each) < 32 and each not in "\n\t") or 0x7F <= ord(each) < 0xA0 or each == "\u202e"
    }


@pytest.mark.slow
def test_what_jobs_say_is_shown_to_a_terminal_and_never_sent(user: User) -> None:
    user.write("fails.py", FAILS)
    told = user.types("run", "fails.py", "--", "\x1b[2J", code=1)
    assert controls(told.stdout + told.stderr) == set()
    assert "\\x1b" in told.stdout + told.stderr
    for command in (("status",), ("ps",), ("metrics",), ("metrics", "--spans")):
        said = user.types(*command)
        assert controls(said.stdout + said.stderr) == set(), command
    assert r"\x1b[31macc" in Path(user.json("report")["report"]).read_text()
    assert "\x1b[31m" in user.log("fails")  # a log is what the job wrote


def test_paths_arguments_and_variables_that_are_no_utf_8_go_to_the_job_as_they_are(
    user: User,
) -> None:
    work = user.folder / "caf\udce9"
    work.mkdir()
    user.folder = work
    user.variables["LATIN"] = "\udce9"
    user.write(
        "tr\udce4in.py",
        "import os, sys; print('loss 1'); print(os.fsencode(sys.argv[1]), os.environb[b'LATIN'])",
    )
    user.types("run", "tr\udce4in.py", "--", "\udcff=\udcfe")
    [job] = user.json("status")["jobs"]
    assert job["state"] == "done"
    assert user.log(job["name"]).splitlines()[-1] == r"b'\xff=\xfe' b'\xe9'"
    for command in ("ps", "status", "metrics", "report"):
        user.types(command)
    user.types("logs", "\udcff", code=5)
    assert "found no file" in user.types("run", "\udcff.py", code=2).message
    assert "found no file" in user.types("run", "x" * 300 + ".py", code=2).message


@pytest.mark.slow
def test_a_home_that_is_not_utf8_is_told_as_its_bytes_on_a_strict_terminal(user: User) -> None:
    user.write("a.py", "print('loss 1')\n")
    odd = user.home / "odd-\udcff"
    odd.mkdir(mode=0o700)
    shutil.copy(user.home / "node.json", odd)
    environment = {**user.variables, "HEADGATE_HOME": str(odd), "PYTHONIOENCODING": "utf-8:strict"}
    environment["HEADGATE_IDLE_SECONDS"] = "1"
    for words in (("run", "a.py"), ("status",), ("report",)):
        done = subprocess.run(
            [sys.executable, "-m", "headgate", *words],
            env=environment,
            cwd=user.folder,
            capture_output=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), words
        if words == ("report",):
            assert Path(os.fsdecode(done.stdout.strip())).is_file()


@pytest.mark.slow
def test_a_run_folder_that_vanishes_is_told_at_once(user: User) -> None:
    user.write(
        "waits.py",
        (
            "import time\nprint('loss 1', flush=True)\nopen('begun', "
            "'w').write('x')\ntime.sleep(600)\n"
        ),
    )
    terminal = user.opens("run", "waits.py")
    user.sees("begun")
    [folder] = (user.home / "runs").iterdir()
    shutil.rmtree(folder)
    terminal.shows("its folder .* is gone, with its records and checkpoints")
    terminal.press(b"\x03")
    terminal.ends()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    ["a file", *(pytest.param(name, marks=pytest.mark.long) for name in ("gone", "no store"))],
)
def test_a_run_whose_folder_was_damaged_can_be_stopped(user: User, damage: str) -> None:
    user.write("waits.py", "import time\nopen('begun', 'w').write('x')\ntime.sleep(600)\n")
    run = user.types("run", "--detach", "waits.py").stdout.split()[0]
    user.sees("begun")
    folder = user.home / "runs" / run
    if damage == "no store":
        (folder / runs.STORE).unlink()
        (folder / runs.STORE).mkdir()
    else:
        shutil.rmtree(folder)
        if damage == "a file":
            folder.write_text("")
    stopped = f"{run}/waits: stopped by its user; last checkpoint: none\n"
    assert user.types("stop", "--run", run).stdout == stopped
