"""What a step of data-parallel training costs over what the network and the computing allow,
framework by framework.

    python benchmarks/frameworks.py [--only jax,torch-ps] [--sizes 25] [--rates 1Gbit] [--workers 2]
    [--servers 1]
                                    [--repetitions 3] [--json PATH]

A model of equal linear layers, 25 MB unless `--sizes` says otherwise, plain SGD, every task on a
lab node of its own. The bound of a step is forward, and then whichever is longer: backward, or the
bytes each way through the busiest NIC at its rate. Forward and backward are timed in the same
process without the exchange. Nothing is encrypted but `torch-ps-encrypted`. `torch-ddp` is
PyTorch's own DistributedDataParallel over Gloo, started by hand on the same nodes. Where workers do
not wait for each other, a step is one of each worker. Needs root, for the lab.
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

SHAPES = {2: (8, 256), 25: (6, 1024), 100: (6, 2048)}
"""Layers and their width, by megabytes of the model."""
RATES = {"200Mbit": 200e6 / 8, "1Gbit": 1e9 / 8}
BATCH = 8
LAB = "frameworks"
NODES = {f"n{index}": f"10.77.45.{index + 1}" for index in range(8)}

# The same model in each framework. Arguments: `headgate` or `ddp`, layers, width, batch of each
# worker, steps, and the folder for what each worker measured.

TORCH = """
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
result["step"] = middle([s[2] for s in together])
Path(out, task + ".json").write_text(json.dumps(result))
"""

_OPENING = """
import json, os, sys, time
from pathlib import Path
import numpy as np

layers, width, batch, steps, out = *map(int, sys.argv[2:6]), sys.argv[6]
task = os.environ["HEADGATE_TASK"].rpartition("/")[2]
middle = lambda values: sorted(values)[len(values) // 2]
draw = np.random.default_rng(0)
matrices = [draw.normal(size=(width, width)) / width**0.5 for _ in range(layers)]
matrices = [matrix.astype("float32") for matrix in matrices]
features = draw.normal(size=(2 * batch, width)).astype("float32")

def took(what):
    begun = time.perf_counter()
    what()
    return time.perf_counter() - begun

def alone(forward, whole):
    forward, whole = (middle([took(what) for _ in range(8)][2:]) for what in (forward, whole))
    result = {"forward": forward, "backward": max(whole - forward, 0.0)}
    return lambda step: Path(out, task + ".json").write_text(json.dumps({**result, "step": step}))
"""

JAX = (
    _OPENING
    + """
import headgate.jax as hg
hg.init()
import jax, jax.numpy as jnp

def loss_of(params, x):
    for matrix in params:
        x = x @ matrix
    return jnp.mean(jnp.square(x))

@jax.jit
def step(params, x):
    loss, gradients = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients), loss

forward, mine = jax.jit(loss_of), features[:batch]
device = jax.local_devices()[0]
local = jax.device_put((matrices, mine), device)
tell = alone(
    lambda: jax.block_until_ready(forward(*local)), lambda: jax.block_until_ready(step(*local))
)
params = hg.prepare([jnp.asarray(matrix) for matrix in matrices])
seconds = []
for _ in hg.epochs(1):
    for x in hg.batches([features] * steps):
        begun = time.perf_counter()
        params, loss = step(params, x)
        jax.block_until_ready((params, loss))
        seconds.append(time.perf_counter() - begun)
        hg.report(loss=loss, state=params)
tell(middle(seconds[2:]))
"""
)

_OF_TENSORFLOW = (
    _OPENING
    + """
import headgate.keras as hg
import keras, tensorflow as tf

def loss_of(weights, x):
    for matrix in weights:
        x = x @ matrix
    return tf.reduce_mean(tf.square(x))

def gradients_of(weights, x):
    with tf.GradientTape() as tape:
        loss = loss_of(weights, x)
    return loss, tape.gradient(loss, weights)

strategy = hg.strategy()
with tf.device("CPU:0"):
    constants, mine = [tf.Variable(matrix) for matrix in matrices], tf.constant(features[:batch])
forward = tf.function(lambda: loss_of(constants, mine))
@tf.function
def whole():
    loss, gradients = gradients_of(constants, mine)
    for matrix, gradient in zip(constants, gradients):
        matrix.assign_sub(0.001 * gradient)
    return loss
tell = alone(lambda: forward().numpy(), lambda: whole().numpy())
with strategy.scope():
    weights = [tf.Variable(matrix) for matrix in matrices]
model = tf.Module()
model.weights = weights
"""
)

TENSORFLOW = (
    _OF_TENSORFLOW
    + """
with strategy.scope():
    optimizer = keras.optimizers.SGD(0.001)
    optimizer.build(weights)
hg.prepare(model, optimizer)
data = tf.data.Dataset.from_tensors(features).unbatch().batch(2 * batch).repeat(steps)

def replica_step(x):
    loss, gradients = gradients_of(weights, x)
    optimizer.apply_gradients(zip([gradient / 2 for gradient in gradients], weights))
    return loss

@tf.function
def step(x):
    return strategy.reduce("MEAN", strategy.run(replica_step, (x,)), axis=None)

seconds = []
for _ in hg.epochs(1):
    for x in strategy.experimental_distribute_dataset(data):
        begun = time.perf_counter()
        loss = step(x)
        loss.numpy()
        seconds.append(time.perf_counter() - begun)
        hg.report(loss=loss)
tell(middle(seconds[2:]))
"""
)

TENSORFLOW_PS = (
    _OF_TENSORFLOW
    + """
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

@tf.function
def step():
    loss, gradients = gradients_of(weights, mine)
    for matrix, gradient in zip(weights, gradients):
        matrix.assign_sub(0.001 * gradient)
    return loss

def train(rounds):
    results = [coordinator.schedule(step) for _ in range(2 * rounds)]
    coordinator.join()
    return results[-1].fetch()

hg.prepare(model)
for _ in hg.epochs(1):
    hg.report(loss=train(2))
    tell(took(lambda: hg.report(loss=train(steps - 2))) / (steps - 2))
"""
)


@dataclass(frozen=True)
class Case:
    """What is measured.

    Args:
        name: In the table.
        script: Its text.
        times: How its forward and backward are found.
        ps: Whether there are servers.
        synchronous: Whether workers wait for each other.
        encrypted: Whether what they send is.
        by_hand: Whether Headgate has no part in it.
        workers: The only number of workers that the script is for; 0: any.
    """

    name: str
    script: str
    times: str = "all workers at once, before prepare"
    ps: bool = False
    synchronous: bool = True
    encrypted: bool = False
    by_hand: bool = False
    workers: int = 0


CASES = {
    "jax": Case("JAX allreduce", JAX, "both workers at once, jitted on one device", workers=2),
    "tensorflow": Case(
        "TensorFlow allreduce", TENSORFLOW, "both workers at once, of one replica", workers=2
    ),
    "tensorflow-ps": Case(
        *("TensorFlow ps, async", TENSORFLOW_PS, "the coordinator alone"),
        ps=True,
        synchronous=False,
        workers=2,
    ),
    "torch": Case("torch allreduce", TORCH),
    "torch-ps": Case("torch ps", TORCH, ps=True),
    "torch-ps-encrypted": Case("torch ps, encrypted", TORCH, ps=True, encrypted=True),
    "torch-ps-async": Case("torch ps, async", TORCH, ps=True, synchronous=False),
    "torch-ddp": Case("torch DDP by hand", TORCH, by_hand=True),
}


@dataclass(frozen=True)
class Setting:
    """A case with a model and nodes.

    Args:
        megabytes: Of the model.
        rate: Of every NIC.
        workers: How many.
        servers: How many; 0: all-reduce.
    """

    case: Case
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
        if not self.servers:
            return 2 * (self.workers - 1) / self.workers * self.bytes
        return max(self.bytes, self.workers * self.bytes / self.servers)


def measured(
    at: Setting, steps: int, folder: Path, environment: dict[str, str]
) -> tuple[float, float]:
    """Seconds of a step, and its bound."""
    out = Path(tempfile.mkdtemp(dir=folder))
    (folder / "train.py").write_text(at.case.script)
    arguments = [
        "ddp" if at.case.by_hand else "headgate",
        *map(str, (*SHAPES[at.megabytes], BATCH, steps)),
        str(out),
    ]
    (run_by_hand if at.case.by_hand else run_headgate)(at, folder, arguments, environment)
    found = [json.loads(path.read_text()) for path in sorted(out.glob("worker-*.json"))]
    forward, backward = (max(worker[name] for worker in found) for name in ("forward", "backward"))
    bound = forward + max(backward, at.busiest / RATES[at.rate])
    return statistics.median(worker["step"] for worker in found), bound


def run_headgate(
    at: Setting, folder: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    nodes = list(NODES)
    plan: dict[str, object] = {
        "strategy": "ps" if at.servers else "allreduce",
        "workers": at.workers,
        "servers": at.servers,
        "synchronous": at.case.synchronous,
        "worker_nodes": nodes[: at.workers],
        "server_nodes": nodes[at.workers : at.workers + at.servers],
    }
    (folder / "plan.yaml").write_text(json.dumps(plan))
    command = [
        "run",
        "--plan",
        "plan.yaml",
        "--cluster",
        LAB,
        *(() if at.case.encrypted else ("--no-encrypt",)),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "headgate", *command, "train.py", "--", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{at.case.name}: the run ended with {done.returncode}\n{done.stdout}")


def run_by_hand(
    at: Setting, folder: Path, arguments: list[str], environment: dict[str, str]
) -> None:
    nodes = list(NODES)
    added = {"MASTER_ADDR": NODES[nodes[0]], "MASTER_PORT": "29400", "WORLD_SIZE": str(at.workers)}
    processes = []
    for rank, node in enumerate(nodes[: at.workers]):
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
        raise RuntimeError(f"{at.case.name} ended with {codes}; see above")


def main() -> None:
    parser = _frame.parser("A step of data-parallel training over its bound, by framework.", 3)
    parser.add_argument(
        "--only", default=",".join(CASES), help=f"some of {', '.join(CASES)} (default: all)"
    )
    parser.add_argument(
        "--sizes", default="25", help=f"of the model, MB, some of {', '.join(map(str, SHAPES))}"
    )
    parser.add_argument(
        "--rates", default="1Gbit", help=f"some of {', '.join(RATES)} (default: 1Gbit)"
    )
    parser.add_argument(
        "--workers",
        default="2",
        help="numbers of workers; more than 2 under torch only (default: 2)",
    )
    parser.add_argument("--servers", default="1", help="numbers of servers (default: 1)")
    parser.add_argument(
        "--steps", type=int, default=22, help="the first two do not count (default: 22)"
    )
    given = parser.parse_args()
    sizes, workers, servers = (
        [int(number) for number in text.split(",")]
        for text in (given.sizes, given.workers, given.servers)
    )
    if max(workers) + max(servers) > len(NODES):
        parser.error(
            f"found {max(workers)} workers and {max(servers)} servers; expected at most "
            f"{len(NODES)} tasks"
        )
    packages = ("jax", "tensorflow-cpu", "keras", "torch", "pyzmq")
    _frame.heading(given.repetitions, *packages)
    cases = [CASES[name] for name in given.only.split(",")]
    found: dict[Setting, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        environment = _frame.environment(
            HEADGATE_HOME=os.path.join(place, "home"), TF_CPP_MIN_LOG_LEVEL="2"
        )
        try:
            for rate in given.rates.split(","):
                settings = [
                    Setting(case, size, rate, count, parts)
                    for size in sizes
                    for count in workers
                    for case in cases
                    if case.workers in (0, count)
                    for parts in (servers if case.ps else (0,))
                ]
                with _frame.lab(folder, LAB, NODES, rate, environment):
                    for _ in range(given.repetitions):
                        for at in settings:
                            found.setdefault(at, []).append(
                                measured(at, given.steps, folder, environment)
                            )
        finally:
            _frame.end_hubs(environment)
    head = f"{'MB':>4} {'NIC':>8} {'workers':>8} {'servers':>8}  {'':22}"
    print(f"{head} {'step, s':>24} {'bound, s':>9} {'over it':>24}")
    rows = []
    for at, pairs in found.items():
        seconds, over = [s for s, _ in pairs], [s / b for s, b in pairs]
        bound = statistics.median(b for _, b in pairs)
        print(
            f"{at.megabytes:>4} {at.rate:>8} {at.workers:>8} {at.servers or '':>8}  "
            f"{at.case.name:22} "
            f"{_frame.spread(seconds):>24} {bound:>9.3f} {_frame.spread(over):>24}"
        )
        what = {
            "case": at.case.name,
            "bytes": at.bytes,
            "nic": at.rate,
            "workers": at.workers,
            "servers": at.servers,
        }
        rows.append({**what, "seconds": seconds, "bound": bound, "over": over})
    print(
        "\nbounds: forward, and then the longer of backward and the bytes each way through "
        "the busiest NIC: of a ring"
    )
    print(
        "2(n-1)/n of the model, of a server its part of all gradients. Forward and backward "
        "are those of"
    )
    for case in cases:
        print(f"  {case.name:22} {case.times}")
    _frame.write(given.json, "frameworks", {"batch": BATCH, "rows": rows}, *packages)


if __name__ == "__main__":
    main()
