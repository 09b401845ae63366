"""Asynchronous parameter servers, Headgate's and TensorFlow's, on the same lab nodes in one run: worker-steps a second.

    python benchmarks/tensorflow_ps.py --tensorflow-python PATH [--repetitions 3] [--json PATH]

One server on node a, one worker beside it and one on node b; a single dense layer of 25 MB, plain SGD, at 200 Mbit/s
and at 1 Gbit/s. TensorFlow (`ParameterServerStrategy` with its coordinator) runs under an interpreter of its own, which
`--tensorflow-python` names: it and PyTorch do not have to share an environment. Needs root, for the lab.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import _frame

from headgate.telemetry.store import RunReader

WIDTH, BATCH = 2500, 32
RATES = ("200Mbit", "1Gbit")
LAB = "tf-ps"
NODES = {"a": "10.77.40.1", "b": "10.77.40.2", "chief": "10.77.40.3"}
TASK = Path(__file__).with_name("_tensorflow_ps_task.py")
SCRIPT = """
import sys, time, torch
import headgate.torch as hg
width, batch, seconds = map(int, sys.argv[1:])
model = torch.nn.Linear(width, width, bias=False)
model, optimizer = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
features = torch.randn(batch, width)
ends = time.monotonic() + seconds
while time.monotonic() < ends:
    loss = model(features).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hg.report(loss=loss)
"""


def tensorflow(python: str, steps: int, environment: dict[str, str]) -> float:
    """Steps a second of both workers together."""
    addresses = {
        "chief": [f"{NODES['chief']}:2222"],
        "ps": [f"{NODES['a']}:2223"],
        "worker": [f"{NODES['a']}:2224", f"{NODES['b']}:2224"],
    }
    tasks = (("ps", 0, "a"), ("worker", 0, "a"), ("worker", 1, "b"), ("chief", 0, "chief"))
    with ExitStack() as ends:
        for role, index, node in tasks:
            config = json.dumps({"cluster": addresses, "task": {"type": role, "index": index}})
            command = f"-m headgate lab exec {LAB}/{node} --".split()
            process = subprocess.Popen(
                [sys.executable, *command, python, str(TASK), str(WIDTH), str(BATCH), str(steps)],
                env={**environment, "TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "2"},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            ends.callback(process.wait)
            ends.callback(process.terminate)
        answer, _ = process.communicate(timeout=300)
    return float(json.loads(answer.splitlines()[-1])["steps_a_second"])


def headgate_run(folder: Path, seconds: int, environment: dict[str, str]) -> float:
    """Steps a second of both workers together while both were at work, their first tenth left out."""
    script = folder / "dense.py"
    script.write_text(SCRIPT)
    plan = f"--cluster {LAB} --strategy ps --async --workers 2 --servers 1 --nodes a,b --no-encrypt".split()
    answer = subprocess.run(
        [sys.executable, "-m", "headgate", "run", script, *plan, "--json", "--", str(WIDTH), str(BATCH), str(seconds)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    with RunReader(Path(json.loads(answer.stdout)["path"]) / "run.sqlite") as run:
        rows = run.query("SELECT task, t, step FROM progress WHERE step IS NOT NULL ORDER BY t")
    by_task: dict[str, list[tuple[float, int]]] = {}
    for row in rows:
        by_task.setdefault(row["task"], []).append((row["t"], row["step"]))
    began = max(points[0][0] for points in by_task.values())
    ended = min(points[-1][0] for points in by_task.values())
    began += (ended - began) / 10
    done = 0
    for points in by_task.values():
        inside = [step for t, step in points if began <= t <= ended]
        done += inside[-1] - inside[0]
    return done / (ended - began)


def main() -> None:
    parser = _frame.parser("Asynchronous parameter servers: Headgate's against TensorFlow's.", 3)
    parser.add_argument("--tensorflow-python", required=True, help="an interpreter that has TensorFlow")
    parser.add_argument("--steps", type=int, default=120, help="of TensorFlow's workers together (default: 120)")
    parser.add_argument("--seconds", type=int, default=20, help="of Headgate's workers (default: 20)")
    options = parser.parse_args()
    _frame.heading(options.repetitions, "torch", "pyzmq")
    print(f"{'NIC':10}{'TensorFlow, steps/s':>22}{'Headgate, steps/s':>22}{'ratio':>28}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        environment = _frame.environment(HEADGATE_HOME=folder)
        for rate in RATES:
            with _frame.lab(Path(folder), LAB, NODES, rate, environment, cores=2):
                pairs = [
                    (
                        tensorflow(options.tensorflow_python, options.steps, environment),
                        headgate_run(Path(folder), options.seconds, environment),
                    )
                    for _ in range(options.repetitions)
                ]
            theirs, ours = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            print(f"{rate:10}{theirs:>22.2f}{ours:>22.2f}{_frame.spread([b / a for a, b in pairs]):>28}")
            rows.append({"nic": rate, "pairs": pairs, "tensorflow": theirs, "headgate": ours})
    _frame.write(options.json, "tensorflow_ps", {"rows": rows}, "torch", "pyzmq")


if __name__ == "__main__":
    main()
