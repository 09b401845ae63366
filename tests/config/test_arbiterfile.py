"""The file of a shared machine is checked as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import arbiterfile
from headgate.model.errors import InvalidFileError
from headgate.model.sharing import Amounts, SharingRules, UserShare


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "arbiter.yaml"
    path.write_text(text)
    return path


def test_the_first_entry_that_fits_says_what_a_user_may_have(tmp_path: Path) -> None:
    rules = arbiterfile.read(
        written(
            tmp_path,
            """
            users: together
            half_life: 3d
            parts:
              - user: ada
                shares: 2
                guaranteed: {cores: 4, memory: 8GiB, gpus: 1}
              - group: students
                largest: {cores: 8, jobs: 4}
              - shares: 0.5
            """,
        )
    )
    assert (rules.users, rules.half_life) == ("together", 3 * 86_400.0)
    ada = rules.of("ada", {"students"})
    assert (ada.shares, ada.guaranteed) == (2.0, Amounts(cores=4, memory_bytes=8 << 30, gpus=1))
    assert rules.of("bob", {"students"}).largest == Amounts(cores=8, jobs=4)
    assert rules.of("eve", ()).shares == 0.5


def test_without_a_file_or_an_entry_users_have_equal_shares(tmp_path: Path) -> None:
    rules = arbiterfile.read(tmp_path / "missing.yaml")
    assert rules == SharingRules() == arbiterfile.read(written(tmp_path, ""))
    assert rules.of("ada", ()) == UserShare()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("half_live: 3d", "unknown key 'half_live'; did you mean 'half_life'?"),
        (
            "shars: 2",
            "did you mean 'shares'? it belongs in an entry of the list `parts:`",
        ),
        ("half_life: 0", "line 1: half_life: found 0.0; expected a value greater than 0"),
        ("parts: [{shares: -2}]", "parts[0].shares: found -2"),
        ("parts: [{guaranteed: {cpus: 4}}]", "unknown key 'cpus'; did you mean 'cores'?"),
        ("parts: [{largest: {memory: 8}}]", "expected 1 MiB or more, with its unit"),
        ("parts: [{user: a, group: b}]", "expected `user` or `group`, not both"),
        (
            "parts: [{guaranteed: {memory: 4GiB}, largest: {memory: 2GiB}}]",
            "`guaranteed` has more memory than `largest`",
        ),
        ("parts: [{user: a}, {user: a}]", "parts[1]: an earlier entry is for the same users"),
        ("parts: [{shares: 1}, {user: a}]", "put the entry without `user` and `group` last"),
        ("users: all", "expected 'apart' or 'together'"),
    ],
)
def test_each_problem_is_told_with_its_line_and_cure(
    tmp_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(InvalidFileError) as raised:
        arbiterfile.read(written(tmp_path, text))
    assert problem in str(raised.value)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="3 problems"):
        arbiterfile.read(written(tmp_path, "users: all\nhalf_life: -1\nparts: 7\n"))


def test_the_schema_has_every_key() -> None:
    assert arbiterfile.schema()["properties"].keys() == {
        *("users", "half_life", "patience", "administrators", "may_reserve", "outside_gpus"),
        *("parts", "idle_after", "idle_ends", "take_back", "take_back_after", "take_back_spares"),
        "take_back_ends",
    }
