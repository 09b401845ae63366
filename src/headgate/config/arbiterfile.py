"""The file of a shared machine, `/etc/headgate/arbiter.yaml`: what its users may have."""

from __future__ import annotations

import grp
import pwd
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator

from headgate.config import userfile
from headgate.config.records import entry_of
from headgate.config.userfile import UserFile
from headgate.model import records
from headgate.model.errors import HeadgateError
from headgate.model.sharing import RULES, Amounts, SharingRules, UserShare


class AmountsEntry(entry_of(Amounts)):  # type: ignore[misc]  # its keys are fields of Amounts
    """Amounts of a machine."""


class UserShareEntry(entry_of(UserShare, {Amounts: AmountsEntry})):  # type: ignore[misc]
    """What a user may have, or each member of a group; without both, everybody else."""

    @model_validator(mode="after")
    def _agrees(self) -> UserShareEntry:
        self.record()
        return self


class SharingEntry(entry_of(SharingRules, {UserShare: UserShareEntry})):  # type: ignore[misc]
    """The rules of a shared machine."""


def schema() -> dict[str, Any]:
    """The JSON schema of the file."""
    return userfile.json_schema(SharingEntry, "Headgate shared machine")


def read(path: Path = RULES) -> SharingRules:
    """The rules of a file; those without an entry if there is no such file.

    Raises:
        InvalidFileError: The file has problems; the error lists them all.
        UsageError: The file cannot be read.
    """
    if not path.exists():
        return SharingRules()
    file = UserFile(str(path), SharingEntry)
    try:
        rules: SharingRules = SharingEntry.model_validate(file.data or {}).record()
    except ValidationError as error:
        rules = SharingRules()
        for details in error.errors():
            file.record_error(dict(details))
    _check_parts(file, rules)
    file.check()
    return rules


def main() -> None:
    """Print the rules of the file that the process was given, as JSON."""
    try:
        print(records.text_of(read(Path(sys.argv[1]))))
    except HeadgateError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def unknown_names(rules: SharingRules) -> list[tuple[str, str]]:
    """Users and groups of rules that this machine does not have: `user` or `group`, and the name.
    They may be made later.
    """
    users = dict.fromkeys(part.user for part in rules.parts if part.user is not None)
    groups = dict.fromkeys(
        (
            *rules.administrators,
            *rules.may_reserve,
            *(part.group for part in rules.parts if part.group is not None),
        )
    )
    return [
        *(("user", user) for user in users if not _is_known(pwd.getpwnam, user)),
        *(("group", group) for group in groups if not _is_known(grp.getgrnam, group)),
    ]


def _is_known(get: Callable[[str], object], name: str) -> bool:
    try:
        get(name)
    except (KeyError, ValueError):
        return False
    return True


def _check_parts(file: UserFile, rules: SharingRules) -> None:
    """Record entries that never count, because an earlier one does."""
    named: set[tuple[str | None, str | None]] = set()
    for i, part in enumerate(rules.parts):
        name = part.user, part.group
        if name in named:
            file.problem(("parts", i), "an earlier entry is for the same users", "keep one")
        elif (None, None) in named:
            cure = "put the entry without `user` and `group` last"
            file.problem(("parts", i), "an earlier entry is for everybody", cure)
        named.add(name)
