"""What becomes of standard input: the one job of a command reads it, or the command is refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.cli.standard_input import Handover
from headgate.engines.base import EngineSpec
from headgate.hub.standard_input import StandardInput, offered, taken
from headgate.hub.submission import Submission
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.recorded import runs
from headgate.testing import wait

COUNT = "import sys; print('lines:', len(sys.stdin.readlines()))"
TWICE = """
    import os, sys
    print("lines:", len(sys.stdin.readlines()))
    if not os.path.exists("again"):
        open("again", "w").close()
        sys.exit(3)
"""


def typed(user: User, line: str, code: int = 0) -> str:
    """Type a line into a shell, as `headgate` is spelt there; what it says on both streams."""
    words = " ".join(user.command())
    ended = subprocess.run(
        ["bash", "-c", line.replace("headgate ", f"{words} ")],
        cwd=user.folder,
        env=user.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == code, ended.stdout
    assert "Traceback" not in ended.stdout
    return ended.stdout


@pytest.mark.slow
def test_the_one_job_of_a_command_reads_a_pipe_a_file_and_a_here_document(user: User) -> None:
    user.write("count.py", COUNT)
    user.write("list", "a\nb\nc\n")
    for line, job, log in (
        ("headgate run python - <<< 'print(6 * 7)'", "python", "42\n"),
        ("{ read first; headgate run count.py; } < list", "count", "lines: 2\n"),
        # whoever writes hears that nobody reads on
        ("yes | headgate run head -n 2", "head", "y\ny\n"),
    ):
        typed(user, line)
        assert user.log(job) == log, line
    said = typed(
        user, "while read word; do headgate run true > /dev/null; echo had $word; done < list"
    )
    assert said == "had a\nhad b\nhad c\n"  # what no job reads is left to the loop


@pytest.fixture
def pipe() -> Iterator[tuple[StandardInput, int]]:
    """A pipe, and the end by which it is filled."""
    read, write = os.pipe()
    yield StandardInput(read, is_file=False), write
    for end in (read, write):
        with suppress(OSError):  # a test may have closed it
            os.close(end)


def submitted(*jobs: Job, **more: Any) -> Submission:
    return Submission(jobs, {}, "/", ("headgate",), **more)


A, B = (Job(name=name, run="cat") for name in "ab")


@pytest.mark.parametrize(
    ("submission", "reason"),
    [
        (submitted(A, B), "2 jobs cannot all read it"),
        (
            submitted(
                replace(A, plan=Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None))
            ),
            "2 workers",
        ),
        (submitted(replace(A, limits=Limits(workers=(3, None)))), "3 workers cannot all read it"),
        (submitted(replace(A, isolation="container")), "isolation container does not hand it on"),
        (submitted(replace(A, launch="mpi")), "a job of several processes cannot read it"),
        (submitted(replace(A, retries=1)), "a retry would need it again"),
        (submitted(A, engine=EngineSpec("ray")), "engine ray starts jobs on other machines"),
    ],
)
def test_data_that_no_job_can_read_are_refused_and_an_empty_pipe_is_not(
    submission: Submission, reason: str, pipe: tuple[StandardInput, int]
) -> None:
    found, write = pipe
    handed = Handover.settled(submission, False, found)
    assert (handed.given, handed.unread, handed.submission) == (None, found, submission)
    os.write(write, b"lr=0.5")
    with pytest.raises(
        UsageError, match=f"standard input holds data, but {reason}.*add `< /dev/null`"
    ):
        Handover.settled(submission, False, found)


def test_a_detached_job_reads_only_what_is_there_as_a_whole(
    pipe: tuple[StandardInput, int],
) -> None:
    found, write = pipe
    os.write(write, b"lr=0.5")
    with pytest.raises(
        UsageError, match="it is written while the job runs, and may end with this terminal"
    ):
        Handover.settled(submitted(A), True, found)
    os.close(write)
    assert Handover.settled(submitted(A), True, found).given == found


def test_a_file_is_for_retries_too_and_one_that_is_read_to_its_end_is_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "list").write_text("a")
    with open(tmp_path / "list") as file:
        found = StandardInput(file.fileno(), is_file=True)
        assert Handover.settled(submitted(replace(A, retries=2)), True, found).given == found
        file.read()
        assert not found.holds_data()
        assert Handover.settled(submitted(A, B), False, found).given is None


def test_it_is_handed_over_in_a_folder_of_the_longest_path_that_a_hub_has_sockets_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: tuple[StandardInput, int]
) -> None:
    longest = tmp_path
    for more in range(1, 101):
        monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / ("x" * more)))
        if runs.sockets() != runs.hub():
            break
        longest = runs.home()
    monkeypatch.setenv("HEADGATE_HOME", str(longest))
    assert longest != tmp_path
    with offered(pipe[0]) as path:
        os.close(taken(path))


def test_a_job_that_reads_it_has_one_worker_where_it_might_have_had_several(
    tmp_path: Path, pipe: tuple[StandardInput, int]
) -> None:
    (tmp_path / "train.py").write_text("import headgate.torch")
    submission = submitted(
        Job(name="train", script=str(tmp_path / "train.py"), workdir=str(tmp_path))
    )
    found, write = pipe
    assert Handover.settled(submission, False, found) == Handover(submission, unread=found)
    os.write(write, b"lr=0.5")
    handed = Handover.settled(submission, False, found)
    assert (handed.given, handed.submission.jobs[0].limits.workers) == (found, (1, 1))
    assert "so that it has one worker" in handed.submission.notes["train"]


WAITS = (
    "import os, time\nopen('began', 'w').write('+')\nwhile not os.path.exists('go'): "
    "time.sleep(0.01)"
)


@pytest.mark.slow
def test_data_that_come_later_and_nobody_reads_are_told(user: User) -> None:
    user.write("waits.py", WAITS)
    assert "2 jobs cannot all read it" in typed(
        user, "echo a | headgate run waits.py waits.py", code=2
    )
    read, write = os.pipe()
    command = user.command("run", "waits.py", "waits.py")
    out, err, text = subprocess.DEVNULL, subprocess.PIPE, True
    with subprocess.Popen(
        command, cwd=user.folder, env=user.variables, stdin=read, stdout=out, stderr=err, text=text
    ) as process:
        os.close(read)
        user.sees("began")
        os.write(write, b"late\n")
        assert process.stderr is not None
        assert "data came in on standard input, and no job reads them" in process.stderr.readline()
        user.touch("go")
        os.close(write)
    assert process.returncode == 0
    typed(user, "headgate run waits.py waits.py <&-")


@pytest.mark.slow
def test_an_attempt_after_another_reads_a_file_again_and_a_resume_asks_for_it(user: User) -> None:
    user.write("twice.py", TWICE)
    user.write("list", "a\nb\nc\n")
    user.write("jobs.yaml", "jobs: [{name: twice, script: twice.py, retries: 1}]")
    typed(user, "{ read first; headgate run jobs.yaml; } < list")
    assert user.log("twice").count("lines: 2\n") == 2
    (user.folder / "again").unlink()
    typed(user, "seq 4 | headgate run twice.py", code=1)
    said = typed(user, "headgate resume --from-scratch", code=2)
    assert "read the standard input of the command; give it again" in said
    typed(user, "seq 5 | headgate resume --from-scratch")
    assert user.log("twice") == "lines: 5\n"
    assert "gives them to no script" in typed(user, "seq 3 | headgate profile twice.py", code=2)


def test_a_script_that_asks_a_terminal_is_told_that_it_has_no_input(user: User) -> None:
    user.write("asks.py", "name = input('Name? ')")
    terminal = user.opens("run", "asks.py")
    assert terminal.shows("it has no standard input")


@pytest.mark.slow
def test_a_terminal_that_goes_while_its_pipe_is_read_is_told(user: User) -> None:
    user.write("reads.py", "import sys\nfor line in sys.stdin: open('saw', 'w').write(line)")
    read, write = os.pipe()
    command = user.command("run", "reads.py")
    with subprocess.Popen(
        command, cwd=user.folder, env=user.variables, stdin=read, stdout=subprocess.DEVNULL
    ) as process:
        os.close(read)
        os.write(write, b"first\n")
        user.sees("saw")
        process.kill()
    wait.until(
        lambda: "input may end too early" in user.types("status").stdout,
        SECONDS,
        "the run is told",
    )
    os.close(write)
    user.sees_state("reads", "done")
