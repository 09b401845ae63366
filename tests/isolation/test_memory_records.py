"""What is read of a cgroup that goes away meanwhile, as that of a container whose last process has
ended.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from headgate.machine import cgroup_v1, cgroup_v2
from headgate.machine.cgroup_v1 import CgroupsV1
from headgate.machine.cgroup_v2 import CgroupsV2
from headgate.machine.cgroups import Cgroups, read_number
from headgate.machine.enclosure import MemoryRecord
from headgate.machine.fallbacks import Cores, Fallbacks

MIB = 1 << 20
FILES = {
    CgroupsV1: {
        "memory.max_usage_in_bytes": f"{64 * MIB}\n",
        "memory.limit_in_bytes": f"{64 * MIB}\n",
        "memory.stat": "cache 0\n",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
    },
    CgroupsV2: {
        "memory.peak": f"{64 * MIB}\n",
        "memory.max": f"{64 * MIB}\n",
        "memory.stat": "file 0\n",
        "memory.events": "max 3\noom_kill 1\n",
    },
}


@pytest.mark.parametrize("kind", FILES)
def test_half_of_what_was_counted_is_not_taken_for_all(
    kind: type[Cgroups], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    for name, text in FILES[kind].items():
        (folder / name).write_text(text)
    cgroups = kind({"memory": folder}, Fallbacks(Cores()))
    assert cgroups.memory() == MemoryRecord(64 * MIB, 1, 64 * MIB, at_limit=True)

    def goes_away(path: Path) -> int | None:
        number = read_number(path)
        shutil.rmtree(folder, ignore_errors=True)
        return number

    for module in (cgroup_v1, cgroup_v2):
        monkeypatch.setattr(module, "read_number", goes_away)
    assert cgroups.memory() == MemoryRecord(), (
        "without its limit, the memory of the machine would seem to have run out"
    )
