"""What more would buy, as `headgate explain` tells it, against really having more.

    python benchmarks/more_really.py [--only ROW ...] [--seconds 10] [--json PATH]

A job is run, explain is asked what more of something would buy, then the job has it and is run
again. Cores are those of its own limit; NICs, disks and servers are those of the nodes of a lab.
Needs root and a machine of two cores that does nothing else; all rows take about a quarter of an
hour.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import _frame

PLAIN = Path(__file__).parent / "plain"
LAB = "more-really"


@dataclass(frozen=True)
class Setup:
    """A job and what it has.

    Args:
        script: Of `benchmarks/plain`.
        args: Of it.
        lasts: Its option that says how long it runs; steps where workers have to end at the same
            one.
        job: Keys of the job file besides.
        lab: Keys of each node of a lab; none: it runs on the machine itself.
        serves: Keys of the nodes of its servers, where they have others.
    """

    script: str
    args: Sequence[str]
    lasts: Sequence[str] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    lab: Mapping[str, str] = field(default_factory=dict)
    serves: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """What a job is given more of; `cores+loader`: of both."""

    resource: str
    times: str
    before: Setup
    after: Setup


def _cores(
    script: str, args: Sequence[str], few: float, many: float, threads: int, times: str
) -> Change:
    before = Setup(
        script, args, job={"limits": {"cores": few}, "env": {"OMP_NUM_THREADS": str(threads)}}
    )
    return Change(
        "cores", times, before, replace(before, job={**before.job, "limits": {"cores": many}})
    )


def _loader(args: Sequence[str], few: int, many: int, times: str) -> Change:
    one_thread = {"env": {"OMP_NUM_THREADS": "1"}}
    few_has, many_has = (
        Setup("limited.py", [*args, "--workers", str(count)], job=one_thread)
        for count in (few, many)
    )
    return Change("loader", times, few_has, many_has)


def _disk(script: str, args: Sequence[str], few: int, many: int, times: str) -> Change:
    slow, fast = (
        Setup(script, args, lab={"cores": "1.5", "disk": f"{rate}MB/s"}) for rate in (few, many)
    )
    return Change("disk", times, slow, fast)


def _network(
    args: Sequence[str], plan: Mapping[str, Any], few: int, many: int, times: str, steps: int
) -> Change:
    slow, fast = (_several(args, plan, rate, steps) for rate in (few, many))
    return Change("network", times, slow, fast)


def _several(args: Sequence[str], plan: Mapping[str, Any], rate: int, steps: int) -> Setup:
    job = {"plan": plan, "encrypt": False}
    return Setup(
        "limited.py", args, ["--steps", str(steps)], job, {"cores": "0.6", "nic": f"{rate}Mbit"}
    )


def _weak(few: int, many: int) -> Change:
    """So many servers of 0.3 cores, and no NIC in the way."""
    plans = (
        {**SERVED, "servers": count, "server_nodes": [f"server-{i + 1}" for i in range(count)]}
        for count in (few, many)
    )
    before, after = (
        replace(
            _several([], {**plan, "worker_nodes": ["node-1", "node-2"]}, 10_000, 160),
            serves={"cores": "0.3"},
        )
        for plan in plans
    )
    return Change("servers", "x2", before, after)


def _both(args: Sequence[str], cores: float) -> dict[str, Change]:
    """A loader that takes as long as computing: more of one, of the other, and of both."""

    def has(times: float, workers: int) -> Setup:
        job = {"limits": {"cores": times * cores}, "env": {"OMP_NUM_THREADS": "1"}}
        return Setup("limited.py", [*args, "--workers", str(workers)], ["--seconds", "25"], job)

    return {
        "equal-cores": Change("cores", "x2", has(1, 1), has(2, 1)),
        "equal-loader": Change("loader", "x2", has(1, 1), has(1, 2)),
        "equal-both": Change("cores+loader", "x2", has(1, 1), has(2, 2)),
    }


RING, SERVED = (
    {"strategy": "allreduce", "workers": 2},
    {"strategy": "ps", "workers": 2, "servers": 1},
)
FAR = ["--sleep", "0.001"]
CHANGES: Mapping[str, Change] = {
    "cores-conv": _cores("unlike.py", ["conv"], 1.0, 2.0, 2, "x2"),
    "cores-conv-quarter": _cores("unlike.py", ["conv"], 1.0, 1.25, 2, "x1.25"),
    "cores-matmul": _cores("unlike.py", ["matmul"], 1.0, 2.0, 2, "x2"),
    "cores-objects": _cores("unlike.py", ["objects"], 0.5, 1.0, 1, "x2"),
    "cores-objects-quarter": _cores("unlike.py", ["objects"], 0.8, 1.0, 1, "x1.25"),
    "cores-recurrent": _cores("unlike.py", ["recurrent"], 1.0, 2.0, 2, "x2"),
    "cores-training": _cores("limited.py", ["--width", "1024"], 0.4, 0.8, 1, "x2"),
    "loader-1-2": _loader(FAR, 1, 2, "x2"),
    "loader-2-4": _loader([*FAR, "--width", "1024"], 2, 4, "x2"),
    "loader-4-5": _loader(FAR, 4, 5, "x1.25"),
    "loader-0-1": _loader(["--sleep", "0.0005", "--width", "1024"], 0, 1, "x2"),
    "loader-decoding": _loader(["--decode", "10"], 1, 2, "x2"),
    "disk-plain": _disk("unlike.py", ["disk"], 40, 80, "x2"),
    "disk-plain-quarter": _disk("unlike.py", ["disk"], 40, 50, "x1.25"),
    "disk-loader": _disk(
        "limited.py", ["--workers", "2", "--read", "4194304", "--batch", "1"], 60, 120, "x2"
    ),
    "network-ring": _network([], RING, 100, 200, "x2", 40),
    "network-ring-computing": _network(["--batch", "512"], RING, 400, 800, "x2", 40),
    "network-servers": _network([], SERVED, 100, 200, "x2", 25),
    "network-servers-quarter": _network([], SERVED, 100, 125, "x1.25", 25),
    "servers-1-2": Change(
        "servers",
        "x2",
        _several([], SERVED, 100, 25),
        _several([], {**SERVED, "servers": 2}, 100, 25),
    ),
    "servers-200": _network([], SERVED, 200, 400, "x2", 40),
    "servers-cores": _weak(1, 2),
    **_both(["--sleep", "0.0027", "--width", "2048"], 0.5),
}


@contextmanager
def up(setup: Setup, folder: Path, variables: dict[str, str]) -> Iterator[list[str]]:
    """The options of a run that has what the setup says."""
    if not setup.lab:
        yield []
        return
    lines = ["lab: true", f"name: {LAB}", "oversubscribe: true", "nodes:"]
    plan = setup.job.get("plan", {})
    for number, (kind, count, keys) in enumerate(
        [
            ("node", plan.get("workers", 1), setup.lab),
            ("server", plan.get("servers", 0), {**setup.lab, **setup.serves}),
        ]
    ):
        if count:
            has = {
                "kind": kind,
                "count": count,
                "address": f"10.77.62.{1 + 10 * number}",
                "memory": "4GiB",
                **keys,
            }
            lines.append(f"  - {json.dumps(has)}")
    file = folder / "lab.yaml"
    file.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "headgate", "lab"]
    try:
        subprocess.run([*command, "up", file], env=variables, stdout=subprocess.DEVNULL, check=True)
        yield ["--cluster", str(file)]
    finally:
        subprocess.run(
            [*command, "down", LAB], env=variables, stdout=subprocess.DEVNULL, check=False
        )


def run(
    setup: Setup, seconds: float, folder: Path, variables: dict[str, str]
) -> tuple[float, dict[str, Any]]:
    """Steps a second of a job, and what `headgate explain --json` says of it."""
    lasts = setup.lasts or ["--seconds", str(seconds)]
    script = {
        "name": "job",
        "script": str(PLAIN / setup.script),
        "python": sys.executable,
        "workdir": str(folder),
    }
    file = folder / "jobs.yaml"
    file.write_text(json.dumps({"jobs": [{**script, "args": [*setup.args, *lasts], **setup.job}]}))
    command = [sys.executable, "-m", "headgate"]

    def headgate(*words: str) -> str:
        asked = [*command, *words]
        return subprocess.run(
            asked,
            env=variables,
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
        ).stdout

    with up(setup, folder, variables) as options:
        headgate("run", str(file), "--policy", "none", *options)
    [told] = json.loads(headgate("explain", "--json"))["jobs"]
    [figures] = json.loads(headgate("report", "--json"))["jobs"]
    return float(figures["steps_per_second"]), told


def main() -> None:
    made = _frame.parser("What more would buy, told and really.", 1)
    made.add_argument("--only", nargs="+", choices=CHANGES, help="rows (default: all)")
    made.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        help="of a run that has no number of steps (default: 10)",
    )
    options = made.parse_args()
    _frame.heading(options.repetitions, "torch")
    heads = (
        f"{'what':24}{'resource':13}{'times':>6}{'really':>9}{'told':>9}   "
        f"{'band':16}{'error':>7}{'replay':>8}"
    )
    print(f"{heads}  verdict before")
    rows: list[dict[str, Any]] = []
    runs: dict[str, tuple[float, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as place, _frame.leaving():
        folder = Path(place)
        variables = _frame.environment(HEADGATE_HOME=str(folder / "home"))
        try:
            for name in options.only or CHANGES:
                change = CHANGES[name]
                for setup in (change.before, change.after):
                    if repr(setup) not in runs:
                        runs[repr(setup)] = run(setup, options.seconds, folder, variables)
                (before, told), (after, _) = (
                    runs[repr(setup)] for setup in (change.before, change.after)
                )
                rows.append(_row(name, change, after / before, told))
        finally:
            _frame.end_hubs(variables)
    given = [row for row in rows if row["told"] is not None]
    if given:
        errors = [abs(row["error"]) for row in given]
        held = sum(row["low"] <= row["really"] <= row["high"] for row in given)
        middle = f"median error {statistics.median(errors):.1%}"
        print(f"\n{middle}, mean {statistics.mean(errors):.1%}, worst {max(errors):.0%}")
        print(
            f"the band of 90 % held {held} of {len(given)}; no figure for "
            f"{len(rows) - len(given)} of {len(rows)}"
        )
    _frame.write(options.json, "more_really", {"seconds": options.seconds, "rows": rows}, "torch")


def _row(name: str, change: Change, really: float, told: dict[str, Any]) -> dict[str, Any]:
    """Print a line of the table."""
    found = told["more"].get(change.resource, {}).get(change.times)
    row: dict[str, Any] = {
        "what": name,
        "resource": change.resource,
        "times": change.times,
        "really": really,
    }
    row |= {
        "verdict": told["verdict"]["name"],
        "told": None,
        "more": told["more"],
        "replay_error": told["replay_error"],
    }
    start = f"{name:24}{change.resource:13}{change.times:>6}{really:>9.2f}"
    if found is None:
        print(f"{start}   no figure: {told['more_lacks'].get(change.resource)}", flush=True)
        return row
    error, off = found["speedup"] / really - 1.0, told["replay_error"]
    band = f"{found['low']:.2f} to {found['high']:.2f}"
    replayed = f"{off:>8.1%}" if off is not None else f"{'–':>8}"
    print(
        f"{start}{found['speedup']:>9.2f}   {band:16}{error:>7.0%}{replayed}  {row['verdict']}",
        flush=True,
    )
    return {
        **row,
        "told": found["speedup"],
        "low": found["low"],
        "high": found["high"],
        "error": error,
    }


if __name__ == "__main__":
    main()
