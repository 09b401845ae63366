"""Where cgroups are looked for, on machines that are laid out in other ways than this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.machine.cgroup_layout import (
    find_layout,
    find_v1,
    find_v2,
    passes_protection_on,
)


class Machine:
    """A copy of what a kernel shows: hierarchies below `root`, and who we are in `proc`."""

    def __init__(self, folder: Path) -> None:
        self.root, self.proc = folder / "cgroup", folder / "proc"
        self.root.mkdir()
        self.proc.mkdir()
        self._own: list[str] = []
        self._mounts: list[str] = []

    def group(
        self, path: str, *, top: bool = False, procs: str = "", controllers: str = ""
    ) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text(procs)
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text("")
        if not top:
            (folder / "cgroup.type").write_text("domain\n")
        return folder

    def v1(self, controllers: str, own: str, *, mounted: str = "/") -> None:
        self._own.append(f"{len(self._own) + 1}:{controllers}:{own}")
        point = self.root / controllers
        self._mounts.append(
            f"30 25 0:26 {mounted} {point} rw,nosuid - cgroup cgroup rw,{controllers}"
        )
        self._write()

    def v2(
        self, own: str, *, point: str = ".", mounted: str = "/", options: str = "nsdelegate"
    ) -> None:
        self._own.append(f"0::{own}")
        path = os.path.normpath(self.root / point)
        self._mounts.append(
            f"31 25 0:27 {mounted} {path} rw shared:4 - cgroup2 cgroup2 rw,{options}"
        )
        self._write()

    def _write(self) -> None:
        (self.proc / "cgroup").write_text("\n".join(self._own) + "\n")
        (self.proc / "mountinfo").write_text(
            "\n".join(["1 1 8:1 / / rw - ext4 /dev/sda rw", *self._mounts]) + "\n"
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_v1_goes_below_the_own_cgroup(machine: Machine) -> None:
    machine.v1("cpu,cpuacct", "/user.slice")
    machine.v1("memory", "/user.slice/user-1000.slice")
    for path in ("cpu,cpuacct/user.slice", "memory/user.slice/user-1000.slice"):
        machine.group(path)
    found = find_v1(machine.root, machine.proc)
    assert found.bases == {
        "cpu": machine.root / "cpu,cpuacct/user.slice",
        "cpuacct": machine.root / "cpu,cpuacct/user.slice",
        "memory": machine.root / "memory/user.slice/user-1000.slice",
    }
    assert set(found.missing) == {"cpuset", "blkio", "freezer"}


def test_v1_in_a_container_is_found_where_it_is_mounted(machine: Machine) -> None:
    machine.v1("memory", "/docker/abc", mounted="/docker/abc")
    machine.v1("cpu", "/docker/abc", mounted="/elsewhere")
    machine.group("memory")
    machine.group("cpu")
    assert find_v1(machine.root, machine.proc).bases == {
        "memory": machine.root / "memory",
        "cpu": machine.root / "cpu",
    }


def test_hybrid_uses_v1_and_counts_pressure_in_v2(machine: Machine) -> None:
    machine.v1("memory", "/")
    machine.v2("/", point="unified")
    machine.group("memory")
    machine.group("unified", top=True)
    found = find_layout(machine.root, machine.proc)
    assert found.mode == "v1"
    assert found.bases["unified"] == machine.root / "unified"


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root may not use the top")
def test_v2_of_root_goes_to_the_top(machine: Machine) -> None:
    machine.v2("/user.slice/session-1.scope")
    machine.group(".", top=True, procs="1\n", controllers="cpuset cpu io memory pids")
    machine.group("user.slice", controllers="memory pids")
    machine.group("user.slice/session-1.scope", procs="77\n")
    found = find_layout(machine.root, machine.proc)
    assert (found.mode, found.vacate, found.missing) == ("v2", False, {})
    assert set(found.bases.values()) == {machine.root}


def test_v2_of_a_container_moves_its_processes_down_a_level(machine: Machine) -> None:
    machine.v2("/")
    machine.group(".", procs="1\n7\n", controllers="cpu memory")
    found = find_v2(machine.root, machine.proc)
    assert found.vacate
    assert set(found.bases) == {"cpu", "memory", "unified"}
    assert set(found.missing) == {"cpuset", "io"}


def test_v2_takes_the_nearest_above_that_holds_no_process(machine: Machine) -> None:
    machine.v2("/app.slice/term.scope")
    machine.group(".", procs="1\n", controllers="cpu memory")
    machine.group("app.slice", controllers="cpu memory")
    machine.group("app.slice/term.scope", procs="9\n", controllers="memory")
    found = find_v2(machine.root, machine.proc)
    assert (found.bases["cpu"], found.vacate) == (machine.root / "app.slice", False)


def test_v2_in_a_delegated_scope_may_move_the_processes_of_it(machine: Machine) -> None:
    machine.v2("/run.scope")
    machine.group(".", procs="1\n", controllers="cpu memory")
    scope = machine.group("run.scope", procs="9\n", controllers="cpu memory")
    try:
        os.setxattr(scope, "user.delegate", b"1")
    except OSError:
        pytest.skip("the folder for temporary files keeps no extended attributes")
    found = find_v2(machine.root, machine.proc)
    assert (found.bases["memory"], found.vacate) == (scope, True)


@pytest.mark.parametrize(
    ("file", "text", "held"),
    [("memory.max", "1000000", True), ("cpu.max", "5 10", True), ("memory.max", "max", False)],
)
def test_v2_does_not_leave_the_limits_that_were_set_for_it(
    machine: Machine, file: str, text: str, held: bool
) -> None:
    machine.v2("/job.slice/job-7.scope")
    top = machine.group(".", top=True, controllers="cpu memory")
    job = machine.group("job.slice", controllers="cpu memory")
    machine.group("job.slice/job-7.scope", procs=f"{os.getpid()}\n", controllers="cpu memory")
    (job / file).write_text(text)
    found = find_v2(machine.root, machine.proc)
    free = top if os.geteuid() == 0 else job
    assert found.bases["memory"] == (job if held else free)


@pytest.mark.parametrize(
    ("controllers", "options", "passes_on"),
    [
        ("cpu memory", "nsdelegate,memory_recursiveprot", True),
        ("cpu memory", "nsdelegate", False),
        ("", "nsdelegate", None),  # beside v1, which controls memory
    ],
)
def test_protection_of_memory_takes_an_option_of_the_mount(
    machine: Machine, controllers: str, options: str, passes_on: bool | None
) -> None:
    machine.v2("/", options=options)
    machine.group(".", top=True, controllers=controllers)
    assert passes_protection_on(machine.root, machine.proc) is passes_on


def test_nothing_mounted_is_said(machine: Machine) -> None:
    (machine.proc / "cgroup").write_text("0::/\n")
    (machine.proc / "mountinfo").write_text("1 1 8:1 / / rw - ext4 /dev/sda rw\n")
    found = find_layout(machine.root, machine.proc)
    assert (found.mode, found.bases) == ("none", {})
    assert "no cgroup hierarchy is mounted" in found.missing["cgroup"]
