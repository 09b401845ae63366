"""Which readings a machine has, by the files that it shows."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.machine.trees import plant

from headgate.sampling import perf_events, readings

EVERYTHING = {
    "proc/self/schedstat": "1 2 3\n",
    "proc/sys/kernel/task_delayacct": "1\n",
    "proc/pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "proc/self/net/snmp": "Tcp: RtoMin RetransSegs\nTcp: 200 7\n",
    "proc/stat": "cpu  1 2 3 4 5 6 7 8 9 10\n",
    "sys/fs/resctrl/info/L3_MON/mon_features": "llc_occupancy\nmbm_total_bytes\n",
}
OF_FILES = (
    "schedstat",
    "throttling",
    "delay accounting",
    "PSI",
    "refaults",
    "retransmits",
    "steal",
    "resctrl",
)


def survey(root: Path, *controllers: str) -> dict[str, readings.MachineReading]:
    return {each.name: each for each in readings.survey(controllers, root)}


def test_a_machine_with_everything_needs_no_cure(tmp_path: Path) -> None:
    found = survey(plant(tmp_path, EVERYTHING), "unified", "cpu", "memory")
    assert all(found[name].there and not found[name].cure for name in OF_FILES)


def test_a_machine_with_nothing_is_told_what_is_lost_and_how_to_turn_it_on(tmp_path: Path) -> None:
    found = survey(tmp_path, "unified")
    assert not any(found[name].there for name in OF_FILES)
    assert all(each.without for each in found.values())
    assert all(found[name].cure for name in OF_FILES if name != "resctrl")
    assert found["delay accounting"].cure == "sysctl kernel.task_delayacct=1"
    assert "Delegate=yes" in found["throttling"].cure


def test_a_cpu_that_counts_for_resctrl_is_told_to_mount_it(tmp_path: Path) -> None:
    assert survey(tmp_path)["resctrl"].cure == ""
    plant(tmp_path, {"proc/cpuinfo": "flags\t\t: fpu cqm_llc cqm_occup_llc cqm_mbm_total\n"})
    assert survey(tmp_path)["resctrl"].cure == "mount -t resctrl resctrl /sys/fs/resctrl"


@pytest.mark.parametrize(
    ("refused", "cure"), [(errno.EACCES, "sysctl kernel.perf_event_paranoid=0"), (errno.ENOENT, "")]
)
def test_counters_that_are_forbidden_are_told_from_those_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, cure: str
) -> None:
    monkeypatch.setattr(perf_events, "refusal", lambda: refused)
    assert survey(tmp_path)["hardware counters"].cure == cure
