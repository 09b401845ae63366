"""Jobs in a cgroup of 640 MiB (v1) where a program outside Headgate holds memory, with a real hub
in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.hub.user import SECONDS, User

from headgate.machine import cgroup_layout
from headgate.testing import wait

MIB = 1 << 20
HOLDS = """
import os, sys, time
group, mib = sys.argv[1:3]
if group:
    open(group + "/cgroup.procs", "w").write(str(os.getpid()))
held = []
for _ in range(int(mib) // 5):
    held.append(bytearray(b"x") * (5 << 20))
    time.sleep(0.01)
print("holds", flush=True)
sys.stdin.readline() if group else time.sleep(0.5)
"""


@pytest.fixture
def group(user: User) -> Iterator[Path]:
    """The cgroup, in which all commands of the user are typed."""
    root = Path("/sys/fs/cgroup")
    own = cgroup_layout.folders_of(os.getpid(), root, "v1").get("memory")
    if cgroup_layout.find_layout(root).mode != "v1" or own is None or not os.access(own, os.W_OK):
        pytest.skip("no cgroup v1 hierarchy of memory can be written here")
    folder = own / f"shared-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(640 * MIB))
    user.write("holds.py", HOLDS)
    yield folder
    user.leaves()

    def is_gone() -> bool:
        for each in [*sorted(folder.rglob("*/"), key=lambda path: -len(path.parts)), folder]:
            try:
                each.rmdir()
            except OSError:
                return False
        return True

    wait.until(is_gone, SECONDS, "the group is gone")


@pytest.fixture
def outside(group: Path) -> Iterator[subprocess.Popen[str]]:
    """A program in the group that holds 300 MiB."""
    words = [sys.executable, "-c", HOLDS, str(group), "300"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "holds\n"
        yield program
        program.kill()


def runs(user: User, group: Path, file: str) -> dict[str, object]:
    """What `run --json` answers once all jobs have ended, typed in the group."""
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'echo $$ > {group}/cgroup.procs; exec "$@"',
            "sh",
            *user.command("run", file, "--json"),
        ],
        cwd=user.folder,
        env=user.variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    return answer


def jobs(user: User, mib: int, count: int, more: str = "") -> str:
    entries = [f"{{name: j{i}, script: holds.py, args: ['', '{mib}']{more}}}" for i in range(count)]
    user.write("jobs.yaml", f"jobs: [{', '.join(entries)}]")
    return "jobs.yaml"


def test_jobs_take_turns_for_what_a_program_outside_leaves_and_it_lives(
    user: User, group: Path, outside: subprocess.Popen[str]
) -> None:
    runs(user, group, jobs(user, 110, 2, ", limits: {memory: 120MiB}"))
    told = user.json("status")
    spans = sorted((job["started"], job["ended"]) for job in told["jobs"])
    assert all(one[1] <= other[0] for one, other in pairwise(spans)), spans
    assert {job["state"] for job in told["jobs"]} == {"done"}
    assert outside.poll() is None
    assert told["warnings"] == []


def test_a_program_outside_that_the_kernel_kills_is_told_of(
    user: User, group: Path, outside: subprocess.Popen[str]
) -> None:
    runs(user, group, jobs(user, 285, 1))
    assert outside.wait(SECONDS) == -9
    told = user.json("status")
    assert [job["state"] for job in told["jobs"]] == ["done"]
    [warning] = [each["text"] for each in told["warnings"]]
    assert warning.startswith(
        "the kernel killed a program outside Headgate's jobs for want of memory: "
    )
    assert f"(process {outside.pid} of " in warning
