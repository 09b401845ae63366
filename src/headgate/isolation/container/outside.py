"""What a task wrote to the files of its container alone, which go with it: copied out as far as
there is room.
"""

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
from headgate.model.errors import IsolationError
from headgate.model.events import OutsideFiles

MOST_BYTES = 1 << 30
"""Of files that are copied, all together."""
MOST_PATHS = 10_000
"""Changed paths that are looked at."""
MOST_REQUESTS = 100
"""Docker puts a container's files together anew for each archive, which takes a tenth of a
second.
"""
SKIPPED_BYTES = 1 << 26
"""Read in vain of one archive; where more of it is not wanted, its parts are asked for instead."""
LEAST_FREE_BYTES = 1 << 30
"""What copies leave free on their disk."""
NAMED = 10
"""Files that are named."""
_TOGETHER = 4
"""So many files that were written to one folder of the image are read with that folder."""
_OF_DOCKER = re.compile(
    r"/(dev|proc|sys)(/|$)|/etc/(hosts|hostname|resolv\.conf|mtab)$|/\.dockerenv$|/run/\.containerenv$"
)
_CACHES = re.compile(
    r"/(\.cache|\.config|\.nv|\.triton|__pycache__|torchinductor_[^/]*|pymp-[^/]*|\.python_history)(/|$)"
)
"""What programs make again by themselves."""
_SYSTEM = re.compile(r"/(usr|lib[^/]*|bin|sbin|opt|etc|var)/")
"""Where programs are installed, which writes many files that nobody misses."""


def copy_out(daemon: Daemon, id: str, mounted: Collection[str], to: str) -> OutsideFiles | None:
    """Copy the files that a container alone has, and its links as far as they lead to copies.

    Args:
        id: Of a container that has ended and is not removed yet.
        mounted: Paths in it that are mounted: what lies there is not its own.
        to: Folder for the copies, made if there are any; empty: nothing is copied.

    Returns:
        None if it wrote nothing but caches.

    Raises:
        IsolationError: Docker does not tell.
    """
    changed = daemon.changes(id)
    files = _files(changed, mounted)
    wanted = files[:MOST_PATHS]
    copies = _Copies(to)
    asked = deque(_asked(wanted, changed, mounted))
    for _ in range(MOST_REQUESTS):
        if not asked:
            break
        path, below = asked[0]
        try:
            with daemon.archive(id, path) as archive:
                left = _read(archive, path, below, copies) if archive is not None else set()
        except IsolationError:  # it is away: what it has handed out so far stays
            break
        asked.popleft()
        asked.extendleft(_parts(path, left))
    copies.link()
    return copies.told(
        [*(file for _, below in asked for file in sorted(below)), *files[MOST_PATHS:]]
    )


def _files(changed: Iterable[str], mounted: Collection[str]) -> list[str]:
    """Of changed paths those in which no other one lies. Left out: what is mounted, what Docker
    makes, and caches.

    What fills a folder with many files comes later than what lies by itself, as a result does, and
    what is installed comes last: only the first of them are looked at.
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
"""A path whose archive is asked for, and the files in it that are wanted."""


def _asked(
    files: Iterable[str], changed: Mapping[str, Change], mounted: Collection[str]
) -> Iterator[_Asked]:
    """What to ask for: the highest folder that the container has made and in which nothing is
    mounted. Where there is none, the folder of several files, or a file by itself.
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
    """The entries of a folder that files of it are or lie in."""
    depth = len(PurePosixPath(path).parts)

    def entry(file: str) -> str:
        return str(PurePosixPath(*PurePosixPath(file).parts[: depth + 1]))

    for part, below in groupby(
        sorted(files, key=lambda file: PurePosixPath(file).parts), key=entry
    ):
        yield part, set(below)


def _read(
    archive: tarfile.TarFile, path: str, wanted: Collection[str], copies: _Copies
) -> set[str]:
    """Take the wanted files from an archive; those to ask for apart, as where it holds much that is
    not wanted.
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
    """What there is of a container's files, and the copies of them.

    Args:
        to: Folder for the copies; empty: nothing is copied.
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
        """Take note of a file, and copy it if there is room; whether it was copied. A link is made
        later.

        Args:
            first: Another name of the same file, which came before; empty: there is none.
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
        """Make the links that lead to copies; the others are told. It comes last: no write follows
        a link.
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

    def told(self, unseen: Sequence[str]) -> OutsideFiles | None:
        """What is told of it, with files that were not looked at; None if there is nothing."""
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
        """Whether it was copied: not where the disk has no room for it."""
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
        """Make a link as it is in the container, but with the folder of the copies for its root."""
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
