"""Figures for Prometheus: `/metrics`, and a file for node_exporter's textfile collector.

Names and labels follow https://prometheus.io/docs/practices/naming/. The number of series is
bounded: of very many jobs, those that lost the most have series of their own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headgate.web.board import Board

MOST_JOBS = 500
"""Jobs that have series of their own."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OF_JOB = {
    "loss": ("headgate_job_loss", "Last loss that the job reported."),
    "step": ("headgate_job_step", "Last step that the job reported."),
    "epoch": ("headgate_job_epoch", "Last epoch that the job reported."),
    "share": ("headgate_job_share_cores", "Cores that the job is entitled to."),
    "cpu": ("headgate_job_cpu_cores", "Cores that the job uses."),
    "memory": ("headgate_job_memory_bytes", "Resident memory of the job."),
    "gpu_memory": ("headgate_job_gpu_memory_bytes", "GPU memory that the job holds."),
    "workers": ("headgate_job_workers", "Workers of the job that run."),
}
_OF_NODE = {
    "cores": ("headgate_node_cores", "Cores that jobs may use."),
    "cpu_cores": ("headgate_node_cpu_cores", "Cores in use."),
    "total_memory_bytes": ("headgate_node_memory_total_bytes", "Memory of the node."),
    "memory_bytes": ("headgate_node_memory_bytes", "Memory in use."),
    "gpus": ("headgate_node_gpus", "GPUs of the node."),
    "gpu_busy": ("headgate_node_gpu_busy_ratio", "Mean part of time that its GPUs are busy."),
    "net_in": ("headgate_node_receive_bytes_per_second", "Bytes received a second."),
    "net_out": ("headgate_node_transmit_bytes_per_second", "Bytes sent a second."),
}


class BoardCollector(Collector):
    """Collects what a board shows.

    Args:
        board: The board.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        jobs = [(run, job) for run in self._board.runs for job in self._board.state(run).values()]
        states = GaugeMetricFamily("headgate_jobs", "Jobs of live runs.", labels=["state"])
        for state, count in sorted(Counter(job["state"] for _, job in jobs).items()):
            states.add_metric([state], count)
        yield states
        yield GaugeMetricFamily("headgate_runs", "Live runs.", value=len(self._board.runs))
        chosen = sorted(jobs, key=lambda entry: -_lost(entry[1]))[:MOST_JOBS]
        for name, (metric, meaning) in _OF_JOB.items():
            family = GaugeMetricFamily(metric, meaning, labels=["run", "job"])
            for run, job in chosen:
                if job[name] is not None:
                    family.add_metric([run, job["name"]], job[name])
            yield family
        yield from _lost_seconds(chosen)
        nodes: dict[str, dict[str, Any]] = self._board.facts.get("nodes", {})
        for name, (metric, meaning) in _OF_NODE.items():
            family = GaugeMetricFamily(metric, meaning, labels=["node"])
            for node in nodes.values():
                if node[name] is not None:
                    family.add_metric([node["name"]], node[name])
            yield family


def _lost_seconds(jobs: list[tuple[str, Mapping[str, Any]]]) -> Iterator[Metric]:
    """What held each job back most, with what that cost it, and to whom."""
    family = GaugeMetricFamily(
        "headgate_job_lost_seconds",
        "Seconds that the job lost to what held it back most.",
        labels=["run", "job", "cause", "resource", "neighbour"],
    )
    for run, job in jobs:
        if (verdict := job.get("verdict")) is not None:
            labels = [verdict["kind"], verdict["resource"] or "", verdict["culprit"] or ""]
            family.add_metric([run, job["name"], *map(str, labels)], verdict["seconds"] or 0.0)
    yield family


def _lost(job: Mapping[str, Any]) -> float:
    return float((job.get("verdict") or {}).get("seconds") or 0.0)


def exposition(board: Board) -> bytes:
    """The figures in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(BoardCollector(board))
    return generate_latest(registry)


def write(board: Board, path: Path) -> None:
    """Write the figures to a file, whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_bytes(exposition(board))
    fresh.replace(path)
