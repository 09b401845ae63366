"""Variables of a terminal, secrets, and what a run was submitted with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.scripts import variables


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("WANDB_API_KEY", "x", True),
        ("hf_token", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("DB_PASSWORD", "1234", True),
        ("DATABASE_URL", "postgres://me:pw@host/db", True),
        ("PROXY", "http://host:3128", False),
        ("X", "ghp_0123456789", True),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MAX_TOKENS", "2048", False),
        ("GIT_AUTHOR_NAME", "Ada", False),
        ("PATH", "/usr/bin", False),
        ("KEYBOARD", "us", False),
        ("LR", "0.1", False),
    ],
)
def test_secrets_are_told_by_name_and_value(name: str, value: str, secret: bool) -> None:
    assert variables.is_secret(name, value) is secret


def test_what_a_run_was_submitted_with_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        variables.write(tmp_path, {"LR": "0.1", "TOKEN": "secret", "ODD": "\udcff"})
    finally:
        os.umask(before)
    assert (tmp_path / variables.FILE).stat().st_mode & 0o777 == 0o600
    assert variables.read(tmp_path) == {"LR": "0.1", "TOKEN": "secret", "ODD": "\udcff"}
    variables.forget_secrets(tmp_path)
    assert variables.read(tmp_path) == {"LR": "0.1", "TOKEN": None, "ODD": "\udcff"}
    assert b"secret" not in (tmp_path / variables.FILE).read_bytes()


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff", None])
def test_a_file_that_is_gone_or_damaged_tells_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / variables.FILE).write_bytes(content)
    assert variables.read(tmp_path) is None
    variables.forget_secrets(tmp_path)


def test_a_run_goes_on_with_its_own_variables_in_the_session_of_whoever_types() -> None:
    kept = {"LR": "0.1", "SSH_AUTH_SOCK": "/old", "OLDPWD": "/a", "TOKEN": None}
    here = {"LR": "0.5", "SSH_AUTH_SOCK": "/new", "TERM": "xterm", "NEW": "1", "TOKEN": "x"}
    assert variables.continued(kept, here) == {
        "LR": "0.1",
        "SSH_AUTH_SOCK": "/new",
        "TERM": "xterm",
    }


def test_what_a_batch_system_allots_is_that_of_the_present_job() -> None:
    kept = {"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "3", "TMPDIR": "/tmp/1", "LR": "0.1"}
    here = {"SLURM_JOB_ID": "2", "CUDA_VISIBLE_DEVICES": "0"}
    assert variables.continued(kept, here) == {**here, "LR": "0.1"}
    assert not list(variables.differing({**kept, "LR": "1"}, {**here, "LR": "1"}))


def test_what_differs_is_shown_where_it_differs_and_no_secret_is() -> None:
    long = "/opt/" + "a" * 200
    first = {
        "A": "1",
        "B": "same",
        "C": "x",
        "TOKEN": "old",
        "LONG": f"{long}/one",
        "PWD": "/",
        "GONE_KEY": None,
    }
    second = {
        "A": "2",
        "B": "same",
        "D": "y",
        "TOKEN": "new",
        "LONG": f"{long}/two",
        "PWD": "/b",
        "GONE_KEY": "z",
    }
    shown = {each.name: each.shown() for each in variables.differing(first, second)}
    assert list(shown) == ["A", "C", "D", "LONG", "TOKEN"]
    assert (shown["A"], shown["C"], shown["D"]) == (
        ("'1'", "'2'"),
        ("'x'", "not set"),
        ("not set", "'y'"),
    )
    assert shown["TOKEN"] == ("(not shown)", "another (not shown)")
    assert all(text.startswith("'…") and len(text) < 80 for text in shown["LONG"])
    assert [text[-4:-1] for text in shown["LONG"]] == ["one", "two"]


def test_secrets_of_a_command_line_are_hidden() -> None:
    typed = [
        "run",
        "a.py",
        "--env",
        "TOKEN=x",
        "--env=API_KEY=y",
        "--env",
        "LR=0.1",
        "--",
        "TOKEN=z",
    ]
    hidden = [
        "run",
        "a.py",
        "--env",
        "TOKEN=(not shown)",
        "--env=API_KEY=(not shown)",
        "--env",
        "LR=0.1",
    ]
    assert variables.without_secrets(typed) == [*hidden, "--", "TOKEN=z"]
