"""Records what a script trains, step by step, for `headgate verify` to compare: named tensors, as
float64.

A framework's side hands over its tensors where an optimizer has taken a step. It needs to know
nothing of files. In an ordinary run there is no recorder, and none of this is imported.
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
"""In the environment of a task that is to be recorded: a `Recipe` as JSON."""
MOST_NUMBERS = 1 << 16
"""Numbers of a tensor that are kept; of a larger one so many, spread evenly, and the sums of
all.
"""
GRADIENT, WEIGHT, BUFFER = "gradient", "weight", "buffer"
DROPOUT, NOISE, MIXED_PRECISION = "dropout", "noise", "mixed-precision"
"""What a trial leaves out."""
_SETTINGS = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
"""Endings of files that a script reads its settings from."""
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
        folder: Where records go.
        steps: Steps of the first optimizer that are recorded; the script is ended after them.
        seed: Generators begin with it, where the script seeds none; worker N with N more.
        double: Whether it is to compute in float64.
        perturbed: Whether its weights begin some roundings away from where they do otherwise.
        writable: Folders that it may write to; empty: all.
        as_workers: Whether one that is alone draws its data as workers of a plan do, apart from all
            else.
        stop_at: Forward pass, from 1, in which it is asked to stop with a checkpoint; None: never.
        namespaces: Folder of the namespaces to enter, in which nothing but loopback is reached;
            empty: there are none.
        folders: Where its own files are: those of them that it reads are recorded.
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
        """As `VARIABLE` has it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Recipe:
        fields = json.loads(text)
        return cls(
            **{**fields, "writable": tuple(fields["writable"]), "folders": tuple(fields["folders"])}
        )


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor as it is at a step.

    Args:
        kind: `gradient`, `weight` or `buffer`.
        name: As its model calls it.
        shape: Its shape.
        numbers: At most `MOST_NUMBERS` of its numbers, as float64, in this machine's byte order.
        total: Sum of all its numbers.
        squares: Sum of the squares of all its numbers.
        double: Whether it is computed with in float64, or holds no fractions.
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
    """What was seen since the last step.

    Args:
        batches: Samples of each batch, and the sums of its numbers and of their squares.
        drew: Whether the script drew random numbers between a batch and its step.
    """

    batches: list[tuple[int, float, float]] = field(default_factory=list)
    drew: bool = False


class TaskRecorder:
    """Writes the record of one task.

    Args:
        recipe: How it is run.
        task: Name of the task.

    Attributes:
        done_before: Steps before a resume.
        stop: Has the script stop with a checkpoint.
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
        """Number of this worker."""
        return int(Path(self._index.name).stem.rpartition("-")[2])

    def begins_at(self, steps: int, stop: Callable[[], None]) -> None:
        """A session begins, with so many steps done before; `stop` has the script stop with a
        checkpoint.
        """
        self.done_before, self.stop = steps, stop

    def batch(self, samples: int, total: float, squares: float) -> None:
        """A batch of this worker's samples; the sums of its numbers and of their squares."""
        self._since.batches.append((samples, total, squares))

    def drew(self) -> None:
        """The script drew random numbers between a batch and its step."""
        self._since.drew = True

    def reported(self, loss: float, part: float) -> None:
        """A loss was reported, of so large a part of the job's: 1 where all parts are alike."""
        self._say({"loss": loss, "part": part})

    def passed(self, **facts: Any) -> None:
        """A forward pass begins; what is known of it."""
        self._say({"pass": facts})

    def fact(self, **facts: Any) -> None:
        """Something about the script as a whole."""
        self._say({"fact": facts})

    def wrote_outside(self, path: str) -> None:
        """It tried to write a path that is outside of what it may write."""
        self._say_once("outside", path)

    def reached_out(self, place: str) -> None:
        """It tried to reach another program over a network."""
        self._say_once("network", place)

    def left_out(self, what: str) -> None:
        """Something that the script asks for is not done, as
        `headgate.verification.verdict.LeftOut` names it.
        """
        self._say_once("left_out", what)

    def read_settings(self, path: str) -> None:
        """It reads a file of its own that is no module."""
        self._settings.add(path)

    def tell_sources(self) -> None:
        """Tell of the modules and settings of its own that it was made of, with what tells them
        from others.
        """
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
        """An optimizer has taken a step.

        Args:
            optimizer: Which, in the order of their first steps.
            number: Which step of it, from 1, those before a resume included.
            tensors: What is trained, as it is now.
            **facts: What else is known of the step.
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
        """The state after so many steps of a script whose passes are not seen.

        Args:
            steps: Those before a resume included.
            epoch: The epoch that it is in.
            arrays: Kind, name and value, as a NumPy array, of all that is trained.
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
        """End this process: enough was recorded. Exit handlers, and what a script does at its end,
        are left out.
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
    """A NumPy array as it is kept; None where it holds no numbers."""
    try:
        flat = array.reshape(-1).astype("float64")
    except (TypeError, ValueError):
        return None
    every = -(-flat.size // MOST_NUMBERS) or 1
    sums, double = (float(flat.sum()), float((flat * flat).sum())), array.dtype.name in _EXACT
    return RecordedTensor(kind, name, array.shape, flat[::every].tobytes(), *sums, double)


_recorder: TaskRecorder | None = None


def recorder() -> TaskRecorder | None:
    """That of this process; None: nothing is recorded."""
    return _recorder


def install(task: str) -> TaskRecorder | None:
    """Begin to record this process, where its task is to be; programs that it starts are not.

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
    """Whether this process is not the script, but starts it, or serves its workers."""
    with suppress(OSError), open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")
        return words[1] == b"-m" and words[2].startswith(b"headgate.")
    return False


def _watch_settings(recorder: TaskRecorder) -> None:
    """Have it told of each file of the script's that it reads its settings from."""
    roots = tuple(folder + os.sep for folder in recorder.recipe.folders)

    def seen(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], str) and given[0].endswith(_SETTINGS):
            path = os.path.abspath(given[0])
            if path.startswith(roots):
                recorder.read_settings(path)

    sys.addaudithook(seen)
