"""Sparse logistic regression with 33,762,578 features: Headgate's parameter servers beside other
programs.

    python benchmarks/sparse_lr.py [--cores 1,2] [--steps 300] [--passes 8] [--others PYTHON]
    [--repetitions 3]
                                   [--json PATH]

Two tables, on one core and on two. Rows have 39 numbers and categories, as `headgate.workloads`
makes them; all is in memory.

1. Rows a second, with the same mathematics (`headgate.workloads`: batches of 4,096, SGD with a rate
   of 0.1): PyTorch and TensorFlow in one process, the same script under Headgate without servers,
   Headgate's parameter servers with and without waiting, and those of TensorFlow, which never wait.
   A worker for each core and one server. `loss` is that of the last step. `CPU` is that of all
   processes for 4,096 rows: what a run takes more than one of a single step. Unlike rows a second
   it says the same on a machine that others use.
2. Seconds until the loss of all 16,384 rows is at most the lowest of scikit-learn after one pass.
   Each program takes what does best in the same search: three rates, with and without a step size
   for each feature (Adagrad; scikit-learn's `SGDClassifier` has none), and for those that learn
   from batches three sizes of these. The search for batches is done by PyTorch, for each size; then
   each of the others takes the size that is best for it. TensorFlow's servers use SGD: Keras'
   Adagrad moves every row. Examples of Vowpal Wabbit are parsed before. Each says its loss after
   each pass, which does not count. Programs that are not installed for `--others` (by default this
   interpreter) are skipped.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _frame

from headgate.recorded.reader import RunReader

RATE = re.compile(r"steps in .* s: ([\d.]+) rows/s")
LOSS = re.compile(r"loss ([\d.]+)")
SAME = {
    "PyTorch": ("torch", ()),
    "TensorFlow": ("tensorflow", ()),
    "Headgate, no servers": ("torch", ("--strategy", "single")),
    "Headgate, waiting": ("torch", ("--strategy", "ps", "--servers", "1")),
    "Headgate, not waiting": ("torch", ("--strategy", "ps", "--servers", "1", "--async")),
    "TensorFlow's servers": ("tensorflow", ("--strategy", "ps", "--servers", "1", "--async")),
}

RATES = (0.03, 0.1, 0.3)
"""For a row at a time; with batches, SGD takes so much times the root of their rows: times their
rows, it diverges.
"""
BATCHES = (64, 256, 1024)
ROWS = 16384
IN_BATCHES = [
    [kind, rate * (batch**0.5 if kind == "SGD" else 1), batch]
    for batch in BATCHES
    for kind in ("SGD", "Adagrad")
    for rate in RATES
]

TORCH = """
import json, sys, time
import numpy as np, torch
from torch import nn
import headgate.torch as hg

file, passes, choices = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
ids, values, labels = (torch.from_numpy(each) for each in np.load(file).values())
loss_of = nn.functional.binary_cross_entropy_with_logits
for choice in choices:
    kind, rate, batch = choice
    rows = nn.EmbeddingBag(33_762_578, 1, mode="sum", sparse=True)
    nn.init.zeros_(rows.weight)
    optimizer = getattr(torch.optim, kind)(rows.parameters(), rate)
    loader = torch.utils.data.DataLoader(range(len(labels)), batch, collate_fn=torch.tensor)
    model, optimizer, loader = hg.prepare(rows, optimizer, loader)
    spent = 0.0
    for _ in hg.epochs(passes):
        begun = time.perf_counter()
        for places in loader:
            outputs = model(ids[places], per_sample_weights=values[places]).squeeze(1)
            loss = loss_of(outputs, labels[places])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            hg.report(loss=loss)
        spent += time.perf_counter() - begun
        with torch.no_grad():
            found = float(loss_of(model(ids, per_sample_weights=values).squeeze(1), labels))
        print(json.dumps({"seconds": spent, "loss": found, "choice": choice}), flush=True)
"""

TENSORFLOW = """
import json, os, sys, time
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf
import headgate.keras as hg

file, passes, [choice] = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
ids, values, labels = np.load(file).values()
_, rate, batch = choice
strategy, held = hg.strategy(), tf.Module()
with strategy.scope():
    held.rows = tf.Variable(tf.zeros(33_762_578))
    optimizer = keras.optimizers.SGD(rate)
    optimizer.build([held.rows])
hg.prepare(held, optimizer)

def losses_of(ids, values, labels):
    logits = tf.reduce_sum(tf.gather(held.rows, ids) * values, 1)
    return tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)

def step(*rows):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(losses_of(*rows))
    optimizer.apply_gradients(zip(tape.gradient(loss, [held.rows]), [held.rows]))
    return loss

coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
whole = tf.function(lambda each: strategy.run(step, next(each)))
data = tf.data.Dataset.from_tensor_slices((ids, values, labels))
rows = lambda: data.shuffle(len(ids)).repeat().batch(batch)
each, spent = iter(coordinator.create_per_worker_dataset(rows)), 0.0
evaluated = tf.function(lambda: tf.reduce_mean(losses_of(ids, values, labels)))
for number in hg.epochs(passes):
    begun = time.perf_counter()
    for _ in range(len(labels) // batch):
        coordinator.schedule(whole, args=(each,))
    coordinator.join()
    spent += time.perf_counter() - begun
    found = float(evaluated())
    hg.report(loss=found, step=(number + 1) * (len(labels) // batch))
    print(json.dumps({"seconds": spent, "loss": found, "choice": choice}), flush=True)
"""

SKLEARN = """
import json, sys, time
import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import SGDClassifier

ids, values, labels = np.load(sys.argv[1]).values()
starts = np.arange(0, ids.size + 1, ids.shape[1])
entries = values.ravel(), ids.ravel().astype(np.int32), starts
rows = csr_matrix(entries, shape=(len(ids), 33_762_578))
for rate in json.loads(sys.argv[3]):
    model = SGDClassifier(
        loss="log_loss", alpha=0.0, penalty=None, learning_rate="constant", eta0=rate
    )
    model.partial_fit(rows[:1], labels[:1], classes=[0.0, 1.0])
    spent = 0.0
    for _ in range(int(sys.argv[2])):
        begun = time.perf_counter()
        model.partial_fit(rows, labels)
        spent += time.perf_counter() - begun
        logits = rows @ model.coef_[0] + model.intercept_[0]
        found = float(np.mean(np.logaddexp(0.0, logits) - labels * logits))
        print(json.dumps({"seconds": spent, "loss": found, "choice": rate}), flush=True)
"""

WABBIT = """
import json, sys, time
import numpy as np
from vowpalwabbit import LabelType, Workspace

ids, values, labels = np.load(sys.argv[1]).values()
lines = [
    f"{1 if label else -1} | " + " ".join(f"{i}:{v:.6g}" for i, v in zip(*row))
    for label, *row in zip(labels, ids.tolist(), values.tolist())
]
for choice in json.loads(sys.argv[3]):
    model = Workspace(f"--quiet --loss_function logistic -b 25 --noconstant {choice}")
    examples, spent = [model.parse(line) for line in lines], 0.0
    for _ in range(int(sys.argv[2])):
        begun = time.perf_counter()
        for example in examples:
            model.learn(example)
        spent += time.perf_counter() - begun
        logits = np.array([model.predict(example) for example in examples])
        found = float(np.mean(np.logaddexp(0.0, logits) - labels * logits))
        print(json.dumps({"seconds": spent, "loss": found, "choice": choice}), flush=True)
    model.finish()
"""


class Case:
    """Runs programs on so many cores, with a hub of their own."""

    def __init__(self, folder: Path, cores: int) -> None:
        self.folder, self.cores = folder, cores
        (folder / "home").mkdir(parents=True)
        self.variables = _frame.environment(
            HEADGATE_HOME=str(folder / "home"), OMP_NUM_THREADS=str(cores)
        )
        every = sorted(os.sched_getaffinity(0))
        self._pinned = ["taskset", "-c", ",".join(map(str, every[:cores]))]

    def runs(self, *command: str) -> tuple[str, float]:
        """What it prints, and the CPU seconds that it takes; nothing where it fails, which is told
        on the error output.
        """
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*self._pinned, *command],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            print(
                f"{' '.join(command[:6])}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr
            )
            return "", 0.0
        return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def job(
        self, script: list[str], plan: tuple[str, ...], arguments: list[str]
    ) -> tuple[str, float]:
        """What the first worker of a job prints, and the CPU seconds of all its tasks."""
        if not plan:
            return self.runs(sys.executable, *script, *arguments)
        many = () if plan == SAME["Headgate, no servers"][1] else ("--workers", str(self.cores))
        words = [*plan, *many, "--name", "job", *script, "--", *arguments]
        if not self.runs("headgate", "run", *words)[0]:
            return "", 0.0
        [folder, *_] = sorted((self.folder / "home" / "runs").iterdir(), reverse=True)
        with RunReader(folder / "run.sqlite") as reader:
            spent = sum(json.loads(row["exit"])["cpu_seconds"] for row in reader.rows("tasks"))
        return (folder / "jobs" / "job" / "worker-0.log").read_text(), spent

    def ends(self) -> None:
        _frame.end_hubs(self.variables)


def same(case: Case, steps: int, repetitions: int) -> list[dict[str, Any]]:
    """Rows a second, and CPU time, of what does the same."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(repetitions):
        for name, (framework, plan) in SAME.items():
            script = ["-m", f"headgate.workloads.{framework}"]
            words = ["sparse", "--size", "full", "--warmup", "10", "--steps"]
            _, before = case.job(script, plan, [*words, "1"])
            text, spent = case.job(script, plan, [*words, str(steps)])
            # Those that do not wait each say their own rate.
            many = case.cores if name == "Headgate, not waiting" else 1
            if (told := RATE.search(text)) is not None and before:
                cpu = (spent - before) / (steps - 1)
                found.setdefault(name, []).append(
                    (many * float(told[1]), cpu, float(LOSS.findall(text)[-1]))
                )
    rows = []
    for name, each in found.items():
        rates, cpus, losses = zip(*each)
        rows.append(
            {
                "what": name,
                "rows_per_second": statistics.median(rates),
                "least": min(rates),
                "most": max(rates),
            }
        )
        rows[-1] |= {"cpu_ms": 1000 * statistics.median(cpus), "loss": statistics.median(losses)}
        print(
            f"  {name:24} {_frame.spread(rates):>28} rows/s  CPU {rows[-1]['cpu_ms']:.1f} ms  "
            f"loss {rows[-1]['loss']:.4f}",
            flush=True,
        )
    return rows


Lines = list[dict[str, Any]]
"""What a program says after each pass, with one choice."""


@dataclass(frozen=True)
class _Program:
    """How one is run until a loss, and what is searched."""

    text: str
    choices: Sequence[Any]
    plan: tuple[str, ...] = ()
    interpreter: str = sys.executable

    def tries(self, case: Case, file: Path, passes: int, choices: Sequence[Any]) -> list[Lines]:
        """What it says for each choice, one after the other."""
        script = case.folder / "job.py"
        script.write_text(self.text)
        words = [str(file), str(passes), json.dumps(choices)]
        if self.interpreter == sys.executable:
            text, _ = case.job([str(script)], self.plan, words)
        else:
            text, _ = case.runs(self.interpreter, str(script), *words)
        told: dict[str, Lines] = {}
        for line in text.splitlines():
            if line.startswith('{"seconds"'):
                said = json.loads(line)
                told.setdefault(json.dumps(said["choice"]), []).append(said)
        return list(told.values())


def _reached(goal: float, lines: Lines) -> float | None:
    """Seconds until the loss."""
    return next((line["seconds"] for line in lines if line["loss"] <= goal), None)


def _best(goal: float, tried: Iterable[Lines]) -> Lines | None:
    """The fastest to the loss, or else what came closest."""
    return min(
        tried,
        key=lambda lines: (_reached(goal, lines) or math.inf, lines[-1]["loss"]),
        default=None,
    )


def until_loss(case: Case, passes: int, repetitions: int, others: str) -> list[dict[str, Any]]:
    """Seconds until all have the same loss."""
    file = case.folder / "rows.npz"
    make = "import sys, numpy as np; from headgate.workloads.samples import made; "
    make += f"np.savez(sys.argv[1], *made('sparse', 'full', {ROWS}, 0))"
    subprocess.run([sys.executable, "-c", make, str(file)], check=True)
    wabbit = [
        f"{kind} -l {rate * much}"
        for kind, much in (("--sgd", 1), ("--adaptive", 5))
        for rate in RATES
    ]
    rows_at_a_time = {
        "scikit-learn": _Program(SKLEARN, RATES, interpreter=others),
        "Vowpal Wabbit": _Program(WABBIT, wabbit, interpreter=others),
    }
    tried = {
        name: each.tries(case, file, passes, each.choices) for name, each in rows_at_a_time.items()
    }
    goal = min((lines[0]["loss"] for lines in tried["scikit-learn"]), default=0.6)
    searched = _Program(TORCH, IN_BATCHES).tries(case, file, passes, IN_BATCHES)

    def of_sizes(kinds: Container[str]) -> list[Any]:
        found = [
            _best(
                goal,
                (
                    lines
                    for lines in searched
                    if lines[0]["choice"][2] == size and _kind(lines) in kinds
                ),
            )
            for size in BATCHES
        ]
        return [lines[0]["choice"] for lines in found if lines]

    batched = {
        "PyTorch": _Program(TORCH, of_sizes(("SGD", "Adagrad"))),
        "Headgate, waiting": _Program(
            TORCH, of_sizes(("SGD", "Adagrad")), SAME["Headgate, waiting"][1]
        ),
        "Headgate, not waiting": _Program(
            TORCH, of_sizes(("SGD", "Adagrad")), SAME["Headgate, not waiting"][1]
        ),
        "TensorFlow's servers": _Program(
            TENSORFLOW, of_sizes(("SGD",)), SAME["TensorFlow's servers"][1]
        ),
    }
    for name, program in batched.items():
        tried[name] = [
            lines
            for choice in program.choices
            for lines in program.tries(case, file, passes, [choice])
        ]
    rows = []
    for name, program in (batched | rows_at_a_time).items():
        if (best := _best(goal, tried[name])) is None:
            continue
        choice = best[0]["choice"]
        each = [
            lines
            for _ in range(repetitions)
            for lines in program.tries(case, file, passes, [choice])
        ]
        reached = [value for lines in each if (value := _reached(goal, lines)) is not None]
        rate = statistics.median(ROWS * len(lines) / lines[-1]["seconds"] for lines in each)
        rows.append(
            {"what": name, "goal": goal, "seconds": statistics.median(reached) if reached else None}
        )
        rows[-1] |= {
            "choice": choice,
            "rows_per_second": rate,
            "losses": [line["loss"] for line in each[0]],
        }
        when = f"{_frame.spread(reached):>20} s" if reached else f"not within {passes} passes"
        print(f"  {name:24} loss {goal:.4f} after {when}; {rate:,.0f} rows/s; {choice}", flush=True)
    return rows


def _kind(lines: Lines) -> str:
    return str(lines[0]["choice"][0])


def main() -> None:
    parser = _frame.parser(__doc__ or "", repetitions=3)
    parser.add_argument("--cores", default="1,2")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--passes", type=int, default=8, help="at most so many in the second table; 0 leaves it out"
    )
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
                if options.passes:
                    found[-1]["until_loss"] = until_loss(
                        case, options.passes, options.repetitions, options.others
                    )
            finally:
                case.ends()
    _frame.write(
        options.json,
        "sparse_lr",
        {"cases": found},
        "torch",
        "tensorflow_cpu",
        "scikit-learn",
        "vowpalwabbit",
    )


if __name__ == "__main__":
    main()
