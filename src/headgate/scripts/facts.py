"""Facts about a job's command and script that are plain before a start, read once.

The script is read, never run. Each version of a file is read and parsed once.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from headgate.model.jobs import Job
from headgate.scripts import keras_scripts
from headgate.scripts.arguments import DeclaredOptions, options_of
from headgate.scripts.distributed_scripts import LIBRARIES, DetectedLauncher, detect
from headgate.scripts.launch_commands import ParsedLauncher, parse_launcher
from headgate.scripts.program import Program, program

_OTHER_STORE = re.compile(rb"tcp://|[\"']MASTER_PORT[\"']\s*\]\s*=[^=]")
_FILE = re.compile(r"[\w./+~-]+\.py\b")
_FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax")

Signature = tuple[int, int, int]
"""Time of the last change, size and inode of a file."""


class Module(NamedTuple):
    """The name of an imported module: number of dots before it, and its parts."""

    level: int
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileState:
    """A file at one moment.

    Args:
        signature: Unchanged while nobody writes the file.
        digest: Digest of its content.
    """

    signature: Signature
    digest: bytes


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Facts in the text of a Python program.

    Args:
        text: The text; empty: it cannot be read.
        packages: The packages that it imports anywhere; empty string for a relative import. None:
            it is no valid Python.
        libraries: Headgate's libraries that it imports anywhere.
        always: Those that it imports unconditionally.
        called: Those that it uses. A library that is only imported does not set its threads.
        launcher: The launcher that it is written for.
        modules: The modules that it imports anywhere.
        options: The options that it declares; None: it is no valid Python.
        variables: The variables that it sets in its environment to literal values.
        fits: Whether it trains by `fit` of a Keras model.
        state: The file as it was read.
    """

    text: bytes = b""
    packages: frozenset[str] | None = None
    libraries: frozenset[str] = frozenset()
    always: frozenset[str] = frozenset()
    called: frozenset[str] = frozenset()
    launcher: DetectedLauncher | None = None
    modules: frozenset[Module] = frozenset()
    options: DeclaredOptions | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    fits: bool = False
    state: FileState | None = None

    @property
    def library(self) -> str | None:
        """The library that it trains with, if it always imports this one and no other."""
        is_plain = len(self.libraries) == 1 and self.libraries == self.always
        return next(iter(self.libraries)) if is_plain else None

    @property
    def frameworks(self) -> tuple[str, ...]:
        """The frameworks that it imports, if Headgate observes steps of them."""
        return tuple(name for name in _FRAMEWORKS if name in (self.packages or ()))


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """Facts about the command of a job and its program.

    Args:
        launcher: The launcher in the command, and the command without it.
        program: The Python program; None: it is another command.
        file: The file of this program; None: unknown or missing.
        source: Facts in its text.
        imports_neighbours: Whether it imports files in its folder, which may import more.
        named_libraries: Headgate's libraries that are imported by it or by a file in the command,
            as in a shell's command.
        roles: The facts of each role of the job.
    """

    launcher: ParsedLauncher | None = None
    program: Program | None = None
    file: Path | None = None
    source: SourceFacts = SourceFacts()
    imports_neighbours: bool = False
    named_libraries: frozenset[str] = frozenset()
    roles: Mapping[str, ScriptFacts] = field(default_factory=dict)

    @property
    def all_packages(self) -> frozenset[str] | None:
        """The packages that the script imports. None if they may not be all: it may import more,
        runs other code, or cannot be read.
        """
        names, text = self.source.packages, self.source.text
        if self.file is None or names is None or self.imports_neighbours:
            return None
        runs_other_code = names & {"", "importlib", "runpy"} or (
            b"__import__" in text or b"exec(" in text
        )
        return None if runs_other_code else names

    @property
    def shares_nothing(self) -> bool:
        """Whether workers share nothing: the script imports no library of Headgate's, and no file
        in its folder that may import one.
        """
        names = self.all_packages
        return names is not None and "headgate" not in names

    @property
    def meets_at_our_port(self) -> bool:
        """Whether torchrun workers may meet by PyTorch's store at the port that Headgate gives
        them.

        In a script with another address (`tcp://localhost:23456`, its own `MASTER_PORT`), the first
        worker listens there. A script that imports only the standard library may listen at the port
        itself.
        """
        if self.program is None or any("tcp://" in word for word in self.program.args):
            return False
        packages, text = self.source.packages, self.source.text
        is_plain = bool(text) and packages is not None and packages <= sys.stdlib_module_names
        return not is_plain and not _OTHER_STORE.search(text)


def facts_of(job: Job) -> ScriptFacts:
    """Read the facts of a job's command and script.

    Raises:
        UsageError: Headgate does not support an option of the launcher in the command.
    """
    if (launcher := parse_launcher(job)) is not None:
        job = replace(job, run=launcher.command, args=())
    run = program(job)
    file = run.file if run is not None and run.file is not None and run.file.is_file() else None
    source = source_facts(file) if file is not None else SourceFacts()
    words = (job.run,) if isinstance(job.run, str) else job.run or ()
    named = {Path(job.workdir, name) for word in words for name in _FILE.findall(word)}
    others = (source_facts(path).libraries for path in named - {file} if path.is_file())
    return ScriptFacts(
        launcher=launcher,
        program=run,
        file=file,
        source=source,
        imports_neighbours=file is not None
        and _imports_neighbours(source, {file.parent, Path(job.workdir)}),
        named_libraries=source.libraries.union(*others),
        roles={role.name: facts_of(job.of_role(role)) for role in job.roles},
    )


def source_facts(file: Path) -> SourceFacts:
    """Read the facts of a Python file; empty facts if it cannot be read."""
    try:
        return read(file)
    except (OSError, ValueError):
        return SourceFacts()


def read(file: Path) -> SourceFacts:
    """Read the facts of a Python file. The file is read again only after it was written.

    Raises:
        OSError: It cannot be read.
    """
    file = file.absolute()
    return _read(file, signature_of(file.stat()))


def signature_of(about: os.stat_result) -> Signature:
    """Values that change when a file is written."""
    return about.st_mtime_ns, about.st_size, about.st_ino


def imported(nodes: Iterable[ast.AST]) -> Iterator[Module]:
    """The modules that a program imports.

    Args:
        nodes: All nodes of its syntax tree.
    """
    for node in nodes:
        match node:
            case ast.Import(names):
                yield from (Module(0, tuple(alias.name.split("."))) for alias in names)
            case ast.ImportFrom(module, names, level):
                package = tuple(module.split(".")) if module else ()
                yield Module(level or 0, package)
                yield from (
                    Module(level or 0, (*package, alias.name))
                    for alias in names
                    if alias.name != "*"
                )
            case ast.Call(
                ast.Name("import_module") | ast.Attribute(attr="import_module"),
                [ast.Constant(str(name)), *_],
            ):
                if name and not name.startswith("."):
                    yield Module(0, tuple(name.split(".")))


def _imports_neighbours(source: SourceFacts, folders: set[Path]) -> bool:
    paths = (folder / name for folder in folders for name in source.packages or () if name)
    return any(path.exists() or path.with_name(f"{path.name}.py").exists() for path in paths)


@lru_cache(maxsize=64)
def _read(file: Path, signature: Signature) -> SourceFacts:
    text = file.read_bytes()
    unread = SourceFacts(text=text, state=FileState(signature, hashlib.sha256(text).digest()))
    try:
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        bound = [binding for node in nodes for binding in _bound(node)]
        read = {
            node.id
            for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        return replace(
            unread,
            packages=frozenset(_roots(nodes)),
            libraries=frozenset(library for library, _ in bound),
            always=frozenset(library for node in tree.body for library, _ in _bound(node)),
            called=frozenset(library for library, name in bound if name in read or name == "*"),
            launcher=detect(tree),
            modules=frozenset(imported(nodes)),
            options=options_of(nodes),
            variables=keras_scripts.own_variables(nodes),
            fits=keras_scripts.fits(nodes),
        )
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return unread


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The libraries that a statement imports, with the names that it binds."""
    names: list[tuple[str, str]] = []
    if isinstance(node, ast.Import):
        names = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [
            (f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names
        ]
    for module, name in names:
        package, _, submodule = module.partition(".")
        if package == "headgate" and (part := submodule.partition(".")[0]) in LIBRARIES:
            yield part, name


def _roots(nodes: list[ast.AST]) -> Iterator[str]:
    """The first part of each imported name; empty for a relative import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").partition(".")[0]
