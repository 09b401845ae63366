"""Every verb on runs that have ended: help, JSON, and what is said when there is nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests import prose
from tests.hub.user import SECONDS, User

from headgate.cli import VERBS, headgate


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Iterator[User]:
    """Somebody with two runs that have ended, the second not well."""
    place = tmp_path_factory.mktemp("past")
    somebody = User(place / "work", place / "home", speed)
    somebody.write("good.py", "for epoch in 1, 2: print(f'epoch {epoch}/2 loss {1 / epoch}')")
    somebody.write("bad.py", "import sys\nprint('one\\ntwo\\nthree')\nsys.exit('no data')")
    somebody.types("run", "good.py")
    somebody.types("run", "good.py", "bad.py", code=1)
    yield somebody
    somebody.leaves()


@pytest.mark.parametrize("verb", VERBS)
def test_help_says_what_a_verb_does_and_shows_an_example(verb: str) -> None:
    done = CliRunner().invoke(headgate, [verb, "--help"], catch_exceptions=False)
    assert done.exit_code == 0
    assert re.search(rf"Example: headgate {verb}\b", done.stdout)
    assert "--json" in done.stdout or verb == "mcp"  # which speaks JSON and nothing else


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command, those of `lab` too."""
    for verb in VERBS:
        command = import_module(f"headgate.cli.{verb}").command
        yield verb, command
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", each) for name, each in command.commands.items())


@pytest.mark.parametrize(
    ("verb", "command"), [pytest.param(*each, id=each[0]) for each in commands()]
)
def test_sentences_of_help_are_short(verb: str, command: click.Command) -> None:
    assert command.help is not None
    paragraphs = [each for each in command.help.split("\n\n") if not each.lstrip().startswith("\b")]
    options = [each.help or "" for each in command.params if isinstance(each, click.Option)]
    sentences = [sentence for text in [*paragraphs, *options] for sentence in prose.split(text)]
    longest = max(sentences, key=prose.words)
    assert prose.words(longest) <= 30, f"headgate {verb} --help: {longest}"


@pytest.mark.slow
def test_the_command_itself_lists_every_verb(past: User) -> None:
    text = past.types("--help").stdout
    assert "Example: headgate run train.py" in text
    for verb, what in VERBS.items():
        assert re.search(rf"^  {verb} +{re.escape(what)}$", text, re.MULTILINE)
    assert past.types("--version").stdout.startswith("headgate, version ")
    assert "No such command 'rum'" in past.types("rum", code=2).stderr
    assert "No such option" in past.types("run", "--fast", "a.py", code=2).stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ps",),
        ("status",),
        ("logs", "bad"),
        ("metrics",),
        ("metrics", "good"),
        ("report",),
        ("doctor",),
        ("schema",),
        ("rm", "--keep", "100"),
    ],
    ids=" ".join,
)
def test_json_of_every_verb_parses(words: tuple[str, ...], past: User) -> None:
    assert past.json(*words) is not None


def test_ps_lists_runs_with_the_latest_last(past: User) -> None:
    first, second = past.json("ps")
    assert first["id"] < second["id"]
    assert [job["state"] for job in second["jobs"]] == ["done", "failed"]
    lines = past.types("ps").stdout.splitlines()
    assert re.match(
        rf"{second['id']} +failed .* 1 done, 1 failed +headgate run good.py bad.py", lines[-1]
    )


def test_status_has_state_reason_and_progress(past: User) -> None:
    jobs = past.jobs()
    assert (jobs["good"]["state"], jobs["good"]["epoch"], jobs["good"]["loss"]) == ("done", 2, 0.5)
    assert (jobs["bad"]["state"], jobs["bad"]["exit_code"]) == ("failed", 1)
    assert jobs["bad"]["reason"].startswith("exit code 1")
    first = past.json("ps")[0]["id"]
    assert "bad" not in past.jobs(first)
    assert "epoch 2/2" in past.types("status", first[:-1]).stdout


def test_status_tells_why_a_job_has_its_share(past: User) -> None:
    decision = past.jobs()["good"]["decision"]
    assert decision["t"] >= 0 and decision["reason"].startswith("first: nothing predicted yet")
    assert "share of" not in past.types("status").stdout  # nothing runs


def test_status_shows_what_a_run_warned_of(user: User) -> None:
    user.write("nan.py", "print('step 1 loss 0.5')\nprint('step 2 loss nan')")
    user.types("run", "nan.py")
    text = "its loss is no longer a number: nan at step 2"
    [warning] = [each for each in user.json("status")["warnings"] if each["job"]]
    assert (warning["job"], warning["task"], warning["text"]) == ("nan", "nan/worker-0", text)
    assert re.search(rf"^nan +\S+ s +{text}$", user.types("status").stdout, re.MULTILINE)


def test_logs_are_whole_or_only_their_end(past: User) -> None:
    assert past.types("logs", "bad").stdout == "one\ntwo\nthree\nno data\n"
    assert past.types("logs", "bad", "--tail", "1").stdout == "no data\n"
    assert past.types("logs", "bad", "--tail", "9" * 30).stdout == "one\ntwo\nthree\nno data\n"
    assert past.types("logs", "bad", "-f", "-n", "2").stdout == "three\nno data\n"
    [file] = past.json("logs", "bad")
    assert Path(file["path"]).stat().st_size == file["bytes"] > 0
    for words in (("-f",), ("-n", "1")):
        assert past.types("logs", "bad", "--json", *words, code=2).message.startswith(
            "found --json with --follow or"
        )
    first = past.json("ps")[0]["id"]
    assert past.log(f"{first}/good") == past.types("logs", "good", "--run", first).stdout


def test_attach_to_a_run_that_has_ended_tells_how(past: User) -> None:
    first, second = (run["id"] for run in past.json("ps"))
    assert past.json("attach", first)["state"] == "done"
    assert past.json("attach", code=1)["id"] == second
    assert re.search(r"bad +failed", past.types("attach", code=1).stdout)


def test_a_run_keeps_where_it_came_from(past: User) -> None:
    page = Path(past.json("report")["report"]).read_text()
    assert "pytest==" in page  # a package of the interpreter
    assert str(past.folder) in page


def test_what_is_not_there_is_said(past: User) -> None:
    assert past.types("logs", "nobody", code=5).message.startswith("no job 'nobody' in any run")
    assert (
        past.types("status", "1999", code=5).message
        == "no run '1999'; `headgate ps` lists the runs there are"
    )
    assert "could be any of" in past.types("status", "20", code=2).message
    for verb in ("stop", "checkpoint"):
        assert past.types(verb, "good", code=5).message == "nothing is running"
    assert past.types("rm", code=2).message == "expected the ids of runs, or --keep N"
    first = past.json("ps")[0]["id"]
    assert "is done; there is nothing to go on with" in past.types("resume", first, code=2).message


def test_without_any_run_it_says_how_to_start_one(user: User) -> None:
    assert (
        user.types("ps").stdout == "there are no runs yet; start one with: headgate run train.py\n"
    )
    assert user.json("ps") == []
    assert "start one with: headgate run train.py" in user.types("status", code=5).message


def test_doctor_shows_the_machine_and_what_is_lost(past: User) -> None:
    told = past.json("doctor")
    assert (
        told["survey"]["node"]["core_gflops"]
        == json.loads((past.home / "node.json").read_text())["core_gflops"]
    )
    assert isinstance(told["uncontrolled"], list)
    there = {each["name"]: each["there"] for each in told["readings"]}
    assert there["schedstat"] is Path("/proc/self/schedstat").exists()
    assert told["mpi"].startswith("none: ") == (shutil.which("mpirun") is None)
    text = past.types("doctor").stdout
    for line in (
        "machine",
        "cores",
        "memory",
        "GPUs",
        "NICs",
        "disks",
        "cgroups",
        "in use",
        "runs",
        "hub",
        "uncontrolled",
        "readings",
    ):
        assert re.search(rf"^{line} +\S", text, re.MULTILINE), line
    hub = "running, policy headgate, 0 runs going on|not running; it starts with the first job"
    assert re.search(rf"^hub +({hub})$", text, re.MULTILINE)


def test_schema_has_every_field_of_a_job(past: User) -> None:
    schema = past.json("schema")
    assert past.types("schema").json == schema
    assert {
        "name",
        "script",
        "run",
        "at",
        "after",
        "priority",
        "limits",
        "progress",
        "retries",
        "timeout",
    } <= set(schema["$defs"]["JobEntry"]["properties"])


@pytest.mark.slow
def test_old_runs_go_when_asked_and_when_there_are_too_many(user: User) -> None:
    user.write("a.py", "")
    ids = [user.json("run", "a.py")["id"] for _ in range(3)]
    # of whoever submits, whatever the hub was started with
    user.variables["HEADGATE_KEEP_RUNS"] = "3"
    said = user.types("run", "a.py").stdout
    assert (
        f"deleted the oldest runs, which were short and had no checkpoints: {ids[0]}; "
        "HEADGATE_KEEP_RUNS (3)"
    ) in said
    assert f": {ids[0]}\n" in (user.home / "hub" / "hub.log").read_text()
    ids.append(user.json("ps")[-1]["id"])
    assert [run["id"] for run in user.json("ps")] == ids[1:]
    assert not (user.home / "runs" / ids[0]).exists()
    assert user.json("rm", ids[1]) == [ids[1]]
    for words in ((), ("--json",)):
        assert (
            "expected --yes with --keep" in user.types("rm", "--keep", "1", *words, code=2).message
        )
    assert user.types("rm", "--keep", "1", "--yes").stdout == f"deleted {ids[2]}\n"
    assert [run["id"] for run in user.json("ps")] == [ids[3]]
    user.write("waits.py", "import signal; signal.pause()")
    going = user.detaches("waits.py")
    assert "is running; stop it first" in user.types("rm", going, code=2).message
    user.types("rm", "--keep", "0", "--yes")
    assert [run["id"] for run in user.json("ps")] == [going]


def shell(user: User, line: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """What comes of a command, `$@` in a line of the shell."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *user.command(*words)],
        cwd=user.folder,
        env=user.variables | variables,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_in_a_folder_that_is_gone_it_says_so(user: User) -> None:
    done = shell(user, 'mkdir gone && cd gone && rmdir ../gone && "$@"', "run", "a.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "headgate: the folder that you are in is gone; go to another one\n"


@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_that_there_is_no_space_for_is_said(buffered: str, past: User) -> None:
    for words in (("status", "--json"), ("ps",), ("--help",)):
        done = shell(past, '"$@" > /dev/full', *words, PYTHONUNBUFFERED=buffered)
        assert done.returncode == 1
        assert done.stderr == (
            "headgate: cannot write: No space left on device; have the output go to where "
            "there is space\n"
        )
