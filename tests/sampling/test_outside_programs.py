"""Programs outside the tasks: whose they are, what they used, and who may lower their priority."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.arbiter.disk_readings import DiskReadings
from headgate.arbiter.records import DiskMoved, ProcessMoved
from headgate.machine.files import content
from headgate.sampling import outside_programs, process_use
from headgate.sampling.outside_programs import OutsideProgram, OutsideProgramsReader
from headgate.sampling.process_use import DiskBytes, ProcessKey
from headgate.testing import wait

SPINS = "import os\nos.nice({nice})\nprint(flush=True)\nwhile True: pass"
NOBODY = 65534


@pytest.fixture
def spins(tmp_path: Path) -> Iterator[list[int]]:
    """Two programs that use the cores: one of the lowest priority, and one of another user where
    this one is root.
    """
    processes = []
    for name, nice in (("greedy.py", 5), ("meek.py", 19)):
        (tmp_path / name).write_text(SPINS.format(nice=nice))
        other = {"user": NOBODY} if name == "greedy.py" and os.geteuid() == 0 else {}
        with open(tmp_path / name) as script:  # which another user could not open
            command = [os.path.realpath(sys.executable), "-X", "utf8", str(tmp_path / name)]
            if other:
                command = ["/bin/sh", "-c", "while :; do :; done"]
            process = subprocess.Popen(command, stdin=script, stdout=subprocess.PIPE, **other)  # type: ignore[call-overload]
        if not other:
            process.stdout.readline()
        processes.append(process)
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.communicate()


def test_they_are_named_with_their_user_and_what_they_used(spins: list[int]) -> None:
    reader = OutsideProgramsReader()
    assert reader.look(()) == []
    found: dict[int, OutsideProgram] = {}

    def look() -> bool:
        found.update({each.pid: each for each in reader.look(())})
        return set(spins) <= set(found)

    wait.until(look, 60, "both have used the cores")
    greedy, meek = (found[pid] for pid in spins)
    assert meek.command == f"{os.path.basename(os.path.realpath(sys.executable))} meek.py"
    assert (meek.nice, meek.is_mine, meek.may_renice) == (19, True, False)
    assert meek.seconds > 0.0
    if os.geteuid() == 0:
        assert (greedy.user, greedy.command, greedy.is_mine) == ("nobody", "sh", True)


def test_own_processes_and_idle_ones_are_left_out(spins: list[int]) -> None:
    reader = OutsideProgramsReader()
    reader.look(())
    seen = wait.until(
        lambda: {each.pid for each in reader.look(spins[:1])} & {spins[1]},
        60,
        "the other one is seen",
    )
    assert seen == {spins[1]}


def made(
    root: Path,
    pid: int,
    *,
    ticks: int,
    nice: int = 0,
    grouped: str = "0",
    parent: int = 1,
    children: int = 0,
    disk: tuple[int, int] | None = None,
    cgroups: str = "",
) -> None:
    """A process as /proc shows it."""
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    rest = f"S {parent} 1 1 0 -1 0 0 0 0 0 {ticks} 0 {children} 0 20 {nice} 1 0 77"
    (folder / "stat").write_text(f"{pid} (a (b) c) {rest}\n")
    (folder / "cgroup").write_text(cgroups)
    if disk is not None:
        (folder / "io").write_text("rchar: 7\nread_bytes: {}\nwrite_bytes: {}\n".format(*disk))
    (folder / "cmdline").write_text("/usr/bin/python3\0-m\0package.train\0--key=secret\0")
    (root / "proc/sys/kernel").mkdir(parents=True, exist_ok=True)
    (root / "proc/sys/kernel/sched_autogroup_enabled").write_text(grouped)


@pytest.mark.parametrize(
    ("nice", "grouped", "helps"), [(0, "0\n", True), (19, "0\n", False), (0, "1\n", False)]
)
def test_a_lower_priority_is_no_help_at_the_lowest_one_and_between_sessions(
    tmp_path: Path, nice: int, grouped: str, helps: bool
) -> None:
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 7, ticks=100, nice=nice, grouped=grouped)
    reader.look(())
    made(tmp_path, 7, ticks=300, nice=nice, grouped=grouped)
    [program] = reader.look(())
    assert program.command == "python3 -m package.train"
    assert program.seconds == pytest.approx(200 / os.sysconf("SC_CLK_TCK"))
    assert program.may_renice is helps


def test_what_a_child_used_is_not_counted_again_for_the_shell_that_waited_for_it(
    tmp_path: Path,
) -> None:
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 7, ticks=0)
    made(tmp_path, 8, ticks=0, parent=7)
    reader.look(())
    made(tmp_path, 8, ticks=500, parent=7)
    [program] = reader.look(())
    assert program.pid == 8
    shutil.rmtree(tmp_path / "proc" / "8")
    made(tmp_path, 7, ticks=0, children=500)
    assert reader.look(()) == []
    made(tmp_path, 7, ticks=0, children=900)  # of children that came and went between two looks
    [program] = reader.look(())
    assert program.pid == 7
    assert program.seconds == pytest.approx(400 / os.sysconf("SC_CLK_TCK"))


def test_what_processes_below_own_ones_use_is_not_outside(tmp_path: Path) -> None:
    """A hub's helper writes to trackers."""
    reader = OutsideProgramsReader(tmp_path)
    for ticks in (0, 300):
        for pid, parent in ((6, 1), (7, 6), (8, 7), (9, 1)):
            made(tmp_path, pid, ticks=ticks, parent=parent)
        programs = reader.look([6])
    assert [program.pid for program in programs] == [9]


def gone(root: Path, *pids: int) -> None:
    for pid in pids:
        shutil.rmtree(root / "proc" / str(pid))


def test_what_a_tool_s_processes_used_is_not_that_of_the_shell_in_which_all_of_them_end(
    tmp_path: Path,
) -> None:
    """`make` runs `pytest`, and both end between two looks."""
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 7, ticks=0)
    made(tmp_path, 8, ticks=5, parent=7)
    made(tmp_path, 9, ticks=3000, parent=8)
    reader.look(())
    gone(tmp_path, 8, 9)
    made(tmp_path, 7, ticks=0, children=3105)
    [program] = reader.look(())
    assert program.seconds == pytest.approx(100 / os.sysconf("SC_CLK_TCK"))  # since the look before


def test_what_an_orphan_used_is_not_that_of_the_process_that_takes_it_in(tmp_path: Path) -> None:
    """A shell is killed with its child, which a service above it waits for."""
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 6, ticks=0)
    made(tmp_path, 7, ticks=0, parent=6)
    made(tmp_path, 8, ticks=40, parent=7)
    made(tmp_path, 9, ticks=2000, parent=8)
    reader.look(())
    gone(tmp_path, 8, 9)
    made(tmp_path, 7, ticks=0, parent=6, children=40)
    made(tmp_path, 6, ticks=0, children=2000)
    assert reader.look(()) == []


def test_a_parent_that_was_read_just_before_its_child_ended_is_told_of_it_later(
    tmp_path: Path,
) -> None:
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 7, ticks=0)
    made(tmp_path, 8, ticks=900, parent=7)
    reader.look(())
    gone(tmp_path, 8)
    assert reader.look(()) == []
    made(tmp_path, 7, ticks=0, children=900)
    assert reader.look(()) == []
    made(tmp_path, 7, ticks=0, children=1000)
    [program] = reader.look(())
    assert program.seconds == pytest.approx(100 / os.sysconf("SC_CLK_TCK"))


def test_what_orphans_used_is_not_that_of_the_first_process(tmp_path: Path) -> None:
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 1, ticks=10, parent=0)
    reader.look(())
    made(tmp_path, 1, ticks=10, parent=0, children=500)  # of a program whose parent had ended
    assert reader.look(()) == []
    made(tmp_path, 1, ticks=12, parent=0, children=900)
    [program] = reader.look(())
    assert program.seconds == pytest.approx(2 / os.sysconf("SC_CLK_TCK"))


def test_a_hub_of_another_home_is_known(tmp_path: Path) -> None:
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 7, ticks=0)
    made(tmp_path, 8, ticks=0)
    reader.look(())
    made(tmp_path, 7, ticks=100)
    made(tmp_path, 8, ticks=100)
    (tmp_path / "proc/8/cmdline").write_text("/usr/bin/python3\0-m\0headgate.hub.server\0")
    assert {program.pid: program.is_hub for program in reader.look(())} == {7: False, 8: True}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_job_of_another_user_is_named_by_its_cgroup(tmp_path: Path) -> None:
    """Two processes of Ada's job are one program; an own job in another hub is none."""
    for pid, owner in ((70, NOBODY), (71, NOBODY), (72, 0)):
        (folder := tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (folder / "cmdline").write_bytes(b"python\0vae.py\0--secret\0")
        (folder / "cgroup").write_text("0::/headgate-1-2/r:vae:worker-0\n")
        os.chown(folder, owner, owner)

    def ran(ticks: int) -> None:
        for pid in (70, 71, 72):
            fields = f"{pid} (python) S 0 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 5"
            (tmp_path / "proc" / str(pid) / "stat").write_text(fields)

    reader = OutsideProgramsReader(tmp_path)
    ran(0)
    reader.look(())
    ran(os.sysconf("SC_CLK_TCK"))
    job, own = sorted(reader.look(()), key=lambda program: program.user)
    assert (job.user, job.command, job.job, job.seconds) == ("nobody", "vae", "vae", 2.0)
    assert (own.command, own.job, own.seconds) == ("python vae.py", None, 1.0)


def test_bytes_on_disks_are_counted_once_and_also_of_programs_that_use_no_core(
    tmp_path: Path,
) -> None:
    reader = OutsideProgramsReader(tmp_path)
    made(tmp_path, 7, ticks=0, disk=(100, 10))
    made(tmp_path, 8, ticks=0, disk=(0, 0), parent=7)
    reader.look(())
    made(tmp_path, 8, ticks=0, disk=(5000, 400), parent=7)
    [program] = reader.look(())
    assert (program.pid, program.disk_read, program.disk_written) == (8, 5000, 400)
    shutil.rmtree(tmp_path / "proc" / "8")
    made(tmp_path, 7, ticks=0, disk=(5300, 410))  # it waited for its child
    [program] = reader.look(())
    assert (program.pid, program.disk_bytes) == (7, 200)


def test_what_only_root_may_read_is_told_by_the_arbiter_or_by_the_job_s_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    box = "headgate-7/20260314-0900-ab12:vae:worker-0"
    disk = tmp_path / "sys/block/vda"
    disk.mkdir(parents=True)
    (disk / "dev").write_text("254:0")
    (disk / "size").write_text("1000")
    stat = tmp_path / "sys/fs/cgroup" / box / "io.stat"
    stat.parent.mkdir(parents=True)
    stat.write_text("254:0 rbytes=1000 wbytes=50\n7:0 rbytes=9 wbytes=9\n")
    for pid in (7, 8):  # two processes of a job
        made(tmp_path, pid, ticks=0, cgroups=f"0::/{box}\n")
    made(tmp_path, 9, ticks=0)
    reader = OutsideProgramsReader(tmp_path)
    reader.look(())
    stat.write_text("254:0 rbytes=9000 wbytes=60\n7:0 rbytes=99 wbytes=9\n")
    [job] = reader.look(())
    assert (job.job, job.disk_read, job.disk_written) == ("vae", 8000, 10)
    stat.write_text("254:0 rbytes=9990 wbytes=99\n")
    assert reader.look((), has_arbiter=True) == []  # the arbiter is about to tell them
    moved = {ProcessKey(7, 77): DiskBytes(10.0, 20.0), ProcessKey(9, 77): DiskBytes(1.0, 2.0)}
    moved[ProcessKey(8, 3)] = DiskBytes(1e9, 1e9)  # another process of that number
    programs = {program.job: program for program in reader.moved_by(moved)}
    assert (programs["vae"].disk_read, programs["vae"].disk_written) == (10.0, 20.0)
    assert programs[None].disk_bytes == 3.0
    assert reader.look(()) == []  # the arbiter has gone: what it told is not counted again


def test_what_may_not_be_read_is_opened_at_two_looks_and_left_alone_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def opens(path: Path) -> str:
        opened.append(path.name)
        return content(path)

    for module in (process_use, outside_programs):
        monkeypatch.setattr(module, "content", opens)
    monkeypatch.setattr("os.geteuid", lambda: 4242)
    made(tmp_path, 7, ticks=0, cgroups="0::/headgate-7/r:vae:worker-0\n")
    reader = OutsideProgramsReader(tmp_path)
    for _ in range(5):
        reader.look(())
    assert (opened.count("io"), opened.count("cgroup"), opened.count("stat")) == (2, 2, 5)


def test_the_arbiter_tells_in_which_time_bytes_were_moved(tmp_path: Path) -> None:
    now = [10.0]
    readings = DiskReadings(tmp_path / "proc", lambda: now[0])
    looks = [(10.0, 0), (15.0, 1 << 20), (99.0, 2 << 20), (101.0, 3 << 20)]
    told = []
    for now[0], total in looks:
        made(tmp_path, 7, ticks=0, disk=(total, 0))
        told.append(readings.read())
    moved = (ProcessMoved(7, 77, 1 << 20, 0),)
    # the third is a first one again: nobody listened
    assert told == [
        DiskMoved((), 0.0),
        DiskMoved(moved, 5.0),
        DiskMoved((), 0.0),
        DiskMoved(moved, 2.0),
    ]
