"""Records a script's training step by step for `headgate verify`: named tensors, as float64.

The framework's session hands over its tensors after each optimizer step, and knows nothing of
files. In an ordinary run there is no recorder, and this module is not imported.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable

from headgate.task import fence
from headgate.task.environment import TaskEnvironment

VARIABLE = "HEADGATE_RECORD"
"""The variable with the `Recipe`, as JSON, of a task to be recorded."""
MOST_NUMBERS = 1 << 16
"""Most numbers kept of a tensor. Larger tensors keep an evenly spread sample, and the sums of all
numbers.
"""
GRADIENT, WEIGHT, BUFFER = "gradient", "weight", "buffer"
DROPOUT, NOISE, MIXED_PRECISION = "dropout", "noise", "mixed-precision"
"""Kinds of operations that a trial leaves out."""
ROUNDINGS = 4.0
"""How far a trial perturbs weights: roundings of their type."""
_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
"""Suffixes of files with a script's settings."""
_EXACT = frozenset(
    {
        "float64",
        "complex128",
        "bool",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    }
)
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Recipe:
    """How a script is run to be recorded.

    Args:
        folder: Folder of the records.
        steps: Number of recorded steps of the first optimizer. Then the script is ended.
        seed: Seed of generators that the script does not seed. Worker N uses `seed + N`.
        double: Whether to compute in float64.
        perturbed: Whether the initial weights are changed by a few roundings.
        writable: Folders that the script may write to; empty: all.
        as_workers: Whether a single worker draws its data as workers of a plan do, from a generator
            apart from all else.
        stop_at: Forward pass, from 1, at which the script is asked to stop with a checkpoint; None:
            never.
        namespaces: Folder of the namespaces to enter, in which only loopback is reached; empty:
            none.
        folders: Folders of the script's own files. Those that it reads are recorded.
    """

    folder: str
    steps: int
    seed: int = 0
    double: bool = True
    perturbed: bool = False
    writable: tuple[str, ...] = ()
    as_workers: bool = False
    stop_at: int | None = None
    namespaces: str = ""
    folders: tuple[str, ...] = ()

    def text(self) -> str:
        """The recipe as JSON, the value of `VARIABLE`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Recipe:
        fields = json.loads(text)
        return cls(
            **{**fields, "writable": tuple(fields["writable"]), "folders": tuple(fields["folders"])}
        )


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor at a step.

    Args:
        kind: `gradient`, `weight` or `buffer`.
        name: Its name in the model.
        shape: Its shape.
        numbers: At most `MOST_NUMBERS` of its numbers, as float64 in this machine's byte order.
        total: Sum of all its numbers.
        squares: Sum of the squares of all its numbers.
        double: Whether it is computed in float64, or is of an integer type.
    """

    kind: str
    name: str
    shape: Sequence[int]
    numbers: bytes
    total: float
    squares: float
    double: bool


@dataclass
class _SinceStep:
    """Observations since the last step.

    Args:
        batches: For each batch the number of samples, the sum of its numbers, and the sum of their
            squares.
        drew: Whether the script drew random numbers between a batch and its step.
    """

    batches: list[tuple[int, float, float]] = field(default_factory=list)
    drew: bool = False


class TaskRecorder:
    """Writes the record of one task.

    Args:
        recipe: How the script is run.
        task: Name of the task.

    Attributes:
        done_before: Steps before a resume.
        stop: Makes the script stop with a checkpoint.
    """

    def __init__(self, recipe: Recipe, task: str) -> None:
        self.recipe = recipe
        folder = Path(recipe.folder)
        self._index = open(folder / f"{task}.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - open until the end
        self._data = open(folder / f"{task}.f64", "ab")  # noqa: SIM115
        self._since = _SinceStep()
        self._said: set[tuple[str, str]] = set()
        self._settings: set[str] = set()
        self.done_before = 0
        self.stop: Callable[[], None] = lambda: None
        self._states = 0

    @property
    def worker(self) -> int:
        """Index of this worker."""
        return int(Path(self._index.name).stem.rpartition("-")[2])

    def begins_at(self, steps: int, stop: Callable[[], None]) -> None:
        """Begin a session after `steps` earlier steps. `stop` makes the script stop with a
        checkpoint.
        """
        self.done_before, self.stop = steps, stop

    def batch(self, samples: int, total: float, squares: float) -> None:
        """Record a batch of this worker: number of samples, sum of its numbers, sum of their
        squares.
        """
        self._since.batches.append((samples, total, squares))

    def drew(self) -> None:
        """Record that the script drew random numbers between a batch and its step."""
        self._since.drew = True

    def reported(self, loss: float, part: float) -> None:
        """Record a loss, and the relative weight of this worker's part; 1 if all parts are
        equal.
        """
        self._say({"loss": loss, "part": part})

    def passed(self, **facts: Any) -> None:
        """Record facts about a forward pass that begins."""
        self._say({"pass": facts})

    def fact(self, **facts: Any) -> None:
        """Record facts about the whole script."""
        self._say({"fact": facts})

    def wrote_outside(self, path: str) -> None:
        """Record an attempt to write a path outside of the writable folders."""
        self._say_once("outside", path)

    def reached_out(self, place: str) -> None:
        """Record an attempt to reach another program over a network."""
        self._say_once("network", place)

    def left_out(self, what: str) -> None:
        """Record that a requested operation is not done, by its name in
        `headgate.verification.verdict.LeftOut`.
        """
        self._say_once("left_out", what)

    def read_settings(self, path: str) -> None:
        """Record that the script reads one of its own files that is no module."""
        self._settings.add(path)

    def tell_sources(self) -> None:
        """Record the script's own modules and settings, with a digest of each."""
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        roots = tuple(os.path.realpath(folder) + os.sep for folder in self.recipe.folders)
        sources = {}
        for path in {
            os.path.realpath(file) for file in files | self._settings if isinstance(file, str)
        }:
            if path.startswith(roots) and not _INSTALLED.intersection(path.split(os.sep)):
                with suppress(OSError), open(path, "rb") as file:
                    sources[path] = hashlib.sha256(file.read()).hexdigest()
        self._say({"sources": sources})

    def step(
        self, optimizer: int, number: int, tensors: Iterable[RecordedTensor], **facts: Any
    ) -> None:
        """Record a step of an optimizer.

        Args:
            optimizer: Number of the optimizer, in the order of their first steps.
            number: Number of its step, from 1, including those before a resume.
            tensors: The current values of what is trained.
            **facts: Other facts about the step.
        """
        entries = []
        double = True
        for tensor in tensors:
            double = double and (tensor.double or tensor.kind != WEIGHT)
            entry = {
                "kind": tensor.kind,
                "name": tensor.name,
                "shape": list(tensor.shape),
                "at": self._data.tell(),
            }
            self._data.write(tensor.numbers)
            entries.append(
                {
                    **entry,
                    "bytes": len(tensor.numbers),
                    "total": tensor.total,
                    "squares": tensor.squares,
                }
            )
        self._data.flush()
        since, self._since = self._since, _SinceStep()
        totals = [sum(column) for column in zip(*since.batches)]
        step = {
            "step": [optimizer, number],
            "tensors": entries,
            "batch": totals,
            "drew": since.drew,
            "double": double,
            **facts,
        }
        self._say(step)

    def state(self, steps: int, epoch: int | None, arrays: Iterable[tuple[str, str, Any]]) -> None:
        """Record the state after `steps` steps of a script whose forward passes are not seen.

        Args:
            steps: Number of steps, including those before a resume.
            epoch: The current epoch.
            arrays: Kind, name and NumPy array of everything trained.
        """
        self.step(
            0, steps, (recorded for array in arrays if (recorded := _of_array(*array)) is not None)
        )
        self._states += 1
        if steps >= self.recipe.steps:
            self.finish()
        self.passed(number=self._states, trains=True, epoch=-1 if epoch is None else epoch)
        if self._states == self.recipe.stop_at:
            self.stop()

    def finish(self) -> None:
        """End this process, because enough was recorded. Exit handlers and the rest of the script
        do not run.
        """
        self.tell_sources()
        self._say({"end": True})
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _say_once(self, kind: str, text: str) -> None:
        if (kind, text) not in self._said:
            self._said.add((kind, text))
            self._say({kind: text})

    def _say(self, entry: Mapping[str, Any]) -> None:
        self._index.write(json.dumps(entry) + "\n")
        self._index.flush()


def _of_array(kind: str, name: str, array: Any) -> RecordedTensor | None:
    """The record of a NumPy array; None if it is not numeric."""
    try:
        flat = array.reshape(-1).astype("float64")
    except (TypeError, ValueError):
        return None
    every = -(-flat.size // MOST_NUMBERS) or 1
    sums, double = (float(flat.sum()), float((flat * flat).sum())), array.dtype.name in _EXACT
    return RecordedTensor(kind, name, array.shape, flat[::every].tobytes(), *sums, double)


_recorder: TaskRecorder | None = None


def recorder() -> TaskRecorder | None:
    """The recorder of this process; None if it is not recorded."""
    return _recorder


def install(task: str) -> TaskRecorder | None:
    """Start to record this process, if its task is to be recorded. Programs that it starts are not.

    Args:
        task: Name of the task.
    """
    global _recorder
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    recipe = Recipe.parse(text)
    starts_another = _runs_a_module_of_ours()
    if not starts_another:
        del os.environ[VARIABLE]
    trains = task.startswith("worker-") and not starts_another
    kept = TaskRecorder(recipe, task)
    if recipe.writable:
        from headgate.task import network_fence

        writable = (*recipe.writable, recipe.folder, "/dev", "/proc")
        channel = TaskEnvironment.read().channel
        kept.fact(
            cut_off=network_fence.shut(
                recipe.namespaces, kept.reached_out, (*writable, channel or "/dev")
            )
        )
        kept.fact(fenced=fence.shut(writable, kept.wrote_outside))
    if trains:
        random.seed(recipe.seed + kept.worker)
        _watch_settings(kept)
        atexit.register(kept.tell_sources)
        _recorder = kept
    return _recorder


def _runs_a_module_of_ours() -> bool:
    """Whether this process runs one of Headgate's own modules, which starts the script or serves
    its workers.
    """
    with suppress(OSError), open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")
        return words[1] == b"-m" and words[2].startswith(b"headgate.")
    return False


def _watch_settings(recorder: TaskRecorder) -> None:
    """Record each of the script's own files from which it reads settings."""
    roots = tuple(folder + os.sep for folder in recorder.recipe.folders)

    def seen(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], str) and given[0].endswith(_SETTINGS):
            path = os.path.abspath(given[0])
            if path.startswith(roots):
                recorder.read_settings(path)

    sys.addaudithook(seen)
