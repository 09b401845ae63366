"""What a job may say, whoever makes it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.client.submitting import submission
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.mounts import Mount


@pytest.mark.parametrize(
    "limits",
    [
        {"cores": 0},
        {"cores": math.nan},
        {"memory_bytes": -1},
        {"gpus": -1},
        {"workers": (0, None)},
        {"workers": (3, 2)},
    ],
    ids=str,
)
def test_a_limit_that_no_task_could_run_in_is_refused(limits: dict[str, Any]) -> None:
    [name] = limits
    with pytest.raises(ValueError, match=f"Limits.{name} is "):
        Limits(**limits)


@pytest.mark.parametrize(
    "fields",
    [{"at": -1}, {"at": math.inf}, {"priority": 0}, {"retries": -1}, {"timeout": 0}],
    ids=str,
)
def test_a_time_or_count_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(ValueError, match=f"job 'a': `{name}` is {fields[name]}; expected "):
        Job(name="a", run="true", **fields)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("SIGINT", "SIGINT"),
        ("int", "SIGINT"),
        (" usr1 ", "SIGUSR1"),
        (2, "SIGINT"),
        ("15", "SIGTERM"),
    ],
)
def test_the_signal_that_stops_it_has_a_name_or_a_number(given: str | int, name: str) -> None:
    assert Job(name="a", run="true", stop_signal=given).stop_signal == name


@pytest.mark.parametrize(
    ("given", "mount"),
    [
        ("/data", Mount("/data", "/data")),
        ("/data:ro", Mount("/data", "/data")),
        ("/data:rw", Mount("/data", "/data", writable=True)),
        ("/data:/mnt", Mount("/data", "/mnt")),
        ("/data:/mnt/x:ro", Mount("/data", "/mnt/x")),
        ("~/a b:/mnt:rw", Mount("/home/me/a b", "/mnt", writable=True)),
        ("~", Mount("/home/me", "/home/me")),
        ("/a:b", Mount("/a:b", "/a:b")),
    ],
)
def test_a_mount_is_a_path_or_two_and_may_be_written(
    monkeypatch: pytest.MonkeyPatch, given: str, mount: Mount
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert Mount.of(given) == mount
    assert Mount.of(str(mount)) == mount
    assert Job(name="a", run="true", isolation="container", mounts=(given,)).mounts == (str(mount),)


def test_a_relative_mount_is_that_of_a_folder() -> None:
    assert Mount.of("data/../more:/mnt", "/place") == Mount("/place/more", "/mnt")


@pytest.mark.parametrize(
    "given", ["KILL", 9, "STOP", "TSTP", "CHLD", "SIGFOO", "", 0, -2, 99, True]
)
def test_a_signal_that_asks_no_script_to_end_is_refused(given: str | int) -> None:
    with pytest.raises(
        ValueError, match=r"job 'a': `stop_signal`: found .*; expected a signal that a script can"
    ):
        Job(name="a", run="true", stop_signal=given)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"env": {"A=B": "1"}}, "'A=B'; the name of a variable is not empty and holds no '='"),
        ({"env": {"": "1"}}, "''; the name of a variable is not empty"),
        ({"env": {"A": "a\0b"}}, r"'a\\x00b'; leave out the NUL"),
        ({"env": {"a\0b": "1"}}, r"'a\\x00b'; leave out the NUL"),
        ({"run": "a\0b"}, r"'a\\x00b'; leave out the NUL"),
        ({"run": ["true", "a\0b"]}, r"'a\\x00b'; leave out the NUL"),
        ({"args": ["a\0b"]}, r"'a\\x00b'; leave out the NUL"),
        ({"workdir": "a\0b"}, r"'a\\x00b'; leave out the NUL"),
    ],
    ids=str,
)
def test_what_no_program_can_be_given_is_refused(fields: dict[str, Any], found: str) -> None:
    [name] = fields
    with pytest.raises(ValueError, match=f"job 'a': `{name}`: found {found}"):
        Job(**{"name": "a", "run": "true", **fields})


def test_jobs_whose_turn_would_never_come_are_refused() -> None:
    with pytest.raises(
        UsageError, match="job 'a' comes after 'c', which is no job here; expected one of"
    ):
        submission([Job(name="a", run="true", after="c"), Job(name="b", run="true")])
    with pytest.raises(UsageError, match="found a cycle: b after c after b; break it"):
        submission([Job(name=name, run="true", after=after) for name, after in ("ab", "bc", "cb")])
    both = Job(name="c", run="true", after=["a", "b"])
    assert both.forerunners == ("a", "b")
    assert Job(name="c", run="true", after=["a"]).after == "a"
    submission([Job(name="a", run="true"), Job(name="b", run="true", after="a"), both])
    with pytest.raises(UsageError, match="found a cycle: c after b after c; break it"):
        submission([both, Job(name="a", run="true"), Job(name="b", run="true", after=["a", "c"])])
    with pytest.raises(UsageError, match="found a cycle: a after a; break it"):
        submission([Job(name="a", run="true", after="a")], resumed_from="r")
    resumed = submission([Job(name="a", run="true", after="done before")], resumed_from="r")
    assert [job.after for job in resumed.jobs] == ["done before"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"args": "abc"}, "a list of texts"),
        ({"args": [1]}, "a list of texts"),
        ({"env": {"A": 1}}, "a mapping from text to text"),
        ({"limits": {"cores": 1}}, r"limits, such as headgate.Limits\(cores=1\)"),
        ({"run": []}, "a text for the shell, or a list of the command's words"),
        ({"at": "5s"}, "a number"),
        ({"retries": 1.5}, "a whole number"),
        ({"allow": {"fast"}}, "a set of async and weak"),
    ],
    ids=str,
)
def test_a_field_of_another_kind_is_one_message(fields: dict[str, Any], expected: str) -> None:
    [name] = fields
    with pytest.raises(TypeError, match=f"^job 'a': `{name}` is .*; expected {expected}"):
        Job(**{"name": "a", "run": "true", **fields})
    with pytest.raises(TypeError, match=r"Limits\.cores is '1'; expected a number"):
        Limits(cores="1")  # type: ignore[arg-type]


def test_lists_and_paths_are_taken_as_what_they_mean() -> None:
    fields: dict[str, Any] = {
        "run": ["echo", "x"],
        "args": ["y"],
        "allow": ["weak"],
        "workdir": Path("/w"),
    }
    assert Job(name="a", **fields) == Job(
        name="a", run=("echo", "x"), args=("y",), allow=frozenset({"weak"}), workdir="/w"
    )


def test_what_is_no_job_is_refused_with_what_was_expected() -> None:
    said = r"found str 'x.py'; expected a job, such as headgate.Job\(name='a', script='a.py'\)"
    for call in (headgate.run, headgate.profile):
        with pytest.raises(UsageError, match=said):
            call("x.py")
