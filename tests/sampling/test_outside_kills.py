"""Processes outside tasks that the kernel kills for want of memory: real kills in a real cgroup,
and planted counts.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.machine.trees import plant

from headgate.machine import cgroup_layout
from headgate.sampling.outside_kills import (
    KERNEL_LOG,
    KilledProcess,
    OutsideKills,
    OutsideKillsReader,
)

MIB = 1 << 20
EATS = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
held = bytearray(b"x") * (8 << 20)
print("there", flush=True)
sys.stdin.readline()
held += bytearray(b"x") * (96 << 20)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A real cgroup of 64 MiB, with one below it."""
    root = Path("/sys/fs/cgroup")
    own = cgroup_layout.folders_of(os.getpid(), root, "v1").get("memory")
    if cgroup_layout.find_layout(root).mode != "v1" or own is None or not os.access(own, os.W_OK):
        pytest.skip("no cgroup v1 hierarchy of memory can be written here")
    folder = own / f"kills-{os.getpid()}"
    (folder / "task").mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(str(64 * MIB))
    yield folder
    for each in (folder / "task", folder):
        each.rmdir()


def is_killed(group: Path, meanwhile: Callable[[], object] = lambda: None) -> int:
    """Have a program take more memory than a cgroup has; its process id."""
    words = [sys.executable, "-c", EATS, str(group)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "there\n"
        meanwhile()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.wait(60) == -signal.SIGKILL
        return program.pid


def test_the_kernel_s_log_names_who_was_killed(group: Path) -> None:
    if not os.access(KERNEL_LOG, os.R_OK):
        pytest.skip("the kernel's log cannot be read here")
    reader = OutsideKillsReader(group)
    assert reader.look((), 0, (), tight=False) is None
    pid = is_killed(group)
    told = reader.look((), 0, (), tight=False)
    assert told is not None
    [killed] = told.processes
    assert (told.count, killed.pid, killed.user, killed.sure) == (1, pid, getpass.getuser(), True)
    assert killed.held_bytes is not None
    assert 40 * MIB < killed.held_bytes < 96 * MIB
    assert reader.look((), 0, (), tight=False) is None
    reader.close()


def test_without_the_log_the_largest_that_is_gone_is_named(group: Path, tmp_path: Path) -> None:
    reader = OutsideKillsReader(group, log=tmp_path / "none")
    assert reader.look((), 0, (), tight=True) is None
    pid = is_killed(group, lambda: reader.look((), 0, (), tight=True))
    told = reader.look((), 0, (), tight=True)
    assert told is not None
    assert [(killed.pid, killed.user, killed.sure) for killed in told.processes] == [
        (pid, getpass.getuser(), False)
    ]


def test_what_is_killed_in_a_task_s_own_cgroup_is_not_outside(group: Path) -> None:
    reader = OutsideKillsReader(group)
    boxes = [group / "task"]
    assert reader.look(boxes, 0, (), tight=False) is None
    is_killed(group / "task")
    assert reader.look(boxes, 1, (), tight=False) is None
    pid = is_killed(group)
    told = reader.look(boxes, 1, (), tight=False)
    assert told is not None
    assert told.count == 1
    if os.access(KERNEL_LOG, os.R_OK):
        assert [killed.pid for killed in told.processes] == [pid]
    reader.close()


def test_who_is_killed_elsewhere_is_not_named(group: Path) -> None:
    if not os.access(KERNEL_LOG, os.R_OK):
        pytest.skip("the kernel's log cannot be read here")
    reader = OutsideKillsReader(group / "task")
    assert reader.look((), 0, (), tight=False) is None
    pid = is_killed(group / "task")
    is_killed(group)
    told = reader.look((), 0, (), tight=False)
    assert told is not None
    assert [killed.pid for killed in told.processes] == [pid]
    reader.close()


def test_under_v2_each_cgroup_s_own_kills_are_counted(tmp_path: Path) -> None:
    local = "memory.events.local"
    plant(
        tmp_path,
        {
            f"a/{local}": "oom_kill 3\n",
            f"a/b/{local}": "oom_kill 0\n",
            f"a/task/{local}": "oom_kill 0\n",
        },
    )
    reader = OutsideKillsReader(tmp_path / "a", log=tmp_path / "none")
    boxes = [tmp_path / "a/task"]
    assert reader.look(boxes, 0, (), tight=False) is None
    plant(tmp_path, {f"a/b/{local}": "oom_kill 2\n", f"a/task/{local}": "oom_kill 9\n"})
    plant(tmp_path, {f"a/new/{local}": "oom_kill 1\n"})
    assert reader.look(boxes, 9, (), tight=False) == OutsideKills(3, ())


def test_of_a_whole_machine_what_is_left_of_its_count_without_the_tasks_is_outside(
    tmp_path: Path,
) -> None:
    plant(tmp_path, {"proc/vmstat": "oom_kill 7\n"})
    reader = OutsideKillsReader(None, tmp_path, tmp_path / "none")
    assert reader.look((), 2, (), tight=False) is None
    plant(
        tmp_path,
        {"proc/vmstat": "oom_kill 9\n", "proc/41/statm": "9 5 1\n", "proc/41/comm": "viewer\n"},
    )
    assert reader.look((), 4, (), tight=True) is None
    (tmp_path / "proc/vmstat").write_text("oom_kill 10\n")
    (tmp_path / "proc/41/statm").unlink()
    (tmp_path / "proc/41/comm").unlink()
    (tmp_path / "proc/41").rmdir()
    size = 5 * os.sysconf("SC_PAGE_SIZE")
    gone = KilledProcess(41, "viewer", getpass.getuser(), size, sure=False)
    assert reader.look((), 4, (), tight=True) == OutsideKills(1, (gone,))
    assert reader.look((), 4, (), tight=True) is None


def test_who_reaches_the_limit_of_a_container_does_not_count_for_the_machine(
    group: Path, tmp_path: Path
) -> None:
    if not os.access(KERNEL_LOG, os.R_OK):
        pytest.skip("the kernel's log cannot be read here")
    reader = OutsideKillsReader(None)
    assert reader.look((), 0, (), tight=False) is None
    is_killed(group)
    assert reader.look((), 0, (), tight=False) is None
    reader.close()
    plant(tmp_path, {"proc/vmstat": "oom_kill 7\n", "log": ""})
    reader = OutsideKillsReader(None, tmp_path, tmp_path / "log")
    assert reader.look((), 0, (), tight=False) is None
    (tmp_path / "proc/vmstat").write_text("oom_kill 8\n")
    (tmp_path / "log").write_text(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        "task_memcg=/user.slice,task=viewer,pid=41,uid=0\n"
        "Out of memory: Killed process 41 (viewer) total-vm:9kB, anon-rss:8kB, file-rss:0kB, "
        "shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n"
    )
    told = reader.look((), 0, (), tight=False)
    assert told is not None
    assert (told.count, [killed.name for killed in told.processes]) == (1, ["viewer"])
    reader.close()
