"""Seconds that a job lost to its neighbours: as `headgate explain` tells them, against the same job then run alone.

    python benchmarks/seconds_lost.py [--pairs 12] [--policy none] [--scale 1] [--json PATH]

Two unlike jobs with a fixed number of steps begin at once; then each runs by itself. What it really lost is the
difference of its two elapsed times. The runs by themselves are the controls: nobody may be blamed in them. Needs a
machine of two cores that does nothing else; twelve pairs take about a quarter of an hour.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _frame

TASK = Path(__file__).parent / "plain/unlike.py"
STEPS = {
    "conv": 110,
    "matmul": 170,
    "recurrent": 240,
    "embedding": 130,
    "stream": 360,
    "objects": 1100,
    "loader": 260,
    "disk": 700,
}
"""Of each job, about ten seconds by itself on two cores of a small virtual machine."""
PAIRS = (
    *(("conv", "objects"), ("stream", "recurrent"), ("loader", "matmul"), ("embedding", "disk")),
    *(("conv", "matmul"), ("objects", "stream"), ("recurrent", "loader"), ("disk", "matmul")),
    *(("embedding", "objects"), ("conv", "stream"), ("loader", "disk"), ("matmul", "recurrent")),
)


def explained(kinds: Sequence[str], policy: str, scale: float, folder: Path) -> dict[str, dict[str, Any]]:
    """What `headgate explain --json` says of each of these jobs after they ran side by side."""
    jobs = [
        {
            "name": kind,
            "script": str(TASK),
            "python": sys.executable,
            "args": [kind, "--steps", str(round(STEPS[kind] * scale))],
        }
        for kind in kinds
    ]
    file = folder / "jobs.yaml"
    file.write_text(json.dumps({"jobs": jobs}))
    variables = _frame.environment(HEADGATE_HOME=str(folder / "home"))
    command = [sys.executable, "-m", "headgate"]
    asked = [*command, "run", str(file), "--policy", policy]
    subprocess.run(asked, env=variables, check=True, stdout=subprocess.DEVNULL, timeout=600)
    told = subprocess.run([*command, "explain", "--json"], env=variables, check=True, capture_output=True, text=True)
    return {job["job"]: job for job in json.loads(told.stdout)["jobs"]}


def lost(job: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds, with the ends of their band, that it lost to neighbours."""
    part = job["account"]["neighbours"]
    return part["seconds"], part["low"], part["high"]


def main() -> None:
    made = _frame.parser("Seconds lost to neighbours, told and measured.", 1)
    made.add_argument("--pairs", type=int, default=len(PAIRS), help=f"of {len(PAIRS)} pairs of jobs (default: all)")
    made.add_argument(
        "--policy", default="none", help="that shares the cores (default: none, the system's own sharing)"
    )
    made.add_argument("--scale", type=float, default=1.0, help="of the jobs' steps (default: 1)")
    options = made.parse_args()
    _frame.heading(options.repetitions, "torch", "numpy")
    columns = "".join(f"{name:>8}" for name in ("shared", "alone", "lost", "told"))
    print(f"{'job':12}{'beside':12}{columns}   {'band':16}{'error':>7}  blamed alone")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, _frame.leaving():
        folder = Path(place)
        try:
            for pair in PAIRS[: options.pairs]:
                shared = explained(pair, options.policy, options.scale, folder)
                for kind, other in (pair, pair[::-1]):
                    alone = explained([kind], options.policy, options.scale, folder)[kind]
                    rows.append(_row(kind, other, shared[kind], alone))
        finally:
            _frame.end_hubs(_frame.environment(HEADGATE_HOME=str(folder / "home")))
    errors = [abs(row["error"]) for row in rows]
    held = sum(row["low"] <= row["lost"] <= row["high"] for row in rows)
    blamed = sum(row["blamed_alone"] > 0.05 for row in rows)
    middle = f"median error {statistics.median(errors):.1%} of what was lost"
    print(f"\n{middle}, mean {statistics.mean(errors):.1%}, worst {max(errors):.0%}")
    print(f"the band of 90 % held {held} of {len(rows)}; {blamed} of {len(rows)} controls lost 5 % or more to somebody")
    _frame.write(options.json, "seconds_lost", {"policy": options.policy, "rows": rows}, "torch", "numpy")


def _row(kind: str, other: str, shared: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """Print a line of the table."""
    truly = shared["elapsed"] - alone["elapsed"]
    told, low, high = lost(shared)
    error = (told - truly) / truly
    blamed = lost(alone)[0] / alone["elapsed"]
    times = (
        f"{shared['elapsed']:>8.1f}{alone['elapsed']:>8.1f}{truly:>8.1f}{told:>8.1f}   {f'{low:.1f} to {high:.1f}':16}"
    )
    print(f"{kind:12}{other:12}{times}{error:>7.0%}  {blamed:.1%}", flush=True)
    return {
        "job": kind,
        "beside": other,
        "shared": shared["elapsed"],
        "alone": alone["elapsed"],
        "lost": truly,
        "told": told,
        "low": low,
        "high": high,
        "error": error,
        "blamed_alone": blamed,
        "losses": shared["lost"],
    }


if __name__ == "__main__":
    main()
