"""What a task is told of the terminal that it prints for, and one that prints to a
pseudo-terminal.
"""

from __future__ import annotations

import pytest
from tests.hub.user import User

from headgate.recorded.reader import RunReader

LOOKS = """
import os, shutil, sys
columns = shutil.get_terminal_size().columns
print("terminal", sys.stdout.isatty(), sys.stderr.isatty(), columns, flush=True)
print("TERM", os.environ.get("TERM", ""))
"""
DRAWS = """
import sys, time
for step in range(1, 6):
    if sys.stdout.isatty():
        print(f"\\r\\x1b[2K\\x1b[1A\\x1b[2Kstep {step} loss {1 / step:.4f}", end="\\n", flush=True)
raise SystemExit(0 if sys.stdout.isatty() else 5)
"""


def printed(user: User, run: str, job: str = "looks") -> list[str]:
    return (
        (user.home / "runs" / run / "jobs" / job / "worker-0.log").read_bytes().decode().split("\n")
    )


@pytest.mark.parametrize(
    ("words", "env", "says"),
    [
        ((), {}, "terminal False False 120"),
        ((), {"COLUMNS": "77"}, "terminal False False 77"),
        (("--tty",), {}, "terminal True True 120"),
        (("--tty",), {"COLUMNS": "200"}, "terminal True True 200"),
    ],
)
def test_a_task_prints_for_a_terminal_of_some_width(
    user: User, words: tuple[str, ...], env: dict[str, str], says: str
) -> None:
    user.write("looks.py", LOOKS)
    user.variables.pop("COLUMNS", None)
    user.variables.update(env)
    run = user.json("run", *words, "looks.py")
    assert printed(user, run["id"])[0] == says  # with no carriage return
    if words:
        assert printed(user, run["id"])[1].startswith("TERM xterm")


def test_a_bar_that_is_drawn_at_a_terminal_alone_is_read(user: User) -> None:
    user.write("draws.py", DRAWS)
    user.write("jobs.yaml", "jobs: [{script: draws.py, tty: true}]")
    run = user.json("run", "jobs.yaml")
    assert run["jobs"][0]["state"] == "done"
    with RunReader(user.home / "runs" / run["id"] / "run.sqlite") as reader:
        assert [row["step"] for row in reader.rows("progress", order="t")] == [1, 2, 3, 4, 5]


def test_a_terminal_in_a_container_is_refused(user: User) -> None:
    user.write("looks.py", LOOKS)
    user.write("jobs.yaml", "jobs: [{script: looks.py, tty: true, isolation: container}]")
    assert "tty" in user.types("run", "jobs.yaml", code=2).message
    assert (
        "`tty`: found it with isolation container"
        in user.types("run", "--tty", "--isolation", "container", "looks.py", code=2).message
    )
