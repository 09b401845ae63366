"""The files that determine what a job does: its program, modules imported from its own folders, and
settings files in its arguments.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path

from headgate.isolation.container.files import is_output
from headgate.model.jobs import Job
from headgate.model.roles import Role
from headgate.scripts.facts import (
    FileState,
    Module,
    ScriptFacts,
    Signature,
    SourceFacts,
    imported,
    signature_of,
)

MOST_FILES = 500
"""Most files of a job that are read."""
MOST_BYTES = 1 << 20
"""Larger files count as data."""
_PROGRAM = ".py"
_SETTINGS = frozenset(
    {
        ".yaml",
        ".yml",
        ".json",
        ".json5",
        ".jsonc",
        ".jsonnet",
        ".toml",
        ".ini",
        ".cfg",
        ".conf",
        ".config",
        ".gin",
    }
    | {".env", ".properties", ".hcl", ".xml", ".sh", ".bash", ".lua", ".pbtxt", ".prototxt"}
)
"""Suffixes of settings files."""
_NAMES_SETTINGS = frozenset({"config", "configs", "conf", "cfg", "settings"})
"""Words in the name of an option for a folder of such files."""
_WRITTEN = frozenset({">", ">>", ">|", "&>", "tee"})
"""Words of a shell line before a file that it writes."""
_INSTALLED = frozenset({"site-packages", "dist-packages"})


class FileLook:
    """Reads the files of several jobs at one moment. Common files are read once."""

    def __init__(self) -> None:
        self._states: dict[Path, FileState | None] = {}
        self._signatures: dict[Path, Signature | None] = {}
        self._sources: dict[Path, SourceFacts] = {}
        self._modules: dict[tuple[Path, tuple[Path, ...]], tuple[Path, ...]] = {}

    def files(
        self, job: Job, facts: ScriptFacts, environment: Mapping[str, str]
    ) -> dict[Path, FileState]:
        """The present state of a job's files, at most `MOST_FILES`.

        Args:
            job: A job with absolute paths.
            facts: Facts about its script.
            environment: The submitter's environment.
        """
        started = facts.program
        for part in (facts, *facts.roles.values()):
            if part.file is not None:
                self._sources[part.file] = part.source
        paths = dict.fromkeys(_named(job))
        programs = [path for path in paths if path.suffix == _PROGRAM]
        as_module = started is not None and bool(started.module)
        if started is not None and started.file is not None:
            programs.insert(0, started.file)
        for path in programs:
            paths |= dict.fromkeys(
                self._with_modules(path, _folders(job, environment, path, as_module))
            )
        states = {path: self._state(path) for path in islice(paths, MOST_FILES)}
        return {path: state for path, state in states.items() if state is not None}

    def _with_modules(self, file: Path, folders: tuple[Path, ...]) -> tuple[Path, ...]:
        """A Python file and all modules in these folders that it imports, directly or
        indirectly.
        """
        key = file, folders
        if key not in self._modules:
            seen, left = {file: None}, deque([file])
            while left and len(seen) < MOST_FILES:
                path = left.popleft()
                signature = self._signature(path)
                for module in self._imports(path, signature) if signature is not None else ():
                    new = [
                        part for part in self._files_of(module, path, folders) if part not in seen
                    ]
                    seen |= dict.fromkeys(new)
                    left += new
            self._modules[key] = tuple(seen)
        return self._modules[key]

    def _imports(self, path: Path, signature: Signature) -> frozenset[Module]:
        source = self._sources.get(path)
        return source.modules if source is not None else _imports(path, signature)

    def _files_of(self, module: Module, importer: Path, folders: tuple[Path, ...]) -> list[Path]:
        """The files of a module and of its parent packages; empty if it is not in these folders."""
        if module.level:
            folders = tuple(importer.parents[module.level - 1 : module.level])
        for folder in folders:
            paths = [folder / "__init__.py"] if module.level else []
            for end in range(1, len(module.parts) + 1):
                base = folder.joinpath(*module.parts[:end])
                paths += [base / "__init__.py", base.with_name(f"{base.name}{_PROGRAM}")]
            if existing := [path for path in paths if self._signature(path) is not None]:
                return existing
        return []

    def _signature(self, path: Path) -> Signature | None:
        if path not in self._signatures:
            self._signatures[path] = _signature(path)
        return self._signatures[path]

    def _state(self, path: Path) -> FileState | None:
        if path not in self._states:
            source = self._sources.get(path) if self._signature(path) is not None else None
            self._states[path] = source.state if source is not None else _state(path)
        return self._states[path]


def edited(files: Mapping[Path, FileState]) -> list[Path]:
    """The files that have changed or are gone. Files with the same signature are not read again."""
    return [
        path
        for path, before in files.items()
        if _signature(path) != before.signature
        and ((now := _state(path)) is None or now.digest != before.digest)
    ]


def _state(path: Path) -> FileState | None:
    """The present state of a file. None: it is missing, unreadable, or data."""
    signature = _signature(path)
    digest = _digest(path, signature) if signature is not None else None
    return FileState(signature, digest) if signature is not None and digest is not None else None


def _signature(path: Path) -> Signature | None:
    try:
        about = path.stat()
    except (OSError, ValueError):
        return None
    fits = stat.S_ISREG(about.st_mode) and about.st_size <= MOST_BYTES
    return signature_of(about) if fits else None


@lru_cache(maxsize=4096)
def _digest(path: Path, _as_it_is: Signature) -> bytes | None:
    try:
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError:
        return None


# --- what programs import -------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _imports(path: Path, _as_it_is: Signature) -> frozenset[Module]:
    """The modules that a Python file imports anywhere; empty if it cannot be read."""
    try:
        return frozenset(imported(ast.walk(ast.parse(path.read_bytes()))))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()


def _folders(
    job: Job, environment: Mapping[str, str], file: Path, as_module: bool
) -> tuple[Path, ...]:
    """The folders that Python searches first for a program's modules, without those of installed
    packages.
    """
    own = Path(job.workdir) if as_module else file.parent
    path = {**environment, **job.env}.get("PYTHONPATH", "")
    added = [Path(job.workdir, folder) for folder in path.split(os.pathsep) if folder]
    return tuple(
        dict.fromkeys([own, *(folder for folder in added if _INSTALLED.isdisjoint(folder.parts))])
    )


# --- what commands name ---------------------------------------------------------------------------


def _named(job: Job) -> Iterator[Path]:
    """The programs and settings files in a job's commands and variables, except files that they
    write.
    """
    parts: list[Job | Role] = [job, *job.roles]
    script = [Path(job.workdir, part.script).parent for part in parts if part.script is not None]
    for part in parts:
        for option, value in chain(_values([*_words(part), *part.args]), part.env.items()):
            if not value or option in _WRITTEN or is_output(option):
                continue
            path = Path(job.workdir, os.path.expanduser(value))
            if path.suffix in _SETTINGS or path.suffix == _PROGRAM:
                yield path
            elif not _NAMES_SETTINGS.isdisjoint(re.split(r"[-_.]+", option.lower())):
                yield from _settings_in(path, *(folder / value for folder in script))


def _settings_in(*folders: Path) -> Iterator[Path]:
    """The settings files in the first folder that exists."""
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is not None:
        every = (path for path in folder.rglob("*") if path.suffix in _SETTINGS)
        yield from sorted(islice(every, MOST_FILES))


def _words(part: Job | Role) -> Iterator[str]:
    """The words of a command; those of a shell line one by one."""
    if part.script is not None:
        yield part.script
    for word in (part.run,) if isinstance(part.run, str) else part.run or ():
        yield from _split(word) if " " in word else (word,)


def _split(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    try:
        return list(lexer)
    except ValueError:  # a quote that nothing closes
        return line.split()


def _values(words: list[str]) -> Iterator[tuple[str, str]]:
    """The values in a command, each with the option before it; empty without an option."""
    option = ""
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
            option = ""
        elif word.startswith("-") or word in _WRITTEN:
            option = option if option == "tee" else word  # `tee -a file`
        else:
            yield option, word.removeprefix("@")
            option = ""
