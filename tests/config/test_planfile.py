"""Plan files, and what a plan may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import planfile
from headgate.model.errors import InvalidFileError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan


def load(folder: Path, text: str) -> Plan:
    path = folder / "plan.yaml"
    path.write_text(text)
    return planfile.load(str(path))


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(InvalidFileError) as caught:
        load(folder, text)
    return [str(problem) for problem in caught.value.problems]


def test_a_plan_file_says_what_a_plan_does(tmp_path: Path) -> None:
    text = """
strategy: ps
workers: 3
servers: 2
batch_per_worker: [32, 32, 16]
backup_workers: 1
worker_nodes: [a, b, 3]
cores_per_worker: 0.5
"""
    assert load(tmp_path, text) == Plan(
        strategy="ps",
        workers=3,
        servers=2,
        batch_per_worker=(32, 32, 16),
        backup_workers=1,
        worker_nodes=("a", "b", "3"),
        cores_per_worker=0.5,
    )
    assert load(tmp_path, "strategy: allreduce\nworkers: 2\n").batch_per_worker is None


def test_every_problem_is_told_at_once_with_its_line_and_cure(tmp_path: Path) -> None:
    text = "strategy: sp\nworker: 2\nservers: true\nbatch_per_worker: [8, x]\nstaleness: 1.5\n"
    assert problems(tmp_path, text) == [
        "line 1: strategy: found 'sp'; expected 'single', 'allreduce' or 'ps'",
        "line 2: top level: unknown key 'worker'; did you mean 'workers'?",
        "line 3: servers: found True; expected a number",
        (
            "line 4: batch_per_worker: found [8, 'x']; expected a number of samples, or one for "
            "each worker: [32, 16]"
        ),
        "line 5: staleness: found 1.5; expected a whole number",
    ]


def test_what_makes_no_sense_is_told_with_the_rest_as_far_as_that_does_not_matter_to_it(
    tmp_path: Path,
) -> None:
    text = "strategy: ps\nworkers: 0\nserver: 1\nservers: two\nserver_nodes: [a]\nstaleness: 3\n"
    assert problems(tmp_path, text) == [
        "line 2: workers: found 0; expected at least 1",
        "line 3: top level: unknown key 'server'; did you mean 'servers'?",
        "line 4: servers: found 'two'; expected a whole number",
        "line 6: staleness: found 3; expected none for a synchronous plan",
    ]
    assert problems(tmp_path, "workers: 0\nservers: 1\n") == [
        "line 1: strategy: it is missing; add it",
        "line 1: workers: found 0; expected at least 1",
    ]


def test_what_does_not_go_together_is_told_too(tmp_path: Path) -> None:
    text = (
        "strategy: ps\nworkers: 2\nbackup_workers: 2\nstaleness: 3\nserver_nodes: "
        "[a]\nbatch_per_worker: [8]\n"
    )
    assert problems(tmp_path, text) == [
        "line 1: servers: found 0; expected at least 1 for strategy ps",
        "line 3: backup_workers: found 2; expected fewer than the workers, which are 2",
        "line 4: staleness: found 3; expected none for a synchronous plan",
        "line 5: server_nodes: found ['a']; expected 0 names, one for each, or none",
        "line 6: batch_per_worker: found [8]; expected one number, or one for each of 2 workers",
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strategy": "single", "workers": 2}, "Plan.workers is 2; expected 1 for strategy single"),
        (
            {"strategy": "allreduce", "servers": 1},
            "Plan.servers is 1; expected 0 for strategy allreduce",
        ),
        (
            {"strategy": "allreduce", "synchronous": False},
            "Plan.synchronous is False; expected true for strategy",
        ),
        ({"workers": 0}, "Plan.workers is 0; expected at least 1"),
        ({"backup_workers": 1, "synchronous": False}, "expected 0 for what is no synchronous ps"),
        ({"staleness": -1, "synchronous": False}, "Plan.staleness is -1; expected 0 or more steps"),
        ({"cores_per_server": 0.0}, "Plan.cores_per_server is 0.0; expected more than 0"),
        ({"batch_per_worker": (8, 0)}, "expected at least 1 sample"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    ps = {} if fields.get("strategy") else {"strategy": "ps", "servers": 1}
    with pytest.raises(ValueError, match=message):
        Plan(**{"workers": 2, "batch_per_worker": None, **ps, **fields})  # type: ignore[arg-type]


def test_a_job_has_no_plan_beyond_its_limits_or_what_it_allows() -> None:
    plan = Plan(strategy="ps", workers=3, servers=1, batch_per_worker=None, synchronous=False)
    with pytest.raises(
        ValueError, match=r"found 3 workers, the job's limits say 1..2; change one of them"
    ):
        Job(
            name="a",
            run="true",
            plan=plan,
            limits=Limits(workers=(1, 2)),
            allow=frozenset({"async"}),
        )
    with pytest.raises(
        ValueError, match=r"found an asynchronous plan; add `allow: \[async\]` to the job"
    ):
        Job(name="a", run="true", plan=plan)
    with pytest.raises(TypeError, match=r"`plan` is 'ps'; expected a headgate.Plan, or None"):
        Job(name="a", run="true", plan="ps")  # type: ignore[arg-type]


def test_the_schema_names_every_field_of_a_plan() -> None:
    assert planfile.schema()["properties"].keys() == set(Plan.__dataclass_fields__)
