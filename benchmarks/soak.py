"""Kill hubs, guards, keepers and tasks at random while jobs run, and count what became of the jobs.

    python benchmarks/soak.py --hours 0.1 --jobs 40

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

JOB = """
import os, sys, time
name, seconds = sys.argv[1], float(sys.argv[2])
note = open(name, "a", buffering=1)
note.write("begin\\n")
ends = time.monotonic() + seconds
step = 0
while (now := time.monotonic()) < ends:
    step += 1
    print(f"step {step} loss {1 / step:.4f}", flush=True)
    time.sleep(0.1)
    note.write(f"trained {time.monotonic() - now:.3f}\\n")
note.write("end\\n")
"""
HUB, GUARD = "headgate.hub.server", "headgate.hub.watchdog"
KEEPER, TASK = "launcher.py", "soak_job.py"


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
    options = parser.parse_args()
    draw, kills, states = random.Random(options.seed), Counter[str](), Counter[str]()
    ends = time.monotonic() + 3600 * options.hours
    problems: list[str] = []
    trained = lasted = 0.0
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as base:
        home = Path(base) / "home"
        os.environ |= {"HEADGATE_HOME": str(home), "HEADGATE_REPORT": "off"}
        runs = list[str]()
        while time.monotonic() < ends:
            folder = Path(base) / str(len(runs))
            folder.mkdir()
            (folder / TASK).write_text(JOB)
            jobs = [
                {"name": f"j{i}", "script": TASK, "args": [f"j{i}.txt", str(draw.uniform(1, 10))]}
                for i in range(options.jobs)
            ]
            (folder / "jobs.yaml").write_text(json.dumps({"jobs": jobs}))
            run = json.loads(headgate(folder, "run", "--detach", "--json", "jobs.yaml"))["run"]
            runs.append(run)
            killed, unkept = set[int](), set[int]()
            keepers = 0
            while True:
                time.sleep(draw.expovariate(1 / options.pause))
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
                states[job["state"]] += 1
                note = folder / f"{job['name']}.txt"  # one that was killed at once has none
                lines = note.read_text().split("\n") if note.exists() else []
                if job["started"] is None and keepers and not lines:
                    keepers -= 1  # this one was killed before it could start the job's program
                    if job["state"] == "failed":
                        continue
                counts = Counter(line.partition(" ")[0] for line in lines)
                tasks = {task["pid"] for task in job["tasks"]}
                was_killed = bool(killed & tasks)
                fails = was_killed or bool(unkept & tasks)
                good = job["state"] == ("failed" if fails else "done")
                began = counts["begin"] == 1 or (was_killed and not lines)
                ends_right = counts["end"] == (not was_killed)
                if unkept & tasks:  # with the hub gone too, nobody reads what it prints: it fails
                    ends_right = counts["end"] <= 1
                if not good or not began or not ends_right:
                    problems.append(
                        f"{run} {job['name']}: {job['state']}, {job['reason']} {counts}"
                    )
                    print(problems[-1], flush=True)
                trained += sum(float(line[8:]) for line in lines if line.startswith("trained"))
                if job["started"] is not None:
                    lasted += job["ended"] - job["started"]
            print(f"{len(runs)} rounds; killed {dict(kills)}; jobs {dict(states)}", flush=True)
        patience = time.monotonic() + 120
        for pid in processes(home, HUB):
            os.kill(pid, signal.SIGTERM)
        while (left := processes(home)) and time.monotonic() < patience:
            time.sleep(0.2)
        leftovers = [f"process {pid} is left" for pid in left]
        leftovers += [f"cgroup {folder} is left" for folder in cgroups(runs)]
    print(
        "\n".join(
            [
                f"{trained / max(lasted, 1e-9):.1%} of the time of jobs was spent training",
                *leftovers,
            ]
        )
    )
    problems += leftovers
    print(f"{len(problems)} problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
