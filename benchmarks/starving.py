"""Four jobs on one machine: two whose "GPU" waits for their input, and two that compute. Which
policy gives cores where they buy steps?

    python benchmarks/starving.py [--seconds 12] [--policies none,equal,headgate] [--json PATH]
    python benchmarks/starving.py --simulated [--policies equal,srpt,headgate]

`input-a` and `input-b` decode their batches in two loader workers; then a "GPU" computes. `gpu`
has a loader that keeps up, so its "GPU" always computes. `cpu` computes on as many cores as it has
threads for. A "GPU" is a wait that takes no CPU time: no real one is used. The scripts are plain
PyTorch; Headgate sees their steps and spans by its hooks. Each takes about `--seconds` alone, after
its imports, and says its epochs. First each runs alone, then all four together under each policy.

Printed are the steps a second of each from its first step to its last, over those alone; their sum;
and the mean time from submission to an end, over that alone. All of it takes about four minutes.

`--simulated`: on 8 and 16 cores, in a moment. Two jobs of 100 and 110 s starve with fewer than 3
cores; two of 100 s compute on all cores that they get. Printed are the time of each over that
alone, the sum of the speeds that these come to, the mean time and the makespan.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import _frame

from headgate.model.cluster import Cluster, Node
from headgate.recorded.reader import RunReader
from headgate.simulation import Assumptions, TraceJob, figures, simulate
from headgate.simulation.traces import made

TASK = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

decode, gpu, width, workers, steps = map(float, sys.argv[1:])

class Pictures(Dataset):
    def __len__(self):
        return int(steps)
    def __getitem__(self, index):
        torch.set_num_threads(1)
        begin = time.thread_time()
        while time.thread_time() - begin < decode:
            pass
        return torch.ones(int(width))

def main():
    model = torch.nn.Linear(int(width), int(width))
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    data = Pictures()
    loader = DataLoader(data, num_workers=int(workers), persistent_workers=workers > 0)
    for epoch in range(EPOCHS):
        for batch in loader:
            if width > 1:
                batch = batch.expand(64, -1)
            loss = model(batch).pow(2).mean()
            time.sleep(gpu)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}/{EPOCHS} loss {1 / (epoch + 1):.4f}", flush=True)

if __name__ == "__main__":
    main()
"""
EPOCHS = 20
KINDS = {
    "input-a": (0.014, 0.02, 1, 2),
    "input-b": (0.014, 0.02, 1, 2),
    "gpu": (0.001, 0.02, 1, 1),
    "cpu": (0.0, 0.0, 1024, 0),
}
"""Core-seconds of decoding and seconds of the "GPU" for each step, width of the model, workers of
the loader.
"""
STEP_SECONDS = {"input-a": 0.021, "input-b": 0.021, "gpu": 0.021, "cpu": 0.008}
"""About how long a step takes alone."""


class Machine:
    """A folder with the script, and a hub of its own."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.variables = _frame.environment(HEADGATE_HOME=str(self.home))
        (folder / "task.py").write_text(TASK.replace("EPOCHS", str(EPOCHS)))
        self.steps = {
            name: max(round(seconds / of_a_step / EPOCHS), 5)
            for name, of_a_step in STEP_SECONDS.items()
        }

    def run(self, policy: str, names: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
        """Seconds since submission and steps of each of these jobs, which run together."""
        jobs = [
            {
                "name": name,
                "script": "task.py",
                "args": [str(value) for value in (*KINDS[name], self.steps[name])],
            }
            for name in names
        ]
        (self.folder / "jobs.yaml").write_text(json.dumps({"jobs": jobs}))
        command = [sys.executable, "-m", "headgate", "run", "--json", "--policy", policy]
        subprocess.run(
            [*command, "jobs.yaml"],
            cwd=self.folder,
            env=self.variables,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        newest = max((self.home / "runs").glob("*/run.sqlite"), key=os.path.getmtime)
        with RunReader(newest) as reader:
            rows = reader.query(
                "SELECT t, task, step FROM progress WHERE step IS NOT NULL ORDER BY t"
            )
        reports: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for row in rows:
            reports[str(row["task"]).partition("/")[0]].append((row["t"], row["step"]))
        return reports


def rate(reports: Sequence[tuple[float, float]]) -> float:
    """Steps a second from the first report to the last."""
    (begin, first), (end, last) = reports[0], reports[-1]
    return (last - first) / (end - begin)


def simulated(policies: Sequence[str]) -> list[dict[str, object]]:
    """Simulate four such jobs where there are more cores."""
    rows: list[dict[str, object]] = []
    for cores in (8.0, 16.0):
        jobs = [
            TraceJob("input-a", 0.0, 100.0, cores=3.0, starves=True),
            TraceJob("input-b", 0.0, 110.0, cores=3.0, starves=True),
            TraceJob("cpu-a", 0.0, 100.0, cores=cores),
            TraceJob("cpu-b", 0.0, 100.0, cores=cores),
        ]
        columns = (*(job.name for job in jobs), "speeds", "mean s", "makespan")
        print(f"{cores:g} cores{'':7}" + "".join(f"{name:>10}" for name in columns))
        cluster = Cluster((Node("a", cores=cores, memory_bytes=2**34),))
        for policy in policies:
            assumed = Assumptions(report_seconds=1.0)
            outcome = simulate(made("starving", jobs), cluster, policy, assumed)
            known = figures(outcome)
            over = {
                of_one.job.name: ((of_one.ended or 0.0) - of_one.job.submitted) / of_one.job.seconds
                for of_one in outcome.jobs
            }
            speeds = sum(1.0 / slower for slower in over.values())
            values = (*(over[job.name] for job in jobs), speeds, known.mean, known.makespan)
            print(f"{policy:14}" + "".join(f"{value:10.2f}" for value in values))
            rows.append({"cores": cores, "policy": policy, "over_alone": over, "speeds": speeds})
    return rows


def main() -> None:
    made_parser = _frame.parser("Four jobs, of which two starve.", 1)
    made_parser.add_argument(
        "--seconds", type=float, default=12.0, help="of each job alone (default: 12)"
    )
    made_parser.add_argument("--policies", default="none,equal,headgate")
    made_parser.add_argument("--simulated", action="store_true", help="nothing is run")
    options = made_parser.parse_args()
    if options.simulated:
        rows = simulated(options.policies.split(","))
        _frame.write(options.json, "starving", {"simulated": rows})
        return
    _frame.heading(options.repetitions, "torch")
    folder = Path(tempfile.mkdtemp(prefix="headgate-starving-"))
    rows = []
    with _frame.leaving():
        try:
            machine = Machine(folder, options.seconds)
            alone = {name: machine.run("none", [name])[name] for name in KINDS}
            rates = {name: rate(of_one) for name, of_one in alone.items()}
            print("alone: " + ", ".join(f"{name} {rates[name]:.1f} steps/s" for name in KINDS))
            print(f"{'':12}" + "".join(f"{name:>10}" for name in (*KINDS, "sum", "mean end")))
            for policy in options.policies.split(",") * options.repetitions:
                together = machine.run(policy, list(KINDS))
                kept = {name: rate(of_one) / rates[name] for name, of_one in together.items()}
                ends = {name: of_one[-1][0] for name, of_one in together.items()}
                over = statistics.mean(ends[name] / alone[name][-1][0] for name in KINDS)
                rows.append(
                    {"policy": policy, "kept": kept, "ends": ends, "mean_end_over_alone": over}
                )
                values = (*kept.values(), sum(kept.values()), over)
                print(f"{policy:12}" + "".join(f"{value:10.2f}" for value in values), flush=True)
        finally:
            _frame.end_hubs(machine.variables)
            shutil.rmtree(folder, ignore_errors=True)
    content = {"seconds": options.seconds, "alone": rates, "rows": rows}
    _frame.write(options.json, "starving", content, "torch")


if __name__ == "__main__":
    main()
