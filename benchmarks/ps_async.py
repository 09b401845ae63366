"""Asynchronous parameter servers on lab nodes: steps a second over what the network and the computing allow.

    python benchmarks/ps_async.py [--repetitions N] [--json RESULT.json]

A dense layer of 25 MB, plain SGD, one server and 1 or 2 workers, each on a node of its own, at 200 Mbit/s and 1 Gbit/s.
The bound of a worker's step is its forward and backward pass, measured alone on the same node's cores, and the bytes of
the model each way through the busiest NIC: the server's, which carries them for every worker, or its own. Gradients
are pushed after backward, values come back chunk by chunk meanwhile. Not encrypted. Needs root, for the lab.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import _frame

WIDTH, BATCH, STEPS = 2500, 32, 25
RATES = {"200Mbit": 200e6 / 8, "1Gbit": 1e9 / 8}
LAB = "ps-async"
NODES = {"server": "10.77.44.1", "one": "10.77.44.2", "two": "10.77.44.3"}
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch
import headgate.torch as hg

width, batch, steps = map(int, sys.argv[1:4])
model = torch.nn.Linear(width, width, bias=False)
features = torch.randn(batch, width)
computing = []
for _ in range(8):
    begun = time.perf_counter()
    model(features).square().mean().backward()
    model.weight.grad = None
    computing.append(time.perf_counter() - begun)
model, optimizer = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
seconds = []
for _ in range(steps):
    begun = time.perf_counter()
    loss = model(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - begun)
middle = lambda values: sorted(values)[len(values) // 2]
task = os.environ["HEADGATE_TASK"].rpartition("/")[2]
result = {"computing": middle(computing[2:]), "step": middle(seconds[3:])}
Path(sys.argv[4], task + ".json").write_text(json.dumps(result))
"""


def measured(folder: Path, workers: int, environment: dict[str, str]) -> list[dict[str, float]]:
    """What each worker measured."""
    out = Path(tempfile.mkdtemp(dir=folder))
    plan = {
        "strategy": "ps",
        "workers": workers,
        "servers": 1,
        "synchronous": False,
        "worker_nodes": ["one", "two"][:workers],
        "server_nodes": ["server"],
    }
    (folder / "plan.yaml").write_text(json.dumps(plan))
    command = ["run", "--plan", "plan.yaml", "--cluster", LAB, "--no-encrypt", "train.py", "--"]
    subprocess.run(
        [sys.executable, "-m", "headgate", *command, *map(str, (WIDTH, BATCH, STEPS)), str(out)],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return [json.loads((out / f"worker-{index}.json").read_text()) for index in range(workers)]


def main() -> None:
    given = _frame.parser(__doc__ or "", repetitions=3).parse_args()
    _frame.heading(given.repetitions, "torch", "pyzmq")
    size = WIDTH * WIDTH * 4
    cases: dict[tuple[str, int], list[tuple[float, float]]] = {(r, w): [] for r in RATES for w in (1, 2)}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT)
        environment = _frame.environment(HEADGATE_HOME=os.path.join(place, "home"))
        for _ in range(given.repetitions):
            for rate, bytes_a_second in RATES.items():
                with _frame.lab(folder, LAB, NODES, rate, environment):
                    for workers in (1, 2):
                        found = measured(folder, workers, environment)
                        alone = size / bytes_a_second
                        # Each on its own, or all of them through the server's NIC.
                        each = sum(1 / (worker["computing"] + alone) for worker in found)
                        bound = min(each, 1 / alone)
                        cases[rate, workers].append((sum(1 / worker["step"] for worker in found), bound))
    print(f"{'rate':>8} {'workers':>8} {'steps/s':>28} {'bound':>8} {'of it':>6}")
    table = []
    for (rate, workers), runs in cases.items():
        steps, bound = [s for s, _ in runs], statistics.median(b for _, b in runs)
        part = statistics.median(s / b for s, b in runs)
        print(f"{rate:>8} {workers:>8} {_frame.spread(steps):>28} {bound:>8.2f} {part:>6.2f}")
        table.append({"rate": rate, "workers": workers, "steps_a_second": statistics.median(steps), "of_bound": part})
    _frame.write(given.json, "ps_async", {"bytes": size, "batch": BATCH, "cases": table}, "torch", "pyzmq")


if __name__ == "__main__":
    main()
