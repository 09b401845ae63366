"""A user's settings as they count: of variables, else of the user's file.

`HEADGATE_KEEP_RUNS` counts before the file's `keep_runs`, and so on. Most processes find no file;
they import nothing to read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from headgate.model import units
from headgate.model.defaults import MOST_PORT, settings_exist, settings_path, variable_of
from headgate.model.errors import UsageError
from headgate.model.recipients import Recipient


def of_file() -> Mapping[str, Any]:
    """The settings that the user's file states, by key. A process reads it once.

    Raises:
        InvalidFileError: The file has problems; the error lists them all.
        UsageError: The file cannot be read.
    """
    return _read(settings_path())


@cache
def _read(file: Path) -> Mapping[str, Any]:
    if not settings_exist(file):
        return {}
    from headgate.config import settingsfile

    return settingsfile.stated(file)


def environment() -> dict[str, str]:
    """This process's variables, and those that the user's file stands for where they are not set.
    Recipients of messages are not among them: they may hold passwords.

    Raises:
        UsageError: As `of_file`.
    """
    variables = {
        variable_of(key): _text(value)
        for key, value in of_file().items()
        if key not in ("home", "notify")
    }
    variables |= os.environ
    variables.pop(variable_of("notify"), None)
    return variables


def home() -> str | None:
    """Headgate's folder; None: the default one.

    Raises:
        UsageError: As `of_file`.
    """
    return os.environ.get(variable_of("home")) or of_file().get("home")


def usual_policy() -> str | None:
    """The policy of a run that names none; None: the default one.

    Raises:
        UsageError: As `of_file`.
    """
    return os.environ.get(variable_of("policy")) or of_file().get("policy")


def usual_recipients() -> tuple[Recipient, ...]:
    """The recipients of messages about a run that names none.

    Raises:
        UsageError: As `of_file`.
    """
    if text := os.environ.get(variable_of("notify"), "").strip():
        return (Recipient.of(text, of_run=True),)
    return tuple(of_file().get("notify", ()))


def web_port() -> int | None:
    """The port of `headgate web` where its command line names none; None: the default one.

    Raises:
        UsageError: As `of_file`, or the variable is not a port.
    """
    text = os.environ.get(variable_of("web_port"))
    if not text:
        return of_file().get("web_port")
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MOST_PORT):
        name = variable_of("web_port")
        raise UsageError(f"found {name}={text!r}; expected a port, 1 to {MOST_PORT}")
    return int(text)


def at_once(environment: Mapping[str, str]) -> int | Literal["auto"] | None:
    """How many jobs of a user run at once where a run says nothing; None: nothing is set.

    Args:
        environment: The variables of whoever hands in a run, as of `environment`.

    Raises:
        UsageError: The variable is neither a number nor `auto`.
    """
    name = variable_of("at_once")
    if not (text := environment.get(name)):
        return None
    try:
        return units.at_once(text)
    except ValueError as error:
        raise UsageError(f"found {name}={text!r}; {error}") from None


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
