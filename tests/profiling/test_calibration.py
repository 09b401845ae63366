"""Nodes measured on small kernels and over their links, kept until the hardware changes."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.hub.user import User

from headgate import lab
from headgate.cli import headgate
from headgate.engines.base import T
from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.errors import HeadgateError
from headgate.profiling import calibration, kernels, links
from headgate.profiling.links import MeasuredLink
from headgate.recorded import runs
from headgate.sampling import machine
from headgate.testing.memory_engine import MemoryEngine

RATES = {"core_gflops": 50.0, "core_convolution_gflops": 20.0, "core_copy_bytes_per_second": 9e9}
A = Node("a", 0.5, 1 << 30, address="10.0.0.1", nic_bytes_per_second=25e6)
B = replace(A, name="b", address="10.0.0.2")
C = replace(A, name="c", address="10.0.0.3", nic_bytes_per_second=None)


@pytest.fixture
def measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, in order; the kernels answer at once."""
    home.mkdir(mode=0o700)
    order: list[str] = []

    def core() -> dict[str, float]:
        order.append("core")
        return dict(RATES)

    def gpus() -> dict[str, dict[str, float]]:
        order.append("gpus")
        raise HeadgateError("torch is missing")

    monkeypatch.setattr(kernels, "core", core)
    monkeypatch.setattr(kernels, "disk", lambda folder: 3e8)
    monkeypatch.setattr(kernels, "gpus", gpus)
    return order


def test_the_kernels_run_and_detection_uses_what_they_say(home: Path) -> None:
    home.mkdir(mode=0o700)
    done = CliRunner().invoke(headgate, ["calibrate", "--json"], catch_exceptions=False)
    told = json.loads(done.output)
    here = machine.detect(runs.home() / "node.json")
    for name in (
        "core_gflops",
        "core_convolution_gflops",
        "core_copy_bytes_per_second",
        "disk_bytes_per_second",
    ):
        assert 0 < told["machine"]["rates"][name] == getattr(here, name)
    assert told["machine"]["rates"]["core_copy_bytes_per_second"] > 1e8
    assert told["links"] == []


def test_this_machine_is_measured_once_and_again_when_it_has_changed_or_on_demand(
    measured: list[str], home: Path
) -> None:
    here = replace(machine.describe(), core_gflops=1.0)
    first = calibration.machine(here, home)
    assert first.rates == {**RATES, "disk_bytes_per_second": 3e8}
    assert calibration.machine(here, home) == first
    assert measured == ["core"]
    calibration.machine(here, home, again=True)
    with_gpu = calibration.machine(replace(here, gpus=(Gpu(0, "t4", 1 << 34),)), home)
    assert measured == ["core", "core", "core", "gpus"]
    assert with_gpu.notes == (
        "GPUs were not measured, their makers' peaks count: torch is missing",
    )
    calibration.machine(replace(here, cores=here.cores + 1), home)
    assert measured[4:] == ["core"]
    # that was of another one
    assert machine.detect(home / "node.json").core_convolution_gflops is None


def test_nodes_that_are_alike_stay_so_by_what_their_links_were_measured_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (
        MeasuredLink("a", "b", 24.6e6, 1e-4),
        MeasuredLink("b", "c", 12.49e6, 3e-4),
        MeasuredLink("c", "a", 12.5e6, 2e-4),
    )
    monkeypatch.setattr(links, "measure", lambda nodes, told, between: found)
    cluster, here = Cluster((A, B, C)), replace(A, core_gflops=50.0)
    assert calibration.network("lab", cluster, home) == found
    known = calibration.calibrated("lab", cluster, here, home).nodes
    assert [node.nic_bytes_per_second for node in known] == [25e6, 25e6, 12e6]
    assert {node.round_trip_seconds for node in known} == {2e-4}
    assert {node.core_gflops for node in known} == {50.0}

    monkeypatch.setattr(links, "measure", lambda nodes, told, between: pytest.fail("it is known"))
    assert calibration.network("lab", cluster, home) == found
    changed = Cluster((replace(A, nic_bytes_per_second=50e6), B, C))
    assert calibration.calibrated("lab", changed, here, home).nodes[0].nic_bytes_per_second == 50e6


class Elsewhere(MemoryEngine):
    """An engine of nodes that are alike but for a GPU, whose agents are this process."""

    def __init__(self) -> None:
        super().__init__()
        plain = Node("a", 2, 1 << 30, cpu_model="x", nic_bytes_per_second=1e12)
        self.nodes = [
            plain,
            replace(plain, name="b"),
            replace(plain, name="c", gpus=(Gpu(0, "t4", 1 << 34),)),
        ]
        self.asked: list[str] = []

    def cluster(self) -> Cluster:
        return Cluster(tuple(self.nodes))

    def called(self) -> str:
        return "elsewhere-10.0.0.1:6379"

    def ask(self, node: str, function: Callable[..., T], *arguments: object) -> T:
        self.asked.append(node)
        return function(*arguments)


def test_of_a_cluster_one_of_the_nodes_that_are_alike_is_measured_and_every_link(
    measured: list[str], home: Path
) -> None:
    engine = Elsewhere()
    machines = calibration.machines(engine, engine.cluster(), home)
    assert [*machines] == [("a", "b"), ("c",)]
    assert engine.asked == ["a", "c"]
    assert calibration.machines(engine, engine.cluster(), home) == machines
    assert measured == ["core", "core", "gpus"]
    found = calibration.network(engine.called(), engine.cluster(), home, between=links.by(engine))
    assert {(link.sender, link.receiver) for link in found} >= {("a", "b"), ("b", "c"), ("c", "a")}
    assert all(
        1e6 < link.bytes_per_second < 1e12 and 0 < link.round_trip_seconds < 1 for link in found
    )

    known = calibration.known(engine.called(), engine.cluster(), home).nodes
    for node in known:
        assert (node.core_convolution_gflops, node.disk_bytes_per_second) == (20.0, 3e8)
        assert node.nic_bytes_per_second is not None and node.nic_bytes_per_second < 1e12
        assert node.round_trip_seconds is not None
    engine.nodes.append(replace(engine.nodes[0], name="d", cores=4))
    *others, joined = calibration.known(engine.called(), engine.cluster(), home).nodes
    assert [node.nic_bytes_per_second for node in others] == [
        node.nic_bytes_per_second for node in known
    ]
    assert (joined.core_convolution_gflops, joined.nic_bytes_per_second) == (None, 1e12)


def test_nodes_that_do_not_reach_each_other_are_named(home: Path) -> None:
    class Walled(Elsewhere):
        def ask(self, node: str, function: Callable[..., T], *arguments: object) -> T:
            with socket.create_server(("127.0.0.1", 0)) as free:
                nobody = free.getsockname()
            return super().ask(node, function, *(nobody if function is links.send else arguments))

    engine = Walled()
    with pytest.raises(HeadgateError) as caught:
        calibration.network(engine.called(), engine.cluster(), home, between=links.by(engine))
    said = str(caught.value)
    assert said.startswith(
        "the link from a to b cannot be measured: 127.0.0.1 cannot be reached at port "
    )
    assert said.endswith(": Connection refused; nodes have to reach each other at any port")


def test_what_arrives_while_a_node_has_no_cpu_makes_no_link_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, usual = links._read, (625_000, 0.05)
    stall, at_once = (625_000, 0.45), (9 * 625_000, 0.05)
    planned = iter([usual, *[usual] * 3, stall, at_once, *[usual] * 3])
    monkeypatch.setattr(
        links, "_read", lambda taken, seconds: next(planned, None) or read(taken, seconds)
    )
    rate, _ = links.send("127.0.0.1", links.listen("127.0.0.1"))
    assert rate == pytest.approx(12.5e6)


def test_what_had_arrived_before_a_measurement_is_none_of_it() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(bytes(50_000))
        links._catch_up(other, 60.0)
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.recv(1)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None, reason="a lab needs root, and ip and tc"
)
class TestInALab:
    @pytest.fixture
    def up(self, user: User) -> Iterator[Cluster]:
        node = "  - {{name: {}, cores: 0.1, memory: 128MiB, nic: {}}}\n"
        text = "lab: true\nname: linked\noversubscribe: true\nnodes:\n"
        user.write(
            "lab.yaml", text + node.format("fast", "400Mbit") + node.format("slow", "100Mbit")
        )
        user.types("lab", "up", "lab.yaml")
        yield lab.nodes("linked")
        user.types("lab", "down", "linked")

    def test_rates_and_round_trips_are_those_of_the_links(self, up: Cluster) -> None:
        measured = [links.measure(up.nodes) for _ in range(3)]
        for there, back in measured:
            assert (there.sender, there.receiver) == ("fast", "slow")
            for link in (there, back):
                assert link.bytes_per_second / 12.5e6 < 1.1
                assert 0 < link.round_trip_seconds < 1
        # a process that has no CPU sends less than a link can carry, and never more
        for found in zip(*measured, strict=True):
            assert max(link.bytes_per_second for link in found) / 12.5e6 > 0.5
