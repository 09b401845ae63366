"""Memory that can still be had, by planted files of other machines and in a real cgroup."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.machine.trees import CONTAINER_V2, Tree, plant

from headgate.machine import cgroup_layout
from headgate.model.cluster import Place
from headgate.sampling.available import AvailableMemory
from headgate.testing import wait

MIB = 1 << 20
KIB_FREE = 12_000_000
V2 = "sys/fs/cgroup"
STAT_V2 = (
    f"anon {300 * MIB}\nfile {900 * MIB}\nshmem {50 * MIB}\nkernel_stack {MIB}\npagetables "
    f"{3 * MIB}\n"
    f"slab_reclaimable {200 * MIB}\nslab_unreclaimable {6 * MIB}\n"
)
OF_V2: Tree = {
    **CONTAINER_V2,
    "proc/meminfo": (
        f"MemTotal: 16000000 kB\nMemFree: {KIB_FREE} kB\nCached: 100 kB\nShmem: 100 kB\n"
    ),
    f"{V2}/cgroup.procs": "1\n",
    f"{V2}/memory.stat": STAT_V2,
}
LIMIT = 2147483648


def test_a_container_has_left_what_its_limit_leaves_and_page_cache_counts_as_left(
    tmp_path: Path,
) -> None:
    plant(tmp_path, OF_V2)
    assert AvailableMemory(root=tmp_path).read() == LIMIT - 360 * MIB
    (tmp_path / V2 / "memory.max").write_text("max\n")
    assert AvailableMemory(root=tmp_path).read() == KIB_FREE * 1024


def test_of_limits_in_each_other_the_one_that_leaves_least_counts(tmp_path: Path) -> None:
    slices = {
        "proc/self/cgroup": "0::/team/job\n",
        f"{V2}/team/cgroup.procs": "",
        f"{V2}/team/memory.max": f"{400 * MIB}\n",
        f"{V2}/team/memory.stat": STAT_V2,
        f"{V2}/team/job/cgroup.procs": "1\n",
        f"{V2}/team/job/memory.max": f"{200 * MIB}\n",
        f"{V2}/team/job/memory.stat": f"anon {10 * MIB}\n",
    }
    plant(tmp_path, OF_V2, slices)
    memory = AvailableMemory(root=tmp_path)
    assert (memory.read(), memory.domain) == (40 * MIB, tmp_path / V2 / "team/job")
    (tmp_path / V2 / "team/job/memory.stat").write_text(f"anon {190 * MIB}\n")
    assert memory.read() == 10 * MIB
    (tmp_path / "proc/meminfo").write_text("MemTotal: 16000000 kB\nMemFree: 5000 kB\n")
    assert memory.read() == 5000 * 1024


def test_a_place_has_what_its_own_cgroup_leaves(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/lab/a"
    files = {
        f"{folder}/cgroup.procs": "",
        f"{folder}/memory.limit_in_bytes": f"{100 * MIB}\n",
        f"{folder}/memory.stat": (
            f"cache {70 * MIB}\ntotal_cache {70 * MIB}\ntotal_rss {20 * MIB}\ntotal_shmem {MIB}\n"
        ),
    }
    plant(tmp_path, OF_V2, files)
    place = Place("ns", "a", "hosts", {"memory": str(tmp_path / folder)})
    assert AvailableMemory(place, tmp_path).read() == 79 * MIB


def test_where_nothing_can_be_read_nothing_is_known(tmp_path: Path) -> None:
    assert AvailableMemory(root=tmp_path).read() is None


@pytest.fixture
def group() -> Iterator[Path]:
    """A real cgroup of 256 MiB."""
    root = Path("/sys/fs/cgroup")
    mode = cgroup_layout.find_layout(root).mode
    own = cgroup_layout.folders_of(os.getpid(), root, mode).get("memory")
    if mode != "v1" or own is None or not os.access(own, os.W_OK):
        pytest.skip("no cgroup v1 hierarchy of memory can be written here")
    folder = own / f"available-{os.getpid()}"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(256 * MIB))
    yield folder
    wait.until(lambda: not (folder / "cgroup.procs").read_text().split(), 60, "the group is empty")
    folder.rmdir()


HOLDS = """
import mmap, os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
private = bytearray(b"x") * (64 << 20)
with open(sys.argv[2], "wb") as file:
    file.write(bytes(48 << 20))
shared = mmap.mmap(-1, 32 << 20)
shared.write(bytes(32 << 20))
print("holds", flush=True)
sys.stdin.read()
"""


def test_a_real_cgroup_s_cache_is_left_and_its_shared_memory_is_not(
    group: Path, tmp_path: Path
) -> None:
    memory = AvailableMemory(Place("", "", "", {"memory": str(group)}))
    empty = memory.read()
    assert empty is not None
    words = [sys.executable, "-c", HOLDS, str(group), str(tmp_path / "cached")]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "holds\n"
        left = memory.read()
        assert left is not None
        assert 96 * MIB <= empty - left < 96 * MIB + 24 * MIB  # and the interpreter
        program.communicate("")
