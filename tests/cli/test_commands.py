"""What people type after `run`: commands, modules, interpreters, and options of their scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.hub.user import User

TELLS = "import json, sys\nprint(json.dumps(sys.argv[1:]))\n"


@pytest.fixture
def place(user: User) -> User:
    (user.folder / "pkg").mkdir()
    for name in ("train.py", "pkg/train.py", "pkg/__main__.py"):
        user.write(name, TELLS)
    tool = user.write("bin-launch", '#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    (user.folder / "bin").mkdir()
    tool.rename(user.folder / "bin" / "launch")
    return user


@pytest.mark.parametrize(
    ("words", "name", "argv"),
    [
        (("python", "-m", "pkg.train", "--epochs", "2"), "pkg.train", ["python", "-m", "pkg.train", "--epochs", "2"]),
        (("python", "train.py", "--json", "--", "x"), "train", ["python", "train.py", "--json", "--", "x"]),
        (("launch", "--workers", "2", "train.py"), "launch", ["launch", "--workers", "2", "train.py"]),
        (("--", "launch", "train.py"), "launch", ["launch", "train.py"]),
        (("--", "train.py", "--epochs", "2"), "train", [..., "FOLDER/train.py", "--epochs", "2"]),
        (("-m", "pkg", "--", "--epochs", "2"), "pkg", ["python", "-m", "pkg", "--epochs", "2"]),
        (("-m", "pkg.train", "--python", sys.executable), "pkg.train", [sys.executable, "-m", "pkg.train"]),
        (("--python", sys.executable, "train.py"), "train", [sys.executable, "FOLDER/train.py"]),
        (("--name", "x", "--cores", "1", "sh", "-c", "exit 3"), "x", ["sh", "-c", "exit 3"]),
    ],
)
def test_what_is_started(place: User, words: tuple[str, ...], name: str, argv: list[object]) -> None:
    path = f"{place.folder / 'bin'}:{place.variables['PATH']}"
    [planned] = place.types("run", "--dry-run", "--json", *words, PATH=path).json
    assert planned["job"] == name
    found = [word.replace(str(place.folder), "FOLDER") for word in planned["argv"]]
    assert found[1:] == argv[1:]
    assert argv[0] in (..., found[0])


def test_a_command_runs_with_all_its_words(place: User) -> None:
    place.types("run", "--memory", "256MiB", "python", "-m", "pkg.train", "--memory", "much", "--", "x")
    assert place.log("pkg.train") == '["--memory", "much", "--", "x"]\n'
    assert place.jobs()["pkg.train"]["state"] == "done"


def test_a_command_that_fails_fails(place: User) -> None:
    assert "exit code 3" in place.types("run", "sh", "-c", "exit 3", code=1).stdout


@pytest.mark.parametrize("verb", ["run", "plan", "profile"])
@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("train.py", "--epochs", "2"), "train.py -- --epochs 2"),
        (("train.py", "--lr=0.1", "--json"), "train.py -- --lr=0.1"),
        (("--epochs", "2", "train.py"), "train.py -- --epochs 2"),
        (("train.py", "-x"), "train.py -- -x"),
    ],
)
def test_an_option_of_the_script_is_answered_with_where_it_belongs(
    place: User, verb: str, words: tuple[str, ...], cure: str
) -> None:
    said = place.types(verb, *words, code=2).stderr
    assert said.endswith(f"Options of a script follow `--`: headgate {verb} {cure}\n")
    assert "--detach" not in said


def test_a_mistyped_option_is_known(place: User) -> None:
    assert "Did you mean --detach?" in place.types("run", "train.py", "--detatch", code=2).stderr


def test_a_file_of_the_name_of_a_program_is_the_file(place: User) -> None:
    (place.folder / "launch").write_text("#!/bin/sh\necho mine\n")
    (place.folder / "launch").chmod(0o755)
    place.types("run", "launch", PATH=f"{place.folder / 'bin'}:{place.variables['PATH']}")
    assert place.log("launch") == "mine\n"


def test_jobs_of_a_file_are_profiled_by_name(place: User, tmp_path: Path) -> None:
    place.write("jobs.yaml", "jobs: [{script: train.py}, {name: shell, run: 'true && false'}]\n")
    assert (
        "found --job nosuch; expected one of train, shell"
        in place.types("profile", "jobs.yaml", "--job", "nosuch", code=2).message
    )
    assert "job 'shell' runs no Python program" in place.types("profile", "jobs.yaml", "--job", "shell", code=2).message
    # It is taken, and run: that this one trains with none of the libraries shows once it has ended.
    for words in (("jobs.yaml", "--job", "train"), ("-m", "pkg.train"), ("python", "-m", "pkg")):
        assert "the script ended without a profile" in place.types("profile", *words, code=1).message
