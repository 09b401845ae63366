"""How long a job is to train, by its arguments or, where they say nothing, by the defaults of its script.

Most scripts print the number of the epoch, but not how many epochs there will be. The user said that: `--epochs 14`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.events import Progress

_EPOCHS = frozenset(
    {
        *("epochs", "n_epochs", "nepochs", "num_epochs", "nb_epochs", "max_epochs", "max_epoch", "total_epochs"),
        *("train_epochs", "num_train_epochs", "training_epochs", "niter"),
    }
)
_STEPS = frozenset(
    {
        *("max_steps", "total_steps", "train_steps", "num_train_steps", "max_train_steps"),
        *("training_steps", "max_iters", "max_iter", "num_iters", "num_iterations", "n_iters", "total_iters"),
        *("train_iters", "iterations", "total_timesteps"),
    }
)
_DECLARES = frozenset({"add_argument", "add_option", "option"})
"""Functions of argparse, optparse and click that declare an option."""
_MOST_BYTES = 1 << 20
_MOST = 10**12


@dataclass(frozen=True, slots=True)
class TrainingLength:
    """Number of epochs and steps that a job is to do; None where it is not stated."""

    epochs: int | None = None
    steps: int | None = None

    def complete(self, told: Progress) -> Progress:
        """The report, with the number of epochs and steps filled in where it does not state them."""
        epochs, steps = told.epochs, told.steps
        if epochs is None and self.epochs is not None and told.epoch is not None and told.epoch <= self.epochs:
            epochs = self.epochs
        if steps is None and self.steps is not None and told.step is not None and told.step <= self.steps:
            steps = self.steps
        return told if (epochs, steps) == (told.epochs, told.steps) else replace(told, epochs=epochs, steps=steps)


def length(words: Sequence[str], script: Path | None) -> TrainingLength:
    """The length stated by the arguments of a command, or else by the defaults of its script.

    Args:
        words: The arguments, such as `--epochs 5`, `--max-steps=1000` or `trainer.max_epochs=5`.
        script: The Python program; None if the command runs none, or it is not known.
    """
    options = dict(_options(words))
    given = TrainingLength(_first(options, _EPOCHS), _first(options, _STEPS))
    if given != TrainingLength() or script is None:
        return given
    try:
        if script.stat().st_size > _MOST_BYTES:
            return given
        nodes = list(ast.walk(ast.parse(script.read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # Python will complain, or not
        return given
    defaults = _agreed(_constants(nodes)) | _agreed(_declared(nodes))
    return TrainingLength(_first(defaults, _EPOCHS), _first(defaults, _STEPS))


def _first(options: dict[str, int], names: frozenset[str]) -> int | None:
    """The value that is a number of epochs or steps; None without one, or if several differ."""
    found = {value for name, value in options.items() if name in names and 0 < value < _MOST}
    return found.pop() if len(found) == 1 else None


def _options(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    for i, word in enumerate(words):
        name, given, value = word.partition("=")
        if not given:
            if not word.startswith("-"):
                continue
            value = words[i + 1] if i + 1 < len(words) else ""
        if (number := _whole(value)) is not None:
            yield _plain(name.rpartition(".")[2]), number


def _agreed(values: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    """The names that have exactly one value, which is a number."""
    found: dict[str, set[int | None]] = {}
    for name, value in values:
        found.setdefault(name, set()).add(value)
    return {name: value for name, (value, *others) in found.items() if value is not None and not others}


def _declared(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int | None]]:
    """The options that a script declares, and their defaults."""
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        defaults = [word.value for word in node.keywords if word.arg == "default"]
        if function in _DECLARES and defaults:
            for each in node.args:
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield _plain(each.value), _literal(defaults[0])


def _constants(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, int | None]]:
    """The constants that a script assigns, by name."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name):
                yield _plain(target.id), _literal(value)


def _literal(node: ast.expr) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return _whole(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_").lower()


def _whole(text: str) -> int | None:
    """A whole number such as `300`, `1_000` or `1e5`; None for anything else."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() and abs(number) < _MOST else None
