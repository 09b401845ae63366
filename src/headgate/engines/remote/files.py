"""Brings files of jobs to nodes that do not see those of the hub's machine, and brings checkpoints
back.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

from headgate.isolation.base import Launch
from headgate.model.calls import CALL
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.paths import below

CHUNK_BYTES = 4 * 2**20
"""How many bytes of a file go in one message."""

READ = ("HEADGATE_RESUME", CALL)
"""Variables that name files which are sent to the node."""

MOST_BYTES = 200 * 2**20
"""The largest folder of a job that is sent."""

LEFT_OUT = frozenset(
    {".git", ".hg", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"}
)
_NAMED = 3


def key_of(name: str) -> str:
    """A safe file name for any name."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def pack(folder: Path) -> bytes:
    """An archive of a job's folder, without what the job does not need to run (`LEFT_OUT`,
    environments).

    Raises:
        UsageError: The folder is larger than `MOST_BYTES`, or cannot be read.
    """
    try:
        entries = _gather(folder)
    except OSError as error:
        raise UsageError(f"{error.filename or folder} cannot be read: {error.strerror}") from error
    total = sum(size for _, size in entries)
    if total > MOST_BYTES:
        raise UsageError(_too_large(folder, entries, total))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, _ in entries:
            try:
                archive.add(path, path.relative_to(folder), recursive=False)
            except OSError as error:
                raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return packed.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Make a folder as it was packed. If it exists, leave it as it is."""
    if folder.exists():
        return
    fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        # 3.11.4 has it first, and a node may have an older Python
        packed.extraction_filter = getattr(tarfile, "tar_filter", None)
        packed.extractall(fresh)
    fresh.mkdir(parents=True, exist_ok=True)  # nothing was in it
    fresh.replace(folder)


def sizes(path: Path) -> dict[str, int] | None:
    """Bytes of each file below a path, by name relative to it ("" for the path itself); None if
    there is no such path.

    Raises:
        PermissionError: A link below the path leads out of it.
    """
    if path.is_file():
        return {"": path.stat().st_size}
    if not path.is_dir():
        return None
    every = [Path(at, name) for at, _, names in os.walk(path) for name in names]
    for entry in every:
        if below(path, entry) is None:
            raise PermissionError(f"{entry} is a link that leads out of {path}")
    return {str(entry.relative_to(path)): entry.stat().st_size for entry in every}


def read(path: Path, offset: int, count: int) -> bytes:
    """Part of a file."""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(count)


def write(path: Path, offset: int, data: bytes) -> None:
    """Write a part of a file after the parts before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "r+b" if offset else "wb") as file:
        file.seek(offset)
        file.write(data)


class Files:
    """Files of the hub's machine, for a bridge. It gives only those that launches name, whatever a
    node asks for.

    Every operation raises `HeadgateError` for a path that no launch names.
    """

    def __init__(self) -> None:
        self._packed: set[str] = set()
        self._written: set[str] = set()
        self._read: set[str] = set()

    def allow(self, launch: Launch) -> None:
        """From now on, allow packing the job's folder, and reading and writing its folder of
        checkpoints. Also allow reading the checkpoint from which it resumes, and the call that it
        makes.
        """
        self._packed.add(launch.cwd)
        if folder := launch.env.get("HEADGATE_CHECKPOINTS"):
            self._written.add(folder)
        self._read.update(launch.env[name] for name in READ if launch.env.get(name))

    def pack(self, folder: str) -> bytes:
        """As `pack`."""
        if folder not in self._packed:
            raise _refused(folder, "is not the folder of a job that runs there")
        return pack(Path(folder))

    def sizes(self, path: str) -> dict[str, int] | None:
        """As `sizes`."""
        return sizes(self._readable(path))

    def read(self, path: str, offset: int, count: int) -> bytes:
        """As `read`."""
        return read(self._readable(path), offset, count)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """As `write`."""
        write(self._writable(path), offset, data)

    def rename(self, path: str, to: str) -> None:
        """Move a file or folder."""
        self._writable(path).replace(self._writable(to))

    def _writable(self, path: str) -> Path:
        if not _is_in(path, self._written):
            raise _refused(path, "is not in the folder of checkpoints of a job that runs there")
        return Path(path)

    def _readable(self, path: str) -> Path:
        # A job resumes from a file, or from a folder and its contents.
        return (
            Path(path) if path in self._read or _is_in(path, self._read) else self._writable(path)
        )


def _is_in(path: str, folders: set[str]) -> bool:
    # another thread may add to them
    return any(below(folder, path) is not None for folder in tuple(folders))


def _refused(path: str, why: str) -> HeadgateError:
    return HeadgateError(f"a node asked for {path!r}, which {why}; the request was refused")


def _gather(folder: Path) -> list[tuple[Path, int]]:
    """The files and links to send, with their bytes. An unreadable folder is an error."""

    def fail(error: OSError) -> None:
        raise error

    entries = []
    for at, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [
            name for name in folders if name not in LEFT_OUT and not _is_environment(Path(at, name))
        ]
        for name in [*names, *(name for name in folders if Path(at, name).is_symlink())]:
            path = Path(at, name)
            if path.is_symlink() or path.is_file():  # no sockets, no devices
                entries.append((path, path.lstat().st_size))
    return entries


def _is_environment(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").exists() or (folder / "conda-meta").exists()


def _too_large(folder: Path, packed_entries: list[tuple[Path, int]], total: int) -> str:
    entries: dict[str, int] = {}
    for path, size in packed_entries:
        first = path.relative_to(folder).parts[0]
        entries[first] = entries.get(first, 0) + size
    largest = sorted(entries.items(), key=lambda entry: -entry[1])[:_NAMED]
    named = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in largest)
    return (
        f"the job's folder {folder} has {total / 1e6:.0f} MB ({named}); at most "
        f"{MOST_BYTES / 1e6:.0f} MB are sent to the nodes; move data elsewhere, name another "
        "`workdir:`, or use --shared-files where the nodes see it"
    )
