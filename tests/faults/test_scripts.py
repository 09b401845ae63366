"""Scripts that do what no script should: one clear message each, nothing left of them, and no other
job disturbed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.hub.user import SECONDS, User

from headgate.recorded.reader import RunReader
from headgate.testing import wait

COUNTS = """
    import os, time
    step = 0
    while not os.path.exists("go"):
        step += 1
        print(f"step {step} loss {1 / step}", flush=True)
        time.sleep(0.02)
"""
"""A job that minds its own business: it counts twenty milliseconds a step."""


@pytest.fixture
def ended(user: User) -> Callable[[str], dict[str, object]]:
    """Runs a script beside one that counts; how it ended."""

    def ending(text: str) -> dict[str, object]:
        user.write("bad.py", text)
        user.write("counts.py", COUNTS)
        user.detaches("counts.py", "bad.py")
        job = user.sees_state("bad", "done", "failed")
        # The other goes on, and whatever the bad one started is gone.
        step = user.jobs()["counts"]["step"] or 0
        user.sees_job("counts", lambda other: (other["step"] or 0) > step)
        wait.until(
            lambda: len(user.traces.tasks()) == 1, SECONDS, "only the other's process is left"
        )
        user.touch("go")
        assert user.sees_state("counts", "done", "failed")["state"] == "done"
        return job

    return ending


Ending = Callable[[str], dict[str, object]]


def test_that_fails_to_import_ends_with_its_traceback(user: User, ended: Ending) -> None:
    job = ended("import nosuchmodule")
    assert (job["state"], job["exit_code"], job["reason"]) == (
        "failed",
        1,
        "exit code 1, after the line: ModuleNotFoundError: No module named 'nosuchmodule'",
    )
    assert (
        user.types("logs", "bad", "-n", "1").stdout
        == "ModuleNotFoundError: No module named 'nosuchmodule'\n"
    )


def test_that_dies_at_once_or_by_a_signal(user: User, ended: Ending) -> None:
    job = ended("import os; os._exit(9)")
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 9, "exit code 9")


def test_that_crashes_says_which_signal(ended: Ending) -> None:
    job = ended("import os; os.abort()")
    assert (job["state"], job["exit_code"], job["reason"]) == ("failed", 134, "killed by SIGABRT")


def test_that_prints_nan_keeps_going_and_is_told_so(user: User, ended: Ending) -> None:
    job = ended(
        "for step in range(1, 4): print(f'step {step} loss {\"nan\" if step > 1 else 0.5}')"
    )
    assert (job["state"], job["step"], job["loss"], job["nan"]) == ("done", 3, None, True)
    run = user.json("ps")[0]["id"]
    assert "nan" in user.types("status", run).stdout
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        assert [row["nan"] for row in reader.rows("progress", "task = 'bad/worker-0'")] == [0, 1, 1]
        [warning] = reader.rows("events", "kind = 'warning' AND job IS NOT NULL")
    assert (warning["job"], warning["text"]) == (
        "bad",
        "its loss is no longer a number: nan at step 2",
    )
    assert "2 NaN" in Path(user.json("report")["report"]).read_text()


@pytest.mark.long  # so are those of most tests
def test_that_never_reports_is_run_like_any_other(ended: Ending) -> None:
    job = ended("import os; os.getpid()")
    assert (job["state"], job["step"], job["loss"]) == ("done", None, None)


def test_that_leaves_daemons_leaves_none(user: User, ended: Ending) -> None:
    job = ended(
        """
        import os, signal, time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    signal.signal(signal.SIGHUP, signal.SIG_IGN)
                    open(f"daemon-{os.getpid()}", "w").close()
                    while True:
                        signal.pause()
                os._exit(0)
        while len([name for name in os.listdir() if name.startswith("daemon-")]) < 3:
            time.sleep(0.01)
        """
    )
    assert job["state"] == "done"
    daemons = [int(path.name.removeprefix("daemon-")) for path in user.folder.glob("daemon-*")]
    assert len(daemons) == 3
    assert not [pid for pid in daemons if (Path("/proc") / str(pid) / "exe").exists()]


def test_over_its_memory_limit_it_is_killed_and_says_so(user: User) -> None:
    user.write("counts.py", COUNTS)
    user.write("eats.py", "held = []\nwhile True: held.append(b'x' * (1 << 20))")
    user.write(
        "jobs.yaml", "jobs: [{script: counts.py}, {script: eats.py, limits: {memory: 64MiB}}]"
    )
    user.detaches("jobs.yaml")
    job = user.sees_state("eats", "done", "failed")
    assert job["state"] == "failed"
    assert job["reason"].startswith("killed: over its memory limit of 64 MiB (peak ")
    assert job["exit_code"] == 137
    assert user.jobs()["counts"]["state"] == "running"
    user.touch("go")
    user.sees_state("counts", "done")


@pytest.mark.long
def test_that_ignores_sigterm_is_killed_when_its_time_is_over(user: User) -> None:
    user.write(
        "stubborn.py",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()",
    )
    user.write("counts.py", COUNTS)
    user.write("jobs.yaml", "jobs: [{script: counts.py}, {script: stubborn.py, timeout: 1s}]")
    user.detaches("jobs.yaml")
    user.sees_state("stubborn", "stopping")
    job = user.sees_state("stubborn", "failed")
    assert (
        job["reason"]
        == "over its timeout of 1 s; it did not answer within 10 s; last checkpoint: none"
    )
    assert job["exit_code"] == 137
    assert 9.5 <= job["ended"] - job["started"] - 1 < 20
    user.touch("go")
    user.sees_state("counts", "done")


def test_that_floods_is_held_back_alone(user: User) -> None:
    user.write("floods.py", "import os\nline = b'x' * (1 << 20)\nwhile True: os.write(1, line)")
    user.write("counts.py", COUNTS)
    run = user.detaches("counts.py", "floods.py")
    logs = user.home / "runs" / run / "jobs" / "floods"
    hub = user.traces.hub()

    def mebibytes() -> float:
        return sum(path.stat().st_size for path in logs.glob("worker-0.log*")) / 2**20

    wait.until((logs / "worker-0.log.1").exists, SECONDS, "the log is over its size once")
    begun = user.sees_job("counts", lambda job: bool(job["step"]))["step"]
    first = (logs / "worker-0.log.1").stat().st_ino
    wait.until(lambda: (logs / "worker-0.log.1").stat().st_ino != first, SECONDS, "and once more")
    assert mebibytes() <= 64
    status = Path(f"/proc/{hub}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 256 * 1024
    user.sees_job("counts", lambda job: job["step"] > begun + 10)
    stopped = user.types("stop", "floods", "--kill").stdout
    assert stopped.endswith("/floods: killed by its user; last checkpoint: none\n")
    user.touch("go")
    assert user.sees_state("counts", "done", "failed")["state"] == "done"
    assert len(user.types("logs", "floods", "-n", "1").stdout) > 0


@pytest.mark.long  # tests/client/test_starting.py has one that has gone
def test_a_missing_interpreter_or_program_is_said(user: User) -> None:
    user.write("a.py", "")
    user.write("jobs.yaml", "jobs: [{script: a.py, python: nosuchpython}]")
    assert (
        "found 'nosuchpython', which is not a program"
        in user.types("run", "jobs.yaml", code=2).message
    )
    user.write("jobs.yaml", "jobs: [{run: [nosuchprogram, x]}, {script: a.py}]")
    told = user.json("run", "jobs.yaml", code=1)
    failed, fine = told["jobs"]
    assert (failed["state"], failed["exit_code"], fine["state"]) == ("failed", 127, "done")
    assert "no program 'nosuchprogram' on its PATH" in failed["reason"]


def test_a_script_gone_before_its_time_fails_alone(user: User) -> None:
    user.write("gone.py", "")
    user.write("counts.py", COUNTS)
    user.write(
        "jobs.yaml",
        "jobs: [{script: counts.py}, {run: rm gone.py, name: rm}, {script: gone.py, after: rm}]",
    )
    user.detaches("jobs.yaml")
    job = user.sees_state("gone", "done", "failed")
    assert (job["state"], job["exit_code"]) == ("failed", 2)
    assert "No such file or directory" in user.log("gone")
    user.touch("go")
    user.sees_state("counts", "done")


def test_with_a_signal_of_its_own_to_the_whole_group_it_hits_itself_alone(user: User) -> None:
    user.write("selfish.py", f"import os\nos.killpg(0, {int(signal.SIGKILL)})")
    user.write("counts.py", COUNTS)
    user.detaches("counts.py", "selfish.py")
    assert user.sees_state("selfish", "failed")["reason"] == "killed by SIGKILL"
    assert user.traces.hub() is not None
    assert os.getpgid(user.traces.hub() or 0) != os.getpgid(0)
    user.touch("go")
    user.sees_state("counts", "done")
