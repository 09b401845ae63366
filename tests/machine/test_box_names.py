"""Other users know whose job a process is by its cgroup, and of a private job only whose."""

from __future__ import annotations

import pytest

from headgate.machine.box_names import PREFIX, box_name, job_in
from headgate.model.identifiers import TaskId

TASK = TaskId("20261121-0930-ab12/vae/worker-0")


@pytest.mark.parametrize(("private", "job"), [(False, "vae"), (True, "")])
@pytest.mark.parametrize("line", ["0::", "5:cpu,cpuacct:", "0::/headgate/user-1000/h"])
def test_the_job_of_a_process_is_told_by_its_cgroup(line: str, private: bool, job: str) -> None:
    cgroups = f"9:pids:/user.slice\n{line}/{PREFIX}1000-7/{box_name(TASK, private)}/below\n"
    assert job_in(cgroups) == job
    assert ("vae" in cgroups) is not private


def test_tasks_of_a_private_job_have_boxes_of_their_own() -> None:
    others = (TASK, TaskId("20261121-0930-ab12/vae/worker-1"), TaskId("20261121-0930-ab12/b/w-0"))
    assert len({box_name(task, True) for task in others}) == 3


@pytest.mark.parametrize("cgroups", ["", "0::/", "0::/user.slice", f"0::/{PREFIX}1000-7"])
def test_other_programs_are_in_no_box(cgroups: str) -> None:
    assert job_in(cgroups) is None
