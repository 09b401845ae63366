"""A table of 33 million rows of one number on a parameter server: bytes of a step, and rows a second.

    python benchmarks/ps_sparse.py [--repetitions N] [--json RESULT.json]

Batches of 10,000 rows with 39 indices each, drawn from Zipf distributions with exponents 1.05 and 1.2, with 1 and 2
workers that do not wait for each other, over the loopback network. Beside it what a dense pull and push of the whole
table would be, in bytes, and the same model in one process with PyTorch's own sparse gradients.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _frame import heading, parser, spread, write

from headgate.plans import Plan
from headgate.testing.gang import Gang

ROWS, BATCH, INDICES, STEPS = 33_000_000, 10_000, 39, 12
SCRIPT = f"""
import json, os, time
import torch
from torch import nn
import headgate.torch as hg

torch.set_num_threads(1)
torch.manual_seed(int(os.environ.get("HEADGATE_TASK", "0")[-1]))
exponent = float(os.environ["EXPONENT"])
# The inverse of the distribution function, for a continuous Zipf law cut off at the number of rows.
uniform = torch.rand(3, {BATCH}, {INDICES}, dtype=torch.float64)
last = {ROWS} ** (1 - exponent)
rows = ((1 - uniform * (1 - last)) ** (1 / (1 - exponent))).long().clamp_(1, {ROWS}) - 1
model = nn.EmbeddingBag({ROWS}, 1, sparse=True, mode="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
wanted = torch.rand({BATCH}, 1)
model, optimizer = hg.prepare(model, optimizer)
session = hg._session
caller = None if session is None or session._worker is None else session._worker._link.caller
seconds, came, went = [], [], []
for step in range({STEPS}):
    begun = time.perf_counter()
    before = (0, 0) if caller is None else (sum(caller.bytes_in), sum(caller.bytes_out))
    loss = nn.functional.mse_loss(model(rows[step % 3]), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - begun)
    if caller is not None:
        came.append(sum(caller.bytes_in) - before[0])
        went.append(sum(caller.bytes_out) - before[1])
middle = lambda values: sorted(values)[len(values) // 2] if values else 0
print(json.dumps({{"seconds": middle(seconds[2:]), "in": middle(came[2:]), "out": middle(went[2:]),
                  "unique": torch.unique(rows[0]).numel()}}))
"""


def alone(folder: Path, exponent: float) -> list[dict[str, float]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    done = subprocess.run(
        [sys.executable, "bench.py"],
        cwd=folder,
        env={**environment, "EXPONENT": str(exponent), "PYTHONPATH": str(Path(__file__).parents[1] / "src")},
        check=True,
        capture_output=True,
        text=True,
    )
    return [json.loads(done.stdout)]


def together(folder: Path, exponent: float, workers: int) -> list[dict[str, float]]:
    plan = Plan(strategy="ps", workers=workers, servers=1, batch_per_worker=None, synchronous=False)
    with Gang(
        folder, plan, [sys.executable, "bench.py"], {"EXPONENT": str(exponent)}, encrypt=False, warm=None
    ) as gang:
        gang.start()
        gang.finish()
        return [json.loads(gang.output(f"worker-{index}").splitlines()[-1]) for index in range(workers)]


def main() -> None:
    given = parser(__doc__ or "", repetitions=3).parse_args()
    heading(given.repetitions, "torch", "pyzmq")
    cases = [(exponent, workers) for exponent in (1.05, 1.2) for workers in (0, 1, 2)]
    rates: dict[tuple[float, int], list[float]] = {case: [] for case in cases}
    bytes_of: dict[tuple[float, int], dict[str, float]] = {}
    for _ in range(given.repetitions):
        for exponent, workers in cases:
            with tempfile.TemporaryDirectory() as place:
                folder = Path(place)
                (folder / "bench.py").write_text(SCRIPT)
                found = together(folder, exponent, workers) if workers else alone(folder, exponent)
            rates[exponent, workers].append(sum(BATCH / worker["seconds"] for worker in found))
            bytes_of[exponent, workers] = found[0]
    print(f"{'Zipf':>5} {'workers':>8} {'rows/s':>32} {'unique':>9} {'MB in':>7} {'MB out':>7} {'dense MB':>9}")
    table = []
    for (exponent, workers), values in rates.items():
        last = bytes_of[exponent, workers]
        who = str(workers) if workers else "1, alone"
        print(
            f"{exponent:>5} {who:>8} {spread(values):>32} {last['unique']:>9.0f} {last['in'] / 1e6:>7.2f} "
            f"{last['out'] / 1e6:>7.2f} {ROWS * 4 / 1e6 if workers else 0:>9.0f}"
        )
        table.append({"zipf": exponent, "workers": workers, "rows_a_second": statistics.median(values), **last})
    write(given.json, "ps_sparse", {"rows": ROWS, "batch": BATCH, "indices": INDICES, "cases": table}, "torch", "pyzmq")


if __name__ == "__main__":
    main()
