"""Cut the power of a machine while jobs run on it, start it again, and count what became of them.

The machine is emulated (QEMU without KVM), with the kernel of `make test-v2`. Its disk loses at
each cut what the machine had not flushed. The jobs note what they do at a serial line, which a cut
does not reach.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _lossy_disk import LossyDisk
from _soak import JOB, TASK, Notes, Seen, Tally
from _soak_init import MODULES

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests/v2")]

from image import GUEST, REPOSITORY, make_root, pack
from machine import nvme, qemu
from tests.kernel import kernel

DISK_MIB = 512
BOOT_SECONDS = 600.0
"""Most seconds until the machine's first command has ended."""
CUT_SECONDS = 30.0
"""Mean seconds from the first jobs to the cut."""
EARLY = 0.2
"""Part of the cuts that come before the machine's first command has ended."""
END_SECONDS = 1800.0


class Guest:
    """The machine.

    Args:
        folder: Folder for its files.
        draw: Draws when the power is cut, and what that leaves.
        jobs: Jobs of a run.
    """

    def __init__(self, folder: Path, draw: random.Random, jobs: int) -> None:
        self._folder, self._draw, self._jobs = folder, draw, jobs
        self._kernel = kernel()
        self._system = _system(folder)
        self._disk = LossyDisk(_empty_disk(folder), draw, folder / "disk.sock")
        self._notes = folder / "notes"
        self._notes.touch()
        self._read = self._boots = 0
        self._has_hub = True  # this boot, as far as is known
        self._first_seconds = 0.0
        self._jobs_seen: dict[str, Seen] = {}
        self._handed = set[str]()
        self._ends: dict[str, Any] = {}
        self._boot_ids = set[str]()
        self.tally = Tally()
        self.facts = Counter[str]()

    def boot(self, start: str, is_last: bool) -> None:
        """Start the machine, and cut its power at some time, or let it come to the end of all."""
        self._boots += 1
        self._has_hub = True
        began = time.monotonic()
        self._disk.plug()
        options = (
            f"ro no_timer_check SOAK_START={start} SOAK_JOBS={self._jobs} SOAK_LAST={int(is_last)}"
        )
        line = f"file,id=notes,path={self._notes},append=on"
        arguments = ["-chardev", line, "-serial", "chardev:notes", "-accel", "tcg"]
        arguments += nvme(str(self._system), "system", "unsafe")
        # not nvme: QEMU's takes a write that is to be forced to the disk for any other
        arguments += ["-drive", f"file={self._disk.uri},if=virtio,format=raw,cache=writeback"]
        command = qemu(self._kernel, f"{options} SOAK_BOOT={self._boots}", *arguments)
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace"
        ) as machine:
            try:
                self._watch(machine, is_last)
            finally:
                machine.kill()
                machine.wait()
        lost = self._disk.cut()
        self.facts["blocks lost"] += lost
        self.facts["cuts"] += not is_last
        self._hear_notes()
        print(
            f"boot {self._boots} ({start}), {time.monotonic() - began:.0f} s: {lost} blocks lost; "
            f"{dict(self.facts)}",
            flush=True,
        )

    def _watch(self, machine: subprocess.Popen[str], is_last: bool) -> None:
        """Hear what a machine tells, until it is gone. Unless it is the last time, cut its power:
        before or some time after its first jobs.
        """
        began, seconds = time.monotonic(), END_SECONDS if is_last else BOOT_SECONDS
        is_early = not is_last and self._draw.random() < EARLY and self._first_seconds > 0
        if is_early:
            seconds = self._draw.uniform(0, self._first_seconds)
        power = threading.Timer(seconds, machine.kill)
        power.start()
        assert machine.stdout is not None
        words = set[str]()
        try:
            for text in machine.stdout:
                match = re.match(r"soak: (.*)\n", text)  # the last line may be cut
                if match is None:
                    print(f"  {text}", end="", flush=True)
                    continue
                facts = json.loads(match[1])
                words |= facts.keys()
                self._hear(facts)
                if "ready" in facts and not is_last:
                    power.cancel()
                    self._first_seconds = time.monotonic() - began
                    power = threading.Timer(self._draw.expovariate(1 / CUT_SECONDS), machine.kill)
                    power.start()
        finally:
            power.cancel()
        if is_last and "over" not in words:
            self.tally.problem("the last start did not come to the end of all jobs")
        elif "over" in words and not is_last:
            self.tally.problem(f"boot {self._boots}: the machine went off by itself")
        elif not (is_last or is_early or "ready" in words):
            raise SystemExit(f"boot {self._boots}: no job was there in {BOOT_SECONDS:g} s")

    def _hear(self, facts: dict[str, Any]) -> None:
        match facts:
            case {"boot": str(boot)}:
                if boot in self._boot_ids:
                    self.tally.problem("a start had the boot id of another")
                self._boot_ids.add(boot)
            case {"problem": text}:
                self.tally.problem(f"boot {self._boots}: {text}")
            case {"refused": _}:  # a busy host makes a slow machine
                self.facts["commands without a hub"] += 1
                self._has_hub = False
            case {"handing": entries}:
                self._jobs_seen |= {entry["name"]: Seen(entry) for entry in entries}
            case {"handed": run}:
                self._handed.add(run)
            case {"states": states}:
                for name, state in states.items():
                    self._hear_state(self._jobs_seen[name], state)
            case {"end": run, "stands": stands}:
                self._ends[run] = stands

    def _hear_state(self, job: Seen, state: str) -> None:
        if job.told not in (None, state):
            self.tally.problem(f"{job.entry['name']}: {state} after it was {job.told}")
        if state not in ("waiting", "running", "interrupted", "paused", "stopping"):
            job.told = state
        elif self._has_hub:  # else what was left is shown
            job.left_open += 1

    def _hear_notes(self) -> None:
        """Read what jobs noted up to the cut that came now."""
        text = self._notes.read_text()
        whole = text[self._read : text.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            name, word, *numbers = line.split()
            job = self._jobs_seen[name]
            job.lines.append(line)
            job.noted_in, job.left_open = self._boots, 0
            if word == "begin":
                job.is_running = True
                if int(numbers[0]) < job.saved:
                    self.tally.problem(f"{line}: it had saved step {job.saved}")
            elif word == "saved":
                job.saved = int(numbers[0])
            elif word == "end":
                job.is_running, job.has_ended = False, True
        for job in self._jobs_seen.values():
            self.facts["jobs cut off"] += job.is_running
            job.cut()

    def judge(self) -> None:
        """Count what became of all jobs."""
        for run in self._handed - self._ends.keys():
            self.tally.problem(f"run {run} was handed in, and is gone")
        for run, stands in self._ends.items():
            for job in stands["jobs"]:
                seen = self._jobs_seen[job["name"]]
                notes = Notes.of(seen.lines)
                if not notes.counts["begin"]:
                    self.facts["jobs that never began"] += 1
                self.tally.add(run, job, notes, seen.expected(job, self._boots))


def _system(folder: Path) -> Path:
    """The disk with this Python, Headgate and what it needs, as a virtual environment."""
    root = folder / "root"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    environment = root / GUEST / "venv"
    site = environment / "lib" / version / "site-packages"
    python = make_root(root, site, ["headgate_dl"], [])
    (root / "home").mkdir()
    shutil.copytree(REPOSITORY / "src/headgate", site / "headgate")
    (environment / "bin").mkdir()
    (environment / "bin/python").symlink_to(python)
    (environment / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\n")
    for name in MODULES:
        [module] = (kernel().parents[1] / "lib").rglob(f"{name}.ko*")
        shutil.copy(module, root / GUEST / f"{name}.ko")
    init = root / "init"
    own = (Path(__file__).parent / "_soak_init.py").read_text()
    init.write_text(f"#!/{GUEST}/venv/bin/python\n{own}")
    init.chmod(0o755)
    return pack(root, folder / "system.ext4")


def _empty_disk(folder: Path) -> Path:
    """A disk with a journal, as installers make them, and the job's script on it."""
    content, disk = folder / "home", folder / "home.ext4"
    (content / "work").mkdir(parents=True)
    (content / "work" / TASK).write_text(JOB)
    options = ["-q", "-F", "-E", "root_owner=0:0", "-d", str(content)]
    subprocess.run(["mke2fs", "-t", "ext4", *options, disk, f"{DISK_MIB}M"], check=True)
    return disk


def soak(hours: float, jobs: int, draw: random.Random, folder: Path) -> Tally:
    """Cut the power again and again for that long, and once let all jobs come to their end.

    Args:
        hours: How long.
        jobs: Jobs of a run.
        draw: Draws the jobs, the cuts and what they leave.
        folder: Folder for the machine's disks.
    """
    ends, guest = time.monotonic() + 3600 * hours, Guest(folder, draw, jobs)
    while time.monotonic() < ends:
        guest.boot(draw.choice(("command", "service")), is_last=False)
    guest.boot("command", is_last=True)
    guest.judge()
    print(dict(guest.tally.states), flush=True)
    return guest.tally
