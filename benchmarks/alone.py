"""What Headgate costs a job that is alone: its wall time under `headgate run` over that under plain python.

    python benchmarks/alone.py [--repetitions 5] [--json PATH]

Two jobs: `examples/cnn.py` with its three calls, and `examples/plain.py`, which never mentions Headgate. The two
ways are taken in turn and compared pair by pair. Both are whole commands, from the prompt to the prompt; that the
hub starts, and that a report is written at the end, is in the figure. Beside the wall time stands the time until the
job's last step was done.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _frame

EXAMPLES = Path(__file__).parent.parent / "examples"
JOBS = {"cnn.py, three calls": ("cnn.py", "--epochs", "120"), "plain.py": ("plain.py", "--epochs", "60")}


def plain(command: tuple[str, ...]) -> float:
    """Wall seconds under plain python."""
    began = time.monotonic()
    subprocess.run([sys.executable, *command], cwd=EXAMPLES, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def under_headgate(command: tuple[str, ...], home: str) -> tuple[float, float]:
    """Wall seconds of the whole command, and of the job alone as the run recorded it."""
    script, *rest = command
    began = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-m", "headgate", "run", script, "--json", "--", *rest],
        cwd=EXAMPLES,
        env=_frame.environment(HEADGATE_HOME=home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wall = time.monotonic() - began
    [job] = json.loads(answer.stdout)["jobs"]
    return wall, job["ended"] - job["started"]


def main() -> None:
    options = _frame.parser("A job alone under Headgate against plain python.", 5).parse_args()
    _frame.heading(options.repetitions, "torch")
    print(f"{'':24}{'plain python':>14}{'headgate run':>14}{'ratio of whole commands':>32}{'ratio, job alone':>28}")
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for name, command in JOBS.items():
            plain(command)  # warms the page cache for both
            pairs = [(plain(command), *under_headgate(command, home)) for _ in range(options.repetitions)]
            whole = [wall / base for base, wall, _ in pairs]
            inside = [job / base for base, _, job in pairs]
            base, wall = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            print(f"{name:24}{base:>12.1f} s{wall:>12.1f} s{_frame.spread(whole):>32}{_frame.spread(inside):>28}")
            rows.append({"job": name, "pairs": pairs, "ratio": statistics.median(whole), "aim": 1.02})
    _frame.write(options.json, "alone", {"rows": rows}, "torch")


if __name__ == "__main__":
    main()
