"""A user's settings: where each comes from, what is wrong with a file, and changes of its lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate import cli
from headgate.config import settings, settingsfile
from headgate.model.defaults import variable_of
from headgate.model.errors import InvalidFileError, UsageError
from headgate.recorded import runs

WRITTEN = """\
# what I want
policy: srpt   # on this machine

keep_runs: 3
# the end
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file, not yet made, and no variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for key in settingsfile.KEYS:
        monkeypatch.delenv(variable_of(key), raising=False)
    return tmp_path / "config" / "headgate" / "config.yaml"


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def types(*words: str, code: int = 0) -> str:
    """What `headgate config` prints."""
    done = CliRunner().invoke(cli.headgate, ["config", *words])
    assert done.exit_code == code, done.output
    return done.stdout


def test_a_variable_counts_before_the_file_and_this_before_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(file, WRITTEN)
    monkeypatch.setenv("HEADGATE_POLICY", "equal")
    shown = json.loads(types("--json"))
    assert shown["file"] == str(file)
    rows = {row["key"]: row for row in shown["settings"]}
    assert [rows["policy"][name] for name in ("value", "source", "line")] == [
        "equal",
        "environment",
        2,
    ]
    assert [rows["keep_runs"][name] for name in ("value", "source", "line")] == [3, "file", 4]
    assert [rows["report"][name] for name in ("value", "source", "line")] == ["on", "default", None]
    assert f"{file}:4" in types().replace("\n", "")
    assert settings.usual_policy() == "equal"
    variables = settings.environment()
    assert (variables["HEADGATE_POLICY"], variables["HEADGATE_KEEP_RUNS"]) == ("equal", "3")


def test_how_many_jobs_run_at_once_is_a_number_or_auto(file: Path) -> None:
    written(file, "at_once: 3\n")
    assert settings.at_once(settings.environment()) == 3
    assert settings.at_once({"HEADGATE_AT_ONCE": "auto"}) == "auto"
    with pytest.raises(UsageError, match="found HEADGATE_AT_ONCE='many'; expected a number"):
        settings.at_once({"HEADGATE_AT_ONCE": "many"})


def test_a_file_can_say_where_runs_are_kept(file: Path, tmp_path: Path) -> None:
    written(file, f"home: {tmp_path}/large\n")
    assert runs.home() == tmp_path / "large"
    assert "HEADGATE_HOME" not in settings.environment()


def test_every_problem_of_a_file_has_its_line_and_cure(file: Path) -> None:
    written(file, "polcy: srpt\nkeep_runs: -1\nlog: loud\nhome: runs\nreport: maybe\n")
    with pytest.raises(InvalidFileError) as caught:
        settings.of_file()
    assert [problem.line for problem in caught.value.problems] == [1, 2, 3, 4, 5]
    assert "did you mean 'policy'?" in str(caught.value)
    assert "expected a level (" in str(caught.value)


def test_a_policy_that_there_is_not_is_shown_with_its_line(file: Path) -> None:
    written(file, "# mine\npolicy: srtp\n")
    done = CliRunner().invoke(cli.headgate, ["config"])
    assert isinstance(done.exception, InvalidFileError)
    assert done.exception.problems[0].line == 2


def test_a_change_leaves_other_lines_and_comments_as_they_are(file: Path) -> None:
    written(file, WRITTEN)
    types("set", "keep_runs", "7")
    types("set", "verify", "off")
    assert file.read_text() == WRITTEN.replace("keep_runs: 3", "keep_runs: 7") + "verify: off\n"
    types("unset", "verify")
    types("unset", "keep_runs")
    types("unset", "keep_runs")
    assert file.read_text() == WRITTEN.replace("keep_runs: 3\n", "")
    assert types("path") == f"{file}\n"


def test_a_file_is_made_for_its_user_alone_and_a_link_stays_one(file: Path, tmp_path: Path) -> None:
    types("set", "policy", "srpt")
    assert file.stat().st_mode & 0o777 == 0o600
    file.rename(tmp_path / "dotfile")
    file.symlink_to(tmp_path / "dotfile")
    types("set", "policy", "equal")
    assert file.is_symlink()
    assert "policy: equal" in (tmp_path / "dotfile").read_text()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("kep_runs", "3", "did you mean 'keep_runs'?"),
        ("keep_runs", "many", "expected a whole number"),
        ("policy", "srtp", "expected one of"),
        ("at_once", "0", "expected 1 to 100,000 jobs, or `auto`"),
        ("log", "info\nkeep_runs: 9", "headgate config edit"),
    ],
)
def test_a_change_that_makes_no_sense_changes_nothing(
    file: Path, key: str, value: str, message: str
) -> None:
    written(file, WRITTEN.replace("keep_runs: 3\n", ""))
    before = file.read_text()
    done = CliRunner().invoke(cli.headgate, ["config", "set", key, value])
    assert isinstance(done.exception, UsageError)
    assert message in str(done.exception)
    assert file.read_text() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_log_level_of_the_file_comes_from_there(file: Path) -> None:
    written(file, "log: warning\n")
    rows = json.loads(types("--json"))["settings"]
    assert [row["source"] for row in rows if row["key"] == "log"] == ["file"]


def test_a_folder_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", f"/tmp/{'x' * 300}")
    with pytest.raises(UsageError, match="File name too long"):
        settings.of_file()


def test_recipients_are_checked_and_their_passwords_are_not_shown(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(file, "notify: [notify-send done, 'mailto://me:hidden@example.org']\n")
    assert "hidden" not in types() + types("--json")
    assert [to.name for to in settings.usual_recipients()] == ["notify-send", "mailto://"]
    assert not any("hidden" in value for value in settings.environment().values())
    monkeypatch.setenv("HEADGATE_NOTIFY", "https://example.org/x")
    [recipient] = settings.usual_recipients()
    assert recipient.of_run and recipient.url == "https://example.org/x"
    assert "HEADGATE_NOTIFY" not in settings.environment()
    assert types("test", "true").strip() == "true: delivered"
    done = CliRunner().invoke(cli.headgate, ["config", "test", "false"], standalone_mode=False)
    assert done.return_value == 1
