"""What a shell completes: never with an error, and with the names that there are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from tests.diagnosis.made_up import MadeUp, recording
from tests.hub.user import User

from headgate import policies
from headgate.cli import VERBS, headgate

VARIABLE = "_HEADGATE_COMPLETE"


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
