"""What very many jobs cost: CPU seconds of a dry run, of the command that runs them, of the hub, of
`status` and of the report, and the bytes of that.

    python benchmarks/many_jobs.py [--jobs 100,300,1000] [--json PATH]

Each job is an `echo`, so that all but the jobs themselves is Headgate's. The second figure in a row
is the first one over that of the row before, beside how many times as many jobs there are: what is
linear has both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

FIGURES = ("dry run", "run", "hub", "status", "report", "report bytes")


def cpu_seconds(folder: Path, *words: str) -> float:
    """CPU time of a command and of what it waits for; of a hub that it starts nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "headgate", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def hub_seconds(home: Path) -> float:
    """CPU time that the hub has used so far, and the children that it waited for: the jobs are
    among these.
    """
    about = json.loads((home / "hub" / "allocation.json").read_text())
    times = psutil.Process(about["pid"]).cpu_times()
    return float(times.user + times.system)


def measured(count: int) -> dict[str, float]:
    """The figures of a run of so many jobs."""
    with tempfile.TemporaryDirectory() as place:
        home, folder = Path(place, "home"), Path(place, "work")
        folder.mkdir()
        os.environ["HEADGATE_HOME"] = str(home)
        jobs = "".join(
            f"  - {{name: j{i}, run: 'echo epoch {i} loss 0.5'}}\n" for i in range(count)
        )
        (folder / "jobs.yaml").write_text(f"jobs:\n{jobs}")
        cpu_seconds(folder, "doctor")  # node.json, and whatever is made once
        found = {"dry run": cpu_seconds(folder, "run", "--dry-run", "jobs.yaml")}
        found["run"] = cpu_seconds(folder, "run", "jobs.yaml")
        found["hub"] = hub_seconds(home)
        found["status"] = cpu_seconds(folder, "status")
        found["report"] = cpu_seconds(folder, "report")
        found["report bytes"] = float(next(home.glob("runs/*/report.html")).stat().st_size)
        hub = psutil.Process(json.loads((home / "hub" / "allocation.json").read_text())["pid"])
        hub.terminate()
        hub.wait(60.0)  # it writes into the folder until it ends
        return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", default="100,300,1000", help="how many, of each run")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    asked = parser.parse_args()
    rows: dict[int, dict[str, float]] = {}
    print("jobs    ×     " + "".join(f"{name:>22}" for name in FIGURES))
    for count in map(int, asked.jobs.split(",")):
        rows[count] = measured(count)
        before = list(rows)[-2] if len(rows) > 1 else count
        cells = [
            f"{rows[count][name]:12.4g} {rows[count][name] / rows[before][name]:8.1f}×"
            for name in FIGURES
        ]
        print(f"{count:<6} {count / before:5.1f}×  " + "".join(cells), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
