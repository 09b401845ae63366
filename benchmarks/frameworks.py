"""What a step of data-parallel training costs over what the network and the computing allow, framework by framework.

    python benchmarks/frameworks.py [--rates 1Gbit] [--only jax,torch] [--repetitions 3] [--json PATH]

A model of 25 MB of equal linear layers, plain SGD, two workers on lab nodes of their own; under `ps` one server on a
third node. The bound of a step is forward, and then whichever is longer: backward, or the bytes each way through the
busiest NIC at its rate. Forward and backward are timed in the same process without the exchange. Nothing is encrypted.
TensorFlow's workers do not wait for each other under `ps`: there a step is one of each worker. Needs root, for the lab.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _frame
from _frameworks_scripts import JAX, TENSORFLOW, TENSORFLOW_PS
from ps_dense import BATCH, RATES, SHAPES
from ps_dense import SCRIPT as TORCH

LAYERS, WIDTH = SHAPES[25]
BYTES = LAYERS * WIDTH * WIDTH * 4
WORKERS = 2
LAB = "frameworks"
NODES = {"one": "10.77.45.1", "two": "10.77.45.2", "server": "10.77.45.3"}


@dataclass(frozen=True)
class Case:
    """What is measured.

    Args:
        name: In the table.
        script: Its text.
        servers: How many; 0: all-reduce.
        synchronous: Whether workers wait for each other.
        times: How its forward and backward are found.
    """

    name: str
    script: str
    servers: int
    synchronous: bool = True
    times: str = "both workers at once, before prepare"

    @property
    def busiest(self) -> float:
        """Bytes each way through the busiest NIC in a step."""
        return WORKERS * BYTES / self.servers if self.servers else 2 * (WORKERS - 1) / WORKERS * BYTES

    @property
    def bound(self) -> str:
        """How its bound is got, in words."""
        if self.servers:
            return f"{WORKERS} gradients into the server's NIC, {WORKERS} models out of it; times: {self.times}"
        return f"a ring: 2(n-1)/n of the model through each NIC; times: {self.times}"


CASES = {
    "jax": Case("JAX allreduce", JAX, 0, times="both workers at once, jitted on one device"),
    "tensorflow": Case("TensorFlow allreduce", TENSORFLOW, 0, times="both workers at once, of one replica"),
    "tensorflow-ps": Case("TensorFlow ps, async", TENSORFLOW_PS, 1, synchronous=False, times="the coordinator alone"),
    "torch": Case("torch allreduce", TORCH, 0),
    "torch-ps": Case("torch ps", TORCH, 1),
}


def measured(case: Case, rate: str, steps: int, folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of a step, and its bound."""
    out = Path(tempfile.mkdtemp(dir=folder))
    plan: dict[str, object] = {
        "strategy": "ps" if case.servers else "allreduce",
        "workers": WORKERS,
        "servers": case.servers,
        "synchronous": case.synchronous,
        "worker_nodes": ["one", "two"],
        "server_nodes": ["server"] * case.servers,
    }
    (folder / "plan.yaml").write_text(json.dumps(plan))
    (folder / "train.py").write_text(case.script)
    command = ["run", "--plan", "plan.yaml", "--cluster", LAB, "--no-encrypt", "train.py", "--"]
    arguments = ["headgate", *map(str, (LAYERS, WIDTH, BATCH, steps)), str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "headgate", *command, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{case.name}: the run ended with {done.returncode}\n{done.stdout}")
    found = [json.loads(path.read_text()) for path in sorted(out.glob("worker-*.json"))]
    forward, backward = (max(worker[name] for worker in found) for name in ("forward", "backward"))
    bound = forward + max(backward, case.busiest / RATES[rate])
    return statistics.median(worker["step"] for worker in found), bound


def main() -> None:
    parser = _frame.parser("A step of data-parallel training over its bound, by framework.", 3)
    parser.add_argument("--rates", default="1Gbit", help=f"some of {', '.join(RATES)} (default: 1Gbit)")
    parser.add_argument("--only", default=",".join(CASES), help=f"some of {', '.join(CASES)} (default: all)")
    parser.add_argument("--steps", type=int, default=22, help="the first two do not count (default: 22)")
    given = parser.parse_args()
    packages = ("jax", "tensorflow-cpu", "keras", "torch", "pyzmq")
    _frame.heading(given.repetitions, *packages)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        environment = _frame.environment(HEADGATE_HOME=os.path.join(place, "home"), TF_CPP_MIN_LOG_LEVEL="2")
        try:
            for rate in given.rates.split(","):
                with _frame.lab(folder, LAB, NODES, rate, environment):
                    for _ in range(given.repetitions):
                        for name in given.only.split(","):
                            times = measured(CASES[name], rate, given.steps, folder, environment)
                            found.setdefault((rate, name), []).append(times)
        finally:
            _frame.end_hub(environment)
    print(f"{'NIC':>8}  {'':22} {'step, s':>24} {'bound, s':>9} {'over it':>24}")
    rows = []
    for (rate, name), pairs in found.items():
        case, seconds, over = CASES[name], [s for s, _ in pairs], [s / b for s, b in pairs]
        bound = statistics.median(b for _, b in pairs)
        print(f"{rate:>8}  {case.name:22} {_frame.spread(seconds):>24} {bound:>9.3f} {_frame.spread(over):>24}")
        rows.append(
            {"nic": rate, "case": name, "seconds": seconds, "bound": bound, "over": over, "bound_is": case.bound}
        )
    print(f"\nbounds, of {BYTES / 1e6:.1f} MB: forward, and then the longer of backward and")
    for name in given.only.split(","):
        print(f"  {CASES[name].name:22} {CASES[name].bound}")
    _frame.write(given.json, "frameworks", {"bytes": BYTES, "batch": BATCH, "rows": rows}, *packages)


if __name__ == "__main__":
    main()
