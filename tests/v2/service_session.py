"""What the user of `service.py` types after a login, as the kernel's command line says; and the
jobs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

USER = "ada"
NOTES = "/dev/ttyS1"
FACTS = "service: "
"""Begins a line of the console that tells something."""
JOB = f"""
import os, sys, time
name, steps, *saves = sys.argv[1:]

def note(*words):
    with open("{NOTES}", "w") as line:
        print(name, *words, file=line, flush=True)

step = int(open(name + ".saved").read()) if os.path.exists(name + ".saved") else 0
note("begin", step, open("/proc/self/cgroup").read().strip())
while step < int(steps):
    step += 1
    print(f"step {{step}} loss {{1 / step}}", flush=True)
    time.sleep(1)
    if saves:
        with open(name + ".new", "w") as file:
            print(step, file=file, flush=True)
            os.fsync(file.fileno())
        os.replace(name + ".new", name + ".saved")
        os.sync()
        note("saved", step)
note("end")
"""
"""Arguments: its name, steps of a second, and anything if it goes on from what it saved."""
JOBS = """jobs:
  - {name: counts, script: job.py, args: [counts, 100000]}
  - {name: saves, script: job.py, args: [saves, 40, saves], resumes: true}
  - {name: later, script: job.py, args: [later, 2], after: saves}
  - {name: last, script: job.py, args: [last, 25, saves], resumes: true, after: later}
"""


def tell(**facts: object) -> None:
    print("\n" + FACTS + json.dumps(facts), flush=True)


def typed(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        log = Path(".local/share/headgate/hub/hub.log")
        told = log.read_text() if log.exists() else ""
        tell(refused=f"{words}: {done.returncode} {done.stdout} {done.stderr} {told}")
    return done.stdout.strip()


def headgate(*words: str) -> str:
    return typed(sys.executable, "-m", "headgate", *words)


def states() -> dict[str, str]:
    answer = headgate("status", "--json")
    return {job["name"]: job["state"] for job in json.loads(answer)["jobs"]} if answer else {}


def until(these: dict[str, str]) -> dict[str, str]:
    """Wait until these jobs are in these states."""
    while not these.items() <= (now := states()).items():
        time.sleep(1)
    return {name: now[name] for name in these}


def main() -> None:
    [step] = [
        word.partition("=")[2]
        for word in Path("/proc/cmdline").read_text().split()
        if word.startswith("SERVICE_STEP=")
    ]
    Path("job.py").write_text(JOB)
    if step == "install":
        headgate("service", "install")
        tell(enabled=typed("systemctl", "--user", "is-enabled", "headgate"))
        headgate("run", "--detach", "jobs.yaml")
        tell(before=until({"counts": "running", "saves": "running"}))
        while not Path("saves.saved").exists():
            time.sleep(1)
        os.sync()
        typed("systemctl", "reboot")
    elif step == "remove":
        tell(after=states())
        headgate("service", "remove")
        tell(left=[str(path) for path in Path(".config").rglob("headgate*")])
        typed("systemctl", "poweroff")
    time.sleep(600)  # the machine is going down


if __name__ == "__main__":
    main()
