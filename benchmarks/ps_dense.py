"""Dense synchronous parameter servers on lab nodes: time of a step over what the network and the computing allow.

    python benchmarks/ps_dense.py [--sizes 2,25,100] [--rates 200Mbit,1Gbit] [--workers 2,4] [--servers 1,2]
                                  [--repetitions N] [--json RESULT.json]

Models of equal linear layers, plain SGD, every task on a node of its own. The bound of a step is forward, and then
whichever is longer: backward, or the bytes each way through the busiest NIC, a server's or a worker's. Forward and
backward are timed before `prepare`, on all workers at once. Besides, on the same nodes: the same encrypted, and torch's
DistributedDataParallel over Gloo, whose bound has the bytes of a ring. Needs root, for the lab.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import _frame

SHAPES = {2: (8, 256), 25: (6, 1024), 100: (6, 2048)}
"""Layers and their width, by megabytes of the model."""
RATES = {"200Mbit": 200e6 / 8, "1Gbit": 1e9 / 8}
BATCH = 8
LAB = "ps-dense"
NODES = {f"n{index}": f"10.77.43.{index + 1}" for index in range(6)}
SCRIPT = """
import json, os, sys, time
from pathlib import Path
import torch

ddp, layers, width, batch, steps, out = sys.argv[1] == "ddp", *map(int, sys.argv[2:6]), sys.argv[6]
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
features = torch.randn(batch, width)
middle = lambda values: sorted(values)[len(values) // 2]

def step():
    begun = time.perf_counter()
    loss = model(features).square().mean()
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    return forward - begun, backward - forward, time.perf_counter() - begun

alone = [step() for _ in range(8)][2:]
if ddp:
    task = "worker-" + os.environ["RANK"]
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    import headgate.torch as hg
    task = os.environ["HEADGATE_TASK"].rpartition("/")[2]
    model, optimizer = hg.prepare(model, optimizer)
together = [step() for _ in range(steps)][2:]
result = {"forward": middle([s[0] for s in alone]), "backward": middle([s[1] for s in alone])}
Path(out, task + ".json").write_text(json.dumps({**result, "step": middle([s[2] for s in together])}))
"""


@dataclass(frozen=True)
class Case:
    """What is measured.

    Args:
        kind: `plain`, `encrypted` or `ddp`.
        megabytes: Of the model.
        rate: Of every NIC.
        workers: How many.
        servers: How many; 0 under `ddp`.
    """

    kind: str
    megabytes: int
    rate: str
    workers: int
    servers: int

    @property
    def bytes(self) -> int:
        """Bytes of the model."""
        layers, width = SHAPES[self.megabytes]
        return layers * width * width * 4

    @property
    def busiest(self) -> float:
        """Bytes each way through the busiest NIC in a step."""
        if self.kind == "ddp":
            return 2 * (self.workers - 1) / self.workers * self.bytes
        return max(self.bytes, self.workers * self.bytes / self.servers)

    @property
    def steps(self) -> int:
        """Steps to time: for about half a minute, and no fewer than five."""
        return 2 + max(5, min(30, int(30 * RATES[self.rate] / self.busiest)))


def measured(case: Case, folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Seconds of a step, and its bound."""
    out = Path(tempfile.mkdtemp(dir=folder))
    arguments = [case.kind, *map(str, (*SHAPES[case.megabytes], BATCH, case.steps)), str(out)]
    (run_ddp if case.kind == "ddp" else run_headgate)(case, folder, arguments, environment)
    found = [json.loads((out / f"worker-{index}.json").read_text()) for index in range(case.workers)]
    forward, backward = (max(worker[name] for worker in found) for name in ("forward", "backward"))
    bound = forward + max(backward, case.busiest / RATES[case.rate])
    return statistics.median(worker["step"] for worker in found), bound


def run_headgate(case: Case, folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
    nodes = list(NODES)
    plan = {
        "strategy": "ps",
        "workers": case.workers,
        "servers": case.servers,
        "worker_nodes": nodes[: case.workers],
        "server_nodes": nodes[case.workers : case.workers + case.servers],
    }
    (folder / "plan.yaml").write_text(json.dumps(plan))
    command = ["run", "--plan", "plan.yaml", "--cluster", LAB]
    command += ["--no-encrypt"] if case.kind == "plain" else []
    subprocess.run(
        [sys.executable, "-m", "headgate", *command, "train.py", "--", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def run_ddp(case: Case, folder: Path, arguments: list[str], environment: dict[str, str]) -> None:
    nodes = list(NODES)
    added = {"MASTER_ADDR": NODES[nodes[0]], "MASTER_PORT": "29400", "WORLD_SIZE": str(case.workers)}
    processes = []
    for rank, node in enumerate(nodes[: case.workers]):
        command = f"-m headgate lab exec {LAB}/{node} --".split()
        processes.append(
            subprocess.Popen(
                [sys.executable, *command, sys.executable, str(folder / "train.py"), *arguments],
                env={**environment, **added, "RANK": str(rank), "OMP_WAIT_POLICY": "PASSIVE"},
                stdout=subprocess.DEVNULL,
            )
        )
    codes = [process.wait(600) for process in processes]
    if any(codes):
        raise RuntimeError(f"DistributedDataParallel ended with {codes}; see above")


def main() -> None:
    parser = _frame.parser("Dense synchronous parameter servers: time of a step over its bound.", repetitions=3)
    for name, default in (("sizes", "2,25,100"), ("rates", ",".join(RATES)), ("workers", "2,4"), ("servers", "1,2")):
        parser.add_argument(f"--{name}", default=default, help=f"of them, by comma (default: {default})")
    given = parser.parse_args()
    sizes, workers, servers = (
        [int(number) for number in text.split(",")] for text in (given.sizes, given.workers, given.servers)
    )
    _frame.heading(given.repetitions, "torch", "pyzmq")
    cases = {
        rate: [
            Case(kind, size, rate, count, parts)
            for size in sizes
            for count in workers
            for kind, parts in (*(("plain", s) for s in servers), ("encrypted", servers[0]), ("ddp", 0))
        ]
        for rate in given.rates.split(",")
    }
    runs: dict[Case, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(SCRIPT)
        environment = _frame.environment(HEADGATE_HOME=os.path.join(place, "home"))
        for rate, listed in cases.items():
            with _frame.lab(folder, LAB, NODES, rate, environment):
                for _ in range(given.repetitions):
                    for case in listed:
                        runs.setdefault(case, []).append(measured(case, folder, environment))
    print(
        f"{'MB':>4} {'NIC':>8} {'workers':>8} {'servers':>8}  {'':10} {'step, s':>24} {'bound, s':>9} {'over it':>24}"
    )
    rows = []
    for case, found in runs.items():
        seconds, over = [s for s, _ in found], [s / b for s, b in found]
        bound = statistics.median(b for _, b in found)
        print(
            f"{case.megabytes:>4} {case.rate:>8} {case.workers:>8} {case.servers or '':>8}  {case.kind:10} "
            f"{_frame.spread(seconds):>24} {bound:>9.3f} {_frame.spread(over):>24}"
        )
        rows.append({**asdict(case), "seconds": seconds, "bound": bound, "over_bound": over})
    _frame.write(given.json, "ps_dense", {"batch": BATCH, "rows": rows}, "torch", "pyzmq")


if __name__ == "__main__":
    main()
