"""What all benchmarks share: the command line, what they were run on, the JSON, a lab; a training
job of several tasks under a hub of its own, looked at from outside; a Ray of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import psutil

from headgate import __version__
from headgate.lab import nodes as lab_nodes
from headgate.recorded import status
from headgate.sampling.machine import topology
from headgate.studies.statistics import Ratio, paired

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks use `tests.harness`


def parser(description: str, repetitions: int) -> argparse.ArgumentParser:
    """A command line with `--repetitions` and `--json`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--repetitions",
        type=int,
        default=repetitions,
        help=f"repetitions whose median is given (default: {repetitions})",
    )
    made.add_argument("--json", type=Path, help="write the result to this file")
    return made


def environment(**added: str) -> dict[str, str]:
    """This process's environment, in which `python` is the interpreter that runs the benchmark."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, **added}


def machine() -> str:
    """The machine in a line."""
    cpus = topology()
    return f"{cpus.model}, {cpus.allowed} CPUs, Linux {platform.release()}"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Headgate, Python and the packages that are installed."""
    found = {"headgate": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


@contextmanager
def leaving() -> Iterator[None]:
    """What is to be undone in a `finally` in this context is so, whole, when this process is asked
    to end as well.
    """
    before = {number: signal.signal(number, _leave) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def lab(
    folder: Path,
    name: str,
    nodes: Mapping[str, str],
    rate: str,
    variables: dict[str, str],
    cores: float = 1,
) -> Iterator[None]:
    """A lab of nodes that are alike, by name and address, with that NIC rate; up for as long as the
    context, which ends as well where this process is asked to.
    """
    lines = ["lab: true", f"name: {name}", "oversubscribe: true", "nodes:"]
    lines += [
        f"  - {{name: {n}, address: {at}, cores: {cores}, memory: 4GiB, nic: {rate}}}"
        for n, at in nodes.items()
    ]
    file = folder / "lab.yaml"
    file.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "headgate", "lab"]
    with leaving():
        try:
            subprocess.run(
                [*command, "up", file], env=variables, stdout=subprocess.DEVNULL, check=True
            )
            yield
        finally:
            _stay()
            subprocess.run(
                [*command, "down", name], env=variables, stdout=subprocess.DEVNULL, check=False
            )


_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def _leave(number: int, _: object) -> None:
    _stay()
    raise SystemExit(128 + number)


def _stay() -> None:
    """What is being undone is not to be left half done."""
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)


def end_hubs(variables: dict[str, str]) -> None:
    """End the hubs of a `HEADGATE_HOME`, which would wait for more runs; a node of a lab has one of
    its own.
    """
    code = (
        "import os, select, signal\n"
        "from headgate.recorded import runs\n"
        "from headgate.hub.connection import connect\n"
        "for hub in filter(None, map(connect, runs.hubs())):\n"
        "    pidfd = os.pidfd_open(hub.ask('hello')['pid'])\n"
        "    for wait in (5, 60):\n"
        "        signal.pidfd_send_signal(pidfd, signal.SIGTERM)\n"
        "        if select.select([pidfd], [], [], wait)[0]: break\n"
    )
    subprocess.run([sys.executable, "-c", code], env=variables, check=False)


def heading(repetitions: int, *packages: str) -> None:
    """Print what the figures below were measured on."""
    print(
        f"{machine()}; {', '.join(f'{name} {text}' for name, text in versions(*packages).items())}"
    )
    print(f"medians of {repetitions} repetitions, taken in turn\n")


def spread(values: Sequence[float]) -> str:
    """Median, and the least and the most in brackets."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def ratio(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The second of each pair over the first, as studies compare them.

    Raises:
        ValueError: There is no pair.
    """
    first, second = (dict(enumerate(each)) for each in zip(*pairs, strict=True))
    found = paired(first, second)
    if found is None:
        raise ValueError("found no pair; expected at least one")
    return found


def write(path: Path | None, benchmark: str, content: dict[str, object], *packages: str) -> None:
    """Write the JSON, where one is asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {"benchmark": benchmark, "machine": machine(), "versions": versions(*packages)}
        draft = path.with_name(f".{path.name}")
        draft.write_text(json.dumps({**head, **content}, indent=2) + "\n")
        draft.replace(path)  # whole or not at all


def measurements() -> Path:
    """The folder of what others measured: HEADGATE_DATA, or ../shared/data beside the checkout."""
    return Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[2] / "shared" / "data"))


# --- a job of several tasks -----------------------------------------------------------------------

T = TypeVar("T")
SECONDS = 120.0
"""Longest that anything is waited for."""
BATCH = 256
_PAUSE = 0.02

SCRIPT = """
import os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{opening}
torch.manual_seed(1)
model = nn.Sequential(
    nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
)
data = TensorDataset(torch.randn(8192, 256), torch.randint(0, 10, (8192,)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(data, {batch}, shuffle=True)
{preparing}
steps = open(f"steps-{{os.getpid()}}", "a", buffering=1)
done = 0
for epoch in {epochs}:
    for features, labels in loader:
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {reporting}
        done += 1
        print(time.time(), {step}, len(labels), file=steps)
        if done == int(sys.argv[1]):
            sys.exit()
"""

PLAIN = SCRIPT.format(
    batch=BATCH, opening="", preparing="", epochs="range(100000)", reporting="", step="done"
)

HEADGATE = SCRIPT.format(
    batch=BATCH,
    opening="import headgate.torch as hg",
    preparing="""
class Count:
    value = 0
    def state_dict(self):
        return {"value": self.value}
    def load_state_dict(self, state):
        self.value = state["value"]
count = Count()
hg.keep(count=count)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
""",
    epochs="hg.epochs(100000)",
    reporting="hg.report(loss=loss); count.value += 1",
    step="count.value",
)
"""Three calls; a line for each step: when it was done, its number, and of how many samples this
worker's part was.
"""

DDP = SCRIPT.format(
    batch=BATCH,
    opening="import torch.distributed",
    preparing="""
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(model)
""",
    epochs="range(100000)",
    reporting="",
    step="done",
)
"""As torchrun starts it: rank, number of processes and the address of the first in the
environment.
"""

MPI = SCRIPT.format(
    batch=BATCH,
    opening="from mpi4py import MPI",
    preparing="""
world = MPI.COMM_WORLD
def average(*_):
    for each in model.parameters():
        world.Allreduce(MPI.IN_PLACE, each.grad.numpy())
        each.grad /= world.size
optimizer.register_step_pre_hook(average)
""",
    epochs="range(100000)",
    reporting="",
    step="done",
)
"""As mpirun starts it."""


def until(what: Callable[[], T], words: str) -> T:
    """The first true value of `what`.

    Raises:
        TimeoutError: There was none within two minutes.
    """
    deadline = time.monotonic() + SECONDS
    while not (value := what()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{words}: not within {SECONDS:g} s")
        time.sleep(_PAUSE)
    return value


@dataclass(frozen=True)
class Step:
    """A step of one worker: when it was done (seconds since 1970), its number, and the samples of
    the worker's part.
    """

    at: float
    pid: int
    number: int
    samples: int


def steps(folder: Path) -> list[Step]:
    """What the scripts in a folder have written so far, in the order of time."""
    found = []
    for path in folder.glob("steps-*"):
        pid = int(path.name.removeprefix("steps-"))
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else it is being written
                at, number, samples = line.split()
                found.append(Step(float(at), pid, int(number), int(samples)))
    return sorted(found, key=lambda step: step.at)


class Bench:
    """A folder with the script in it, and a `HEADGATE_HOME` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.home = folder / "home"
        self.home.mkdir(mode=0o700)
        self.environment = environment(HEADGATE_HOME=str(self.home), OMP_NUM_THREADS="1")
        self.run = ""
        for name, text in (
            ("plain.py", PLAIN),
            ("train.py", HEADGATE),
            ("ddp.py", DDP),
            ("mpi.py", MPI),
        ):
            (self.folder / name).write_text(text)

    def headgate(self, *words: str) -> str:
        """What a headgate command prints."""
        command = [sys.executable, "-m", "headgate", *words]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def starts(self, *plan: str, count: int = 0, script: str = "train.py") -> None:
        """Start the job; it ends after `count` steps (0: never)."""
        for path in self.folder.glob("steps-*"):
            path.unlink()
        words = ("run", "--detach", "--json", script, *plan, "--", str(count))
        self.run = json.loads(self.headgate(*words))["run"]

    def runs(self, *plan: str, count: int, script: str) -> None:
        """Run the job to its end, after `count` steps.

        Raises:
            RuntimeError: It failed, with what it printed.
        """
        for path in self.folder.glob("steps-*"):
            path.unlink()
        try:
            self.headgate("run", "--json", script, *plan, "--", str(count))
        except subprocess.CalledProcessError:
            raise RuntimeError(self.headgate("logs", Path(script).stem, "--all")) from None

    def job(self) -> dict[str, Any]:
        """How it stands, as `headgate status` tells, without a process for each look."""
        [job] = status.read(self.home / "runs" / self.run).jobs
        return asdict(job)

    def pid(self, task: str) -> int:
        """Process of a task that runs."""
        running = (each for each in self.job()["tasks"] if each["state"] == "running")
        return int(next(each["pid"] for each in running if each["task"] == task))

    def steps(self) -> list[Step]:
        return steps(self.folder)

    def stops(self) -> None:
        """Kill the job."""
        self.headgate("stop", "--kill")


@contextmanager
def bench(lab: str | None = None, kind: type[Bench] = Bench) -> Iterator[Bench]:
    """A bench, and on the way out the end of its hub; with the lab of that cluster file up, where
    one is given. The same where this process is asked to end.
    """
    with leaving(), tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        made = kind(Path(folder))
        if lab is not None:
            (made.folder / "bench.yaml").write_text(lab)
            made.headgate("lab", "up", "bench.yaml")
        try:
            yield made
        finally:
            _stay()
            end_hubs(made.environment)
            if lab is not None:
                made.headgate("lab", "down")


# --- Ray ------------------------------------------------------------------------------------------


class Raylets:
    """Raylets that belong together, by name; the first is the head.

    Args:
        host: Address of the head.
        variables: Of the environment of all of them.
    """

    def __init__(self, host: str, variables: dict[str, str] | None = None) -> None:
        self.address = f"{host}:{free_port()}"
        # sockets' paths must be short
        self._folder = Path(tempfile.mkdtemp(prefix="hg-ray-", dir="/tmp"))
        # Ray's workers are nicer than others unless they are told not to be, and it wants a token
        # of whoever comes if its user has one, which drivers by hand do not show.
        self._variables = environment(
            RAY_worker_niceness="0", RAY_AUTH_MODE="disabled", **(variables or {})
        )
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()  # names
        self._on_head: Sequence[str] = ()  # a command that runs what follows it there

    def start(self, name: str, cores: int, *, host: str = "", within: Sequence[str] = ()) -> None:
        """Start one, and wait until it has joined.

        Args:
            name: Of the node.
            cores: CPUs that Ray is told it has.
            host: Its address; empty: Ray finds one.
            within: A command that runs what follows it on the node.
        """
        if not self._started:  # a cluster that knows of no other node
            self._on_head = within
            self._killed.clear()
        elif name in self._killed:
            # else there would be two of its name, and each would be called something else
            until(
                lambda: host not in self._alive(), f"Ray takes the former raylet on {name} for dead"
            )
        self._killed.discard(name)
        joins = ("--address", self.address)
        head = (
            "--head",
            "--port",
            self.address.split(":")[1],
            "--ray-client-server-port",
            str(free_port()),
        )
        words = [
            *(*within, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *(joins if self._started else (*head, "--include-dashboard", "false")),
            *(
                "--num-cpus",
                str(cores),
                "--temp-dir",
                str(self._folder / name),
                "--disable-usage-stats",
            ),
            *("--object-store-memory", "80000000"),
            *(("--node-ip-address", host) if host else ()),
        ]
        said = self._folder / f"{name}.log"
        with said.open("wb") as output:
            self._started[name] = subprocess.Popen(
                words,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            until(lambda: "Ray runtime started" in said.read_text(), f"a raylet on {name}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it said:\n{said.read_text()}") from None

    def start_in_lab(self, lab: str, name: str, cores: int) -> None:
        """Start one on a node of a lab that is up."""
        within = (sys.executable, "-m", "headgate", "lab", "exec", f"{lab}/{name}", "--")
        self.start(name, cores, host=lab_nodes(lab).node(name).address, within=within)

    def running(self) -> frozenset[str]:
        """Names of those that were started and not killed."""
        return frozenset(self._started)

    def below(self, name: str) -> list[psutil.Process]:
        """All processes of Ray on a node, Headgate's agent among them."""
        top = psutil.Process(self._started[name].pid)
        return [top, *top.children(recursive=True)]

    def kill(self, name: str) -> None:
        """kill -9 of all that Ray itself runs on a node: its actors end by themselves."""
        for process in self.below(name):
            with suppress(psutil.NoSuchProcess):  # what lost its head ends by itself
                if not process.name().startswith("ray::"):
                    process.kill()
        self._started.pop(name).wait()
        self._killed.add(name)

    def _alive(self) -> list[str]:
        """Addresses of the nodes that Ray takes to be alive."""
        code = (
            "import json, sys, ray\n"
            "ray.init(sys.argv[1], logging_level='ERROR')\n"
            "print(json.dumps([node['NodeManagerAddress'] for node in ray.nodes() if "
            "node['Alive']]))\n"
        )
        command = [*self._on_head, sys.executable, "-c", code, self.address]
        said = subprocess.run(
            command, env=self._variables, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        found: list[str] = json.loads(said.splitlines()[-1])
        return found

    def end(self) -> None:
        """End all of them."""
        for raylet in self._started.values():
            raylet.terminate()
        for raylet in self._started.values():
            raylet.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class OnHead(Bench):
    """A bench whose hub is on the node of Ray's head: there it finds a raylet."""

    head = ""
    """LAB/NODE."""

    def headgate(self, *words: str) -> str:
        if words[0] not in ("run", "resume", "calibrate", "profile"):
            return super().headgate(*words)
        return super().headgate(
            "lab", "exec", self.head, "--", sys.executable, "-m", "headgate", *words
        )


@contextmanager
def raylets(host: str = "", variables: dict[str, str] | None = None) -> Iterator[Raylets]:
    """Raylets that are gone afterwards; the head is to be at that address, or at this machine's."""
    made = Raylets(host or socket.gethostbyname(socket.gethostname()), variables)
    with leaving():
        try:
            yield made
        finally:
            _stay()
            made.end()


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
