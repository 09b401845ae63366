"""Whether runs go on with `headgate service install` where systemd starts the machine, with an
arbiter or without: nobody logs in after a restart, and after a power cut.

The machine is emulated, with a Debian of its own. Its user logs in at the console, which runs
`service_session.py`; jobs note what they do at a second serial line.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[2]))

from image import GUEST, REPOSITORY, fill_root, pack
from machine import nvme, qemu
from service_session import FACTS, JOBS, USER
from tests.kernel import cache, kernel

from headgate.arbiter import service as arbiter

PACKAGES = ("systemd-sysv", "udev", "dbus", "dbus-user-session", "libpam-systemd", "polkitd")
LIMIT_SECONDS = 900.0
AUTOLOGIN = f"""[Service]
ExecStart=
ExecStart=-/sbin/agetty --noclear --autologin {USER} --keep-baud 115200 - linux
"""
POWER = f"""polkit.addRule(function(action, subject) {{
    if (subject.user == "{USER}" && /login1[.](reboot|power-off)/.test(action.id))
        return polkit.Result.YES;
}});
"""
"""Who sits at a serial line may not switch off, else."""
NOBODY = "systemd.mask=serial-getty@ttyS0.service"
"""Option of the kernel: no user logs in."""


def debian() -> Path:
    """An archive with the files of a Debian that systemd starts."""
    archive = cache() / f"systemd-{platform.freedesktop_os_release()['VERSION_CODENAME']}.tar"
    if not archive.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            made = Path(folder) / archive.name
            options = ["--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
            suite = archive.stem.partition("-")[2]
            subprocess.run(["mmdebstrap", *options, suite, made], check=True)
            made.rename(archive)
    return archive


def make_disk(folder: Path, has_arbiter: bool) -> Path:
    """A disk with that Debian, this Python and Headgate, and a user with a job file; with an
    arbiter, which its root installs.
    """
    root = folder / "root"
    root.mkdir()
    subprocess.run(["tar", "-C", root, "--exclude=./dev/*", "-xf", debian()], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = root / GUEST / "venv"
    site = environment / "lib" / version / "site-packages"
    python = fill_root(root, site, ["headgate_dl"], [])
    for above in (root / python.lstrip("/")).parents:
        if above == root:
            break
        above.chmod(0o755)  # others than this user have it there
    shutil.copytree(REPOSITORY / "src/headgate", site / "headgate")
    (environment / "bin").mkdir()
    (environment / "bin/python").symlink_to(python)
    (environment / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
    subprocess.run(
        ["useradd", "-R", root, "-m", "-s", "/bin/sh", "-G", "dialout", USER], check=True
    )
    home = root / "home" / USER
    shutil.copy(Path(__file__).with_name("service_session.py"), home / "session.py")
    (home / "jobs.yaml").write_text(JOBS)
    (home / ".profile").write_text(f"export PATH=/{GUEST}/venv/bin:$PATH\nexec python session.py\n")
    uid = (root / "etc/passwd").read_text().partition(f"\n{USER}:x:")[2].partition(":")[0]
    for path in (home, *home.iterdir()):
        shutil.chown(path, int(uid), int(uid))
    unit = root / "etc/systemd/system/serial-getty@ttyS0.service.d/autologin.conf"
    unit.parent.mkdir(parents=True)
    unit.write_text(AUTOLOGIN)
    (root / "etc/polkit-1/rules.d/power.rules").write_text(POWER)
    if has_arbiter:
        _add_arbiter(root)
    return pack(root, folder / "disk.ext4")


def _add_arbiter(root: Path) -> None:
    """Have the machine's root type `headgate arbiter install` as it starts for the first time."""
    unit = root / "etc/systemd/system/install-arbiter.service"
    unit.write_text(
        f"""[Unit]
ConditionPathExists=!{arbiter.UNIT}
Before=getty.target serial-getty@ttyS0.service

[Service]
Type=oneshot
ExecStart=/{GUEST}/venv/bin/python -m headgate arbiter install
StandardOutput=journal+console

[Install]
WantedBy=multi-user.target
"""
    )
    subprocess.run(["systemctl", "--root", root, "enable", unit.name], check=True)


class Machine:
    """The machine; each start shows its console, and hears what is told there and at its second
    line.
    """

    def __init__(self, folder: Path, has_arbiter: bool) -> None:
        self._disk = make_disk(folder, has_arbiter)
        self._notes = folder / "notes"
        self._notes.touch()
        self.facts: dict[str, Any] = {}

    def notes(self) -> list[str]:
        """What jobs noted, line by line."""
        return self._notes.read_text().split("\n")[:-1]

    @contextmanager
    def started(self, step: str, *options: str) -> Iterator[subprocess.Popen[str]]:
        """The machine, started; in the end its power is cut if it is still on."""
        print(f"=== {step}", flush=True)
        line = [
            "-chardev",
            f"file,id=notes,path={self._notes},append=on",
            "-serial",
            "chardev:notes",
        ]
        arguments = [*line, "-accel", "tcg", *nvme(str(self._disk), "disk", "writeback")]
        words = f"rw init=/sbin/init SERVICE_STEP={step} {' '.join(options)}"
        command = qemu(kernel(), words, *arguments)
        began = time.monotonic()
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        ) as machine:
            watchdog = threading.Timer(LIMIT_SECONDS, machine.kill)
            watchdog.start()
            listener = threading.Thread(target=self._listen, args=(machine,))
            listener.start()
            try:
                yield machine
            finally:
                watchdog.cancel()
                machine.kill()
                listener.join()
        print(f"=== {step}: {time.monotonic() - began:.0f} s", flush=True)

    def _listen(self, machine: subprocess.Popen[str]) -> None:
        assert machine.stdout is not None
        for line in machine.stdout:
            print(f"  {line}", end="", flush=True)
            _, mark, text = line.partition(FACTS)
            if mark:
                with suppress(ValueError):  # the power was cut in it
                    self.facts |= json.loads(text)

    def hears(self, machine: subprocess.Popen[str], found: Callable[[], bool]) -> None:
        """Wait for what is heard of it."""
        while not found():
            if machine.poll() is not None or "refused" in self.facts:
                raise SystemExit(f"it ended too early; heard {self.facts} and {self.notes()}")
            time.sleep(0.2)


def main(*words: str) -> int:
    """Returns 0 where all held. `words`: `arbiter`, for a machine with one."""
    if shutil.which("mmdebstrap") is None:
        raise SystemExit("mmdebstrap is not installed; try: apt-get install mmdebstrap")
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        machine = Machine(Path(folder), has_arbiter="arbiter" in words)
        with machine.started("install") as power:
            machine.hears(power, lambda: power.poll() is not None)  # its user restarts it
        assert machine.facts["enabled"] == "enabled", machine.facts
        assert machine.facts["before"] == {"counts": "running", "saves": "running"}, machine.facts

        restarted = len(machine.notes())
        with machine.started("restarted", NOBODY) as power:
            machine.hears(power, lambda: "last saved 5" in machine.notes())
        noted = machine.notes()[restarted:]
        assert not any(line.startswith("counts") for line in noted), noted
        [begins] = [line for line in noted if line.startswith("saves begin")]
        assert int(begins.split()[2]) > 0, begins
        assert "later end" in noted, noted

        cut = len(machine.notes())
        with machine.started("cut", NOBODY) as power:
            machine.hears(power, lambda: "last end" in machine.notes())
        [begins] = [line for line in machine.notes()[cut:] if line.startswith("last begin")]
        assert int(begins.split()[2]) >= 5, begins

        with machine.started("remove") as power:
            machine.hears(power, lambda: power.poll() is not None)
        expected = {"counts": "failed", "saves": "done", "later": "done", "last": "done"}
        assert machine.facts["after"] == expected, machine.facts
        assert machine.facts["left"] == [], machine.facts
    print("guest: all held", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
