"""What a job declares of its fields is all that files, options, pages and records need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import pytest

import headgate

ROOT = Path(__file__).parents[2]
FIELD = """
    niceness: int = field(
        default=0,
        metadata=declared(
            "How much the job gives way to others.",
            least=0,
            most=19,
            option=CommandOption("Give way to others: 10.", "N"),
        ),
    )

    def __post_init__(self) -> None:
        for path in ("script", "python", "workdir"):"""
USES = """
import json
import click
from click.testing import CliRunner
import generate
from headgate.cli import job_options, run
from headgate.client.submitting import submission
from headgate.config import jobfile
from headgate.hub.submission import parse
from headgate.model import records
from headgate.model.errors import InvalidFileError
from headgate.model.jobs import Job

def load(text):
    with open("jobs.yaml", "w") as file:
        file.write("jobs: [{name: a, run: 'true', niceness: %s}]" % text)
    return jobfile.load("jobs.yaml")[0]

def refused(make):
    try:
        make()
    except (InvalidFileError, TypeError, ValueError) as error:
        return str(error)

command = click.command()(job_options.of_jobs("niceness")(lambda: None))
with command.make_context("run", ["--niceness", "7"]) as context:
    stated = job_options.applied([Job(name="a", run="true")], job_options.stated(context))
job = load(5)
print(json.dumps({
    "file": job.niceness,
    "file refuses": refused(lambda: load(20)),
    "python refuses": refused(lambda: Job(name="a", run="true", niceness=-1)),
    "kind": refused(lambda: Job(name="a", run="true", niceness="5")),
    "stored": records.parse(Job, json.loads(json.dumps(records.plain(job)))).niceness,
    "wire": parse(submission([job]).plain()).jobs[0].niceness,
    "schema": jobfile.schema()["$defs"]["JobEntry"]["properties"]["niceness"],
    "page": generate.schemas().count("How much the job gives way to others.") > 1,
    "reference": "How much the job gives way to others." in generate.python(),
    "help": CliRunner().invoke(run.command, ["--help"]).output,
    "option": stated[0].niceness,
}))
"""


@pytest.fixture(scope="module")
def with_a_new_field(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the package makes of a field that one file declares."""
    folder = tmp_path_factory.mktemp("package")
    package = Path(headgate.__file__).parent
    # compiled, but for what changes; others may be compiling right now
    copytree(package, folder / "headgate", ignore=ignore_patterns("*.pyc.*"))
    file = folder / "headgate" / "model" / "jobs.py"
    before = file.read_text()
    place = FIELD[FIELD.index("\n    def __post_init__") :]
    assert before.count(place) == 1
    file.write_text(before.replace(place, FIELD))
    path = os.pathsep.join([str(folder), str(ROOT / "docs")])
    answer = subprocess.run(
        [sys.executable, "-c", USES],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "HEADGATE_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    changed = [
        copy.relative_to(folder)
        for copy in (folder / "headgate").rglob("*.py")
        if copy.read_bytes() != (package / copy.relative_to(folder / "headgate")).read_bytes()
    ]
    uses: dict[str, Any] = json.loads(answer.stdout)
    return {**uses, "changed": [str(path) for path in changed]}


def test_a_new_field_touches_one_file(with_a_new_field: dict[str, Any]) -> None:
    assert with_a_new_field["changed"] == ["headgate/model/jobs.py"]


def test_a_new_field_is_a_key_of_files_with_bounds(with_a_new_field: dict[str, Any]) -> None:
    assert with_a_new_field["file"] == 5
    assert "found 20; expected a value less than or equal to 19" in with_a_new_field["file refuses"]
    schema = with_a_new_field["schema"]
    assert schema["description"] == "How much the job gives way to others."
    assert (schema["default"], schema["minimum"], schema["maximum"]) == (0, 0, 19)


def test_a_new_field_is_checked_in_python(with_a_new_field: dict[str, Any]) -> None:
    refused = "job 'a': `niceness` is -1; expected 0 or more"
    assert with_a_new_field["python refuses"] == refused
    assert with_a_new_field["kind"] == "job 'a': `niceness` is '5'; expected a whole number"


def test_a_new_field_is_stored_and_sent(with_a_new_field: dict[str, Any]) -> None:
    assert with_a_new_field["stored"] == 5
    assert with_a_new_field["wire"] == 5


def test_a_new_field_is_an_option_and_documented(with_a_new_field: dict[str, Any]) -> None:
    assert "--niceness N" in with_a_new_field["help"]
    assert "Give way to others: 10." in with_a_new_field["help"]
    assert with_a_new_field["option"] == 7
    assert with_a_new_field["page"]
    assert with_a_new_field["reference"]
