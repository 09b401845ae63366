"""Figures for dashboards: for Prometheus, for node_exporter's file, and for OpenTelemetry.

One table defines them all. Its names are OpenTelemetry's; Prometheus' names follow from them, by
https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/, and keep
https://prometheus.io/docs/practices/naming/. The number of series is bounded: of very many jobs,
those that lost the most have series of their own.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import psutil
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headgate import __version__
from headgate.diagnosis.attribution import REST
from headgate.model.job_states import ENDED, JobState
from headgate.recorded import runs
from headgate.web.board import Board

MOST_JOBS = 500
"""Jobs that have series of their own."""
MOST_NODES = 500
"""Nodes that have series."""
MOST_LOSSES_OF_JOB = 10
"""Losses of a job that have series; the others are added up."""
MOST_METRICS_OF_JOB = 20
"""Metrics of a job's own that have series: the first by name."""
MOST_USERS = 100
"""Users of a shared machine who have series: those with most jobs."""
ENDED_SECONDS = 300.0
"""How long a job that has ended keeps its series: Prometheus looks back as far for a last value."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SUFFIXES = {"": "", "s": "seconds", "By": "bytes", "By/s": "bytes_per_second"}
_SUFFIXES |= {"1": "ratio", "{core}": "cores"}
"""What Prometheus writes for a unit of OpenTelemetry."""

Sample = tuple[tuple[str, ...], float]
"""Values of labels, and a value."""


@dataclass(frozen=True)
class Scene:
    """All that figures are read from, at one moment.

    Args:
        board: The live runs.
    """

    board: Board

    @cached_property
    def all_jobs(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Jobs of live runs, each with its run."""
        return [(run, job) for run in self.board.runs for job in self.board.state(run).values()]

    @cached_property
    def jobs(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The jobs that have series of their own."""
        recent = [(run, job) for run, job in self.all_jobs if not self._is_past(run, job)]
        return sorted(recent, key=lambda entry: -_lost(entry[1]))[:MOST_JOBS]

    @cached_property
    def runs(self) -> list[str]:
        """The runs of these jobs."""
        return list(dict.fromkeys(run for run, _ in self.jobs))

    @cached_property
    def nodes(self) -> list[Mapping[str, Any]]:
        """The nodes that have series."""
        return list(self.board.facts.get("nodes", {}).values())[:MOST_NODES]

    @cached_property
    def users(self) -> list[Mapping[str, Any]]:
        """The users of a shared machine who have series."""
        users = self.board.facts.get("machine", {}).get("users", ())
        return sorted(users, key=lambda user: -user["running"] - user["waiting"])[:MOST_USERS]

    @cached_property
    def hubs(self) -> list[tuple[str, psutil.Process]]:
        """The processes of hubs, by name."""
        processes = []
        for name, pid in self.board.hubs.items():
            with suppress(psutil.NoSuchProcess):
                processes.append((name, psutil.Process(pid)))
        return processes

    def seconds(self, run: str) -> float:
        """Seconds since a run began."""
        return float(self.board.run_facts(run)["t"])

    def _is_past(self, run: str, job: Mapping[str, Any]) -> bool:
        ended = job["ended"] if job["state"] in ENDED else None
        return ended is not None and self.seconds(run) - ended > ENDED_SECONDS


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, as the table defines it.

    Args:
        name: Its name in OpenTelemetry, without `headgate.`.
        unit: Its unit there, by UCUM; empty: it has none.
        meaning: A sentence for people.
        labels: Names of what tells its series apart.
        read: Reads its series.
        is_counter: Whether it never goes back while this program runs.
    """

    name: str
    unit: str
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[Scene], Iterable[Sample]]
    is_counter: bool = False

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus: `headgate_job_memory_bytes`."""
        parts = ["headgate", *self.name.split("."), _SUFFIXES[self.unit]]
        parts += ["total"] if self.is_counter else []
        return "_".join(part for part in parts if part)


Readings = list[tuple[Figure, list[Sample]]]
"""Figures with their series at one moment."""
# Prometheus has a label `job` of its own, of what is scraped, and would rename one of ours.
_OF_RUN, _OF_JOB, _OF_NODE = ("run",), ("run", "job_name"), ("node",)


def _job_figure(field: str, name: str, unit: str, meaning: str) -> Figure:
    """A field of each job."""

    def read(scene: Scene) -> Iterator[Sample]:
        for run, job in scene.jobs:
            if job[field] is not None:
                yield (run, job["name"]), job[field]

    return Figure(name, unit, meaning, _OF_JOB, read)


def _node_figure(field: str, name: str, unit: str, meaning: str) -> Figure:
    """A field of each node."""

    def read(scene: Scene) -> Iterator[Sample]:
        for node in scene.nodes:
            if node[field] is not None:
                yield (node["name"],), node[field]

    return Figure(name, unit, meaning, _OF_NODE, read)


def _user_figure(field: str, name: str, unit: str, meaning: str) -> Figure:
    """A field of each user of a shared machine."""

    def read(scene: Scene) -> Iterator[Sample]:
        for user in scene.users:
            if (value := user[field]) is not None:
                yield (user["user"],), len(value) if isinstance(value, list) else value

    return Figure(name, unit, meaning, ("user",), read)


def _version(_scene: Scene) -> Iterator[Sample]:
    yield (__version__,), 1


def _runs(scene: Scene) -> Iterator[Sample]:
    yield (), len(scene.board.runs)


def _run_info(scene: Scene) -> Iterator[Sample]:
    for run in scene.runs:
        facts = scene.board.run_facts(run)
        yield (run, facts["policy"], facts.get("host", "")), 1


def _run_began(scene: Scene) -> Iterator[Sample]:
    for run in scene.runs:
        if (began := scene.board.run_facts(run).get("began")) is not None:
            yield (run,), began


def _decisions(scene: Scene) -> Iterator[Sample]:
    for run in scene.runs:
        for kind, count in scene.board.details(run).decisions.items():
            yield (run, kind), count


def _lost_runs(scene: Scene) -> Iterator[Sample]:
    yield (), scene.board.lost_runs


def _states(scene: Scene) -> Iterator[Sample]:
    counts = Counter(job["state"] for _, job in scene.all_jobs)
    for state in get_args(JobState):
        yield (state,), counts[state]


def _ends(scene: Scene) -> Iterator[Sample]:
    for state, count in scene.board.ends.items():
        yield (state,), count


def _left_out(scene: Scene) -> Iterator[Sample]:
    yield (), len(scene.all_jobs) - len(scene.jobs)


def _state(scene: Scene) -> Iterator[Sample]:
    for run, job in scene.jobs:
        yield (run, job["name"], job["state"]), 1


def _losses(scene: Scene) -> Iterator[Sample]:
    for run, job in scene.jobs:
        if job["nan"] or job["loss"] is not None:
            yield (run, job["name"]), float("nan") if job["nan"] else job["loss"]


def _metrics(scene: Scene) -> Iterator[Sample]:
    for run, job in scene.jobs:
        for name, value in sorted(job["metrics"].items())[:MOST_METRICS_OF_JOB]:
            if value is not None:
                yield (run, job["name"], name), value


def _queued(scene: Scene) -> Iterator[Sample]:
    for run, job in scene.jobs:
        submitted = scene.board.details(run).submitted.get(job["name"])
        begun = job["started"] if job["started"] is not None else job["ended"]
        if submitted is not None:
            until = begun if begun is not None else scene.seconds(run)
            yield (run, job["name"]), max(until - submitted, 0.0)


def _times(scene: Scene) -> Iterator[Sample]:
    for run, job in scene.jobs:
        account = scene.board.details(run).accounts.get(job["name"], {})
        for part, estimate in account.get("account", {}).items():
            yield (run, job["name"], part), estimate["seconds"]


def _lost_times(scene: Scene) -> Iterator[Sample]:
    for run, job in scene.jobs:
        account = scene.board.details(run).accounts.get(job["name"], {})
        losses: Counter[tuple[str, str]] = Counter()
        largest_first = sorted(account.get("lost", ()), key=lambda loss: -loss["seconds"])
        for number, loss in enumerate(largest_first):
            neighbour = loss["to"] if number < MOST_LOSSES_OF_JOB else REST
            losses[neighbour, loss["resource"]] += loss["seconds"]
        for labels, seconds in losses.items():
            yield (run, job["name"], *labels), seconds


def _verdicts(scene: Scene) -> Iterator[Sample]:
    for run, job in scene.jobs:
        if (verdict := job.get("verdict")) is not None:
            yield (run, job["name"], str(verdict["kind"])), verdict["seconds"] or 0.0


def _pressure(scene: Scene) -> Iterator[Sample]:
    for node in scene.nodes:
        for resource in ("cpu", "memory", "io"):
            if (part := node[f"psi_{resource}"]) is not None:
                yield (node["name"], resource), part


def _hub_cpu(scene: Scene) -> Iterator[Sample]:
    for name, process in scene.hubs:
        with suppress(psutil.Error):
            used = process.cpu_times()
            yield (name,), used.user + used.system


def _hub_memory(scene: Scene) -> Iterator[Sample]:
    for name, process in scene.hubs:
        with suppress(psutil.Error):
            yield (name,), process.memory_info().rss


def _silent(scene: Scene) -> Iterator[Sample]:
    yield (), bool(scene.board.facts.get("trouble"))


def _disk_size(_scene: Scene) -> Iterator[Sample]:
    yield (), shutil.disk_usage(runs.home()).total


def _disk_free(_scene: Scene) -> Iterator[Sample]:
    yield (), shutil.disk_usage(runs.home()).free


FIGURES: tuple[Figure, ...] = (
    Figure("build.info", "", "Version of Headgate; the value is 1.", ("version",), _version),
    Figure("runs", "", "Live runs.", (), _runs),
    Figure(
        "run.info",
        "",
        "Policy and host of a live run; the value is 1.",
        ("run", "policy", "host"),
        _run_info,
    ),
    Figure("run.start_time", "s", "When the run began, in Unix time.", _OF_RUN, _run_began),
    Figure(
        "runs.lost",
        "",
        "Runs that lost their hub since these figures began.",
        (),
        _lost_runs,
        is_counter=True,
    ),
    Figure(
        "decisions",
        "",
        "Decisions about the jobs of a live run, since the run began.",
        ("run", "kind"),
        _decisions,
        is_counter=True,
    ),
    Figure("jobs", "", "Jobs of live runs by state; `waiting` is the queue.", ("state",), _states),
    Figure(
        "jobs.ended",
        "",
        "Jobs that have ended since these figures began, by how.",
        ("state",),
        _ends,
        is_counter=True,
    ),
    Figure(
        "jobs.without_series", "", "Jobs of live runs without series of their own.", (), _left_out
    ),
    Figure(
        "job.state",
        "",
        "State of the job; only the present one has a series, whose value is 1.",
        (*_OF_JOB, "state"),
        _state,
    ),
    Figure("job.loss", "", "Last loss of the job; NaN if it was not finite.", _OF_JOB, _losses),
    Figure(
        "job.metric", "", "Last value of a metric of the job's own.", (*_OF_JOB, "metric"), _metrics
    ),
    _job_figure("step", "job.step", "", "Last step that the job reported."),
    _job_figure("steps", "job.steps", "", "Steps that the job takes in all."),
    _job_figure("epoch", "job.epoch", "", "Last epoch that the job reported."),
    _job_figure("epochs", "job.epochs", "", "Epochs that the job takes in all."),
    _job_figure("attempt", "job.attempt", "", "Attempt of the job; above 1 it was retried."),
    _job_figure("workers", "job.workers", "", "Workers of the job that run."),
    _job_figure("share", "job.share", "{core}", "Cores that the job is entitled to."),
    _job_figure("cpu", "job.cpu", "{core}", "Cores that the job uses."),
    _job_figure("memory", "job.memory", "By", "Resident memory of the job."),
    _job_figure("gpu_memory", "job.gpu.memory", "By", "GPU memory that the job holds."),
    _job_figure("gpu_busy", "job.gpu.busy", "1", "Part of time that the job's GPUs are busy."),
    Figure(
        "job.queue",
        "s",
        "Seconds from the job's submission to its first start, or so far.",
        _OF_JOB,
        _queued,
    ),
    Figure(
        "job.time",
        "s",
        "Where the job's time went, over its last hour at most: waits, losses and its own work.",
        (*_OF_JOB, "part"),
        _times,
    ),
    Figure(
        "job.lost",
        "s",
        "Seconds that the job lost to a neighbour through a resource, over its last hour at most.",
        (*_OF_JOB, "neighbour", "resource"),
        _lost_times,
    ),
    Figure(
        "job.verdict",
        "s",
        "Seconds that the most important cause cost the job, over its last hour at most.",
        (*_OF_JOB, "cause"),
        _verdicts,
    ),
    _node_figure("cores", "node.cores", "", "Cores that jobs may use."),
    _node_figure("cpu_cores", "node.cpu", "{core}", "Cores in use."),
    _node_figure("total_memory_bytes", "node.memory.total", "By", "Memory of the node."),
    _node_figure("memory_bytes", "node.memory", "By", "Memory in use, without page cache."),
    Figure(
        "node.pressure",
        "1",
        "Part of time that some task waited for a resource (PSI).",
        ("node", "resource"),
        _pressure,
    ),
    _node_figure("net_in", "node.receive", "By/s", "Bytes that its NICs receive a second."),
    _node_figure("net_out", "node.transmit", "By/s", "Bytes that its NICs send a second."),
    _node_figure("disk_read", "node.disk.read", "By/s", "Bytes read from its disks a second."),
    _node_figure("disk_write", "node.disk.write", "By/s", "Bytes written to its disks a second."),
    _node_figure("gpus", "node.gpus", "", "GPUs of the node."),
    _node_figure("gpu_busy", "node.gpu.busy", "1", "Mean part of time that its GPUs are busy."),
    _node_figure("gpu_memory_bytes", "node.gpu.memory", "By", "GPU memory in use."),
    _user_figure("cores", "user.share", "{core}", "Cores that a user's jobs can expect."),
    _user_figure("used_cores", "user.cpu", "{core}", "Cores that a user's jobs use."),
    _user_figure("memory_bytes", "user.memory", "By", "Memory granted to a user's jobs."),
    _user_figure("gpus", "user.gpus", "", "GPUs that a user's jobs hold."),
    _user_figure("running", "user.running", "", "Jobs of a user that run."),
    _user_figure("waiting", "user.waiting", "", "Jobs of a user that wait."),
    Figure(
        "hub.cpu",
        "s",
        "CPU time of a hub with live runs.",
        ("hub",),
        _hub_cpu,
        is_counter=True,
    ),
    Figure("hub.memory", "By", "Resident memory of a hub with live runs.", ("hub",), _hub_memory),
    Figure("hub.silent", "", "1 while a hub with live runs does not answer.", (), _silent),
    Figure("storage.size", "By", "Size of the disk with the records of runs.", (), _disk_size),
    Figure("storage.free", "By", "Free space on that disk.", (), _disk_free),
)
"""All figures."""


def _lost(job: Mapping[str, Any]) -> float:
    return float((job.get("verdict") or {}).get("seconds") or 0.0)


def read(board: Board) -> Readings:
    """All figures as they are now.

    It is quick and must be called on the board's event loop; text may be made of them elsewhere.
    """
    scene = Scene(board)
    return [(figure, list(figure.read(scene))) for figure in FIGURES]


class _Read(Collector):
    """What was read, for the client library."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        for figure, samples in self._readings:
            kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
            family = kind(figure.prometheus_name, figure.meaning, labels=figure.labels)
            for labels, value in samples:
                family.add_metric(labels, value)
            yield family


def exposition(readings: Readings, *, process: bool = False) -> bytes:
    """Figures in Prometheus' text format.

    Args:
        readings: The figures.
        process: Whether to add what this program itself uses, as Prometheus' clients do.
    """
    registry = CollectorRegistry()
    registry.register(_Read(readings))
    if process:
        ProcessCollector(registry=registry)
    return generate_latest(registry)


def write(text: bytes, path: Path) -> None:
    """Write figures to a file that everybody may read, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(text)
        fresh.chmod(0o644)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
