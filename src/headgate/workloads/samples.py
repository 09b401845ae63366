"""The training data of workloads, made from a seed: in memory, or in a folder of files with a
checksum.

Images and vectors contain a pattern of their class under noise, so that losses decrease. Rows of
clicks have 13 numbers and 26 categories, as the Criteo logs. The categories follow Zipf's law, each
within its own range of features.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate.workloads import WorkloadError, networks

__all__ = ["Samples", "FEATURES", "check", "made", "make", "manifest", "where"]

NUMBERS, CATEGORIES = 13, 26
NON_ZEROS = NUMBERS + CATEGORIES
FEATURES = {"small": 100_000, "full": 33_762_578}
"""Number of features of the click data."""
COUNTS = {"small": 2_048, "full": 1_024}
"""Default number of samples in a folder; 64 times as many for clicks."""
_CHUNK = 256
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Samples:
    """Training samples, with the class of each (or whether it was clicked) last.

    Args:
        arrays: Arrays with a row for each sample: in memory and ready, or files (uint8, channels
            last) that are read when used. Those in memory cost a step no time.
        total: Number of samples to give, repeating from the first.
        channels_first: The layout of images.
    """

    arrays: tuple[np.ndarray, ...]
    total: int
    channels_first: bool = False

    def __len__(self) -> int:
        return self.total

    def taken(self, rows: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Some samples. Images and vectors are float32, about -2 to 2."""
        row_numbers = np.asarray(rows) % len(self.arrays[0])
        together = len(row_numbers) > 0 and bool((np.diff(row_numbers) == 1).all())
        where = (
            slice(row_numbers[0], row_numbers[-1] + 1) if together else row_numbers
        )  # one read, and no copy
        arrays = [array[where] for array in self.arrays]
        if not isinstance(self.arrays[0], np.memmap):
            return tuple(arrays)
        return (_ready(arrays[0], self.channels_first), *(np.array(field) for field in arrays[1:]))

    def batches(self, size: int) -> Batches:
        """Batches of `size` samples, in order."""
        return Batches(self, size)


@dataclass(frozen=True)
class Batches(Sequence[Any]):
    """Batches, by number."""

    samples: Samples
    size: int

    def __len__(self) -> int:
        return len(self.samples) // self.size

    def __getitem__(self, index: Any) -> tuple[np.ndarray, ...]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.samples.taken(range(index * self.size, (index + 1) * self.size))


def _ready(array: np.ndarray, channels_first: bool) -> np.ndarray:
    if array.dtype == np.uint8:
        array = (array.astype(np.float32) - 128) / 64
    return (
        np.ascontiguousarray(array.transpose(0, 3, 1, 2))
        if channels_first and array.ndim == 4
        else np.array(array)
    )


def made(
    workload: str, size: str, count: int, seed: int, channels_first: bool = False
) -> tuple[np.ndarray, ...]:
    """Samples in memory, ready for training: images and classes, or ids, values and clicks."""
    first, *others = (np.concatenate(parts) for parts in zip(*_chunks(workload, size, count, seed)))
    return (_ready(first, channels_first), *others)


def where(workload: str, size: str) -> Path:
    """The folder for a workload's data in `HEADGATE_HOME`."""
    home = os.environ.get("HEADGATE_HOME") or "~/.local/share/headgate"
    return Path(home).expanduser() / "data" / f"{workload}-{size}"


def make(
    folder: Path, workload: str, size: str, seed: int = 0, count: int | None = None
) -> tuple[np.ndarray, ...]:
    """The samples of a folder, which is made if missing. A folder just made is dropped from the
    machine's page cache.

    Two processes that ask for the same missing folder make it once. If reading is measured, each
    job needs its own folder, because two readers of one warm each other's cache.

    Args:
        count: Required number of samples; None: any number, or 2,048 for a new folder (`full`:
            1,024; clicks: 64 times that).

    Returns:
        Arrays that are read from the files when used.

    Raises:
        WorkloadError: The folder holds something else, or cannot be written.
    """
    asked = {"workload": workload, "size": size, "seed": seed}
    asked |= {} if count is None else {"samples": count}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / _MANIFEST).exists():
                _write(
                    folder, {"samples": COUNTS[size] * (64 if workload == "sparse" else 1), **asked}
                )
            manifest_data = manifest(folder)
    except OSError as error:
        raise WorkloadError(
            f"cannot make data in {folder}: {error.strerror}; name another folder"
        ) from error
    differing = [
        f"{name} {manifest_data.get(name)!r}"
        for name, value in asked.items()
        if manifest_data.get(name) != value
    ]
    if differing:
        wanted = ", ".join(f"{name} {value!r}" for name, value in asked.items())
        raise WorkloadError(
            f"{folder} holds data of {', '.join(differing)}; expected {wanted}; name another folder"
        )
    for name, about in manifest_data["files"].items():
        if not (folder / name).is_file() or (folder / name).stat().st_size != about["bytes"]:
            raise WorkloadError(
                f"{folder / name} is missing or not whole; remove {folder} to make it again"
            )
    return tuple(np.load(folder / name, mmap_mode="r") for name in manifest_data["files"])


def check(folder: Path) -> dict[str, Any]:
    """Check the checksums of a folder's files, which reads all of them. Returns its manifest.

    Raises:
        WorkloadError: A checksum differs, or there is no manifest.
    """
    try:
        manifest_data = manifest(folder)
        wrong = [
            name
            for name, about in manifest_data["files"].items()
            if _checksum(folder / name) != about["sha256"]
        ]
    except OSError as error:
        raise WorkloadError(f"{folder} has no data of a workload: {error.strerror}") from error
    if wrong:
        raise WorkloadError(
            f"{folder / wrong[0]} is not what was made; remove {folder} to make it again"
        )
    return manifest_data


def _write(folder: Path, asked: dict[str, Any]) -> None:
    chunks = _chunks(*(asked[name] for name in ("workload", "size", "samples", "seed")))
    first = next(chunks)
    names = [
        f"{name}.npy"
        for name in (("ids", "values", "labels") if len(first) == 3 else ("samples", "labels"))
    ]
    arrays = [
        np.lib.format.open_memmap(
            folder / name, "w+", part.dtype, (asked["samples"], *part.shape[1:])
        )
        for name, part in zip(names, first)
    ]
    at = 0
    for chunk in (first, *chunks):
        for array, part in zip(arrays, chunk):
            array[at : at + len(part)] = part
        at += len(chunk[0])
    for array in arrays:
        array.flush()
    del array, arrays
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": _checksum(folder / name)}
        for name in names
    }
    for name in names:
        with (folder / name).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    unfinished = folder / f"{_MANIFEST}.part"
    unfinished.write_text(json.dumps({**asked, "files": files}, indent=1))
    unfinished.replace(folder / _MANIFEST)


def manifest(folder: Path) -> dict[str, Any]:
    """The contents of a folder: workload, size, seed, samples, and for each file its bytes and
    SHA-256.
    """
    try:
        manifest_data: dict[str, Any] = json.loads((folder / _MANIFEST).read_text())
    except ValueError as error:
        raise WorkloadError(
            f"{folder / _MANIFEST} cannot be read; remove {folder} to make it again"
        ) from error
    return manifest_data


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# --- drawing --------------------------------------------------------------------------------------


def _chunks(workload: str, size: str, count: int, seed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Samples in chunks of some hundreds. A chunk does not depend on the total number of
    samples.
    """
    for number, start in enumerate(range(0, count, _CHUNK)):
        rng, most = np.random.default_rng([seed, 1, number]), min(_CHUNK, count - start)
        chunk = (
            _clicks(rng, FEATURES[size])
            if workload == "sparse"
            else _classes(rng, workload, size, seed)
        )
        yield tuple(array[:most] for array in chunk)


def _classes(
    rng: np.random.Generator, workload: str, size: str, seed: int
) -> tuple[np.ndarray, ...]:
    network = networks.build(workload, size)
    labels = rng.integers(network.classes, size=_CHUNK)
    *channels, side = network.shape if len(network.shape) == 1 else (3, network.shape[-1])
    coarse = (8, 8, 3) if channels else (side,)
    patterns = (
        np.random.default_rng([seed, 2])
        .normal(0, 30, (network.classes, *coarse))
        .astype(np.float32)[labels]
    )
    if channels:
        wide = np.arange(side) * 8 // side
        patterns = patterns[:, wide][:, :, wide]
    noisy = patterns + rng.normal(128, 40, patterns.shape).astype(np.float32)
    return np.clip(noisy, 0, 255).astype(np.uint8), labels.astype(np.int64)


def _clicks(rng: np.random.Generator, features: int) -> tuple[np.ndarray, ...]:
    """Draw rows of clicks. Each category has its own features. A hidden weight of each feature
    determines the probability of a click.
    """
    wide = (features - NUMBERS) // CATEGORIES
    drawn = (rng.zipf(1.2, (_CHUNK, CATEGORIES)) - 1) % wide
    categories = NUMBERS + np.arange(CATEGORIES) * wide + drawn
    ids = np.concatenate([np.tile(np.arange(NUMBERS), (_CHUNK, 1)), categories], axis=1).astype(
        np.int64
    )
    numbers = np.log1p(rng.exponential(3, (_CHUNK, NUMBERS)))
    values = np.concatenate([numbers, np.ones((_CHUNK, CATEGORIES))], axis=1).astype(np.float32)
    # Knuth's multiplicative hash, as -1 to 1
    hidden = (ids * 2_654_435_761 % 2**32 / 2**31 - 1).astype(np.float32)
    likely = 1 / (1 + np.exp(-(hidden * values).sum(axis=1)))
    return ids, values, (rng.random(_CHUNK) < likely).astype(np.float32)
