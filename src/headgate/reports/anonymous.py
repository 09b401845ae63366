"""Replace what identifies a user and workplace: paths, hosts, users, arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, Literal

from headgate.model.reasons import CureKind, ReasonKind, RefusalKind
from headgate.model.records import TYPE

Kind = Literal["path", "host", "user", "argument", "value", "address", "serial"]

_PATH = re.compile(r"(?<![\w.~/-])(?:~[\w-]*)?(?:/[^\s/:;,'\"<>()\[\]{}|=]+)+/?")
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_SERIAL = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORTEST = 4
"""Shortest argument or value that is searched for in text: shorter ones are in every word."""
_NOBODY = {"root", "localhost"}
_OPEN = {"127.0.0.1", "0.0.0.0"}  # never identifying
_JOB = "spec"
"""Field of an event or action with a job as its user wrote it."""
_HIDDEN: dict[str, Kind] = {
    "args": "argument",
    "run": "argument",
    "env": "value",
    "script": "path",
    "workdir": "path",
    "python": "path",
    "mounts": "path",
    "image": "value",
    "parameters": "value",
    "notify": "value",
}
"""Fields of such a job whose values are always hidden."""


_KINDS = frozenset({*ReasonKind, *RefusalKind, *CureKind})


class Anonymous:
    """Replaces the same name by the same word everywhere, so that a log remains readable."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}
        self._counts: dict[Kind, int] = {}
        self._named: set[str] = set()  # names that are searched for in text
        self._pattern: re.Pattern[str] | None = None

    def hide(self, kind: Kind, *names: str | None) -> None:
        """Replace these names wherever they occur."""
        for name in names:
            if name and name not in _NOBODY:
                self._word(kind, name)
                self._named.add(name)
        self._pattern = None

    def hide_arguments(self, kind: Kind, words: Iterable[str]) -> None:
        """Replace what a user typed, including the parts of `--name=value`."""
        for word in words:
            parts = {word, *re.split(r"[=\s,;|&\"'`]+", word)}
            self.hide(kind, *(part for part in sorted(parts) if _tells(part)))

    def text(self, text: str) -> str:
        """A text with all hidden names replaced."""
        if self._pattern is None:
            names = sorted(self._named, key=lambda name: (-len(name), name))
            bounded = (rf"(?<![\w]){re.escape(name)}(?![\w])" for name in names)
            self._pattern = re.compile("|".join(bounded) or r"(?!)")
        text = self._pattern.sub(lambda match: self._words[match[0]], text)
        text = _SERIAL.sub(lambda match: self._word("serial", match[0]), text)
        text = _ADDRESS.sub(self._address, text)
        return _PATH.sub(lambda match: self._word("path", match[0].rstrip("/.")), text)

    def value(self, value: Any, hidden: Kind | None = None, in_job: bool = False) -> Any:
        """A JSON value with all texts in it replaced; with `hidden`, every text completely."""
        if isinstance(value, str):
            return self._word(hidden, value) if hidden is not None and value else self.text(value)
        if isinstance(value, list):
            return [self.value(item, hidden, in_job) for item in value]
        if not isinstance(value, dict):
            return value
        entries = {}
        for name, item in value.items():
            replaces_all = hidden or (_HIDDEN.get(name) if in_job else None)
            key = name if name in _HIDDEN else self.text(name)
            is_ours = name == TYPE or (name == "kind" and str(item) in _KINDS)
            entries[key] = (
                item if is_ours else self.value(item, replaces_all, in_job or name == _JOB)
            )
        return entries

    def _address(self, match: re.Match[str]) -> str:
        return match[0] if match[0] in _OPEN else self._word("address", match[0])

    def _word(self, kind: Kind, name: str) -> str:
        if name not in self._words:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[name] = f"{kind}-{self._counts[kind]}"
        return self._words[name]


def _tells(word: str) -> bool:
    return len(word.lstrip("-")) >= _SHORTEST and not word.startswith("--")


def of_this_machine(anonymous: Anonymous, host: str, environment: dict[str, str | None]) -> None:
    """Hide the names of this machine, its user, and their folders."""
    import pwd

    names = {environment.get(name) for name in ("USER", "LOGNAME", "SUDO_USER")}
    homes = {environment.get("HOME"), os.environ.get("HOME")}
    for entry in (pwd.getpwuid(os.geteuid()), pwd.getpwuid(os.getuid())):
        names.add(entry.pw_name)
        homes.add(entry.pw_dir)
        names.update(part for part in re.split(r"[\s,]+", entry.pw_gecos) if _tells(part))
    anonymous.hide("path", *sorted(home for home in homes if home and home != "/"))
    anonymous.hide("user", *sorted(name for name in names if name))
    anonymous.hide("host", host, host.partition(".")[0], os.uname().nodename)
