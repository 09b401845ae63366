"""Sparse logistic regression with 33,762,578 features: Headgate's parameter servers beside other programs.

    python benchmarks/sparse_lr.py [--cores 1,2] [--steps 100] [--passes 8] [--others PYTHON] [--repetitions 3]
                                   [--json PATH]

Two tables, on one core and on two. Rows have 39 numbers and categories, as `headgate.workloads` makes them; all is in
memory.

1. Rows a second, with the same mathematics (`headgate.workloads`: batches of 4,096, SGD with a rate of 0.1): PyTorch
   and TensorFlow in one process, Headgate's parameter servers with and without waiting, and those of TensorFlow, which
   never wait. A worker for each core and one server. `loss` is that of the last step.
2. Seconds until the loss of all 16,384 rows is at most that of one pass of scikit-learn: PyTorch and Headgate with
   batches of 256 and a rate of 20, scikit-learn's `SGDClassifier` (a row at a time, rate 0.1), and Vowpal Wabbit, whose
   examples are parsed before. Each says its loss after each pass, which does not count. Programs that are not installed
   for `--others` (by default this interpreter) are skipped.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _frame

RATE = re.compile(r"steps in .* s: ([\d.]+) rows/s")
LOSS = re.compile(r"loss ([\d.]+)")
SAME = {
    "PyTorch": ("torch", ()),
    "TensorFlow": ("tensorflow", ()),
    "Headgate, waiting": ("torch", ("--strategy", "ps", "--servers", "1")),
    "Headgate, not waiting": ("torch", ("--strategy", "ps", "--servers", "1", "--async")),
    "TensorFlow's servers": ("tensorflow", ("--strategy", "ps", "--servers", "1", "--async")),
}

TORCH = """
import json, sys, time
import numpy as np, torch
from torch import nn
import headgate.torch as hg

file, passes = sys.argv[1], int(sys.argv[2])
ids, values, labels = (torch.from_numpy(each) for each in np.load(file).values())
rows, rate, batch = nn.EmbeddingBag(33_762_578, 1, mode="sum", sparse=True), 20.0, 256
nn.init.zeros_(rows.weight)
optimizer = torch.optim.SGD(rows.parameters(), rate)
loader = torch.utils.data.DataLoader(range(len(labels)), batch, collate_fn=torch.tensor)
model, optimizer, loader = hg.prepare(rows, optimizer, loader)
loss_of, spent = nn.functional.binary_cross_entropy_with_logits, 0.0
for _ in hg.epochs(passes):
    begun = time.perf_counter()
    for places in loader:
        loss = loss_of(model(ids[places], per_sample_weights=values[places]).squeeze(1), labels[places])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        hg.report(loss=loss)
    spent += time.perf_counter() - begun
    with torch.no_grad():
        found = float(loss_of(model(ids, per_sample_weights=values).squeeze(1), labels))
    print(json.dumps({"seconds": spent, "loss": found}), flush=True)
"""

SKLEARN = """
import json, sys, time
import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import SGDClassifier

ids, values, labels = np.load(sys.argv[1]).values()
starts = np.arange(0, ids.size + 1, ids.shape[1])
rows = csr_matrix((values.ravel(), ids.ravel().astype(np.int32), starts), shape=(len(ids), 33_762_578))
model = SGDClassifier(loss="log_loss", alpha=0.0, penalty=None, learning_rate="constant", eta0=0.1)
model.partial_fit(rows[:1], labels[:1], classes=[0.0, 1.0])
spent = 0.0
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter()
    model.partial_fit(rows, labels)
    spent += time.perf_counter() - begun
    logits = rows @ model.coef_[0] + model.intercept_[0]
    found = float(np.mean(np.logaddexp(0.0, logits) - labels * logits))
    print(json.dumps({"seconds": spent, "loss": found}), flush=True)
"""

WABBIT = """
import json, sys, time
import numpy as np
from vowpalwabbit import LabelType, Workspace

ids, values, labels = np.load(sys.argv[1]).values()
model = Workspace("--quiet --loss_function logistic -b 25 --noconstant")
lines = [
    f"{1 if label else -1} | " + " ".join(f"{i}:{v:.6g}" for i, v in zip(*row))
    for label, *row in zip(labels, ids.tolist(), values.tolist())
]
examples = [model.parse(line) for line in lines]
spent = 0.0
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter()
    for example in examples:
        model.learn(example)
    spent += time.perf_counter() - begun
    logits = np.array([model.predict(example) for example in examples])
    found = float(np.mean(np.logaddexp(0.0, logits) - labels * logits))
    print(json.dumps({"seconds": spent, "loss": found}), flush=True)
"""


class Case:
    """Runs programs on so many cores, with a hub of their own."""

    def __init__(self, folder: Path, cores: int) -> None:
        self.folder, self.cores = folder, cores
        (folder / "home").mkdir(parents=True)
        self.variables = _frame.environment(HEADGATE_HOME=str(folder / "home"), OMP_NUM_THREADS=str(cores))
        every = sorted(os.sched_getaffinity(0))
        self._pinned = ["taskset", "-c", ",".join(map(str, every[:cores]))]

    def runs(self, *command: str) -> str:
        """What it prints; empty where it fails, which is told on the error output."""
        done = subprocess.run(
            [*self._pinned, *command], cwd=self.folder, env=self.variables, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"{' '.join(command[:6])}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return done.stdout if not done.returncode else ""

    def job(self, script: list[str], plan: tuple[str, ...], arguments: list[str]) -> str:
        """What the first worker of a job prints."""
        if not plan:
            return self.runs(sys.executable, *script, *arguments)
        words = [*plan, "--workers", str(self.cores), "--name", "job", *script, "--", *arguments]
        if not self.runs("headgate", "run", *words):
            return ""
        [folder, *_] = sorted((self.folder / "home" / "runs").iterdir(), reverse=True)
        return (folder / "jobs" / "job" / "worker-0.log").read_text()

    def ends(self) -> None:
        _frame.end_hubs(self.variables)


def same(case: Case, steps: int, repetitions: int) -> list[dict[str, Any]]:
    """Rows a second of what does the same."""
    found: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repetitions):
        for name, (framework, plan) in SAME.items():
            words = ["sparse", "--size", "full", "--steps", str(steps)]
            text = case.job(["-m", f"headgate.workloads.{framework}"], plan, words)
            # Those that do not wait each say their own rate.
            many = case.cores if name == "Headgate, not waiting" else 1
            if (told := RATE.search(text)) is not None:
                found.setdefault(name, []).append((many * float(told[1]), float(LOSS.findall(text)[-1])))
    rows = []
    for name, each in found.items():
        rates, losses = zip(*each)
        rows.append(
            {"what": name, "rows_per_second": statistics.median(rates), "least": min(rates), "most": max(rates)}
        )
        rows[-1]["loss"] = statistics.median(losses)
        print(f"  {name:24} {_frame.spread(rates):>28} rows/s  loss {rows[-1]['loss']:.4f}", flush=True)
    return rows


def until_loss(case: Case, passes: int, repetitions: int, others: str) -> list[dict[str, Any]]:
    """Seconds until all have the same loss."""
    programs = {"PyTorch": (TORCH, ()), "Headgate, waiting": (TORCH, SAME["Headgate, waiting"][1])}
    programs |= {"scikit-learn": (SKLEARN, ()), "Vowpal Wabbit": (WABBIT, ())}
    file, told = case.folder / "rows.npz", dict[str, list[list[dict[str, float]]]]()
    make = "import sys, numpy as np; from headgate.workloads.samples import made; "
    make += "np.savez(sys.argv[1], *made('sparse', 'full', 16384, 0))"
    subprocess.run([sys.executable, "-c", make, str(file)], check=True)
    for _ in range(repetitions):
        for name, (text, plan) in programs.items():
            script = case.folder / "job.py"
            script.write_text(text)
            if name in ("scikit-learn", "Vowpal Wabbit"):
                printed = case.runs(others, str(script), str(file), str(passes))
            else:
                printed = case.job([str(script)], plan, [str(file), str(passes)])
            lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"seconds"')]
            if lines:
                told.setdefault(name, []).append(lines)
    goal = told["scikit-learn"][0][0]["loss"] if "scikit-learn" in told else 0.6
    rows = []
    for name, each in told.items():
        seconds = [next((line["seconds"] for line in lines if line["loss"] <= goal), None) for lines in each]
        reached = [value for value in seconds if value is not None]
        rate = statistics.median(16384 * len(lines) / lines[-1]["seconds"] for lines in each)
        rows.append({"what": name, "goal": goal, "seconds": statistics.median(reached) if reached else None})
        rows[-1] |= {"rows_per_second": rate, "losses": [line["loss"] for line in each[0]]}
        when = f"{_frame.spread(reached):>20} s" if reached else f"not within {passes} passes"
        print(f"  {name:24} loss {goal:.4f} after {when}; {rate:,.0f} rows/s", flush=True)
    return rows


def main() -> None:
    parser = _frame.parser(__doc__ or "", repetitions=3)
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--passes", type=int, default=8)
    parser.add_argument("--others", default=sys.executable)
    options = parser.parse_args()
    _frame.heading(options.repetitions, "torch", "tensorflow_cpu", "scikit-learn")
    found = []
    for cores in map(int, options.cores.split(",")):
        with tempfile.TemporaryDirectory() as folder, _frame.leaving():
            case = Case(Path(folder) / "case", cores)
            print(f"{cores} core{'s' * (cores > 1)}")
            try:
                rows = same(case, options.steps, options.repetitions)
                found.append({"cores": cores, "same": rows})
                found[-1]["until_loss"] = until_loss(case, options.passes, options.repetitions, options.others)
            finally:
                case.ends()
    _frame.write(options.json, "sparse_lr", {"cases": found}, "torch", "tensorflow_cpu", "scikit-learn", "vowpalwabbit")


if __name__ == "__main__":
    main()
