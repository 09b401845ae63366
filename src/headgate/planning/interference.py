"""What jobs cost each other that share a device: pairs as they were measured, and others as they
are predicted.
"""

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
"""The name of a table in Headgate's folder."""
ALONE, SOLO = "null", "solo"
"""In a table: a model's throughput alone, and figures of what it uses alone."""
UTILISATION = "gpu_utilisation"
"""Among these: the part of the time in which its GPU is busy, 0 to 1."""
THROUGHPUT = "throughput"
"""And its throughput alone."""


class Interference:
    """What jobs cost each other that share a device.

    A device is a GPU's name, or the kind of a node for jobs on its cores; in lower case. A node of
    another kind goes by those without a kind, `""`.

    Args:
        pairs: By device, model and other model: the part of its throughput alone that the first one
            keeps, as it was measured.
        solo: By device and model: figures of what it uses alone. With enough pairs, others are
            predicted from these (`pair_model.PairModel`).
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
        """The part of its throughput that a job keeps beside another, measured or else predicted;
        None: not known.
        """
        own_figures = self.between(device, model, other)
        return own_figures[0] if own_figures is not None else None

    def between(self, device: str, model: str, other: str) -> tuple[float, float, float] | None:
        """The same with the ends of its band, which has no width where it was measured."""
        device = device.lower()
        device = device if device in self.pairs or device in self.solo else ""
        key = device, model, other
        if key not in self._found:
            measured = self.pairs.get(device, {}).get(model, {}).get(other)
            self._found[key] = self.predicted(*key) if measured is None else (measured,) * 3
        return self._found[key]

    def fit(self) -> Interference:
        """Itself, with the models fitted from which pairs are predicted: later that would hold
        somebody up.
        """
        for device in self.pairs:
            self._model(device)
        return self

    def predicted(self, device: str, model: str, other: str) -> Kept | None:
        """The same by the model of the pairs of a device, with a band; None where there are too few
        pairs for one, or nothing is known of one of the two.
        """
        if not {model, other} <= self._known(device):
            return None
        fitted = self._model(device)
        return fitted.predict(model, other) if fitted is not None else None

    def _known(self, device: str) -> Set[str]:
        """The models that something is known of on a device."""
        device = device.lower()
        device = device if device in self.pairs or device in self.solo else ""
        return self.pairs.get(device, {}).keys() | self.solo.get(device, {}).keys()

    def _model(self, device: str) -> PairModel | None:
        if device not in self._models:
            self._models[device] = self._fitted(device)
        return self._models[device]

    def _fitted(self, device: str) -> PairModel | None:
        from headgate.planning.pair_model import PairModel  # its numerics take time to import

        rows = self.pairs.get(device, {}).items()
        try:
            return PairModel(
                self.solo.get(device, {}),
                {(model, other): part for model, row in rows for other, part in row.items()},
            )
        except ValueError:
            return None

    def on_gpu(self, device: str, model: str, others: Iterable[str]) -> float:
        """The part that a job keeps of a GPU. Several others: the product. Those that nothing is
        known of divide its time: the part is 1 / (u1 + u2 + …), u being the part of the time for
        which each keeps it
            busy alone, 1 where
        that was not measured."""
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
        """The part that a job keeps of what its cores would bring; what is not known costs nothing.

        A pair was measured with the cores of a node divided between the two. Of several others each
        counts for as much of the other cores as it has of them: however many there are, only so
        many run at a time. Where they have less than half of the node, they cost so much less.

        Args:
            device: Kind of the node.
            model: What the job trains.
            cores: Of the node.
            rest: Those that the job does not have.
            others: Model and cores of each of the others.
        """
        slowed = sum(
            had * (1.0 - (self.kept(device, model, other) or 1.0)) for other, had in others
        )
        return 1.0 - min(slowed / max(rest, cores / 2), 1.0)

    def crowd(self, device: str, model: str, others: Sequence[str]) -> float:
        """How many tasks those on a node count for to one more: as many as there are, and more
        where they and the new one cost each other something. A part 1 / (1 + crowd) of the node's
        cores is worth as much as what it gets.
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
    """A table of pairs from a JSON of the shape of Gavel's: `{device: {model: {"null": alone,
    other: [its own, the other's]}}}`, throughputs; a 0 was not measured. A model may have `"solo"`
    besides: figures of what it uses alone. Its throughputs alone on all devices are figures too.

    Raises:
        UsageError: It cannot be read, or is of another shape.
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
    """The table that studies write in Headgate's folder; empty where there is none.

    Raises:
        UsageError: It cannot be read, or is of another shape.
    """
    path = home / STORED
    return read_pairs(path) if path.exists() else Interference()


class StoredPairs:
    """That table as it was read last.

    Args:
        home: Headgate's folder.

    Attributes:
        known: What it said; nothing while it cannot be read, for `headgate study` says what is
            wrong with it.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self.known = Interference()
        self._read: tuple[int, ...] | None = None

    @property
    def is_new(self) -> bool:
        """Whether it has changed since."""
        return self._stamp() != self._read

    def read(self) -> Interference:
        """What it says now. If it has changed, that takes time, for models are fitted."""
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
    """Figures of a model alone: those of the table, its throughput, and how many times that it has
    on other devices.
    """
    solo_figures = {
        str(name): float(value) for name, value in data[device][model].get(SOLO, {}).items()
    }
    if any(not 0 <= value < math.inf for value in solo_figures.values()):
        raise ValueError
    alone = {
        str(each): float(models[model][ALONE]) for each, models in data.items() if model in models
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
