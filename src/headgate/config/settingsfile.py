"""The file of a user's settings: its keys, what counts of them, and changes of single lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError

from headgate.config import userfile
from headgate.config.fields import AtOnce, Plain, Seconds, Text
from headgate.config.notifyfile import Recipients, recipients
from headgate.config.userfile import Entry, UserFile, Whole, suggestion
from headgate.model import defaults, log_levels
from headgate.model.defaults import MOST_PORT, settings_exist, settings_path, variable_of
from headgate.model.errors import InvalidFileError, UsageError
from headgate.model.recipients import Recipient

DEFAULTS: Mapping[str, Any] = {
    "home": defaults.HOME,
    "policy": defaults.POLICY,
    "keep_runs": defaults.KEEP_RUNS,
    "report": "on",
    "verify": "auto",
    "private": "off",
    "prove_for_others": "off",
    "idle_seconds": defaults.IDLE_SECONDS,
    "web_port": defaults.WEB_PORT,
}
"""What counts where nothing else is set; a setting that is not here is then off."""
_FIRST_LINES = "# Settings of Headgate: `headgate config` shows what counts.\n"


class SettingSource(StrEnum):
    """Where the value of a setting comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"


def _whole_path(value: str) -> str:
    path = os.path.expanduser(value)
    if not os.path.isabs(path):
        raise ValueError("expected a path from the root on, or from ~")
    return path


def _levels(value: str) -> str:
    try:
        log_levels.parse(value)
    except UsageError:
        levels = ", ".join(log_levels.LEVELS)
        raise ValueError(f"expected a level ({levels}), or MODULE=LEVEL") from None
    return value


class SettingsEntry(Entry):
    """A file of settings."""

    home: Annotated[Plain, AfterValidator(_whole_path)] | None = None
    """Folder of all that Headgate keeps, such as a large disk."""
    policy: Text | None = None
    """Policy that moves shares between jobs, where no run has another one."""
    at_once: AtOnce | None = None
    """How many jobs of all runs run at once: a number, or `auto`: of each run as many as make the
    most steps a second.
    """
    keep_runs: Annotated[Whole, Field(ge=0)] | None = None
    """How many runs are kept."""
    report: Literal["on", "off"] | None = None
    """Whether each run ends with a page."""
    verify: Literal["auto", "off"] | None = None
    """Whether several workers are compared with one, where a job says nothing."""
    private: Literal["on", "off"] | None = None
    """Whether other users of the machine see the names of no jobs."""
    prove_for_others: Literal["on", "off"] | None = None
    """Whether proofs of other users may hold jobs for moments."""
    idle_seconds: Seconds | None = None
    """How long a hub without work waits before it ends."""
    log: Annotated[Text, AfterValidator(_levels)] | None = None
    """What Headgate's own modules log."""
    notify: Recipients = []
    """Recipients of messages about runs: when a job fails or hangs, and at the end."""
    web_port: Annotated[Whole, Field(ge=1, le=MOST_PORT)] | None = None
    """Port of `headgate web`, which takes a later one if it is not free."""


KEYS = tuple(SettingsEntry.model_fields)


def stated(path: Path) -> Mapping[str, Any]:
    """The settings that a file states, by key.

    Raises:
        UsageError: As `read`.
    """
    return _stated(read(path)[0])


def _stated(entry: SettingsEntry) -> dict[str, Any]:
    values = entry.model_dump(exclude_none=True, exclude={"notify"})
    to = recipients(entry.notify, of_run=True)
    return {**values, "notify": to} if to else values


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it counts.

    Args:
        key: Its key in the file.
        value: Its value: a JSON value; of a variable its text; of recipients their names; None: it
            is off.
        source: Where the value comes from.
        line: Its line in the file, if the file has it, even where a variable counts.
    """

    key: str
    value: Any
    source: SettingSource
    line: int | None = None

    @property
    def variable(self) -> str:
        """The variable that counts before the file."""
        return variable_of(self.key)


def schema() -> dict[str, Any]:
    """The JSON schema of a file of settings."""
    return userfile.json_schema(SettingsEntry, "Headgate settings")


def read(path: Path) -> tuple[SettingsEntry, UserFile | None]:
    """The settings of a file; none if there is no such file.

    Raises:
        InvalidFileError: The file has problems; the error lists them all.
        UsageError: The file cannot be read.
    """
    if not settings_exist(path):
        return SettingsEntry(), None
    file = UserFile(str(path), SettingsEntry)
    entry = SettingsEntry()
    try:
        entry = SettingsEntry.model_validate(file.data or {})
    except ValidationError as error:
        for details in error.errors():
            file.record_error(dict(details))
    file.check()
    return entry, file


def effective() -> Iterator[Setting]:
    """Every setting as it counts now.

    Raises:
        UsageError: As `read`.
    """
    entry, file = read(settings_path())
    values = _stated(entry)
    for key in KEYS:
        line = file.line((key,)) if file is not None and key in values else None
        value, source = DEFAULTS.get(key), SettingSource.DEFAULT
        if text := os.environ.get(variable_of(key), "").strip():
            value, source = text, SettingSource.ENVIRONMENT
        elif key in values:
            value, source = values[key], SettingSource.FILE
        if key == "notify" and value is not None:
            to = [Recipient.of(value)] if isinstance(value, str) else value
            value = [recipient.name for recipient in to]
        yield Setting(key, value, source, line)


# --- changes of the file ------------------------------------------------------------------------


def change(path: Path, key: str, value: str | None) -> None:
    """Write a setting into a file, or remove it (None). Other lines stay as they are.

    Args:
        path: The file, made if missing.
        key: The setting.
        value: Its value in YAML.

    Raises:
        UsageError: There is no such setting, the value is invalid, or the file cannot be read or
            written. It is not changed.
    """
    if key not in KEYS:
        raise UsageError(f"found no setting {key!r}; {suggestion(key, sorted(KEYS))}")
    before, _ = read(path)
    former = path.read_text(encoding="utf-8") if path.exists() else _FIRST_LINES
    lines = [f"{line}\n" for line in former.splitlines()]
    begin, end = _lines_of(former, key) or (len(lines), len(lines))
    lines[begin:end] = [] if value is None else [f"{key}: {value}\n"]
    draft = path.with_name(f"{path.name}.draft")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.touch(mode=0o600)
        draft.write_text("".join(lines), encoding="utf-8")
        after, _ = read(draft)
        if after.model_dump(exclude={key}) != before.model_dump(exclude={key}):
            raise UsageError(
                f"{path} is not written line by line; change it by: headgate config edit"
            )
        draft.replace(os.path.realpath(path))
    except InvalidFileError as error:
        problem = error.problems[0]
        raise UsageError(f"{key}: {problem.found}; {problem.cure}") from error
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def _lines_of(text: str, key: str) -> tuple[int, int] | None:
    """The first line of a key with its value, and the first line after it. Comments below it are
    not part of it.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    for name, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if name.value == key:
            begin, last = name.start_mark.line, value.end_mark
            end = last.line + (last.column > 0)
            lines = text.splitlines()
            while end > begin + 1 and lines[end - 1].partition("#")[0].strip() == "":
                end -= 1
            return begin, end
    return None
