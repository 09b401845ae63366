"""Jobs, plans and profiles as a store keeps them, also as earlier versions wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.profiles import Dataset, Profile, StepTime
from headgate.model.progress_rule import ProgressRule
from headgate.model.records import read, text_of
from headgate.model.roles import Ready, Role
from headgate.recorded.rows import JobRow, readable

FIRST_JOB: dict[str, Any] = {
    "name": "digits",
    "script": "/home/ada/train.py",
    "run": None,
    "args": ["--epochs", "5"],
    "python": None,
    "env": {"SEED": "1"},
    "workdir": "/home/ada",
    "at": 0.0,
    "after": "other",
    "priority": 2.0,
    "limits": {"cores": 1.5, "memory_bytes": None, "gpus": 0, "workers": [1, None]},
    "allow": ["async"],
    "progress": {"metric": "accuracy", "pattern": None, "goal": 0.9},
    "retries": 1,
    "timeout": None,
}
"""A job as the first version wrote it."""
FIRST_PROFILE: dict[str, Any] = {
    "framework": "torch",
    "framework_version": "2.5.1",
    "source": "run",
    "parameters_dense": 61706,
    "parameters_sparse": 0,
    "layers": {"Linear": 3},
    "dataset": {"samples": 1000, "bytes_per_sample": 3136.0, "read_seconds_per_sample": None},
    "batch": 64,
    "step_times": [{"device": "cpu", "threads": 2, "batch": 64, "seconds": 0.01, "steps": 20}],
    "fits": [],
    "notes": [],
}


def test_a_job_of_the_first_version_still_reads() -> None:
    assert read(Job, json.dumps(FIRST_JOB)) == Job(
        name="digits",
        script="/home/ada/train.py",
        args=("--epochs", "5"),
        env={"SEED": "1"},
        workdir="/home/ada",
        after="other",
        priority=2.0,
        limits=Limits(cores=1.5, gpus=0),
        allow=frozenset({"async"}),
        progress=ProgressRule(metric="accuracy", goal=0.9),
        retries=1,
    )


def test_a_profile_of_the_first_version_still_reads() -> None:
    assert readable(Profile, json.dumps(FIRST_PROFILE)) == Profile(
        "torch",
        "2.5.1",
        "run",
        parameters_dense=61706,
        parameters_sparse=0,
        layers={"Linear": 3},
        dataset=Dataset(1000, 3136.0, None),
        batch=64,
        step_times=(StepTime("cpu", 2, 64, 0.01, 20),),
    )


def test_fields_that_this_version_does_not_have_are_left_out() -> None:
    limits = {**FIRST_JOB["limits"], "tpus": 8}
    later = {**FIRST_JOB, "limits": limits, "mood": "calm"}
    assert read(Job, json.dumps(later)) == read(Job, json.dumps(FIRST_JOB))


@pytest.mark.parametrize(
    "job",
    [
        Job(name="a", run=("python", "-c", "1"), after=("b", "c"), isolation="container"),
        Job(name="a", run="true", timeout=5.0, share="1/3", verify="off", stop_signal="SIGINT"),
        Job(
            name="a",
            roles=(
                Role(name="server", run="serve", ready=Ready(port=True, timeout=5.0), cores=0.5),
                Role(name="client", script="c.py", env={"A": "1"}, after=("server",), ends=True),
            ),
        ),
        Job(
            name="a",
            script="/t\udcff.py",
            limits=Limits(workers=(2, 8)),
            allow=frozenset({"async", "weak"}),
            progress=ProgressRule(script_stopping=(3, 0.5), better="lower", metric="error"),
            plan=Plan(strategy="ps", workers=2, batch_per_worker=(3, 4), servers=1),
        ),
    ],
    ids=["command", "limits", "roles", "plan"],
)
def test_a_job_reads_as_it_went_in(job: Job) -> None:
    assert read(Job, text_of(job)) == job


def test_a_field_reads_by_the_name_that_it_had_before() -> None:
    spec = {"name": "a", "run": "true", "progress": {"metric": "error", "told": [3, 0.5]}}
    assert read(Job, json.dumps(spec)).progress == ProgressRule("error", script_stopping=(3, 0.5))


def test_a_plan_reads_as_it_went_in_with_what_was_seen_of_it() -> None:
    plan = Plan(strategy="allreduce", workers=2, batch_per_worker=None, worker_nodes=("a", "b"))
    assert readable(Plan, text_of(plan)) == plan
    assert readable(Plan, json.dumps({**json.loads(text_of(plan)), "apart": True})) == plan


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "{",
        "[]",
        "{}",
        json.dumps({**FIRST_JOB, "args": "--epochs"}),
        json.dumps({**FIRST_JOB, "priority": "high"}),
        json.dumps({**FIRST_JOB, "limits": {"workers": [1]}}),
        json.dumps({**FIRST_JOB, "allow": ["anything"]}),
        json.dumps({**FIRST_JOB, "priority": 10**400}),
    ],
)
def test_of_a_damaged_job_only_its_name_is_known(text: str | None) -> None:
    with pytest.raises(ValueError, match=r"found|Expecting|too large"):
        read(Job, text)
    known = JobRow("digits", text, "done", *[None] * 13).job()
    assert (known.name, known.script, known.args) == ("digits", None, ())


def test_a_damaged_plan_or_profile_is_none() -> None:
    assert (readable(Plan, "{"), readable(Plan, '{"workers": 0}'), readable(Profile, "[1]")) == (
        None,
        None,
        None,
    )
