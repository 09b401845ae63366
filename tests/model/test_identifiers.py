"""Identifiers: strings with parts."""

from __future__ import annotations

import json
import pickle
import sqlite3

import pytest

from headgate.engines.remote.pipe import facts
from headgate.model.identifiers import (
    FIRST_WORKER,
    IDENTIFIERS,
    JobId,
    TaskId,
    TaskName,
    TaskOfRun,
    job_and_task,
    run_and_job,
)

TASK = TaskId("20261121-0930/cnn/server-12")


def test_a_task_has_its_run_its_job_its_name_and_its_index() -> None:
    assert (TASK.run, TASK.job, TASK.name, TASK.index) == (
        "20261121-0930",
        JobId("20261121-0930/cnn"),
        TaskName("server-12"),
        12,
    )
    assert (TASK.job.run, TASK.job.name) == ("20261121-0930", "cnn")
    assert TASK.name.is_server
    assert not TASK.name.is_worker


def test_within_its_run_a_task_has_the_same_job_and_name() -> None:
    assert TASK.of_run == "cnn/server-12"
    assert (TASK.of_run.job, TASK.of_run.name) == ("cnn", TASK.name)


def test_what_is_put_together_comes_apart_again() -> None:
    job = JobId.of("r", "a")
    assert job == "r/a"
    assert job.task(TaskName.of("worker", 3)) == "r/a/worker-3"
    assert job.task(FIRST_WORKER).job == job
    assert TaskOfRun.of("a", TaskName.of("server", 0)) == TaskId("r/a/server-0").of_run


def test_parts_are_identifiers_too() -> None:
    assert [
        type(part)
        for part in (
            TASK.job,
            TASK.name,
            TASK.of_run,
            TASK.of_run.name,
            TASK.job.task(FIRST_WORKER),
        )
    ] == [
        JobId,
        TaskName,
        TaskOfRun,
        TaskName,
        TaskId,
    ]


def test_workers_come_before_servers_and_each_by_index() -> None:
    names = [TaskName(name) for name in ("server-1", "worker-10", "worker-2", "server-0")]
    assert sorted(names, key=lambda name: name.order) == [
        "worker-2",
        "worker-10",
        "server-0",
        "server-1",
    ]


@pytest.mark.parametrize("kind", IDENTIFIERS)
def test_an_identifier_is_the_plain_string_to_all_that_keeps_or_sends_it(kind: type[str]) -> None:
    made, plain = kind("r/a/worker-0"), "r/a/worker-0"
    assert {plain: 1}[made] == 1
    assert json.dumps({made: made}) == json.dumps({plain: plain})
    with sqlite3.connect(":memory:") as store:
        assert store.execute("SELECT ?, typeof(?1)", [made]).fetchone() == (plain, "text")
    store.close()
    assert type(pickle.loads(pickle.dumps(made))) is kind
    # as a remote engine's two ends take it from each other
    assert type(facts(pickle.dumps(made))) is kind


@pytest.mark.parametrize(
    ("typed", "run", "job"),
    [("cnn", "", "cnn"), ("0930/cnn", "0930", "cnn"), ("/cnn", "", "cnn"), ("0930/", "0930", "")],
)
def test_a_person_names_a_job_with_or_without_its_run(typed: str, run: str, job: str) -> None:
    assert run_and_job(typed) == (run, job)


@pytest.mark.parametrize(
    ("typed", "job", "task"),
    [
        ("cnn", "cnn", None),
        ("cnn/worker-1", "cnn", "worker-1"),
        ("0930/cnn/server-0", "0930/cnn", "server-0"),
        ("0930/cnn", "0930/cnn", None),
        ("worker-1", "worker-1", None),  # a job may be called so
        ("cnn/worker-x", "cnn/worker-x", None),
    ],
)
def test_a_person_names_a_task_after_its_job(typed: str, job: str, task: str | None) -> None:
    assert job_and_task(typed) == (job, task)
