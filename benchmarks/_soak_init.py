"""The first process of the guest of a soak: has the runs go on that the last power cut left, hands
in more, and tells its console how all stand.

The kernel's command line has `SOAK_START` (`command` or `service`: what has the runs go on),
`SOAK_JOBS` (how many jobs a run has) and `SOAK_LAST` (1: hand in no more, and end when all ended).
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shlex
import socket
import subprocess
import sys
import termios
import time
import traceback
from pathlib import Path

HOME = Path("/home")
NOTES = "/dev/ttyS1"
NO_HUB = 6
"""Exit status of a command for which no hub started in time."""
WANTED = 5  # jobs that have not ended, so that the machine has work
MODULES = (
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_blk",
)
"""Modules of the kernel, each after those that it needs."""
FINIT_MODULE = 313
"""Number of the system call that loads a module of the kernel (x86_64)."""
POWER_OFF = 0x4321FEDC
VARIABLES = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin", "HOME": str(HOME), "SOAK_NOTES": NOTES}
VARIABLES |= {"HEADGATE_REPORT": "off"}
libc = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, target: str, device: str | None = None) -> None:
    source = (device or kind).encode()
    if libc.mount(source, target.encode(), kind.encode(), 0, None) != 0:
        raise OSError(ctypes.get_errno(), f"cannot mount {kind} on {target}")


def tell(**facts: object) -> None:
    print("soak:", json.dumps(facts), flush=True)


def headgate(*words: str, variables: dict[str, str] = VARIABLES) -> str:
    command = [sys.executable, "-m", "headgate", *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode == NO_HUB:
        tell(refused=done.stderr)
    elif done.returncode != 0:
        tell(problem=f"headgate {words}: {done.returncode} {done.stdout} {done.stderr}")
    return done.stdout


def goes_on(start: str) -> None:
    """Do what has the runs go on."""
    if start == "command":
        headgate("ps")
        return
    unit = json.loads(headgate("service", "install", "--print", "--json"))["unit"]
    lines = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    _, _, *words = shlex.split(lines["ExecStart"])[1:]
    [(name, value)] = [word.split("=", 1) for word in shlex.split(lines["Environment"])]
    headgate(*words, variables={"PATH": "/usr/bin:/bin", "HOME": str(HOME), name: value})


def hand_in(number: int, jobs: int) -> None:
    draw, folder = random.Random(number), HOME / "work"
    entries = list[dict[str, object]]()
    for i in range(jobs):
        name, kind = f"r{number}-j{i}", draw.choice(("plain", "plain", "saves", "again"))
        arguments = [name, f"{draw.uniform(2, 25):.1f}", "1", *(["saves"] * (kind == "saves"))]
        entry: dict[str, object] = {"name": name, "script": "soak_job.py", "args": arguments}
        if kind == "saves":
            entry["resumes"] = True
        elif kind == "again":
            entry["retries"] = 1
        entries.append(entry)
    (folder / "jobs.yaml").write_text(json.dumps({"jobs": entries}))
    os.chdir(folder)
    tell(handing=entries)
    answer = headgate("run", "--detach", "--json", "jobs.yaml")
    if answer:
        tell(handed=json.loads(answer)["run"])


def work() -> None:
    from headgate.recorded import runs

    is_last, jobs = os.environ["SOAK_LAST"] == "1", int(os.environ["SOAK_JOBS"])
    began = time.monotonic()
    goes_on(os.environ["SOAK_START"])
    tell(took=round(time.monotonic() - began, 1))
    ended, boot = set[str](), int(os.environ["SOAK_BOOT"])
    number, is_ready = 100 * boot, False
    while True:
        left = 0
        for folder in runs.listing():
            if folder.name in ended:
                continue
            run = runs.summary(folder)
            states = {job.name: job.state for job in run.jobs}
            tell(run=run.id, state=run.state, states=states)
            left += sum(state in ("waiting", "running", "interrupted") for state in states.values())
            if run.state not in ("running", "interrupted"):
                ended.add(run.id)
        if not is_last and left < WANTED:
            hand_in(number, jobs)
            number += 1
        elif is_last and not left:
            break
        if left and not is_ready:
            tell(ready=True)
            is_ready = True
        time.sleep(1)
    for folder in runs.listing():
        tell(end=folder.name, stands=json.loads(headgate("status", folder.name, "--json")))


def main() -> None:
    for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")):
        mount(kind, target)
    for kind, target in (("tmpfs", "/dev/shm"), ("tmpfs", "/tmp"), ("cgroup2", "/sys/fs/cgroup")):
        os.makedirs(target, exist_ok=True)
        mount(kind, target)
    for module in MODULES:
        with open(f"/headgate/{module}.ko", "rb") as file:
            if libc.syscall(FINIT_MODULE, file.fileno(), b"", 0) != 0:
                raise OSError(ctypes.get_errno(), f"cannot load {module}")
    mount("ext4", str(HOME), "/dev/vda")
    socket.sethostname("guest")
    line = os.open(NOTES, os.O_RDWR | os.O_NOCTTY)  # open to the end: else it forgets this
    settings = termios.tcgetattr(line)
    settings[1] = 0  # what is written is not edited
    termios.tcsetattr(line, termios.TCSANOW, settings)
    os.environ |= VARIABLES | {"HEADGATE_HOME": str(HOME / ".local/share/headgate")}
    tell(boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    if (worker := os.fork()) == 0:
        try:
            work()
        except Exception:  # noqa: BLE001  # nobody else shows it
            tell(problem=traceback.format_exc())
        finally:
            sys.stdout.flush()
            os._exit(0)
    while os.wait()[0] != worker:  # the first process has the orphans of all
        pass
    tell(over=True)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001  # nobody else shows it
        tell(problem=repr(error))
    finally:
        os.sync()
        libc.reboot(POWER_OFF)
