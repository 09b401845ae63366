"""Base of the built-in samplers: a source for each target, opened at first sight and closed when
the target is gone.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from headgate.model.cluster import Place
from headgate.sampling.base import Boxed, Sampler, Target
from headgate.sampling.columns import Column
from headgate.sampling.counters import OpenFile, Rates

GONE = (OSError, psutil.Error)
"""Exceptions from reading a task that has ended, or that may not be read."""


class Source(ABC):
    """Reads one resource of one target."""

    @abstractmethod
    def read(self, now: float, /) -> Mapping[Column, float]:
        """The present readings.

        Raises:
            OSError: The target cannot be read.
            psutil.Error: The target cannot be read.
        """

    def close(self) -> None:
        """Close descriptors. May be called twice."""
        return


def cgroup_file(box: Boxed, controller: str, name: str) -> str:
    """Path of a file in the task's cgroup.

    Raises:
        FileNotFoundError: The task has no cgroup of that controller.
    """
    folder = box.cgroups.get(controller)
    if folder is None:
        raise FileNotFoundError(f"the task has no {controller} cgroup")
    return f"{folder}/{name}"


class FileSource(Source):
    """Rates or levels from files that are kept open.

    Args:
        paths: The files. All of them have to exist.
    """

    def __init__(self, *paths: str | Path) -> None:
        self.rates = Rates()
        self.files: list[OpenFile] = []
        try:
            for path in paths:
                self.files.append(OpenFile(path))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        for file in self.files:
            file.close()


class ProcessSource(Source):
    """The processes of a task without a cgroup for the file. A process that ends meanwhile is no
    error.
    """

    def __init__(self, box: Boxed) -> None:
        self.rates = Rates()
        self._box = box
        self._known: dict[int, psutil.Process] = {}

    def living(self) -> list[psutil.Process]:
        """The task's processes. Their objects are kept, because making one costs more than reading
        it.
        """
        known: dict[int, psutil.Process] = {}
        for pid in self._box.pids():
            process = self._known.get(pid)
            if process is None:
                try:
                    process = psutil.Process(pid)
                except psutil.Error:
                    continue
            known[pid] = process
        self._known = known
        return list(known.values())


class PlacedNode:
    """A place on this machine, read as if all processes in its cgroups were one task."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def cgroups(self) -> Mapping[str, object]:
        return self._place.cgroups

    def pids(self) -> list[int]:
        """Every living process in it."""
        folder = next(iter(self._place.cgroups.values()), None)
        return (
            []
            if folder is None
            else [int(pid) for at, _, _ in os.walk(folder) for pid in _processes(at)]
        )


def _processes(folder: str) -> list[bytes]:
    try:
        with open(f"{folder}/cgroup.procs", "rb") as file:
            return file.read().split()
    except OSError:  # removed meanwhile
        return []


def first(*openers: Callable[[], Source]) -> Source | None:
    """The first source that can be opened; None if none can."""
    for opener in openers:
        try:
            return opener()
        except GONE:
            continue
    return None


class SourcedSampler(Sampler):
    """A sampler that opens a source for each target, and implements the contract of samplers.

    Args:
        root: Where /proc and /sys are mounted.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._sources: dict[str, tuple[Boxed | Place | None, Source]] = {}

    @abstractmethod
    def open_node(self) -> Source | None:
        """A source for this machine; None if it has no such resource.

        Raises:
            OSError: It cannot be read.
        """

    @abstractmethod
    def open_task(self, box: Boxed) -> Source | None:
        """A source for a task; None if it has no such resource."""

    def open_place(self, place: Place) -> Source | None:
        """A source for a place on this machine."""
        return self.open_task(PlacedNode(place))

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        readings: dict[str, Mapping[Column, float]] = {}
        failure: Exception | None = None
        succeeded = False
        self._forget(targets)
        for target in targets:
            try:
                source = self._source(target)
                values = source.read(now) if source is not None else {}
            except GONE as error:
                self._close(target.id)
                if target.box is None and target.place is None:
                    failure = error
                continue
            succeeded = succeeded or source is not None
            if values:
                readings[target.id] = values
        if failure is not None and not succeeded:
            raise failure
        return readings

    def _source(self, target: Target) -> Source | None:
        target_key = target.place if target.box is None else target.box
        known = self._sources.get(target.id)
        if known is not None:
            if known[0] == target_key:
                return known[1]
            self._close(target.id)  # the same task in a new box: a second attempt
        source = self._open(target)
        if source is not None:
            self._sources[target.id] = (target_key, source)
        return source

    def _open(self, target: Target) -> Source | None:
        if target.box is not None:
            return self.open_task(target.box)
        return self.open_node() if target.place is None else self.open_place(target.place)

    def _forget(self, targets: Sequence[Target]) -> None:
        handed = {target.id for target in targets}
        for gone in [known for known in self._sources if known not in handed]:
            self._close(gone)

    def _close(self, target: str) -> None:
        known = self._sources.pop(target, None)
        if known is not None:
            known[1].close()
