"""Command lines that reports propose for a job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnosis.made_up import MadeUp, recording, typed

from headgate.model.identifiers import TaskOfRun
from headgate.reports import commands


# two workers of a lab's job may be on one node
@pytest.mark.parametrize("nodes", [("x", "y"), ("x", "x")])
def test_commands_say_where_the_job_ran(tmp_path: Path, nodes: tuple[str, str]) -> None:
    [job] = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.5)}).jobs
    tasks = tuple(
        replace(job.tasks[0], id=TaskOfRun(f"a/worker-{index}"), node=node)
        for index, node in enumerate(nodes)
    )
    placed = ("--cluster", "team", "--nodes", "x,y")
    known = {"spec": {"script": "train.py"}, "tasks": tasks, "plan": {"strategy": "allreduce"}}
    ran = typed(job, {**known, "placement_options": placed})
    on_team = "headgate run --cluster team --nodes x,y"
    assert commands.single_worker_command(ran) == f"{on_team} --strategy single train.py"
    fewer = f"{on_team} --strategy allreduce --workers 1 train.py"
    assert commands.with_workers_command(ran, 1) == fewer
    assert commands.location_hint(ran) == ""
    planned = "headgate profile train.py && headgate plan train.py --cluster team"
    assert commands.plan_command(ran) == planned
