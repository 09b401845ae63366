"""A node that is a place on this machine is read there: all that runs in it, and the bytes of its
own NIC.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.places import ADDRESS, NEIGHBOUR, placed, set_cores
from tests.sampling.tasks import Task

from headgate.machine.namespaces import look
from headgate.model.cluster import Place
from headgate.sampling.base import Sampler, Target
from headgate.sampling.cpu import CpuSampler
from headgate.sampling.disk import DiskSampler
from headgate.sampling.gpu import GpuSampler
from headgate.sampling.memory import MemorySampler
from headgate.sampling.network import NetworkSampler
from headgate.sampling.pressure import PressureSampler
from headgate.sampling.round import SamplingRound
from headgate.testing.sampler import SamplerContract
from headgate.testing.wait import until

pytestmark = pytest.mark.hardware
MIB = 1 << 20
SAMPLERS: list[Callable[[], Sampler]] = [
    CpuSampler,
    MemorySampler,
    DiskSampler,
    NetworkSampler,
    GpuSampler,
    PressureSampler,
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with placed(tmp_path_factory.mktemp("place"), "tele") as place:
        if not place.cgroups:
            pytest.skip("cgroups cannot be written here")
        yield place


@pytest.fixture
def target(place: Place) -> Target:
    return Target("node:tele", None, place)


@pytest.fixture
def task(place: Place) -> Iterator[Task]:
    """A task in the place."""
    groups = {controller: Path(folder) for controller, folder in place.cgroups.items()}
    running = Task(groups, prefix=("nsenter", f"--net={place.namespace}"))
    yield running
    running.close()


@pytest.mark.long  # tests below have what a place adds, tests of labs whole jobs in one
class TestTheContract(SamplerContract):
    @pytest.fixture(params=SAMPLERS, ids=lambda sampler: str(sampler.__name__))
    def sampler(self, request: pytest.FixtureRequest, target: Target) -> Sampler:
        self.target = target
        made = request.param()
        assert isinstance(made, Sampler)
        return made

    def set_up(self, sampler: Sampler) -> None:
        super().set_up(sampler)
        self.node = (*self.node, self.target)


def test_its_cpu_time_is_that_of_all_that_runs_there(
    target: Target, task: Task, place: Place
) -> None:
    sampler, other = CpuSampler(), Task({})
    sampler.read(0.0, [target])
    task.do("burn(0.3)")
    other.do("burn(0.2)")
    assert sampler.read(1.0, [target])["node:tele"]["cpu_cores"] == pytest.approx(0.3, abs=0.04)
    other.close()
    sampler.read(2.0, [])


def test_its_memory_is_that_of_all_that_runs_there(target: Target, task: Task) -> None:
    sampler = MemorySampler()
    before = sampler.read(0.0, [target])["node:tele"]["memory_bytes"]
    task.do(f"hold({64 * MIB})")
    after = sampler.read(1.0, [target])["node:tele"]["memory_bytes"]
    assert 62 * MIB <= after - before <= 68 * MIB
    sampler.read(2.0, [])


def test_its_quota_shows_as_pressure(target: Target, task: Task, place: Place) -> None:
    if "unified" not in place.cgroups or not Path("/proc/pressure/cpu").exists():
        pytest.skip("this kernel tells no pressure of a cgroup")
    sampler = PressureSampler()
    set_cores(place, 0.2)
    try:
        began = os.times().elapsed
        sampler.read(0.0, [target])
        task.do("burn(0.1)")
        seconds = os.times().elapsed - began
        pressure = sampler.read(seconds, [target])["node:tele"]["psi_cpu"]
    finally:
        set_cores(place, os.cpu_count() or 1)
    # it waits four fifths of the time, less where others keep it from running anyway
    assert pressure > 0.25
    sampler.read(seconds + 1, [])


def test_its_network_rate_is_that_of_its_nic(target: Target, task: Task) -> None:
    sampler, node = NetworkSampler(), Target("node", None)
    before = sampler.read(0.0, [target, node])
    assert before == {}
    task.do("send(100)")
    values = sampler.read(2.0, [target, node])["node:tele"]
    assert values["net_out"] == pytest.approx(100 * (1000 + 42) / 2, rel=0.05)
    assert values["net_in"] < 0.1 * values["net_out"]


def test_what_passes_an_overlay_is_counted_once(target: Target, task: Task, place: Place) -> None:
    inside = ("ip", "-netns", Path(place.namespace).name)
    overlay = (
        f"link add over0 type vxlan id 7 local {ADDRESS} remote {NEIGHBOUR} dstport 4789 dev eth0"
    )
    try:
        for command in (
            overlay,
            "addr add 10.99.7.1/24 dev over0",
            "link set over0 up",
            "neigh add 10.99.7.2 lladdr 02:00:00:00:00:02 dev over0",
        ):
            subprocess.run([*inside, *command.split()], check=True)
        assert look(place.namespace).stacked == {b"over0"}
        sampler = NetworkSampler()
        sampler.read(0.0, [target])
        task.do("send(100, '10.99.7.2')")
        values = sampler.read(1.0, [target])["node:tele"]
        assert values["net_out"] == pytest.approx(100 * (1000 + 42 + 50), rel=0.05)
    finally:
        subprocess.run([*inside, "link", "delete", "over0"], check=True)


def test_a_place_that_is_taken_down_leaves_the_others_and_is_not_held(
    place: Place, tmp_path: Path
) -> None:
    warnings: list[str] = []
    everything = SamplingRound([sampler() for sampler in SAMPLERS], warnings.append)
    stays = Target("node:tele", None, place)
    with placed(tmp_path, "gone") as gone:
        goes = Target("node:gone", None, gone)
        for now in range(3):
            readings = everything.read(float(now), [stays, goes])
        assert (
            readings["node:gone"].keys()
            == readings["node:tele"].keys()
            >= {"net_in", "cpu_cores", "memory_bytes"}
        )
        interface = Path(gone.namespace).name
        assert interface in os.listdir("/sys/class/net")
    # The kernel takes a namespace down a moment after the last has left it.
    until(lambda: interface not in os.listdir("/sys/class/net"), what=f"the end of {interface}")
    readings = everything.read(4.0, [stays, goes])
    assert readings.keys() == {"node:tele"}
    assert warnings == []
    everything.read(5.0, [])


def test_it_is_never_taken_for_the_machine(place: Place) -> None:
    nowhere = replace(place, namespace="/run/netns/no-such-node", cgroups={})
    everything = SamplingRound([sampler() for sampler in SAMPLERS], lambda _text: None)
    for now in range(2):
        assert everything.read(float(now), [Target("node:a", None, nowhere)]) == {}


def test_looking_leaves_nothing_open(place: Place) -> None:
    before, ours = len(os.listdir("/proc/self/fd")), os.stat("/proc/self/ns/net").st_ino
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        assert b"eth0:" in look(place.namespace).table
    assert (len(os.listdir("/proc/self/fd")), os.stat("/proc/self/ns/net").st_ino) == (before, ours)
    # A thread is listed until a moment after it has been joined.
    until(
        lambda: len(os.listdir("/proc/self/task")) <= threads,
        what="the end of the threads that looked",
    )
