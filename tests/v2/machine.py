"""Boots the emulated machine, shows its console, and ends with the status of the tests in it; with
`containers` of those in containers, which take longer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[2]))

from image import make_disk
from tests.kernel import cache, kernel

LIMIT_SECONDS = 1500
MEMORY = "1536M"
COMMAND_LINE = (
    "console=ttyS0 root=/dev/nvme0n1 init=/init quiet loglevel=1 panic=-1 "
    "cgroup_no_v1=all mitigations=off"
)
NEEDED = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mke2fs": "e2fsprogs",
    "dpkg": "dpkg",
    "ldd": "libc-bin",
}
FOR_CONTAINERS = {"dockerd": "docker.io"}


def main(runs: str = "processes") -> int:
    for program, package in (NEEDED | (FOR_CONTAINERS if runs == "containers" else {})).items():
        if shutil.which(program) is None:
            raise SystemExit(f"{program} is not installed; try: apt-get install {package}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        disk = make_disk(Path(folder), runs)
        print(f"disk ready after {time.monotonic() - began:.0f} s", flush=True)
        status = boot(kernel(), disk)
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)
    return status


def qemu(image: Path, options: str, *arguments: str) -> list[str]:
    """The command of an emulated machine of one core, with its console at standard output.

    Args:
        image: Its kernel.
        options: The kernel's own, beside those of every machine.
        arguments: Further ones: its disks, how it is emulated.
    """
    command = ["qemu-system-x86_64", "-cpu", "max", "-smp", "1", "-m", MEMORY]
    command += ["-display", "none", "-no-reboot", "-nic", "none", "-monitor", "none"]
    command += ["-kernel", str(image), "-append", f"{COMMAND_LINE} {options}"]
    return [*command, "-serial", "stdio", *arguments]


def nvme(file: str, name: str, cache: str) -> list[str]:
    """Arguments for a disk."""
    drive = f"file={file},if=none,format=raw,cache={cache},id={name}"
    return ["-drive", drive, "-device", f"nvme,serial={name},drive={name}"]


def boot(image: Path, disk: Path) -> int:
    """Run the machine to its end; returns 0 when every test in it passed."""
    # The guest's clock counts instructions: whatever else its host does, a second in it is as much
    # work as any other.
    emulation = ["-accel", "tcg,thread=single", "-icount", "shift=2,sleep=off"]
    command = qemu(image, "rw", *emulation, *nvme(str(disk), "disk", "unsafe"))
    verdict = None
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
    ) as guest:
        watchdog = threading.Timer(LIMIT_SECONDS, guest.kill)
        watchdog.start()
        try:
            assert guest.stdout is not None
            for line in guest.stdout:
                print(line, end="", flush=True)
                verdict = re.match(r"guest: (\d+) of \d+ runs failed", line) or verdict
        finally:
            watchdog.cancel()
            guest.kill()
    if verdict is None:
        print("the machine ended before its tests did", file=sys.stderr)
        return 1
    return min(int(verdict[1]), 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
