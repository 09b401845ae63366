"""One round of sampling. A broken sampler does not affect the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from headgate.model import registry
from headgate.sampling.base import Boxed, Sampler, Target
from headgate.sampling.columns import COLUMNS, Column
from headgate.sampling.connections import ConnectionsSampler
from headgate.sampling.cpu import CpuSampler
from headgate.sampling.disk import DiskSampler
from headgate.sampling.gpu import GpuSampler
from headgate.sampling.memory import MemorySampler
from headgate.sampling.network import NetworkSampler
from headgate.sampling.perf_events import CounterSampler
from headgate.sampling.pressure import PressureSampler
from headgate.sampling.resctrl import ResctrlSampler
from headgate.sampling.waiting import WaitingSampler

RETRY_SECONDS = 60.0
"""Time for which a failed sampler is not called."""

LIST_EVERY = 5
"""Rounds between two listings of the processes of a task without a cgroup."""

Report = Callable[[str], None]

_KNOWN = frozenset(COLUMNS)


def samplers(report: Report, gpu: GpuSampler | None = None) -> list[Sampler]:
    """The built-in samplers, then those registered by other packages under `headgate.samplers`: a
    class, or a function without arguments that makes one.

    A broken one is reported and left out.

    Args:
        gpu: The GPU sampler; None: a new one.
    """
    made: list[Sampler] = [
        CpuSampler(),
        MemorySampler(),
        DiskSampler(),
        NetworkSampler(),
        ConnectionsSampler(),
        gpu if gpu is not None else GpuSampler(),
        PressureSampler(),
        WaitingSampler(),
        CounterSampler(),
        ResctrlSampler(),
    ]
    loaded = registry.load("headgate.samplers")
    for warning in loaded.warnings:
        report(warning)
    for name, factory in loaded.found.items():
        try:
            sampler = factory() if callable(factory) else factory
        except Exception as error:  # noqa: BLE001  # another's code
            report(
                f"plug-in {name!r} (headgate.samplers) is left out: {type(error).__name__}: {error}"
            )
            continue
        if isinstance(sampler, Sampler):
            made.append(sampler)
        else:
            report(
                f"plug-in {name!r} (headgate.samplers) is left out: it gives a "
                f"{type(sampler).__name__}, no Sampler"
            )
    return made


class _Snapshot:
    """A box whose processes are listed at most once a round, however many samplers ask.

    Without a cgroup, listing them reads all processes of the machine. So it is done only every
    `LIST_EVERY` rounds. A new process is seen later, and its use until then is counted then.
    """

    def __init__(self, box: Boxed, turn: int) -> None:
        self.box = box
        self._turn = turn
        self._pids: list[int] | None = None

    @property
    def cgroups(self) -> Mapping[str, object]:
        return self.box.cgroups

    def pids(self) -> list[int]:
        if self._pids is None:
            self._pids = self.box.pids()
        return self._pids

    def renew(self, turn: int) -> None:
        if self.box.cgroups or (turn - self._turn) % LIST_EVERY == 0:
            self._pids = None


class SamplingRound:
    """Reads all samplers and merges their readings.

    A sampler that raises is reported once and not called for `RETRY_SECONDS`. Invalid values are
    dropped, and reported once for each sampler: an unknown column, an unknown target, not finite,
    or negative. Of two samplers with the same column the earlier counts.

    Args:
        samplers: The samplers.
        report: Called with one line for the user.
    """

    def __init__(self, samplers: Sequence[Sampler], report: Report) -> None:
        self._samplers = tuple(samplers)
        self._report = report
        self._reported: set[tuple[int, str]] = set()
        self._rest_until: dict[int, float] = {}
        self._snapshots: dict[str, _Snapshot] = {}
        self._turn = 0

    def read(self, now: float, targets: Sequence[Target]) -> dict[str, dict[Column, float]]:
        """Readings by target id. Targets without readings are left out.

        Args:
            now: Time in seconds, as for `Sampler.read`.
            targets: Tasks, and the node, with unique ids.
        """
        snapshots = self._renewed(targets)
        merged: dict[str, dict[Column, float]] = {target.id: {} for target in targets}
        for index, sampler in enumerate(self._samplers):
            if now < self._rest_until.get(index, -math.inf):
                continue
            try:
                readings = sampler.read(now, snapshots)
                self._merge(index, readings, merged)
            except Exception as error:  # noqa: BLE001  # one failing leaves the others
                self._rest_until[index] = now + RETRY_SECONDS
                self._report_once(
                    index,
                    "failed",
                    f"sampler {sampler.name!r} failed: {type(error).__name__}: {error}",
                )
        return {target: values for target, values in merged.items() if values}

    def _renewed(self, targets: Sequence[Target]) -> list[Target]:
        self._turn += 1
        kept: dict[str, _Snapshot] = {}
        answer = []
        for target in targets:
            if target.box is None:
                answer.append(target)
                continue
            snapshot = self._snapshots.get(target.id)
            if snapshot is None or snapshot.box is not target.box:
                snapshot = _Snapshot(target.box, self._turn + len(kept))  # so that they take turns
            snapshot.renew(self._turn)
            kept[target.id] = snapshot
            answer.append(Target(target.id, snapshot))
        self._snapshots = kept
        return answer

    def _merge(
        self,
        index: int,
        readings: Mapping[str, Mapping[Column, float]],
        merged: dict[str, dict[Column, float]],
    ) -> None:
        for target, values in readings.items():
            row = merged.get(target)
            for column, value in values.items():
                if row is None or column not in _KNOWN or not 0 <= value < math.inf:
                    name = self._samplers[index].name
                    text = (
                        f"sampler {name!r} gives {column} = {value!r} for {target!r}; it is dropped"
                    )
                    self._report_once(index, "contract", text)
                else:
                    row.setdefault(column, value)

    def _report_once(self, index: int, what: str, text: str) -> None:
        if (index, what) not in self._reported:
            self._reported.add((index, what))
            self._report(text)
