"""What nodes of a lab have of a machine with cgroup v2. Needs root, and no NIC: each task has an
empty network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.lab import limits
from headgate.lab.record import Made, Record
from headgate.machine.processes import boot_id
from headgate.model.cluster import Node
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
from headgate.testing.wait import until

pytestmark = pytest.mark.hardware
CORES = {"a": 1.0, "b": 0.4}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    layout = limits.find()
    if layout.mode != "v2":
        pytest.skip(f"this machine has cgroup {layout.mode}")
    nodes = {name: Node(name, cores=cores, memory_bytes=512 << 20) for name, cores in CORES.items()}
    made = {name: Made(node, cpus=(0,)) for name, node in nodes.items()}
    bases = {controller: str(base) for controller, base in layout.bases.items()}
    record = Record("bench", boot_id(), "10.77.0.0/24", None, False, "v2", bases, nodes=made)
    limits.make(record, list(nodes.values()), layout.vacate)
    assert [limits.put(record, node) for node in nodes.values()] == [(), ()]
    yield record
    for name in nodes:
        limits.kill(record, name)
        limits.remove(record, name)
    assert not any(limits.there(record, name) for name in nodes)


@pytest.fixture
def boxes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def network(boxes: ExitStack) -> str:
    """A network namespace that goes with `boxes`."""
    code = (
        "import ctypes; assert ctypes.CDLL(None).unshare(0x40000000) == 0; print('made', "
        "flush=True); input()"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    keeper = boxes.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    boxes.callback(keeper.kill)
    assert keeper.stdout is not None and keeper.stdout.readline() == "made\n"
    return f"/proc/{keeper.pid}/ns/net"


def spins(record: Record, node: str, share: Share, boxes: ExitStack) -> Box:
    place = replace(record.place(node), namespace=network(boxes), hosts="/etc/hosts")
    argv = (sys.executable, "-I", "-S", "-c", "while True: pass")
    launch = Launch(TaskId(f"run/of-{share.cpu_weight}/worker-0"), argv, {}, "/tmp", 1, place=place)
    with open(os.devnull, "w") as nowhere:
        box = ProcessIsolation(f"lab-{os.getpid()}", mode="v2").start(
            launch, share, nowhere.fileno()
        )
    boxes.callback(box.close)
    return box


def test_a_node_keeps_to_its_cpus_and_weights_divide_it(record: Record, boxes: ExitStack) -> None:
    files = {name: record.cgroups(name)["cpuset"] / "cpuset.cpus" for name in CORES}
    assert {name: file.read_text().strip() for name, file in files.items()} == dict.fromkeys(
        CORES, "0"
    )
    spinning = [spins(record, "a", Share(cpu_weight=weight), boxes) for weight in (300.0, 100.0)]

    def used() -> list[float]:
        return [sum(psutil.Process(box.pid).cpu_times()[:2]) for box in spinning]

    before = used()
    until(lambda: sum(used()) - sum(before) > 2.0, 200, "they have used two CPU seconds")
    heavy, light = (after - first for after, first in zip(used(), before, strict=True))
    assert heavy / light == pytest.approx(3.0, rel=0.3)
