"""What exchanging gradients asks of cores: CPU time of a step of each worker and of each server.

    python benchmarks/exchange_cost.py [--steps 300] [--repetitions 1] [--json PATH]

Small and larger models, and models of tables, whose compute is next to nothing, beside 1 to 4
servers, under all-reduce and alone: over the loopback network, not encrypted, tasks as on different
nodes. The seconds of a core in `planning/cost.py` are read off this table: what a step takes beside
`single` at 2 KB is that of a round, the rest grows with messages of at most 512 KiB, with tables
and with rows. Needs a machine of two cores that does nothing else; about seven minutes.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import _frame
from tests.harness.gang import Gang

from headgate.model.plans import Plan
from headgate.testing import wait

DENSE = ((16, 2), (128, 4), (512, 5))
"""Width and number of square layers."""
TABLES = ((1, 4), (4, 4), (1, 480), (4, 480))
"""Number of tables, and of samples of a step; each sample looks up 8 rows of each table."""
PLANS = ((1, 0), (1, 1), (1, 2), (1, 4), (2, 1), (4, 1), (2, 2), (2, 0), (3, 0))
"""Workers and servers."""
WARM_STEPS = 30
_TICKS = os.sysconf("SC_CLK_TCK")
_SCRIPT = """
import os
import torch
from torch import nn
import headgate.torch as hg

torch.set_num_threads(1)
{model}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
model, optimizer = hg.prepare(model, optimizer)
task = os.environ["HEADGATE_TASK"].rsplit("/", 1)[1]
steps = open(os.path.join({folder!r}, "steps-" + task), "w")
for step in range({steps}):
    loss = model(inputs[step % len(inputs)]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps.write("x")
    steps.flush()
"""
_LAYERS = """
model = nn.Sequential(*[nn.Linear({width}, {width}, bias=False) for _ in range({layers})])
inputs = [torch.randn(1, {width})]
"""
_ROWS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        tables = (nn.EmbeddingBag(100_000, 16, mode="sum", sparse=True) for _ in range({tables}))
        self.tables = nn.ModuleList(tables)
        self.top = nn.Linear(16, 1)

    def forward(self, rows):
        return self.top(sum(table(rows) for table in self.tables))

model = Model()
inputs = [torch.randint(0, 100_000, ({samples}, 8)) for _ in range(10)]
"""


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measure(model: str, workers: int, servers: int, steps: int) -> tuple[float, float]:
    """CPU seconds of a step of a worker and of a server, each the mean of all."""
    plan = Plan(
        strategy="ps" if servers else "single" if workers == 1 else "allreduce",
        workers=workers,
        servers=servers,
        batch_per_worker=None,
        worker_nodes=tuple(f"worker-{i}" for i in range(workers)),
        server_nodes=tuple(f"server-{i}" for i in range(servers)),
    )
    with tempfile.TemporaryDirectory() as place:
        script, told = Path(place, "bench.py"), Path(place, "steps-worker-0")
        script.write_text(
            _SCRIPT.format(model=model, folder=place, steps=100 * (steps + WARM_STEPS))
        )

        def done(count: int) -> Callable[[], bool]:
            return lambda: told.exists() and told.stat().st_size >= count

        with Gang(
            Path(place), plan, [sys.executable, str(script)], encrypt=False, warm=None
        ) as gang:
            gang.start()
            wait.until(done(WARM_STEPS), 120, "the first steps")
            first, before = (
                told.stat().st_size,
                {name: cpu_seconds(gang.pid(name)) for name in gang.names},
            )
            wait.until(done(first + steps), 120, "the steps")
            last, after = (
                told.stat().st_size,
                {name: cpu_seconds(gang.pid(name)) for name in gang.names},
            )
        spent = {name: (after[name] - before[name]) / (last - first) for name in gang.names}
    return tuple(  # type: ignore[return-value]
        sum(seconds for name, seconds in spent.items() if name.startswith(role)) / max(count, 1)
        for role, count in (("worker", workers), ("server", servers))
    )


def compare(name: str, model: str, steps: int, repetitions: int) -> Sequence[dict[str, object]]:
    """Print the lines of a model."""
    rows = []
    for workers, servers in PLANS:
        found = [measure(model, workers, servers, steps) for _ in range(repetitions)]
        worker, server = map(statistics.median, zip(*found))
        what = (
            f"{workers} + {servers}"
            if servers
            else "single"
            if workers == 1
            else f"all-reduce {workers}"
        )
        print(f"{name:24}{what:14}{1e3 * worker:>10.2f}{1e3 * server:>10.2f}", flush=True)
        rows.append(
            {
                "model": name,
                "workers": workers,
                "servers": servers,
                "worker": worker,
                "server": server,
            }
        )
    return rows


def main() -> None:
    made = _frame.parser("CPU time of a step's exchange.", 1)
    made.add_argument("--steps", type=int, default=300, help="that are timed (default: 300)")
    options = made.parse_args()
    _frame.heading(options.repetitions, "torch", "pyzmq")
    print(f"{'ms of CPU of a step':38}{'worker':>10}{'server':>10}")
    rows: list[dict[str, object]] = []
    for width, layers in DENSE:
        size = f"{4 * width * width * layers / 1e3:,.0f} KB"
        rows += compare(
            size, _LAYERS.format(width=width, layers=layers), options.steps, options.repetitions
        )
    for tables, samples in TABLES:
        name = f"{tables} tables, {samples} samples"
        rows += compare(
            name, _ROWS.format(tables=tables, samples=samples), options.steps, options.repetitions
        )
    _frame.write(options.json, "exchange_cost", {"rows": rows}, "torch", "pyzmq")


if __name__ == "__main__":
    main()
