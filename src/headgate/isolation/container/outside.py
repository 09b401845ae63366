"""What a task wrote to the files of its container alone, which go with it: copied out as far as there is room."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

from headgate.events import OutsideFiles
from headgate.isolation.container.daemon import ContainerFile, Daemon

MOST_BYTES = 1 << 30
"""Of files that are copied, all together."""
MOST_PATHS = 500
"""Changed paths that are looked at, a question to Docker each."""
LEAST_FREE_BYTES = 1 << 30
"""What copies leave free on their disk."""
NAMED = 10
"""Files that are named."""
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
    """Copy the files that a container alone has.

    Args:
        id: Of a container that has ended and is not removed yet.
        mounted: Paths in it that are mounted: what lies there is not its own.
        to: Folder for the copies, made if there are any; empty: nothing is copied.

    Returns:
        None if it wrote nothing but caches.

    Raises:
        IsolationError: Docker does not tell.
    """
    paths: list[str] = []
    size = copied = copied_bytes = 0
    files = _files(daemon.changes(id), mounted)
    for path in files[:MOST_PATHS]:
        with daemon.file(id, path) as file:
            if file is None:
                continue
            paths.append(path)
            size += file.size
            fits = copied_bytes + file.size <= MOST_BYTES
            if to and fits and _copy(file, Path(to, path.lstrip("/"))):
                copied += 1
                copied_bytes += file.size
    if not paths:
        return None
    unsized = len(files[MOST_PATHS:])
    return OutsideFiles(tuple(paths[:NAMED]), len(paths) + unsized, size, to if copied else "", copied, unsized)


def _files(changed: Iterable[str], mounted: Collection[str]) -> list[str]:
    """Of changed paths those in which no other one lies. Left out: what is mounted, what Docker makes, and caches.

    What fills a folder with many files comes later than what lies by itself, as a result does, and what is installed
    comes last: only the first of them are looked at.
    """
    paths = sorted(changed)
    folders = {str(folder) for path in (*paths, *mounted) for folder in PurePosixPath(path).parents}
    own = (path for path in paths if path not in folders and path not in mounted)
    kept = [path for path in own if not _OF_DOCKER.match(path) and not _CACHES.search(path)]
    in_folder = Counter(PurePosixPath(path).parent for path in kept)
    return sorted(kept, key=lambda path: (bool(_SYSTEM.match(path)), in_folder[PurePosixPath(path).parent], path))


def _copy(file: ContainerFile, to: Path) -> bool:
    """Whether it was copied: not where the disk has no room for it."""
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(to.parent).free - file.size < LEAST_FREE_BYTES:
            return False
        with to.open("wb") as copy:
            shutil.copyfileobj(file.content, copy)
    except OSError:
        return False
    return True
