"""Command lines that reports propose for a job."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from tests.diagnosis.made_up import MadeUp, recording, typed

from headgate.cli import headgate
from headgate.model.identifiers import TaskOfRun
from headgate.recorded.jobs import RecordedJob
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


def of_two_workers(path: Path, **spec: Any) -> RecordedJob:
    [job] = recording(path, {"a": MadeUp(ran=0.5)}).jobs
    two = tuple(replace(job.tasks[0], id=TaskOfRun(f"a/worker-{index}")) for index in range(2))
    return typed(job, {"spec": spec, "tasks": two, "plan": {"strategy": "allreduce"}})


def test_arguments_stand_behind_the_script(tmp_path: Path) -> None:
    spaced = of_two_workers(tmp_path / "a.sqlite", script="/a b/train.py", args=["--epochs", "5"])
    script = "'/a b/train.py' -- --epochs 5"
    profiled = f"headgate profile {script} && headgate plan {script}"
    assert commands.plan_command(spaced) == profiled
    contract = of_two_workers(
        tmp_path / "b.sqlite", script="/t.py", launch="torchrun", args=["-x", "5"]
    )
    fewer = "headgate run --launch torchrun --workers 1 /t.py -- -x 5"
    assert commands.with_workers_command(contract, 1) == fewer
    assert commands.plan_command(contract) == ""


def test_a_job_is_run_again_in_its_folder_where_a_command_says_all_of_it(tmp_path: Path) -> None:
    [job] = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=0.5)}).jobs
    spec = {"script": "/my work/train.py", "workdir": "/my work", "args": ["--epochs", "3"]}
    again = "cd '/my work' && headgate run train.py -- --epochs 3"
    assert commands.rerun_command(typed(job, {"spec": spec})) == again
    assert commands.rerun_command(typed(job, {"spec": {**spec, "env": {"SEED": "1"}}})) == ""


@pytest.mark.parametrize("staleness", [None, 3])
@pytest.mark.parametrize("launch", [None, "torchrun"])
def test_every_option_that_is_proposed_is_one_of_its_command(
    tmp_path: Path, staleness: int | None, launch: str | None
) -> None:
    job = of_two_workers(tmp_path / "run.sqlite")
    placed = ("--cluster", "team", "--engine", "ray", "--address", "10.0.0.1:6379", "--nodes", "x")
    plan = {"strategy": "ps", "servers": 1, "synchronous": False, "staleness": staleness}
    spec = {"script": "train.py", "launch": launch, "batch": "global" if launch else None}
    known = {"spec": spec, "plan": plan, "placement_options": placed}
    ran = typed(job, known)
    lines = [commands.with_workers_command(ran, 1), *commands.plan_command(ran).split(" && ")]
    lines += [line for line in [commands.single_worker_command(ran)] if line]
    for line in lines:
        words = shlex.split(line)
        command = headgate.get_command(click.Context(headgate), words[1])
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line
