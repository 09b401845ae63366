"""What a soak that cuts the power of a machine takes for right, and its disk."""

from __future__ import annotations

import random
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _lossy_disk import LossyDisk
from _soak import LOST, Notes, Seen, Tally

BOOTS = 5


@pytest.mark.parametrize(
    ("seen", "is_right"),
    [
        pytest.param(Seen({}, ["a begin 0"], noted_in=2, cut_off=1), True, id="cut off"),
        pytest.param(
            Seen({}, ["a begin 0", "a end"], noted_in=2, has_ended=True), True, id="as it ended"
        ),
        pytest.param(
            Seen({}, ["a begin 0", "a end"], noted_in=2, has_ended=True, most_left_open=9),
            False,
            id="boots after it ended",
        ),
        pytest.param(Seen({}, ["a begin 0"], noted_in=BOOTS), False, id="without a cut"),
        pytest.param(
            Seen({}, ["a begin 0", "a begin 0"], noted_in=2, cut_off=2), False, id="begun twice"
        ),
        pytest.param(Seen({}), False, id="never started"),
    ],
)
def test_a_job_is_lost_only_by_a_cut_that_it_met(seen: Seen, is_right: bool) -> None:
    assert _is_right(seen, tasks=[]) is is_right


@pytest.mark.parametrize(("looks", "is_right"), [((2, 1, 2), True), ((1, 3, 0), False)])
def test_hubs_that_were_cut_off_before_they_told_of_it_are_not_late(
    looks: tuple[int, ...], is_right: bool
) -> None:
    seen = Seen({}, ["a begin 0"], noted_in=1, is_running=True)
    seen.cut()
    for open_looks in looks:
        seen.left_open = open_looks
        seen.cut()
    assert (seen.cut_off, _is_right(seen, tasks=[])) == (1, is_right)


def test_a_job_whose_start_is_recorded_may_be_lost_before_its_first_line() -> None:
    assert _is_right(Seen({}), tasks=[{"id": "a/worker-0"}])


def _is_right(seen: Seen, tasks: list[dict[str, str]]) -> bool:
    tally = Tally()
    job: dict[str, Any] = {"name": "a", "state": "failed", "reason": "", "started": None}
    job |= {"why": {"kind": LOST}, "tasks": tasks}
    tally.add("run", job, Notes.of(seen.lines), seen.expected(job, BOOTS))
    return not tally.problems


def test_a_machine_that_is_gone_before_it_finds_its_disk_is_not_waited_for(tmp_path: Path) -> None:
    file, path = tmp_path / "disk", tmp_path / "disk.sock"
    file.write_bytes(b"kept")
    disk = LossyDisk(file, random.Random(1), path)
    disk.plug()
    assert disk.cut() == 0
    disk.plug()
    with socket.socket(socket.AF_UNIX) as machine:
        machine.connect(str(path))
        assert machine.recv(8) == b"NBDMAGIC"
    assert disk.cut() == 0
    assert file.read_bytes() == b"kept"
    assert not path.exists()
