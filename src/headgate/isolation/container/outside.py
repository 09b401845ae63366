"""Copies out files that a task wrote only into its container, as far as there is space."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePosixPath

from headgate.isolation.container.daemon import Change, Daemon
from headgate.model.endings import OutsideFiles
from headgate.model.errors import IsolationError

MOST_BYTES = 1 << 30
"""Most bytes of all copied files."""
MOST_PATHS = 10_000
"""Most changed paths that are examined."""
MOST_REQUESTS = 100
"""Most requests for archives. Docker reassembles a container's files for each, which takes a tenth
of a second.
"""
SKIPPED_BYTES = 1 << 26
"""Most unwanted bytes read of one archive. Beyond it, its parts are requested instead."""
LEAST_FREE_BYTES = 1 << 30
"""Free bytes that copies leave on their disk."""
NAMED = 10
"""Most files that are named."""
_TOGETHER = 4
"""From this number on, files written to one folder of the image are read with that folder."""
_OF_DOCKER = re.compile(
    r"/(dev|proc|sys)(/|$)|/etc/(hosts|hostname|resolv\.conf|mtab)$|/\.dockerenv$|/run/\.containerenv$"
)
_CACHES = re.compile(
    r"/(\.cache|\.config|\.nv|\.triton|__pycache__|torchinductor_[^/]*|pymp-[^/]*|\.python_history)(/|$)"
)
"""Files that programs recreate by themselves."""
_SYSTEM = re.compile(r"/(usr|lib[^/]*|bin|sbin|opt|etc|var)/")
"""Folders for installed programs, with many files that nobody misses."""


def copy_out(daemon: Daemon, id: str, mounted: Collection[str], to: str) -> OutsideFiles | None:
    """Copy the files that exist only in a container, and links that lead to copies.

    Args:
        id: Id of a container that has ended and is not removed yet.
        mounted: Mounted paths in it, whose files are not its own.
        to: Folder for the copies, made if there are any; empty: no copies.

    Returns:
        None if it wrote nothing but caches.

    Raises:
        IsolationError: Docker does not answer.
    """
    changed = daemon.changes(id)
    files = _files(changed, mounted)
    wanted = files[:MOST_PATHS]
    copies = _Copies(to)
    asked = deque(_archives_to_request(wanted, changed, mounted))
    for _ in range(MOST_REQUESTS):
        if not asked:
            break
        path, wanted_files = asked[0]
        try:
            with daemon.archive(id, path) as archive:
                left = _read(archive, path, wanted_files, copies) if archive is not None else set()
        except IsolationError:  # it is away: what it has handed out so far stays
            break
        asked.popleft()
        asked.extendleft(_parts(path, left))
    copies.link()
    return copies.summary(
        [*(file for _, wanted_files in asked for file in sorted(wanted_files)), *files[MOST_PATHS:]]
    )


def _files(changed: Iterable[str], mounted: Collection[str]) -> list[str]:
    """The changed paths that contain no other. Mounted paths, paths that Docker makes, and caches
    are left out.

    Single files, such as results, come first. Files of folders with many files come later,
    installed files last. Only the first of them are examined.
    """
    paths = sorted(changed)
    folders = {str(folder) for path in (*paths, *mounted) for folder in PurePosixPath(path).parents}
    own = (path for path in paths if path not in folders and path not in mounted)
    kept = [path for path in own if not _OF_DOCKER.match(path) and not _CACHES.search(path)]
    in_folder = Counter(PurePosixPath(path).parent for path in kept)
    return sorted(
        kept,
        key=lambda path: (bool(_SYSTEM.match(path)), in_folder[PurePosixPath(path).parent], path),
    )


_Asked = tuple[str, set[str]]
"""A path whose archive is requested, and the wanted files in it."""


def _archives_to_request(
    files: Iterable[str], changed: Mapping[str, Change], mounted: Collection[str]
) -> Iterator[_Asked]:
    """The paths to request: the topmost folder that the container has made, without mounts in it.
    Otherwise the folder of several files, or a single file.
    """
    holds_mounts = {
        str(folder)
        for path in mounted
        for folder in (PurePosixPath(path), *PurePosixPath(path).parents)
    }
    made = {path for path, change in changed.items() if change is Change.ADDED} - holds_mounts
    tops: dict[str, str] = {}
    for file in files:
        above = (str(folder) for folder in reversed(PurePosixPath(file).parents))
        tops[file] = next((folder for folder in above if folder in made), "")
    single = Counter(os.path.dirname(file) for file, top in tops.items() if not top)
    asked: dict[str, set[str]] = {}
    for file, top in tops.items():
        folder = os.path.dirname(file)
        path = top or (folder if single[folder] >= _TOGETHER and folder != "/" else file)
        asked.setdefault(path, set()).add(file)
    yield from asked.items()


def _parts(path: str, files: Collection[str]) -> Iterator[_Asked]:
    """The entries of a folder that are, or contain, files of it."""
    depth = len(PurePosixPath(path).parts)

    def entry(file: str) -> str:
        return str(PurePosixPath(*PurePosixPath(file).parts[: depth + 1]))

    for part, files_in in groupby(
        sorted(files, key=lambda file: PurePosixPath(file).parts), key=entry
    ):
        yield part, set(files_in)


def _read(
    archive: tarfile.TarFile, path: str, wanted: Collection[str], copies: _Copies
) -> set[str]:
    """Take the wanted files from an archive. Returns those to request separately, because the
    archive holds too much else.
    """
    left, apart, skipped, above = set(wanted), set[str](), 0, PurePosixPath(path).parent
    for member in archive:
        file = str(above / member.name)
        taken = False
        if file in left:
            left.discard(file)
            first = str(above / member.linkname) if member.islnk() else ""
            if first and first not in wanted:  # another name of a file that was passed by
                apart.add(file)
            else:
                taken = copies.take(file, member, archive, first)
        skipped += member.size if member.isreg() and not taken else 0
        if not left:
            break
        if skipped > SKIPPED_BYTES:
            return left | apart
    return apart


class _Copies:
    """The files of a container, and their copies.

    Args:
        to: Folder for the copies; empty: no copies.
    """

    def __init__(self, to: str) -> None:
        self._to = to
        self._paths: list[str] = []
        self._size = 0
        self._copied = 0
        self._copied_bytes = 0
        self._links: dict[str, str] = {}
        self._astray: list[str] = []

    def take(
        self, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile, first: str
    ) -> bool:
        """Note a file, and copy it if there is space. Returns whether it was copied. Links are made
        later.

        Args:
            first: Another name of the same file, which came before; empty: none.
        """
        if member.issym():
            self._paths.append(path)
            self._links[path] = member.linkname
        if not (member.isreg() or member.islnk()):
            return False
        self._paths.append(path)
        self._size += member.size
        fits = self._copied_bytes + member.size <= MOST_BYTES
        if not (self._to and fits and self._copy(path, member, archive, first)):
            return False
        self._copied += 1
        self._copied_bytes += member.size
        return True

    def link(self) -> None:
        """Make the links that lead to copies, and note the others. Call it last, so that no write
        follows a link.
        """
        left = [
            path for path, target in self._links.items() if self._to and self._link(path, target)
        ]
        while astray := [path for path in left if not self._leads_inside(path)]:
            for path in astray:  # links that led to these lead nowhere now
                self._place(path).unlink(missing_ok=True)
            left = [path for path in left if path not in astray]
        self._copied += len(left)
        self._astray = [path for path in self._links if path not in left]

    def summary(self, unseen: Sequence[str]) -> OutsideFiles | None:
        """The record of all files, with those that were not examined; None if there are none."""
        paths = self._paths or unseen
        if not paths:
            return None
        return OutsideFiles(
            tuple(paths[:NAMED]),
            len(self._paths) + len(unseen),
            self._size,
            self._to if self._copied else "",
            self._copied,
            len(unseen),
            tuple(self._astray[:NAMED]),
            len(self._astray),
        )

    def _place(self, path: str) -> Path:
        return Path(self._to, path.lstrip("/"))

    def _copy(
        self, path: str, member: tarfile.TarInfo, archive: tarfile.TarFile, first: str
    ) -> bool:
        """Copy a file. Returns False if the disk has no space for it."""
        place = self._place(path)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)  # of an attempt before
            if first:
                os.link(self._place(first), place)
                return True
            content = archive.extractfile(member)
            if (
                content is None
                or shutil.disk_usage(place.parent).free - member.size < LEAST_FREE_BYTES
            ):
                return False
            with place.open("wb") as copy:
                shutil.copyfileobj(content, copy)
        except OSError:
            return False
        return True

    def _link(self, path: str, target: str) -> bool:
        """Make a link as it is in the container, with the folder of the copies as its root."""
        place = self._place(path)
        if target.startswith("/"):
            target = os.path.relpath(self._place(target), place.parent)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.unlink(missing_ok=True)
            place.symlink_to(target)
        except OSError:
            return False
        return True

    def _leads_inside(self, path: str) -> bool:
        try:
            return self._place(path).resolve(strict=True).is_relative_to(Path(self._to).resolve())
        except (OSError, RuntimeError):  # it leads nowhere, or in a circle
            return False
