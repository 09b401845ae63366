"""Real jobs that come over time and share this machine, or the nodes of a lab: what they are, and
how each went.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import _frame
from _machine_speed import Seconds
from tests.harness.dockerd import own_dockerd

from headgate.isolation.container.daemon import Daemon, default_url
from headgate.model.errors import IsolationError
from headgate.recorded.reader import RunReader

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
KINDS = {"vae": 60, "cnn": 16, "keras_digits": 16, "charlm": 1, "plain": 60, "jax_digits": 60}
"""Scripts of `examples/`, and epochs that take some 15 s on two cores."""
PLAIN = {"graph": 120, "digits": 3, "names": 8, "gan": 8}
"""The same of `plain/`, kinds that people train everywhere and that know nothing of Headgate."""
ON_GPU = {"language": 16, "images": 16, "vectors": 16}
"""Kinds of `plain/saturating.py`, and epochs, for one large GPU that they share."""
LENGTHS = (0.5, 1.0, 2.0)
SPAN_SECONDS = 60.0
APART_SECONDS = 40.0
NODES = {name: f"10.78.0.{number}" for number, name in enumerate("abcd", start=1)}
"""Nodes of the lab for jobs of several tasks, and their addresses."""
NODE_CORES = 0.45
NODE_RATE = "500Mbit"


@dataclass(frozen=True)
class Job:
    """A script, when it arrives (s), and its epochs; where they are stated its plan and the most
    cores it may use; whether a plain script is observed.
    """

    name: str
    kind: str
    at: float
    epochs: int
    plan: Mapping[str, object] = field(default_factory=dict)
    cores: float | None = None
    observe: bool = True

    @property
    def work(self) -> tuple[str, int, str]:
        return self.kind, self.epochs, json.dumps(self.plan)

    def alone(self) -> Job:
        """The same job on a machine without others."""
        return replace(self, at=0.0)

    def entry(self, isolation: str) -> dict[str, object]:
        """It as a job file has it."""
        script = EXAMPLES / f"{self.kind}.py"
        arguments = ["--epochs", str(self.epochs)]
        if self.kind in PLAIN:
            script = HERE / "plain" / f"{self.kind}.py"
        if self.kind == "names":
            arguments = ["--max-steps", str(50 * self.epochs)]
        if self.kind in ON_GPU:
            script = HERE / "plain/saturating.py"
            arguments += ["--kind", self.kind]
        entry: dict[str, object] = {
            "name": self.name,
            "script": str(script),
            "args": arguments,
            "at": f"{self.at:.1f}s",
            "isolation": isolation,
        }
        if self.cores is not None:
            entry["limits"] = {"cores": self.cores}
        if not self.observe:
            entry["observe"] = False
        if self.plan:
            entry["plan"] = dict(self.plan)
        if self.plan.get("synchronous") is False:
            entry["allow"] = ["async"]
        return entry


@dataclass(frozen=True)
class Ran:
    """How a job went.

    Args:
        at: When it arrived (s since the run began).
        seconds: From then to its end.
        learnt: From then to nine tenths of its loss's fall.
    """

    at: float
    seconds: float
    learnt: float

    @property
    def ended(self) -> float:
        return self.at + self.seconds


@dataclass(frozen=True)
class Run:
    """How the jobs of a run went, which began at a time (s since the epoch)."""

    began: float
    ran: Mapping[str, Ran]

    def usual(self, pace: Seconds) -> dict[str, Ran]:
        """As it would have been at the machine's usual speed."""

        def told(ran: Ran) -> Ran:
            came = self.began + ran.at
            return Ran(
                pace(self.began, came),
                pace(came, came + ran.seconds),
                pace(came, came + ran.learnt),
            )

        return {name: told(ran) for name, ran in self.ran.items()}


def published(stretch: float, scale: float) -> list[Job]:
    """The three jobs of FlowCon (ICPP 2019)."""
    kinds = ("vae", "cnn", "keras_digits")
    return [
        Job(kind, kind, APART_SECONDS * stretch * place, epochs(kind, 2 * scale))
        for place, kind in enumerate(kinds)
    ]


def at_random(
    count: int, seed: int, stretch: float, scale: float, of: Mapping[str, int] = KINDS
) -> list[Job]:
    """So many jobs of all kinds, of random lengths, at random times."""
    luck = random.Random(seed)
    arrivals = sorted(luck.uniform(0, SPAN_SECONDS * stretch) for _ in range(count))
    kinds = [kind for _ in range(count // len(of) + 1) for kind in luck.sample(list(of), len(of))]
    return [
        Job(f"{kind}-{place}", kind, at, epochs(kind, luck.choice(LENGTHS) * scale))
        for place, (at, kind) in enumerate(zip(arrivals, kinds, strict=False))
    ]


def distributed(stretch: float, scale: float) -> list[Job]:
    """Four jobs of several tasks on the nodes of a lab, two or three tasks of theirs on every
    node.
    """
    ps = {"strategy": "ps", "workers": 2, "servers": 1}
    plans: dict[str, tuple[str, float, dict[str, object]]] = {
        "allreduce": (
            "vae",
            1.0,
            {"strategy": "allreduce", "workers": 2, "worker_nodes": ["a", "b"]},
        ),
        "ps": ("cnn", 1.0, {**ps, "worker_nodes": ["b", "c"], "server_nodes": ["d"]}),
        "async": (
            "charlm",
            1.0,
            {**ps, "synchronous": False, "worker_nodes": ["c", "d"], "server_nodes": ["a"]},
        ),
        "jax": (
            "jax_digits",
            0.5,
            {"strategy": "allreduce", "workers": 2, "worker_nodes": ["d", "a"]},
        ),
    }
    return [
        Job(name, kind, APART_SECONDS * stretch * place, epochs(kind, length * scale), plan)
        for place, (name, (kind, length, plan)) in enumerate(plans.items())
    ]


def epochs(kind: str, scale: float) -> int:
    """So many times the usual epochs of a script, at least one."""
    return max(1, round({**KINDS, **PLAIN, **ON_GPU}[kind] * scale))


@dataclass(frozen=True)
class Stage:
    """Where jobs run: a `HEADGATE_HOME` of its own, and the nodes of a lab where there is one.

    Args:
        home: The folder.
        isolation: What tasks are boxed in.
        variables: Environment of every command.
        cluster: File of the lab; None: this machine.
    """

    home: Path
    isolation: str
    variables: dict[str, str]
    cluster: Path | None

    def run(self, jobs: Sequence[Job], policy: str, known: bool = False) -> Run:
        """Run jobs; how they went."""
        return self.went(self.start(jobs, policy, known), jobs)

    def went(self, folder: Path, jobs: Sequence[Job]) -> Run:
        """How the jobs of a run went."""
        with RunReader(folder / "run.sqlite") as reader:
            ends = {row["name"]: float(row["ended"]) for row in reader.rows("jobs")}
            ran = {
                job.name: Ran(
                    job.at,
                    ends[job.name] - job.at,
                    learnt(reader, job.name, ends[job.name]) - job.at,
                )
                for job in jobs
            }
            return Run(float(reader.meta()["began"]), ran)

    def start(self, jobs: Sequence[Job], policy: str, known: bool = False) -> Path:
        """Run jobs to their end; the run's folder.

        Args:
            known: Whether it is remembered how long such jobs took before.

        Raises:
            SystemExit: One failed; it says which and why.
        """
        if not known:
            shutil.rmtree(self.home / "lengths", ignore_errors=True)
        file = self.home / "jobs.yaml"
        file.write_text(json.dumps({"jobs": [job.entry(self.isolation) for job in jobs]}))
        command = [sys.executable, "-m", "headgate", "run", str(file), "--policy", policy, "--json"]
        if self.cluster is not None:
            command += ["--cluster", str(self.cluster)]
        before = set((self.home / "runs").glob("*"))
        ended = subprocess.run(
            command,
            check=False,
            env=self.variables,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        folders = set((self.home / "runs").glob("*")) - before
        if ended.returncode:
            raise SystemExit(
                f"{ended.stdout[-2000:]}\n{' '.join(command)}: ended with {ended.returncode}"
            )
        [folder] = folders
        return folder


@contextmanager
def stage(isolation: str, on_lab: bool) -> Iterator[Stage]:
    """A stage, with a Docker daemon where one is needed and none answers; all of it is gone
    afterwards.
    """
    with _frame.leaving(), ExitStack() as undo:
        home = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        added = {"HEADGATE_HOME": str(home)}
        if isolation == "container":
            added["DOCKER_HOST"] = undo.enter_context(_docker())
        variables = _frame.environment(**added)
        cluster = None
        if on_lab:
            undo.enter_context(_frame.lab(home, "elastic", NODES, NODE_RATE, variables, NODE_CORES))
            cluster = home / "lab.yaml"
        undo.callback(_frame.end_hubs, variables)
        yield Stage(home, isolation, variables, cluster)


@contextmanager
def _docker() -> Iterator[str]:
    """Where a Docker daemon listens: that of this machine, or one of its own."""
    try:
        Daemon(default_url())
    except IsolationError:
        with own_dockerd() as dockerd:
            yield dockerd.url
    else:
        yield default_url()


def learnt(reader: RunReader, job: str, ended: float) -> float:
    """When the loss had come nine tenths of the way from its first to its lowest value; s since the
    run began.
    """
    rows = [
        row
        for row in reader.rows("progress")
        if row["task"].startswith(f"{job}/") and row["loss"] is not None
    ]
    if not rows:
        return ended
    first, least = rows[0]["loss"], min(row["loss"] for row in rows)
    return next(float(row["t"]) for row in rows if row["loss"] <= first - 0.9 * (first - least))
