"""Whose cgroups are told from whose, where the hubs of several homes come and go."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.traces import Traces

from headgate.machine import cgroup_layout

RUN = "twenty-cups"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """What a dead hub left: its group, with a box that a process is in."""
    bases = cgroup_layout.find_layout(Path("/sys/fs/cgroup")).bases
    if "cpu" not in bases:
        pytest.skip("no cgroup can be made here")
    with subprocess.Popen(["true"]) as hub:
        pass
    group = bases["cpu"] / f"headgate-{os.geteuid()}-{hub.pid}"
    box = group / f"{RUN}:train:worker-0"
    box.mkdir(parents=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as task:
        (box / "cgroup.procs").write_text(str(task.pid))
        yield group
        task.kill()
        task.wait()
        box.rmdir()
        group.rmdir()


def test_a_group_of_a_dead_hub_is_of_the_home_that_has_the_run(group: Path, tmp_path: Path) -> None:
    traces = Traces(tmp_path / "home")
    traces.before = frozenset()
    assert group not in traces.cgroups()
    (tmp_path / "home" / "runs" / RUN).mkdir(parents=True)
    assert group in traces.cgroups()
