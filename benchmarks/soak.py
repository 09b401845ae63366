"""Kill hubs, guards, keepers and tasks at random while jobs run, and count what became of the jobs.

    python benchmarks/soak.py --hours 0.1 --jobs 40
    python benchmarks/soak.py --guest --hours 0.5 --jobs 5

With --guest, the power of a machine is cut at random instead, and it is started again (QEMU
without KVM, `make test-v2`'s kernel; its disk loses what was not flushed).

At the end no job may be lost, none may have run twice, and neither a process nor a cgroup may be
left. Of a job whose keeper was killed nobody can tell how it ended: it may not end twice, nor be
called done. It prints the part of the time between start and end in which the jobs trained.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from _soak import JOB, TASK, Expected, Notes, Tally

HUB, GUARD = "headgate.hub.server", "headgate.hub.watchdog"
KEEPER = "launcher.py"


def processes(home: Path, word: str = "") -> list[int]:
    """Processes of this home whose command line has a word."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
        except OSError:
            continue
        if f"HEADGATE_HOME={home}".encode() in environment and word.encode() in words:
            pids.append(int(folder.name))
    return [pid for pid in pids if pid != os.getpid()]


def children(pid: int) -> set[int]:
    """Processes that a process started and that are there; none where it is gone."""
    try:
        return set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return set()


def cgroups(runs: list[str]) -> list[Path]:
    """Cgroups of tasks of these runs."""
    names = os.walk("/sys/fs/cgroup")
    return [Path(parent) for parent, _, _ in names if any(run in parent for run in runs)]


def headgate(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "headgate", *words]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, timeout=300
    ).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--jobs", type=int, default=200, help="jobs of a round")
    parser.add_argument("--pause", type=float, default=5.0, help="mean seconds between two kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guest", action="store_true", help="cut the power of a machine instead")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as base:
        if options.guest:
            from _soak_guest import soak  # it needs QEMU

            tally = soak(options.hours, options.jobs, draw, Path(base))
        else:
            tally = _soak(options.hours, options.jobs, options.pause, draw, Path(base))
    tally.show()
    return bool(tally.problems)


def _soak(hours: float, jobs: int, pause: float, draw: random.Random, base: Path) -> Tally:
    ends, kills, tally = time.monotonic() + 3600 * hours, Counter[str](), Tally()
    home = base / "home"
    # jobs run under this interpreter: what a shim before it starts would be taken for tasks
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"HEADGATE_HOME": str(home), "HEADGATE_REPORT": "off", "PATH": path}
    runs = list[str]()
    while time.monotonic() < ends:
        folder = base / str(len(runs))
        folder.mkdir()
        (folder / TASK).write_text(JOB)
        entries = list[dict[str, Any]]()
        for i in range(jobs):
            arguments = [f"j{i}.txt", str(draw.uniform(1, 10)), "0.1"]
            entries.append({"name": f"j{i}", "script": TASK, "args": arguments})
        (folder / "jobs.yaml").write_text(json.dumps({"jobs": entries}))
        run = json.loads(headgate(folder, "run", "--detach", "--json", "jobs.yaml"))["run"]
        runs.append(run)
        killed, unkept = set[int](), set[int]()
        keepers = 0
        while True:
            time.sleep(draw.expovariate(1 / pause))
            stands = json.loads(headgate(folder, "status", run, "--json"))
            if stands["state"] not in ("running", "interrupted"):
                break
            word = draw.choice([HUB, GUARD, HUB, GUARD, TASK, KEEPER])
            chosen = processes(home, word)
            if chosen:
                pid = draw.choice(chosen)
                if word == KEEPER:
                    unkept |= children(pid)
                    keepers += 1
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    kills[word] += 1
                    killed.add(pid)
        for job in stands["jobs"]:
            note = folder / f"{job['name']}.txt"  # one that was killed at once has none
            notes = Notes.of(note.read_text().splitlines() if note.exists() else [])
            has_noted = bool(notes.counts)
            tasks = {task["pid"] for task in job["tasks"]}
            was_killed, is_unkept = bool(killed & tasks), bool(unkept & tasks)
            if job["started"] is None and keepers and not has_noted:
                keepers -= 1  # this one was killed before it could start the job's program
                expected = Expected(("failed",), (0,), (0,))
            else:
                # with the hub gone too, nobody reads what it prints: it fails
                many = (0, 1) if is_unkept else (int(not was_killed),)
                begins = (0, 1) if was_killed and not has_noted else (1,)
                state = "failed" if was_killed or is_unkept else "done"
                expected = Expected((state,), begins, many)
            tally.add(run, job, notes, expected)
        print(f"{len(runs)} rounds; killed {dict(kills)}; jobs {dict(tally.states)}", flush=True)
    patience = time.monotonic() + 120
    for pid in processes(home, HUB):
        os.kill(pid, signal.SIGTERM)
    while (left := processes(home)) and time.monotonic() < patience:
        time.sleep(0.2)
    for pid in left:
        tally.problem(f"process {pid} is left")
    for group in cgroups(runs):
        tally.problem(f"cgroup {group} is left")
    return tally


if __name__ == "__main__":
    sys.exit(main())
