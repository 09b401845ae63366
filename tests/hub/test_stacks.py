"""Where the tasks of a running job stand, read from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.hub.user import SECONDS, User

from headgate.model.errors import HeadgateError
from headgate.sampling import stacks
from headgate.sampling.stacks import Frame, TaskStacks, ThreadStack
from headgate.testing import wait

STUCK = """
    import subprocess, sys, threading, time

    def wait_for_nobody(): threading.Event().wait()
    def wait_elsewhere(): threading.Event().wait()

    threading.Thread(target=wait_elsewhere, name="helper", daemon=True).start()
    child = "def below(): print('there', flush=True); input()\\nbelow()"
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", child], stdin=pipe, stdout=pipe)
    process.stdout.readline()
    with open("stuck", "w") as file: file.write("yes")
    wait_for_nobody()
"""


def test_a_job_that_stands_still_shows_where_with_its_threads_and_children(user: User) -> None:
    user.write("hangs.py", STUCK)
    run = user.detaches("hangs.py")
    user.sees("stuck")
    wait.until(
        lambda: any(task["pid"] for task in user.jobs()["hangs"]["tasks"]),
        SECONDS,
        "its process is known",
    )
    told = user.json("stacks", "hangs")
    (task,) = told["tasks"]
    functions = {
        thread["thread"]: [frame["function"] for frame in thread["frames"]]
        for thread in task["threads"]
    }
    first = task["threads"][0]
    assert first["thread"] == "MainThread"
    assert "wait_for_nobody" in [frame["function"] for frame in first["frames"]]
    assert "wait_elsewhere" in functions["helper"]
    assert any(
        "below" in [frame["function"] for frame in each["frames"]] for each in task["threads"]
    )
    line = next(frame for frame in first["frames"] if frame["function"] == "wait_for_nobody")
    assert (Path(line["file"]).name, line["line"]) == ("hangs.py", 4)
    assert (told["run"], told["differ"], told["groups"]) == (run, [], [["worker-0"]])
    printed = user.types("stacks", "hangs").stdout
    assert (
        printed.startswith("worker-0:\n")
        and "wait_for_nobody" in printed
        and "wait_elsewhere" not in printed
    )
    assert "wait_elsewhere" in user.types("stacks", "hangs", "--all").stdout
    user.types("stop", "hangs")
    assert "no task of hangs runs now" in user.types("stacks", "hangs", code=1).message


def test_of_a_job_that_is_no_python_the_programs_that_it_runs_are_told() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(["sh", "-c", "echo begun; cat; true"], stdin=pipe, stdout=pipe) as shell:
        assert shell.stdout is not None and shell.stdin is not None
        shell.stdout.readline()

        def names() -> list[str]:
            return [child.name() for child in psutil.Process(shell.pid).children()]

        wait.until(lambda: names() == ["cat"], 60, "cat runs")
        assert (
            stacks.read("worker-0", shell.pid).trouble
            == "it has no Python process: it runs sh and cat"
        )
        shell.stdin.close()


def standing(task: str, *functions: str) -> TaskStacks:
    frames = tuple(Frame(function, "train.py", number) for number, function in enumerate(functions))
    return TaskStacks(task, (ThreadStack(1, "MainThread", frames),))


def test_of_a_deep_stack_the_calls_of_the_script_are_kept() -> None:
    """As of a Keras `fit`: the script's line is the outermost of many."""
    library = [
        Frame(f"call{number}", "/x/site-packages/keras/trainer.py", number) for number in range(13)
    ]
    own = [Frame("main", "/home/me/fit.py", 9), Frame("<module>", "/home/me/fit.py", 12)]
    assert stacks.shortened([*library, *own], 12) == [*library[:10], 3, *own]
    assert stacks.shortened([*library, *own], 15) == [*library, *own]
    assert stacks.shortened(library, 12) == [*library[:12], 1]
    recursive = [Frame("walk", "/home/me/fit.py", number) for number in range(40)]
    assert stacks.shortened(recursive, 12) == [*recursive[:12], 28]
    mixed = [*library, own[0], library[0], own[1]]
    assert stacks.shortened(mixed, 6) == [*library[:4], 9, own[0], 1, own[1]]


def test_the_task_that_stands_elsewhere_than_most_is_named() -> None:
    tasks = [
        standing("worker-0", "wait"),
        standing("worker-1", "load", "read"),
        standing("worker-2", "wait"),
    ]
    groups = stacks.grouped(tasks)
    assert [[task.task for task in group] for group in groups] == [
        ["worker-0", "worker-2"],
        ["worker-1"],
    ]
    assert stacks.differing(groups) == ["worker-1"]


def test_of_two_tasks_in_two_places_neither_is_the_one_that_differs() -> None:
    assert (
        stacks.differing(
            stacks.grouped([standing("worker-0", "wait"), standing("worker-1", "load")])
        )
        == []
    )


def test_lines_of_one_loop_are_one_place() -> None:
    one, other = standing("worker-0", "loop"), standing("worker-1", "loop")
    moved = TaskStacks("worker-1", (ThreadStack(1, "MainThread", (Frame("loop", "train.py", 7),)),))
    assert len(stacks.grouped([one, other, moved])) == 1


def test_a_process_that_has_gone_is_told_as_that() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert stacks.read("worker-0", child).trouble


def test_without_py_spy_one_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HeadgateError, match=r"pip install 'py-spy>=0.4'"):
        stacks.read("worker-0", os.getpid())


def test_it_is_found_beside_the_interpreter_that_runs_headgate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    assert Path(stacks.py_spy()).parent == Path(sys.executable).parent
