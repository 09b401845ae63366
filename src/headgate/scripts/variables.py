"""Environment variables: those of a terminal, those with secrets, and those that a run was
submitted with.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import takewhile
from pathlib import Path

from headgate.machine.allocation import BATCH_JOBS

FILE = "environment.json"
"""A file in the folder of a run that only its user can read."""

_SECRET_NAME = re.compile(
    r"TOKEN(?!IZ)(?!S)|SECRET|PASS(WORD|WD|PHRASE)|CREDENTIAL|COOKIE|AUTH(?!OR)|(^|_)(PASS|PAT|PIN|DSN)(_|$)"
    r"|(API|ACCESS|PRIVATE|SIGNING|ENCRYPTION)_?KEY|_KEY$|LICEN[CS]E_KEY"
)
_SECRET_VALUE = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@|^(gh[oprsu]_|github_pat_|hf_|sk-|xox[abp]-|glpat-|AKIA|eyJ)\w"
)
"""A password in a URL, or the prefix of a token of a common service."""

_OF_A_TERMINAL = (
    *(
        "_",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "TERM",
        "TERM_*",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "LS_COLORS",
        "PS1",
        "WINDOWID",
    ),
    *(
        "TMUX*",
        "STY",
        "WINDOW",
        "VTE_*",
        "KONSOLE_*",
        "GNOME_TERMINAL_*",
        "VSCODE_*",
        "HIST*",
        "PROMPT_*",
    ),
    *(
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XAUTHORITY",
        "XDG_SESSION_*",
        "XDG_RUNTIME_DIR",
        "XDG_VTNR",
        "XDG_SEAT",
    ),
    *(
        "DBUS_SESSION_BUS_ADDRESS",
        "SSH_*",
        "GPG_*",
        "KRB5CCNAME",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "SYSTEMD_*",
    ),
    *(
        "HEADGATE_HOME",
        "HEADGATE_HUB",
        "HEADGATE_CHANNEL",
        "HEADGATE_KEY",
        "HEADGATE_TASK",
        "HEADGATE_RESUME",
    ),
    *("SLURM_*", "SLURMD_*", "PBS_*", "LSB_*", "LSF_*", "OAR_*", "FLUX_*", "COBALT_*"),
)
"""Names and patterns of variables about the user's terminal, session, and place in a batch job."""
_GIVEN_BY_ONE = frozenset(
    {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "TMPDIR"}
)
"""Variables by which a batch system assigns a part of a machine to a job."""

_SHOWN_LETTERS = 60
HIDDEN = "(not shown)"


@dataclass(frozen=True, slots=True)
class DifferingVariable:
    """A variable with two values; None: not set."""

    name: str
    first: str | None
    second: str | None

    def shown(self) -> tuple[str, str]:
        """Both values for display: shortened, without secrets."""
        pair = self.first, self.second
        if is_secret(self.name, self.first) or is_secret(self.name, self.second):
            first, second = ("not set" if value is None else HIDDEN for value in pair)
            return first, f"another {second}" if first == second else second
        alike = sum(
            1
            for _ in takewhile(
                lambda letters: letters[0] == letters[1], zip(*(side or "" for side in pair))
            )
        )
        first, second = ("not set" if value is None else _cut(value, alike) for value in pair)
        return first, second


def _cut(value: str, alike: int) -> str:
    """The differing part of a value, after `alike` equal characters."""
    begin = max(min(alike - 10, len(value) - _SHOWN_LETTERS), 0)
    part = value[begin : begin + _SHOWN_LETTERS]
    return repr(f"{'…' if begin else ''}{part}{'…' if begin + len(part) < len(value) else ''}")


def is_secret(name: str, value: str | None = "") -> bool:
    """Whether a variable holds a secret, as far as its name or its value shows."""
    return bool(_SECRET_NAME.search(name.upper()) or _SECRET_VALUE.search(value or ""))


def without_secrets(words: list[str]) -> list[str]:
    """The words of a command line, with secret values of `--env NAME=VALUE` hidden, and addresses
    of `--notify`.
    """
    shown = []
    for before, word in zip(["", *words], words):
        option, equals, assignment = (
            word.partition("=") if word.startswith("--env=") else ("", "", word)
        )
        name, sign, value = assignment.partition("=")
        hides = sign and (option or before == "--env") and is_secret(name, value)
        if "://" in word and (before == "--notify" or word.startswith("--notify=")):
            word, hides = HIDDEN, False
        shown.append(f"{option}{equals}{name}={HIDDEN}" if hides else word)
    return shown


def of_companion(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of a process of Headgate's that acts for a user beside the hub: the user's, except
    those of Python, which are the hub's.
    """
    own = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    users = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    return users | own


def is_of_a_terminal(name: str, in_batch_job: bool = False) -> bool:
    """Whether a variable is about the user's terminal, and not about the program."""
    return any(fnmatchcase(name, pattern) for pattern in _OF_A_TERMINAL) or (
        in_batch_job and name in _GIVEN_BY_ONE
    )


def write(run: Path, environment: Mapping[str, str]) -> None:
    """Save the variables that a run was submitted with, for a resume.

    Raises:
        OSError: They cannot be written.
    """
    fd = os.open(run / FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(dict(environment), file)


def read(run: Path) -> dict[str, str | None] | None:
    """The variables that a run was submitted with, None for a removed secret. None: they are not
    known.
    """
    try:
        kept = json.loads((run / FILE).read_text(encoding="utf-8", errors="surrogateescape"))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) else None


def forget_secrets(run: Path) -> None:
    """Remove the secrets from a run's saved variables, because nobody resumes it."""
    kept = read(run)
    if kept is not None:
        left = {name: None if is_secret(name, value) else value for name, value in kept.items()}
        if left != kept:
            with suppress(OSError):
                (run / FILE).write_text(
                    json.dumps(left), encoding="utf-8", errors="surrogateescape"
                )


def _of_terminals(*environments: Mapping[str, str | None]) -> Callable[[str], bool]:
    """A test whether a variable of these environments is about the user's terminal."""
    in_batch_job = any(name in environment for name in BATCH_JOBS for environment in environments)
    return partial(is_of_a_terminal, in_batch_job=in_batch_job)


def continued(kept: Mapping[str, str | None], present: Mapping[str, str]) -> dict[str, str]:
    """The variables of a resumed run: those that it was submitted with, except those about the
    user's terminal.
    """
    is_mine = _of_terminals(kept, present)
    mine = {name: value for name, value in present.items() if is_mine(name)}
    return {
        name: value for name, value in kept.items() if value is not None and not is_mine(name)
    } | mine


def differing(
    first: Mapping[str, str | None], second: Mapping[str, str | None]
) -> Iterator[DifferingVariable]:
    """The variables that differ, by name, except those about the user's terminal."""
    skipped = _of_terminals(first, second)
    for name in sorted(first.keys() | second.keys()):
        first_value, second_value = first.get(name), second.get(name)
        is_gone = name in first.keys() & second.keys() and None in (first_value, second_value)
        if first_value != second_value and not is_gone and not skipped(name):
            yield DifferingVariable(name, first_value, second_value)
