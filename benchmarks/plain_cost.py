"""What observing a plain PyTorch script costs it: a step, and its start.

    python benchmarks/plain_cost.py [--repetitions 5] [--traceml PYTHON] [--part steps|start]
        [--json PATH]

Steps. The same loop runs under plain Python, observed by Headgate, and under TraceML, if
`--traceml` names the Python of an environment that has it (`pip install traceml-ai` beside
PyTorch). Its steps take 1.5, 2.5 and 10 ms. All processes of a repetition are up at the same time
and train in turn, an eighth of a second each; the others wait. A repetition gives one difference
from plain Python for each. The range is over repetitions, because two processes of the same script
differ too. Under Headgate the script has no call, and its engine is a bare listener. Under TraceML
it has the two calls that TraceML's documentation names. It takes about three minutes on an idle
machine.

Start. What Headgate does when a script has imported PyTorch, Keras or JAX is timed by itself, in
new processes. So is the whole of a Python that imports none of these, in pairs with and without
observation. These are seconds on a CPU. It takes about a minute.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import _frame

from headgate.engines.launch import inject, observation
from headgate.testing.listener import ChannelListener

STEP_MILLISECONDS = (1.5, 2.5, 10.0)
BLOCKS, BLOCK_SECONDS, WARMING_SECONDS = 24, 0.125, 1.0
COLD_STEPS = 2
"""At the begin of a block, untimed."""
AIM_MILLISECONDS, AIM_PART = 0.02, 0.01
AIM_IMPORT_MILLISECONDS, AIM_START_MILLISECONDS = 5.0, 1.0
STARTS = 8
"""Pairs of starts without a framework in a repetition. They are short, and differ more."""
IMPORT = """
import sys, time
from importlib import import_module
[finder] = [finder for finder in sys.meta_path if type(finder).__name__ == "AfterImport"]
seconds = 0.0
def timed(after):
    def watch(module):
        global seconds
        begin = time.thread_time()
        after(module)
        seconds += time.thread_time() - begin
    return watch
finder._after = {name: timed(after) for name, after in finder._after.items()}
import_module(sys.argv[1])
print(seconds)
"""
SCRIPT = f"""
import contextlib, socket, sys, time
import torch
from torch.utils.data import DataLoader, Dataset
way, at = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
traced = lambda model: contextlib.nullcontext()
if way == "traceml":
    import traceml_ai as traceml
    traceml.init(mode="auto")
    traced = traceml.trace_step

class Samples(Dataset):
    sample = torch.randn(64), 1
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        return self.sample

connection = socket.socket(socket.AF_UNIX)
connection.connect(at)
asked = connection.makefile("rw")
timed = left = 0
for features, labels in DataLoader(Samples(), batch_size=8):
    if not left:
        if timed:
            asked.write(f"{{(time.perf_counter() - wall) / timed}}\\n")
            asked.flush()
        if not (line := asked.readline()):
            break
        turns, timed = map(int, line.split())
        left = timed + {COLD_STEPS}
    if left == timed:
        wall = time.perf_counter()
    with traced(model):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(features), labels)
        for _ in range(turns):
            pass
        loss.backward()
        optimizer.step()
    left -= 1
"""


class Trained:
    """A process that trains while it is asked to, and waits in between."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._asked = connection.makefile("rw")

    def block(self, turns: int, steps: int) -> float:
        """Seconds of a step, on average over so many with that many turns of an empty loop each.

        Raises:
            RuntimeError: The process has ended.
        """
        self._asked.write(f"{turns} {steps}\n")
        self._asked.flush()
        if not (line := self._asked.readline()):
            raise RuntimeError(f"the script ended early, with {self._process.wait()}")
        return float(line)


@contextmanager
def trained(
    folder: Path, way: str, command: Sequence[str], variables: Mapping[str, str]
) -> Iterator[Trained]:
    """The script, ready for its first block.

    Raises:
        RuntimeError: It ended before.
    """
    path = folder / f"{way}.socket"
    with socket.socket(socket.AF_UNIX) as listener, open(folder / f"{way}.log", "wb") as log:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(1.0)
        process = subprocess.Popen(
            [*command, way, str(path)],
            env=_frame.environment(OMP_NUM_THREADS="1", **variables),
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        while True:
            try:
                connection, _ = listener.accept()
                break
            except TimeoutError:
                if process.poll() is not None:
                    raise RuntimeError((folder / f"{way}.log").read_text()[-2000:]) from None
    try:
        with connection:
            yield Trained(process, connection)
            connection.shutdown(socket.SHUT_RDWR)
    finally:
        process.wait()


@contextmanager
def ways(traceml: str | None) -> Iterator[dict[str, Trained]]:
    """The script in each way, up at the same time."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        script = folder / "train.py"
        script.write_text(SCRIPT)
        injected = inject(folder / "inject")
        channel = opened.enter_context(ChannelListener(folder, {"type": "welcome", "threads": 1}))
        observed = {
            "PYTHONPATH": os.pathsep.join([str(observation(injected)), str(injected)]),
            **channel.environment(HEADGATE_OBSERVE="steps"),
        }
        plain = [sys.executable, str(script)]
        found = {
            "plain": opened.enter_context(trained(folder, "plain", plain, {})),
            "observed": opened.enter_context(trained(folder, "observed", plain, observed)),
        }
        if traceml is not None:
            program = str(Path(traceml).with_name("traceml"))
            command = [program, "run", "--finalize-timeout-sec", "10", str(script), "--args"]
            found["traceml"] = opened.enter_context(trained(folder, "traceml", command, {}))
        yield found


def repetition(traceml: str | None) -> dict[float, dict[str, float]]:
    """Seconds of a step in each way, for each length of step."""
    seconds = {}
    with ways(traceml) as processes:
        plain = processes["plain"]
        plain.block(0, 500)
        small, large = plain.block(0, 500), plain.block(100_000, 100)
        for milliseconds in STEP_MILLISECONDS:
            turns = max(int((milliseconds / 1e3 - small) / (large - small) * 100_000), 0)
            steps = max(int(BLOCK_SECONDS * 1e3 / milliseconds), 5)
            blocks: dict[str, list[float]] = {way: [] for way in processes}
            for process in processes.values():
                process.block(turns, max(int(WARMING_SECONDS * 1e3 / milliseconds), 25))
            for number in range(BLOCKS):
                order = list(processes)
                turned = number % len(order)
                for way in order[turned:] + order[:turned]:
                    blocks[way].append(processes[way].block(turns, steps))
            seconds[milliseconds] = {way: statistics.median(of) for way, of in blocks.items()}
    return seconds


def starts(repetitions: int) -> dict[str, list[float]]:
    """Seconds that Headgate adds to the import of each framework, and to a start without any."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        injected = inject(folder / "inject")
        channel = opened.enter_context(ChannelListener(folder, {"type": "welcome", "threads": 1}))
        # Packages that are installed come with their compiled code.
        plain = _frame.environment(
            PYTHONDONTWRITEBYTECODE="", PYTHONPYCACHEPREFIX=str(folder / "compiled")
        )
        observed = {
            **plain,
            "PYTHONPATH": os.pathsep.join([str(observation(injected)), str(injected)]),
            **channel.environment(HEADGATE_OBSERVE="steps,threads"),
        }

        def timed(variables: Mapping[str, str], code: str, *args: str) -> tuple[float, str]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            ended = subprocess.run(
                [sys.executable, "-c", code, *args],
                env={**variables, "TF_CPP_MIN_LOG_LEVEL": "3"},
                capture_output=True,
                text=True,
                check=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
            return user + system, ended.stdout

        added: dict[str, list[float]] = {}
        for framework in ("torch", "keras", "jax"):
            times = [timed(observed, IMPORT, framework)[1] for _ in range(repetitions + 1)]
            added[framework] = [float(seconds) for seconds in times[1:]]
        added["none"] = []
        for number in range(repetitions * STARTS):
            first, second = (plain, observed) if number % 2 else (observed, plain)
            before, after = timed(first, "pass")[0], timed(second, "pass")[0]
            added["none"].append(after - before if number % 2 else before - after)
        return added


def tell_starts(added: Mapping[str, Sequence[float]]) -> list[dict[str, object]]:
    """Print what starts cost, and return it."""
    rows: list[dict[str, object]] = []
    print(f"{'import':>10}{'more':>12}{'least':>12}{'most':>12}{'aim':>10}")
    for name, seconds in added.items():
        aim = AIM_START_MILLISECONDS if name == "none" else AIM_IMPORT_MILLISECONDS
        told = (statistics.median(seconds), min(seconds), max(seconds))
        figures = "".join(f"{value * 1e3:>9.2f} ms" for value in told)
        print(f"{name:>10}{figures}{aim:>7g} ms")
        rows.append(
            {
                "import": name,
                "added_seconds": told[0],
                "added_range": told[1:],
                "aim": {"milliseconds": aim},
            }
        )
    return rows


def tell_steps(found: Sequence[Mapping[float, Mapping[str, float]]]) -> list[dict[str, object]]:
    """Print what steps cost, and return it."""
    rows: list[dict[str, object]] = []
    print(f"{'a step':>8}{'way':>10}{'plain':>12}{'more':>12}{'least':>12}{'most':>12}{'part':>9}")
    for milliseconds in STEP_MILLISECONDS:
        for way in found[0][milliseconds]:
            if way == "plain":
                continue
            more = sorted(of[milliseconds][way] - of[milliseconds]["plain"] for of in found)
            plain = statistics.median(of[milliseconds]["plain"] for of in found)
            added = statistics.median(more)
            figures = [f"{value * 1e3:>9.4f} ms" for value in (plain, added, more[0], more[-1])]
            print(f"{milliseconds:>5g} ms{way:>10}{''.join(figures)}{added / plain:>9.2%}")
            rows.append(
                {
                    "step_milliseconds": milliseconds,
                    "way": way,
                    "plain_seconds": plain,
                    "added_seconds": added,
                    "added_range": [more[0], more[-1]],
                    "aim": {"milliseconds": AIM_MILLISECONDS, "part": AIM_PART},
                }
            )
    return rows


def main() -> None:
    parser = _frame.parser(__doc__.splitlines()[0], repetitions=5)
    parser.add_argument("--traceml", metavar="PYTHON", help="a Python whose environment has it")
    parser.add_argument("--part", choices=("steps", "start"), help="this part alone")
    options: argparse.Namespace = parser.parse_args()
    _frame.heading(options.repetitions, "torch", "traceml-ai")
    content: dict[str, object] = {}
    if options.part != "steps":
        content["start"] = tell_starts(starts(options.repetitions))
    if options.part != "start":
        found = [repetition(options.traceml) for _ in range(options.repetitions)]
        content.update(steps=tell_steps(found), repetitions=found)
    _frame.write(options.json, "plain_cost", content, "torch", "traceml-ai")


if __name__ == "__main__":
    main()
