"""The first process of the emulated machine: mounts cgroup v2, runs tests as one user or another,
switches off.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

USER = 1000
GUEST = Path("/headgate")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
CGROUPS = Path("/sys/fs/cgroup")
SCOPE = CGROUPS / "user.slice/session.scope"
CONTRACT = "tests/isolation/test_process_contract.py::TestWith"
OF_USERS = [
    f"tests/arbiter/test_user_box.py::test_{name}"
    for name in (
        "a_user_gets_neither_out_of_the_own_box_nor_into_anothers",
        "a_users_part_is_written",
        "a_fork_bomb_ends_at_its_users_bound",
        "a_user_over_the_memory_loses_a_process_and_nobody_else_does",
        "jobs_open_no_gpu_that_is_closed_to_their_user",
    )
]
"""What is done in another way than with cgroup v1."""
CONTAINERS = [
    "--noconftest",
    "-p",
    "tests.dockerd",
    "tests/isolation/containers/test_container_contract.py",
]
POWER_OFF = 0x4321FEDC
libc = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if libc.mount(kind.encode(), str(target).encode(), kind.encode(), 0, None) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {kind} on {target}")


def delegate(folder: Path) -> None:
    """Hand a cgroup to the user, as systemd does for `Delegate=yes`."""
    folder.mkdir(parents=True)
    for above in (CGROUPS, *reversed(folder.relative_to(CGROUPS).parents[:-1])):
        (CGROUPS / above / "cgroup.subtree_control").write_text("+cpu +memory +cpuset +io")
    for path in (
        folder,
        *(folder / name for name in ("cgroup.procs", "cgroup.subtree_control", "cgroup.threads")),
    ):
        os.chown(path, USER, USER)
    os.setxattr(folder, "trusted.delegate", b"1")
    os.setxattr(folder, "user.delegate", b"1")


def run_tests(
    title: str, arguments: list[str], *, user: int = 0, cgroup: Path = CGROUPS, must: str
) -> int:
    """Run pytest in a cgroup as a user, to whom the mode `must` is open; returns 1 when it failed,
    else 0.
    """
    began = time.monotonic()
    print(f"\n=== {title}", flush=True)
    code = (
        "import os, sys\n"
        f"open({str(cgroup / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
        f"os.setgroups([]); os.setgid({user}); os.setuid({user})\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'pytest', *sys.argv[1:]])\n"
    )
    options = [
        "-c",
        str(GUEST / "pytest.ini"),
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-q",
        "-ra",
        "--tb=short",
        "--color=no",
    ]
    environment = {
        "PATH": PATH,
        "HOME": "/tmp",
        "PYTHONPATH": f"{GUEST / 'src'}:{GUEST / 'site'}:{GUEST}",
        "HEADGATE_TEST_MODE": must,
        "HEADGATE_TEST_USERS": "user,other",
    }
    command = [sys.executable, "-c", code, *options, *arguments]
    status = subprocess.run(command, env=environment, cwd=GUEST, check=False).returncode
    print(f"=== {title}: status {status}, {time.monotonic() - began:.0f} s", flush=True)
    return int(status != 0)


def main() -> None:
    mount("proc", Path("/proc"))
    mount("sysfs", Path("/sys"))
    mount("devtmpfs", Path("/dev"))
    mount("tmpfs", Path("/dev/shm"))
    mount("cgroup2", CGROUPS)
    os.chmod("/tmp", 0o1777)
    delegate(SCOPE)
    bystander = CGROUPS / "system.slice"
    bystander.mkdir()
    # Emulated, each test takes its time: root, who may do more than a user, is spared the contract.
    # A user without cgroups needs nothing of cgroup v2, and is left to the longer run.
    if (GUEST / "runs").read_text() == "containers":
        failed = [
            run_tests("root, in containers", CONTAINERS, must="v2"),
            run_tests(
                "a user without cgroups",
                [f"{CONTRACT}outCgroups"],
                user=USER,
                cgroup=bystander,
                must="none",
            ),
        ]
    else:
        failed = [
            run_tests("root", ["tests/v2", *OF_USERS], must="v2"),
            run_tests(
                "a user in a delegated scope",
                [f"{CONTRACT}Cgroups"],
                user=USER,
                cgroup=SCOPE,
                must="v2",
            ),
        ]
    print(f"\nguest: {sum(failed)} of {len(failed)} runs failed", flush=True)


try:
    main()
finally:
    os.sync()
    libc.reboot(POWER_OFF)
