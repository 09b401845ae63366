"""Copies the folders that a script runs in, so that its writes do not reach the user's files."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.model.jobs import Job
from headgate.scripts.program import source

MOST_BYTES = 256 << 20
MOST_ENTRIES = 20_000
_LOCK = "lock"
_LEFT_OUT = frozenset(
    {"__pycache__", ".git", ".hg", ".svn", "node_modules", ".mypy_cache", ".pytest_cache"}
)


@dataclass(frozen=True, slots=True)
class Copied:
    """Copied folders.

    Args:
        places: The copy of each folder.
        scratch: The folder with the copies, and with one for temporary files.
    """

    places: Mapping[str, str]
    scratch: Path

    def job(self, job: Job) -> Job:
        """A job that runs in the copies, with the paths in its command and variables replaced."""
        args = tuple(map(self.path, job.args))
        run: str | tuple[str, ...] | None = None
        if isinstance(job.run, str):
            run = self.path(job.run)
        elif job.run:
            run = tuple(map(self.path, job.run))
        script = self.path(job.script) if job.script is not None else None
        env = {name: self.path(value) for name, value in job.env.items()}
        return replace(
            job, workdir=self.path(job.workdir), script=script, run=run, args=args, env=env
        )

    def sources(self, hashes: Mapping[str, str]) -> dict[str, str]:
        """The files in the copies that are unchanged since they were copied, with folders numbered
        as in `outer`.

        Args:
            hashes: The SHA-256 of each file, by its path in the copies.
        """
        known = {}
        for number, (folder, copy) in enumerate(self.places.items()):
            root = os.path.realpath(copy) + os.sep
            for path, digest in hashes.items():
                # Large files are links, not copies.
                within = path.removeprefix(root).removeprefix(folder + os.sep)
                if within != path and digest_of(Path(folder, within)) == digest:
                    known[f"{number}/{within}"] = digest
        return known

    def path(self, text: str) -> str:
        """A word of a command, with the folders in it replaced."""
        for folder, copy in self.places.items():
            if text == folder:
                return copy
            text = text.replace(f"{folder}/", f"{copy}/")
        return text


@contextmanager
def scratch(place: Path) -> Iterator[Path]:
    """A new folder in `place`, until the context ends. Its lock shows that it is in use."""
    folder = Path(tempfile.mkdtemp(dir=place))
    with open(folder / _LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(place: Path) -> None:
    """Remove the folders in `place` that are no longer in use, because their processes were
    killed.
    """
    for folder in place.iterdir():
        with suppress(OSError), open(folder / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def outer(job: Job) -> list[str]:
    """The working folder of a job, and its script's folder if it is another one; none that is a
    whole disk.
    """
    folders = [os.path.realpath(job.workdir)]
    if (file := source(job)) is not None:
        folders.append(os.path.realpath(Path(file).parent))
    own = [
        f
        for f in dict.fromkeys(folders)
        if not any(f != o and f"{f}/".startswith(f"{o}/") for o in folders)
    ]
    return [folder for folder in own if folder.count("/") >= 2]


def is_as_it_was(job: Job, sources: Mapping[str, str]) -> bool:
    """Whether the files that a job's script consists of are unchanged.

    Args:
        job: The job, with absolute paths.
        sources: As of `Copied.sources`.
    """
    places = outer(job)
    for name, digest in sources.items():
        number, *within = Path(name).parts
        if int(number) >= len(places) or digest_of(Path(places[int(number)], *within)) != digest:
            return False
    return True


def digest_of(file: Path) -> str:
    """The SHA-256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def copied(job: Job, scratch: Path) -> Copied:
    """Copy the working folder of a job, and its script's folder. Large files become links."""
    places = {}
    for number, folder in enumerate(outer(job)):
        places[folder] = str(scratch / f"folder-{number}" / Path(folder).name)
        _copy(Path(folder), Path(places[folder]), scratch)
    (scratch / "tmp").mkdir()
    return Copied(places, scratch)


def _copy(folder: Path, to: Path, scratch: Path) -> None:
    """Copy a folder breadth first, small files before large ones, up to a total size."""
    to.mkdir(parents=True)
    left, entries = MOST_BYTES, MOST_ENTRIES
    queue = deque([(folder, to)])
    files: list[tuple[int, Path, Path]] = []
    while queue:
        source_folder, copied_folder = queue.popleft()
        try:
            listed = list(os.scandir(source_folder))
        except OSError:
            continue
        entries -= len(listed)
        for entry in listed:
            target = copied_folder / entry.name
            with suppress(OSError):
                if entry.is_symlink():
                    target.symlink_to(os.path.realpath(entry.path))
                elif entry.is_dir():
                    is_copied = entries > 0 and not _is_apart(entry, scratch)
                    if is_copied:
                        target.mkdir()
                        queue.append((Path(entry.path), target))
                    elif entry.name not in _LEFT_OUT:
                        target.symlink_to(entry.path)
                elif entry.is_file():
                    files.append((entry.stat().st_size, Path(entry.path), target))
    for size, file, target in sorted(files):
        left -= size
        with suppress(OSError):
            if left >= 0:
                shutil.copy2(file, target)
            else:
                target.symlink_to(file)


def _is_apart(entry: os.DirEntry[str], scratch: Path) -> bool:
    """Whether a folder holds none of the user's own files: an environment, a tool's cache, or the
    copies.
    """
    if entry.name in _LEFT_OUT or os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
        return True
    return f"{os.path.realpath(scratch)}/".startswith(f"{os.path.realpath(entry.path)}/")
