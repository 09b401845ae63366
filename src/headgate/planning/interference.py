"""Slowdowns of jobs that share a device, measured for some pairs and predicted for others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headgate.model.errors import UsageError
from headgate.model.paths import opened

if TYPE_CHECKING:
    from headgate.planning.pair_model import Kept, PairModel

STORED = "pairs.json"
"""File name of the table in Headgate's folder."""
ALONE, SOLO = "null", "solo"
"""Keys of a table: a model's throughput alone, and its solo figures."""
UTILISATION = "gpu_utilisation"
"""Solo figure: fraction of time in which its GPU is busy, 0 to 1."""
THROUGHPUT = "throughput"
"""Solo figure: its throughput alone."""


class Interference:
    """Slowdowns of jobs that share a device.

    A device is a GPU's name, or the kind of a node for jobs on its cores, in lower case. Nodes of
    an unlisted kind use the kind `""`.

    Args:
        pairs: By device, model and other model: the measured fraction of its throughput that the
            first keeps.
        solo: By device and model: figures of its resource use alone. With enough pairs, these
            predict others (`pair_model.PairModel`).
    """

    def __init__(
        self,
        pairs: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
        solo: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
    ) -> None:
        self.pairs = pairs or {}
        self.solo = solo or {}
        self._models: dict[str, PairModel | None] = {}
        self._found: dict[tuple[str, str, str], tuple[float, float, float] | None] = {}

    def __bool__(self) -> bool:
        return any(self.pairs.values())

    def kept(self, device: str, model: str, other: str) -> float | None:
        """The fraction of its throughput that a job keeps beside another, measured or predicted;
        None: unknown.
        """
        own_figures = self.between(device, model, other)
        return own_figures[0] if own_figures is not None else None

    def between(self, device: str, model: str, other: str) -> tuple[float, float, float] | None:
        """The same with the ends of its band, which has no width for a measured pair."""
        device = device.lower()
        device = device if device in self.pairs or device in self.solo else ""
        key = device, model, other
        if key not in self._found:
            measured = self.pairs.get(device, {}).get(model, {}).get(other)
            self._found[key] = self.predicted(*key) if measured is None else (measured,) * 3
        return self._found[key]

    def fit(self) -> Interference:
        """Fit the models for unmeasured pairs now rather than at first use. Returns itself."""
        for device in self.pairs:
            self._model(device)
        return self

    def predicted(self, device: str, model: str, other: str) -> Kept | None:
        """The predicted fraction with a band; None: too few pairs on the device, or an unknown
        job.
        """
        if not {model, other} <= self._known(device):
            return None
        fitted = self._model(device)
        return fitted.predict(model, other) if fitted is not None else None

    def _known(self, device: str) -> Set[str]:
        """Models on a device about which something is known."""
        device = device.lower()
        device = device if device in self.pairs or device in self.solo else ""
        return self.pairs.get(device, {}).keys() | self.solo.get(device, {}).keys()

    def _model(self, device: str) -> PairModel | None:
        if device not in self._models:
            self._models[device] = self._fitted(device)
        return self._models[device]

    def _fitted(self, device: str) -> PairModel | None:
        from headgate.planning.pair_model import PairModel  # imported late: its numerics take time

        rows = self.pairs.get(device, {}).items()
        try:
            return PairModel(
                self.solo.get(device, {}),
                {(model, other): part for model, row in rows for other, part in row.items()},
            )
        except ValueError:
            return None

    def on_gpu(self, device: str, model: str, others: Iterable[str]) -> float:
        """The fraction of a GPU that a job keeps.

        Known neighbours multiply. Unknown neighbours divide its time: the fraction is 1 / (u1 + u2
        + …), where u is the fraction of time for which each keeps the GPU busy alone, by default 1.
        """
        kept, wanted = 1.0, 0.0
        for other in others:
            pair = self.kept(device, model, other)
            if pair is None:
                wanted += self._busy(device, other)
            else:
                kept *= pair
        return kept / max(self._busy(device, model) + wanted, 1.0) if wanted else kept

    def _busy(self, device: str, model: str) -> float:
        return min(self.solo.get(device, {}).get(model, {}).get(UTILISATION, 1.0), 1.0)

    def on_cores(
        self,
        device: str,
        model: str,
        cores: float,
        rest: float,
        others: Iterable[tuple[str, float]],
    ) -> float:
        """The fraction of its cores' speed that a job keeps; unknown neighbours cost nothing.

        A pair was measured with the node's cores divided between the two. Several neighbours count
        in proportion to their cores, because only as many run at a time. If they have less than
        half of the node, they cost proportionally less.

        Args:
            device: Kind of the node.
            model: The job's model.
            cores: Cores of the node.
            rest: Cores that the job does not have.
            others: Model and cores of each neighbour.
        """
        slowed = sum(
            had * (1.0 - (self.kept(device, model, other) or 1.0)) for other, had in others
        )
        return 1.0 - min(slowed / max(rest, cores / 2), 1.0)

    def crowd(self, device: str, model: str, others: Sequence[str]) -> float:
        """How many tasks the neighbours on a node count as for one more job: their number, and more
        if they slow each other. A fraction 1 / (1 + crowd) of the node's cores is worth as much as
        the job's share.
        """
        known = self._known(device)
        if model not in known or not others:
            return float(len(others))
        kept = [
            (self.kept(device, model, other) or 1.0) * (self.kept(device, other, model) or 1.0)
            for other in others
            if other in known
        ]
        return (1 + len(others)) * len(others) / max(
            sum(kept) + len(others) - len(kept), 1e-3
        ) - 1.0


def read_pairs(path: Path) -> Interference:
    """Read a table of pairs from JSON in Gavel's format.

    The format is `{device: {model: {"null": alone, other: [own, other's]}}}` with throughputs; 0:
    not measured. A model may also have `"solo"`: figures of its use alone. Its throughputs alone on
    other devices are figures too.

    Raises:
        UsageError: The file cannot be read, or has another format.
    """
    try:
        with opened(path) as file:
            data = json.load(file)
        pairs = {
            str(device).lower(): {str(model): _kept(row) for model, row in models.items()}
            for device, models in data.items()
        }
        solo = {
            str(device).lower(): {str(model): _figures(data, device, model) for model in models}
            for device, models in data.items()
        }
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        shape = '{"device": {"model": {"null": 8.1, "other model": [5.6, 5.2]}}}'
        raise UsageError(f"{path} has no measured pairs; expected JSON such as {shape}") from None
    return Interference(pairs, solo)


def stored_pairs(home: Path) -> Interference:
    """The table that studies write in Headgate's folder; empty if there is none.

    Raises:
        UsageError: The file cannot be read, or has another format.
    """
    path = home / STORED
    return read_pairs(path) if path.exists() else Interference()


class StoredPairs:
    """The stored table as of the last reading.

    Args:
        home: Headgate's folder.

    Attributes:
        known: Its content. Empty while it cannot be read; `headgate study` reports the error.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.known = Interference()
        self._read: tuple[int, ...] | None = None

    @property
    def is_new(self) -> bool:
        """Whether the file has changed since."""
        return self._stamp() != self._read

    def read(self) -> Interference:
        """Read the table if it has changed. This takes time, because models are fitted."""
        stamp = self._stamp()
        if stamp != self._read:
            try:
                self.known = stored_pairs(self._home).fit()
            except UsageError:
                self.known = Interference()
            self._read = stamp
        return self.known

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            stat = (self._home / STORED).stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _kept(row: Mapping[str, Any]) -> dict[str, float]:
    alone = float(row[ALONE])
    return {
        str(other): min(float(pair[0]) / alone, 1.0)
        for other, pair in row.items()
        if other not in (ALONE, SOLO) and float(pair[0]) > 0 and 0 < alone < math.inf
    }


def _figures(data: Mapping[str, Any], device: str, model: str) -> dict[str, float]:
    """Solo figures of a model: those of the table, its throughput, and its speedup over each other
    device.
    """
    solo_figures = {
        str(name): float(value) for name, value in data[device][model].get(SOLO, {}).items()
    }
    if any(not 0 <= value < math.inf for value in solo_figures.values()):
        raise ValueError
    alone = {
        str(other_device): float(models[model][ALONE])
        for other_device, models in data.items()
        if model in models
    }
    own_alone = alone.pop(device)
    if not 0 < own_alone < math.inf:
        return solo_figures
    times = {
        f"times that on {other_model}": own_alone / other_alone
        for other_model, other_alone in alone.items()
        if 0 < other_alone < math.inf
    }
    return solo_figures | times | {THROUGHPUT: own_alone}
