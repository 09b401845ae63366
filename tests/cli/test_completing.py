"""What a shell completes: never with an error, and with the names that there are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from tests.diagnosis.made_up import MadeUp, recording
from tests.hub.user import User

from headgate import policies
from headgate.cli import VERBS, headgate
from headgate.cli.completing import _BY_NAME, _BY_PLACE, ARGUMENTS
from headgate.lab import record

VARIABLE = "_HEADGATE_COMPLETE"
SHELLS = {"bash": ("--norc", "--noprofile", "-i"), "zsh": ("-f", "-i"), "fish": ("-N", "-i")}
"""Shells, and the words that start them without files of their user."""


@pytest.fixture
def runs_of(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs, as far as their folders tell."""
    monkeypatch.setenv(VARIABLE, "bash_complete")
    for run, job in (("20260314-090000-000aa", "cnn"), ("20260315-090000-000bb", "vae")):
        (home / "runs" / run / "jobs" / job).mkdir(parents=True)
        (home / "runs" / run / "run.sqlite").touch()
    home.chmod(0o700)
    return home


def completions(*words: str) -> list[str]:
    *before, last = words
    found = ShellComplete(headgate, {}, "headgate", VARIABLE).get_completions(before, last)
    return [f"<{each.type}>" if each.type != "plain" else str(each.value) for each in found]


@pytest.mark.usefixtures("runs_of")
def test_names_of_what_there_is_are_completed_and_files_where_one_may_stand() -> None:
    assert set(completions("run", "--policy", "")) == set(policies.BUILT_IN)
    assert completions("run", "--policy", "sr") == ["srpt"]
    assert completions("run", "a.py", "--engine", "l") == ["local"]
    assert "vm+container" in completions("run", "--isolation", "")
    assert completions("run", "tra") == ["<file>"]
    assert completions("run", "python", "tra") == ["<file>"]
    assert completions("run", "--plan", "") == ["<file>"]
    assert completions("logs", "") == ["vae", "cnn"]
    assert completions("stop", "c") == ["cnn"]
    assert completions("logs", "20260314-090000-000aa/") == ["20260314-090000-000aa/cnn"]
    assert completions("status", "20260315") == ["20260315-090000-000bb"]
    assert completions("metrics", "--run", "") == ["20260315-090000-000bb", "20260314-090000-000aa"]
    assert completions("explain", "v") == ["vae"]
    assert completions("pred") == ["predict"]
    assert completions("run", "--prio") == ["--priority"]


@pytest.mark.usefixtures("runs_of")
def test_every_option_and_argument_of_every_verb_can_be_completed() -> None:
    for verb in VERBS:
        command = headgate.get_command(click.Context(headgate), verb)
        assert command is not None
        completions(verb, "")
        for param in command.params:
            for option in param.opts if isinstance(param, click.Option) else ():
                completions(verb, option, "")


def test_a_shell_is_answered_and_never_with_a_traceback(user: User) -> None:
    for typed, found in (
        ("headgate run --policy s", "plain,srpt"),
        ("headgate nothing a", ""),
        ("headgate run 'a", ""),
    ):
        words = {
            "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
            VARIABLE: "bash_complete",
        }
        done = user.types(**words)  # type: ignore[arg-type]
        assert found in done.stdout
        assert done.stderr == ""
    for shell in ("bash", "zsh", "fish"):
        script = user.types(**{VARIABLE: f"{shell}_source"}).stdout  # type: ignore[arg-type]
        assert "headgate" in script
        if shell == "bash":
            subprocess.run(["bash", "-n"], input=script, text=True, check=True)


@pytest.mark.usefixtures("runs_of")
def test_names_come_without_the_modules_of_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    known = headgate.get_command

    def imports(ctx: click.Context, name: str) -> click.Command | None:
        imported.append(name)
        return known(ctx, name)

    monkeypatch.setattr(headgate, "get_command", imports)
    for words, names in (
        (("logs", "v"), ["vae"]),
        (("logs", "-n", "5", "v"), ["vae"]),
        (("stop", "vae", "c"), ["cnn"]),
        (("status", "20260315"), ["20260315-090000-000bb"]),
        (("logs", "--run", "20260315"), ["20260315-090000-000bb"]),
        (("logs", "--run=20260315"), ["20260315-090000-000bb"]),
        (("explain", "--neighbour", "v"), ["vae"]),
        (("sta",), ["status", "stacks"]),
    ):
        assert completions(*words) == names, words
    assert imported == []
    assert completions("logs", "--fol") == ["--follow"]
    assert completions("metrics", "--since", "") == []
    assert imported == ["logs", "metrics"]


def test_names_that_come_without_a_verb_are_those_that_it_takes() -> None:
    for verb, names in ARGUMENTS.items():
        command = headgate.get_command(click.Context(headgate), verb)
        assert command is not None
        first = next(param for param in command.params if isinstance(param, click.Argument))
        assert names == _BY_PLACE.get((verb, str(first.name)), _BY_NAME.get(str(first.name))), verb


@pytest.mark.usefixtures("runs_of")
def test_policies_nodes_labs_and_studies_are_no_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labs = {name: SimpleNamespace(nodes=[f"{name}-0", f"{name}-1"]) for name in ("east", "west")}
    monkeypatch.setattr(record, "names", lambda: list(labs))
    monkeypatch.setattr(record, "read", labs.get)
    (home / "studies" / "sparse-20260314").mkdir(parents=True)
    (home / "studies" / "sparse-20260314" / "about.json").write_text("{}")
    assert completions("lab", "exec", "ea") == ["east-0", "east-1"]
    assert completions("run", "--nodes", "east-0,") == [
        "east-0,east-1",
        "east-0,west-0",
        "east-0,west-1",
    ]
    assert completions("simulate", "t.csv", "--policy", "sr") == ["srpt"]
    assert completions("web", "--name", "") == []
    assert (
        completions("study", "show", "")
        == completions("study", "compare", "")
        == ["sparse-20260314"]
    )


@pytest.mark.usefixtures("runs_of")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_a_name(
    user: User, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    monkeypatch.setattr(user, "command", lambda *words: list(words))
    terminal = user.opens(shell, *SHELLS[shell])
    script = f"_HEADGATE_COMPLETE={shell}_source headgate"
    source = f"{script} | source" if shell == "fish" else f'eval "$({script})"'
    if shell == "zsh":
        source = f"autoload -U compinit && compinit -u && {source}"
    terminal.press(f"{source}; echo re''ady\n".encode())
    terminal.shows("ready")
    terminal.press(b"headgate logs va\t")
    terminal.shows("headgate logs vae")
    terminal.press(b"\x15exit\n")
    assert terminal.ends() == 0


def test_what_completes_a_file_is_still_given_as_what_its_verb_expects(home: Path) -> None:
    """As by the whole command, whose verbs are completed."""
    folder = home / "runs" / "20260314-0900-ab12"
    (folder / "jobs" / "a").mkdir(parents=True)
    recording(folder / "run.sqlite", {"a": MadeUp(ran=0.5)})
    page = home / "page.html"
    assert (
        CliRunner()
        .invoke(headgate, ["report", "--output", str(page)], catch_exceptions=False)
        .exit_code
        == 0
    )
    assert page.exists()
