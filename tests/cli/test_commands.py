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
        (
            ("python", "-m", "pkg.train", "--epochs", "2"),
            "pkg.train",
            ["python", "-m", "pkg.train", "--epochs", "2"],
        ),
        (
            ("python", "train.py", "--json", "--", "x"),
            "train",
            ["python", "train.py", "--json", "--", "x"],
        ),
        (
            ("launch", "--workers", "2", "train.py"),
            "launch",
            ["launch", "--workers", "2", "train.py"],
        ),
        (("--", "launch", "train.py"), "launch", ["launch", "train.py"]),
        (("--", "train.py", "--epochs", "2"), "train", [..., "FOLDER/train.py", "--epochs", "2"]),
        (("-m", "pkg", "--", "--epochs", "2"), "pkg", ["python", "-m", "pkg", "--epochs", "2"]),
        (
            ("-m", "pkg.train", "--python", sys.executable),
            "pkg.train",
            [sys.executable, "-m", "pkg.train"],
        ),
        (("--python", sys.executable, "train.py"), "train", [sys.executable, "FOLDER/train.py"]),
        (("--name", "x", "--cores", "1", "sh", "-c", "exit 3"), "x", ["sh", "-c", "exit 3"]),
    ],
)
def test_what_is_started(
    place: User, words: tuple[str, ...], name: str, argv: list[object]
) -> None:
    path = f"{place.folder / 'bin'}:{place.variables['PATH']}"
    [planned] = place.types("run", "--dry-run", "--json", *words, PATH=path).json
    assert planned["job"] == name
    found = [word.replace(str(place.folder), "FOLDER") for word in planned["argv"]]
    assert found[1:] == argv[1:]
    assert argv[0] in (..., found[0])


def test_a_command_runs_with_all_its_words(place: User) -> None:
    place.types(
        "run", "--memory", "256MiB", "python", "-m", "pkg.train", "--memory", "much", "--", "x"
    )
    assert place.log("pkg.train") == '["--memory", "much", "--", "x"]\n'
    assert place.jobs()["pkg.train"]["state"] == "done"


def test_a_command_that_fails_fails(place: User) -> None:
    assert "exit code 3" in place.types("run", "sh", "-c", "exit 3", code=1).stdout


@pytest.mark.parametrize("verb", ["run", "plan", "profile"])
@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (("train.py", "--epochs", "2"), "train.py -- --epochs 2"),
        (("train.py", "--lr=0.1", "--json"), "train.py --json -- --lr=0.1"),
        (
            ("train.py", "--lr", "1", "--epochs", "2", "--json", "--wd", "0"),
            "train.py --json -- --lr 1 --epochs 2 --wd 0",
        ),
        (("-m", "pkg.train", "--epochs", "2"), "-m pkg.train -- --epochs 2"),
        (("train.py", "--tag", "a b", "last"), "train.py -- --tag 'a b' last"),
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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--cpus", "Did you mean --cores?"),
        ("--ram", "Did you mean --memory?"),
        ("--num-gpus", "Did you mean --gpus?"),
        ("--needs", "A job has it in a job file: `after: ...`."),
    ],
)
def test_what_other_schedulers_call_an_option_is_known(place: User, typed: str, meant: str) -> None:
    assert (
        f"No such option: {typed}. {meant}"
        in place.types("run", "train.py", typed, "2", code=2).stderr
    )


@pytest.mark.parametrize(
    ("option", "value"), [("--gpus", "x"), ("--cores", "1,5"), ("--workers", "two")]
)
def test_a_value_that_is_no_number_is_told_in_plain_words(
    place: User, option: str, value: str
) -> None:
    told = place.types("run", "train.py", option, value, code=2).stderr
    assert f"Invalid value for '{option}': '{value}' is not a valid " in told
    assert "number." in told and "range" not in told


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("runn", "train.py"), "Did you mean run?"),
        (("stauts",), "Did you mean status?"),
        (("re",), "Did you mean reserve or results or resize or resume or report or replay?"),
        (("train.py",), "To run it: headgate run train.py"),
        (("run", "trian.py"), "found no file 'trian.py'; did you mean train.py?"),
        (("run", "pkg/trian.py"), "found no file 'pkg/trian.py'; did you mean pkg/train.py?"),
        (
            ("run", "pkg/nothere.py"),
            (
                "found no file 'pkg/nothere.py'; expected a script, a job file (.yaml) or a "
                "command on the PATH"
            ),
        ),
        (("run", "pkg.train"), "to run it as a module: headgate run -m pkg.train"),
        (("run", "pkg/"), "to run it as a module: headgate run -m pkg"),
        (("run", "/"), "expected a script, a job file (.yaml) or a command on the PATH"),
        (("run", "."), "expected a script, a job file (.yaml) or a command on the PATH"),
        (("run", "x" * 300), "expected a script, a job file (.yaml) or a command on the PATH"),
        (
            ("run", "python train.py"),
            "without the quotes it is a command: headgate run python train.py",
        ),
        (("run", "other"), "expected a script, a job file (.yaml) or a command on the PATH"),
    ],
)
def test_what_is_mistyped_is_answered_with_what_comes_near(
    place: User, typed: tuple[str, ...], meant: str
) -> None:
    assert place.types(*typed, code=2).stderr.rstrip().endswith(meant)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ("python", "train.py", "--detach"),
            "--detach is given to train.py, which does not know it",
        ),
        (
            ("train.py", "--", "--memory=1GiB"),
            "--memory is given to train.py, which does not know it",
        ),
        (
            ("python", "-m", "pkg.train", "--workers", "2"),
            "--workers is given to -m pkg.train, which does not know it",
        ),
        (("--memory", "1GiB", "train.py", "--", "--memory", "2"), ""),
        (("python", "knows.py", "--workers", "2", "--shared-files"), ""),
        (("launch", "--workers", "2", "train.py"), ""),
    ],
)
def test_an_option_of_headgate_s_that_a_script_is_given_and_does_not_know_is_hinted_at(
    place: User, words: tuple[str, ...], hint: str
) -> None:
    place.write(
        "knows.py",
        (
            "import argparse\nargparse.ArgumentParser().add_argument('--workers')\nshared_files: "
            "bool\n"
        ),
    )
    path = f"{place.folder / 'bin'}:{place.variables['PATH']}"
    said = place.types("run", "--dry-run", "--json", *words, PATH=path).stderr
    assert said.count("hint:") == bool(hint)
    assert hint in said


def test_a_file_of_the_name_of_a_program_is_the_file(place: User) -> None:
    (place.folder / "launch").write_text("#!/bin/sh\necho mine\n")
    (place.folder / "launch").chmod(0o755)
    place.types("run", "launch", PATH=f"{place.folder / 'bin'}:{place.variables['PATH']}")
    assert place.log("launch") == "mine\n"


@pytest.mark.slow
def test_jobs_of_a_file_are_profiled_by_name(place: User, tmp_path: Path) -> None:
    place.write("jobs.yaml", "jobs: [{script: train.py}, {name: shell, run: 'true && false'}]\n")
    assert (
        "found --job nosuch; expected one of train, shell"
        in place.types("profile", "jobs.yaml", "--job", "nosuch", code=2).message
    )
    assert (
        "job 'shell' runs no Python program"
        in place.types("profile", "jobs.yaml", "--job", "shell", code=2).message
    )
    place.write(
        "roles.yaml",
        "jobs: [{name: pair, roles: [{name: one, run: 'true'}, {name: two, run: 'true'}]}]\n",
    )
    for verb, code in (("profile", 2), ("plan", 5)):
        assert "job 'pair' is made of roles" in place.types(verb, "roles.yaml", code=code).message
    # It is taken, and run: that this one trains with none of the libraries shows once it has ended.
    for words in (("jobs.yaml", "--job", "train"), ("python", "-m", "pkg")):
        assert (
            "the script ended without a profile" in place.types("profile", *words, code=1).message
        )
