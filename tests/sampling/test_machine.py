"""Detecting a machine: from the files of other machines, and this one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.machine.trees import (
    BONDED_NICS,
    CONTAINER_V2,
    DOCKER_V1,
    NUMA_SERVER,
    ROUTES,
    STACKED_DISKS,
    nic,
    plant,
    route,
)

from headgate.machine import core_speed, limits, nics
from headgate.machine.blocks import whole_disks
from headgate.model.cluster import Disk, Nic
from headgate.sampling import machine

TEN_GBIT = 1.25e9


def test_a_numa_server_with_smt(tmp_path: Path) -> None:
    node = machine.describe(plant(tmp_path, NUMA_SERVER))
    assert (node.cores, node.physical_cores, node.numa_nodes) == (32.0, 16, 2)
    assert node.cpu_model == "Xeon Gold 9999"
    assert node.memory_bytes == 263913132 * 1024
    assert machine.topology(tmp_path).smt


def test_affinity_to_one_socket_leaves_its_cores_and_its_numa_node(tmp_path: Path) -> None:
    plant(tmp_path, NUMA_SERVER, {"proc/self/status": "Cpus_allowed_list:\t0-3,16-19\n"})
    topology = machine.topology(tmp_path)
    assert (topology.online, topology.allowed, topology.physical, topology.numa_nodes) == (
        32,
        8,
        4,
        1,
    )


def test_a_container_has_the_cores_and_the_memory_of_its_cgroup(tmp_path: Path) -> None:
    node = machine.describe(plant(tmp_path, CONTAINER_V2))
    assert (node.cores, node.physical_cores, node.numa_nodes) == (1.5, 4, 1)
    assert node.memory_bytes == 2 << 30
    assert node.nics == (Nic("eth0", TEN_GBIT, virtual=True),)
    assert limits.cgroups(tmp_path).version == "v2"


def test_a_container_under_cgroup_v1_finds_its_own_folder(tmp_path: Path) -> None:
    node = machine.describe(plant(tmp_path, DOCKER_V1))
    assert (node.cores, node.physical_cores) == (0.5, 2)
    assert node.memory_bytes == 16_000_000 * 1024
    tree = limits.cgroups(tmp_path)
    assert tree.version == "v1"
    assert tree.folders["cpu"] == tmp_path / "sys/fs/cgroup/cpu,cpuacct"


def test_the_tightest_limit_of_the_cgroups_above_counts(tmp_path: Path) -> None:
    above = {
        "sys/fs/cgroup/user.slice/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/user.slice/memory.max": "1073741824\n",
    }
    node = machine.describe(plant(tmp_path, NUMA_SERVER, above))
    assert (node.cores, node.memory_bytes) == (8.0, 1 << 30)


def test_v1_and_v2_together_are_hybrid(tmp_path: Path) -> None:
    unified = {
        "proc/self/cgroup": "3:cpu:/\n0::/\n",
        "proc/self/mountinfo": (
            "1 0 0:1 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            "2 0 0:2 / /sys/fs/cgroup/unified rw - cgroup2 none rw\n"
        ),
    }
    tree = limits.cgroups(plant(tmp_path, unified))
    assert tree.version == "hybrid"
    assert set(tree.folders) == {"cpu", "unified"}


def test_a_machine_without_any_of_the_files_is_still_described(tmp_path: Path) -> None:
    node = machine.describe(tmp_path)
    assert (node.memory_bytes, node.nics, node.disks, node.numa_nodes) == (0, (), (), 1)
    assert limits.cgroups(tmp_path).version == "none"


def test_bytes_through_a_bond_or_a_bridge_count_at_their_nics_only(tmp_path: Path) -> None:
    plant(tmp_path, BONDED_NICS)
    assert [each.name for each in nics.counted(tmp_path)] == ["eno1", "eno2"]


def test_the_rate_of_a_node_is_that_of_the_interface_that_its_preferred_route_leaves_by(
    tmp_path: Path,
) -> None:
    plant(tmp_path, BONDED_NICS)
    outward = nics.outward(tmp_path)
    assert outward is not None
    assert (outward.name, outward.bytes_per_second) == ("br0", 2 * TEN_GBIT)


def test_where_all_are_virtual_and_none_is_routed_those_at_the_top_count(tmp_path: Path) -> None:
    virtual = {
        **nic("lo", physical=False),
        **nic("br0", physical=False),
        **nic("veth0", physical=False, master="br0"),
    }
    plant(tmp_path, virtual, {"proc/self/net/route": ROUTES})
    assert [each.name for each in nics.counted(tmp_path)] == ["br0"]


def test_an_ipv6_default_route_counts_and_one_that_rejects_does_not(tmp_path: Path) -> None:
    def row(metric: str, interface: str) -> str:
        return (
            f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} {metric} 00000001 00000000 00000003 "
            f"{interface}\n"
        )

    plant(
        tmp_path,
        {
            "proc/self/net/ipv6_route": row("ffffffff", "lo")
            + row("00000400", "wg0")
            + row("00000100", "eth1")
        },
    )
    assert nics.default_routes(tmp_path) == ("eth1", "wg0")
    plant(tmp_path, {"proc/self/net/route": ROUTES + route("eth0")})
    assert nics.default_routes(tmp_path) == ("eth0", "eth1", "wg0")


def test_an_unknown_speed_is_none(tmp_path: Path) -> None:
    plant(tmp_path, nic("eth0", speed="-1"), nic("eth1"))
    assert [each.bytes_per_second for each in nics.interfaces(tmp_path)] == [None, None]


def test_only_whole_disks_that_stand_on_no_others_count(tmp_path: Path) -> None:
    assert [disk.name for disk in whole_disks(plant(tmp_path, STACKED_DISKS))] == ["nvme0n1", "sda"]
    assert machine.describe(tmp_path).disks == (
        Disk("nvme0n1", 500 << 30, rotational=False),
        Disk("sda", 1000 << 30, rotational=True),
    )


def test_this_machine_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_speed, "_PATIENCE_SECONDS", 300.0)
    found = machine.survey(tmp_path / "machine.json")
    node = found.node
    assert 0 < node.cores <= len(os.sched_getaffinity(0))
    assert 0 < node.memory_bytes <= found.machine_memory_bytes
    assert found.machine_memory_bytes == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert node.core_gflops is not None
    assert node.core_gflops > 0
    assert node.cpu_model
    assert node.address
    assert found.kernel == os.uname().release
    assert found.used_cores is not None
    assert 0 <= found.used_cores <= found.topology.online
    assert found.used_memory_bytes is not None
    assert 0 < found.used_memory_bytes < found.machine_memory_bytes


def test_looking_at_the_machine_leaves_no_file_open(tmp_path: Path) -> None:
    cache = tmp_path / "machine.json"
    machine.survey(cache)
    before = set(os.listdir("/proc/self/fd"))
    machine.survey(cache)
    assert set(os.listdir("/proc/self/fd")) == before


class TestTheSpeedOfACore:
    def test_it_is_measured_once(self, tmp_path: Path) -> None:
        cache = tmp_path / "deep" / "machine.json"
        assert core_speed.core_gflops(cache, "X", 2.0, lambda: 50.0) == 50.0
        assert core_speed.core_gflops(cache, "X", 2.0, lambda: 60.0) == 50.0
        assert os.listdir(cache.parent) == ["machine.json"]

    def test_it_is_measured_again_on_another_model_or_number_of_cores(self, tmp_path: Path) -> None:
        cache = tmp_path / "machine.json"
        core_speed.core_gflops(cache, "X", 2.0, lambda: 50.0)
        assert core_speed.core_gflops(cache, "Y", 2.0, lambda: 60.0) == 60.0
        assert core_speed.core_gflops(cache, "Y", 4.0, lambda: 70.0) == 70.0

    def test_a_broken_cache_is_replaced(self, tmp_path: Path) -> None:
        cache = tmp_path / "machine.json"
        for content in ("{", "[]", '{"cpu_model": "X", "cores": 2.0, "core_gflops": "fast"}'):
            cache.write_text(content)
            assert core_speed.core_gflops(cache, "X", 2.0, lambda: 50.0) == 50.0
            assert json.loads(cache.read_text())["core_gflops"] == 50.0

    def test_a_cache_that_cannot_be_written_is_done_without(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert (
            core_speed.core_gflops(tmp_path / "file" / "machine.json", "X", 2.0, lambda: 50.0)
            == 50.0
        )

    def test_what_cannot_be_measured_is_not_cached(self, tmp_path: Path) -> None:
        cache = tmp_path / "machine.json"
        assert core_speed.core_gflops(cache, "X", 2.0, lambda: None) is None
        assert not cache.exists()
