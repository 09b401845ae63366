"""Nodes on which nothing of Headgate's runs: this machine, and the nodes of labs."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import replace

from headgate import lab
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError
from headgate.recorded.status import OF_NODE, NodeReading
from headgate.sampling import machine
from headgate.sampling.base import Target
from headgate.sampling.cpu import CpuSampler
from headgate.sampling.disk import DiskSampler
from headgate.sampling.gpu import GpuSampler, gpus, open_nvml
from headgate.sampling.memory import MemorySampler
from headgate.sampling.network import NetworkSampler
from headgate.sampling.pressure import PressureSampler
from headgate.sampling.round import SamplingRound

_log = logging.getLogger(__name__)
_SAMPLERS = (CpuSampler, MemorySampler, DiskSampler, NetworkSampler, GpuSampler, PressureSampler)


class IdleNodes:
    """Reads what is used of nodes that no run uses, which no hub does."""

    def __init__(self) -> None:
        self._machine = replace(machine.describe(), gpus=gpus(open_nvml()))
        self._round = SamplingRound([sampler() for sampler in _SAMPLERS], _log.info)

    def read(self, in_use: Collection[str]) -> tuple[NodeReading, ...]:
        """This machine and the nodes of all labs that are up.

        Rates are those since the last reading; a first one has none.

        Args:
            in_use: Names of nodes to leave out.
        """
        described = {self._machine.name: (self._machine, self._machine.cpu_model)}
        for name in lab.names():
            for node in _nodes_of(name):
                described.setdefault(node.name, (node, f"lab {name}"))
        idle = {name: known for name, known in described.items() if name not in in_use}
        targets = [Target(name, None, node.place) for name, (node, _) in idle.items()]
        readings = self._round.read(time.monotonic(), targets)
        return tuple(
            NodeReading(
                name=name,
                description=description,
                cores=node.cores,
                gpus=len(node.gpus),
                total_memory_bytes=node.memory_bytes,
                nic_bytes_per_second=node.nic_bytes_per_second,
                **{column: readings.get(name, {}).get(column) for column in OF_NODE},
            )
            for name, (node, description) in idle.items()
        )


def _nodes_of(name: str) -> tuple[Node, ...]:
    try:
        return lab.nodes(name).nodes
    except HeadgateError as error:  # it is being made, or taken down
        _log.info("%s", error)
        return ()
