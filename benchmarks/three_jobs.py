"""The three demo jobs under Headgate against the same three started by hand: makespan, from the first start to the
last end.

    python benchmarks/three_jobs.py [--repetitions 3] [--json PATH]

By hand means `python cnn.py & sleep 5; python vae.py & sleep 5; python charlm.py &` and waiting for all. Policy
`none` adds nothing but the boxes; `equal` also has threads follow the grant.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _frame

EXAMPLES = Path(__file__).parent.parent / "examples"
STARTS = ((0.0, "cnn.py"), (5.0, "vae.py"), (10.0, "charlm.py"))


def by_hand(environment: dict[str, str]) -> float:
    """Makespan in seconds."""
    began = time.monotonic()
    processes = []
    for at, script in STARTS:
        time.sleep(max(began + at - time.monotonic(), 0.0))
        processes.append(
            subprocess.Popen([sys.executable, script], cwd=EXAMPLES, stdout=subprocess.DEVNULL, env=environment)
        )
    for process in processes:
        if process.wait() != 0:
            raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    return time.monotonic() - began


def under_headgate(policy: str, home: str) -> float:
    """Wall seconds of the whole command, the hub's start and the report included."""
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "headgate", "run", "jobs.yaml", "--policy", policy, "--json"],
        cwd=EXAMPLES,
        env=_frame.environment(HEADGATE_HOME=home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - began


def main() -> None:
    options = _frame.parser("Three jobs under Headgate against three by hand.", 3).parse_args()
    _frame.heading(options.repetitions, "torch")
    environment = _frame.environment()
    ways: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        for _ in range(options.repetitions):
            ways.setdefault("by hand", []).append(by_hand(environment))
            passive = {**environment, "OMP_WAIT_POLICY": "PASSIVE"}
            ways.setdefault("by hand, OMP_WAIT_POLICY=PASSIVE", []).append(by_hand(passive))
            for policy in ("none", "equal"):
                ways.setdefault(f"headgate run --policy {policy}", []).append(under_headgate(policy, home))
    print(f"{'':36}{'makespan':>12}{'over by hand':>28}")
    rows = []
    for name, seconds in ways.items():
        ratios = [mine / hand for mine, hand in zip(seconds, ways["by hand"], strict=True)]
        print(f"{name:36}{statistics.median(seconds):>10.1f} s{_frame.spread(ratios):>28}")
        rows.append({"way": name, "seconds": seconds, "ratio": statistics.median(ratios)})
    _frame.write(options.json, "three_jobs", {"rows": rows}, "torch")


if __name__ == "__main__":
    main()
