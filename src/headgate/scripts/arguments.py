"""Finds how long a job is to train: from its arguments, or else from the defaults of its script.

Most scripts print the number of the current epoch, but not the number of epochs. The user gave it:
`--epochs 14`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from headgate.model.progress import Progress

_EPOCHS = frozenset(
    {
        *(
            "epochs",
            "n_epochs",
            "nepochs",
            "num_epochs",
            "nb_epochs",
            "max_epochs",
            "max_epoch",
            "total_epochs",
        ),
        *("train_epochs", "num_train_epochs", "training_epochs", "niter"),
    }
)
_STEPS = frozenset(
    {
        *("max_steps", "total_steps", "train_steps", "num_train_steps", "max_train_steps"),
        *(
            "training_steps",
            "max_iters",
            "max_iter",
            "num_iters",
            "num_iterations",
            "n_iters",
            "total_iters",
        ),
        *("train_iters", "iterations", "total_timesteps"),
    }
)
_LENGTHS = _EPOCHS | _STEPS
_HAVE_MORE = frozenset(
    {
        *(
            "config",
            "cfg",
            "conf",
            "config_file",
            "config_path",
            "config_name",
            "opts",
            "opt",
            "options",
            "params",
        ),
        *(
            "hparams",
            "settings",
            "overrides",
            "set",
            "args_file",
            "yaml",
            "json",
            "experiment",
            "preset",
            "recipe",
        ),
    }
)
"""Options that may name a file or a list in which lengths are stated."""
_FILES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".jsonnet")
_ATTACHED = re.compile(r"(-[A-Za-z])(\d{1,12})")
_DECLARES = frozenset({"add_argument", "add_option", "option"})
"""Functions of argparse, optparse and click that declare an option."""
_MOST = 10**12


@dataclass(frozen=True, slots=True)
class TrainingLength:
    """Number of epochs and steps that a job is to do; None if not stated."""

    epochs: int | None = None
    steps: int | None = None

    def complete(self, progress_read: Progress) -> Progress:
        """Fill in the number of epochs and steps if the report does not state them."""
        epochs, steps = progress_read.epochs, progress_read.steps
        if (
            epochs is None
            and self.epochs is not None
            and progress_read.epoch is not None
            and progress_read.epoch <= self.epochs
        ):
            epochs = self.epochs
        if (
            steps is None
            and self.steps is not None
            and progress_read.step is not None
            and progress_read.step <= self.steps
        ):
            steps = self.steps
        return (
            progress_read
            if (epochs, steps) == (progress_read.epochs, progress_read.steps)
            else replace(progress_read, epochs=epochs, steps=steps)
        )


class DeclaredOptions(NamedTuple):
    """The options that a script declares, and their defaults.

    Args:
        declared: The declared options.
        defaults: Default lengths by name.
        changed: Lengths that the script sets later.
        reads_argv: Whether it reads its arguments itself.
    """

    declared: tuple[_Declared, ...]
    defaults: Mapping[str, int]
    changed: frozenset[str]
    reads_argv: bool


def options_of(nodes: Sequence[ast.AST]) -> DeclaredOptions:
    """Find the options that a script declares.

    Args:
        nodes: All nodes of its syntax tree.
    """
    declared = tuple(_declared(nodes))
    defaults = _unambiguous(_constants(nodes)) | _unambiguous(
        (name, option.default) for option in declared if option.has_default for name in option.names
    )
    reads_argv = any(isinstance(node, ast.Attribute) and node.attr == "argv" for node in nodes)
    return DeclaredOptions(declared, defaults, _changed(nodes), reads_argv)


def length(words: Sequence[str], options: DeclaredOptions | None) -> TrainingLength:
    """The length stated by the arguments of a command, otherwise by the defaults of its script.

    An option may be given by any of its names (`-e 2`), or by the beginning of one (`--epoch 1`),
    as the script declares it. No default counts if an argument may state a length in another way,
    or if the script sets the length later.

    Args:
        words: The arguments, such as `--epochs 5`, `--max-steps=1000` or `trainer.max_epochs=5`.
        options: Options of its script; None if there is no script that can be read.
    """
    declared = options.declared if options is not None else ()
    given: dict[str, int] = {}
    doubtful = False
    for option in _given(words):
        if (
            meant := _declared_option(option.name, declared)
        ) is not None and option.value is not None:
            given |= dict.fromkeys(meant.names, option.value)
        if option.value is not None:
            given[_plain(option.name)] = option.value
        doubtful = doubtful or _may_state_a_length(option, meant)
    stated = TrainingLength(_first(given, _EPOCHS), _first(given, _STEPS))
    if (
        stated != TrainingLength()
        or options is None
        or doubtful
        or _has_unknown_positions(words, options)
    ):
        return stated
    epochs, steps = (
        _first(options.defaults, names) if options.changed.isdisjoint(names) else None
        for names in (_EPOCHS, _STEPS)
    )
    return TrainingLength(epochs, steps)


def _first(options: Mapping[str, int], names: frozenset[str]) -> int | None:
    """The value that is a number of epochs or steps; None without one, or if several differ."""
    values_of_option = {
        value for name, value in options.items() if name in names and 0 < value < _MOST
    }
    return values_of_option.pop() if len(values_of_option) == 1 else None


class _Given(NamedTuple):
    """An option on the command line: its name with its dashes, and its value if that is a whole
    number.
    """

    name: str
    value: int | None
    text: str


class _Declared(NamedTuple):
    """An option that a script declares: its text, its names, and its default.

    `abbreviates`: whether the beginning of its name suffices. `tells_epochs`: whether its help is
    about epochs. `is_switch`: whether it takes no value.
    """

    flags: tuple[str, ...]
    names: tuple[str, ...]
    has_default: bool
    default: int | None
    abbreviates: bool
    tells_epochs: bool
    is_switch: bool = False


def _given(words: Sequence[str]) -> Iterator[_Given]:
    for i, word in enumerate(words):
        name, assigned, value = word.partition("=")
        if not assigned:
            if not word.startswith("-"):
                continue
            value = words[i + 1] if i + 1 < len(words) else ""
            if (attached := _ATTACHED.fullmatch(word)) is not None:  # `-e2`
                name, value = attached[1], attached[2]
        yield _Given(
            name.rpartition(".")[2] if assigned and not name.startswith("-") else name,
            _whole_number(value),
            value,
        )


def _declared_option(name: str, declared: Sequence[_Declared]) -> _Declared | None:
    """The declared option with that name, or the only one that begins with it."""
    exact = [option for option in declared if name in option.flags]
    if exact:
        return exact[-1]
    begun = [
        option
        for option in declared
        if option.abbreviates
        and name.startswith("--")
        and any(flag.startswith(name) for flag in option.flags)
    ]
    return begun[0] if len(begun) == 1 else None


def _may_state_a_length(option: _Given, meant: _Declared | None) -> bool:
    """Whether an option on the command line may state the length in another way."""
    plain = _plain(option.name)
    if plain in _HAVE_MORE or option.text.endswith(_FILES):
        return True  # a file that states it
    if meant is not None:
        return meant.tells_epochs and option.value is not None and not _LENGTHS & {*meant.names}
    if option.value is None or not option.name.startswith("-"):
        return False
    return len(plain) == 1 or "epoch" in plain or any(name.startswith(plain) for name in _LENGTHS)


def _has_unknown_positions(words: Sequence[str], options: DeclaredOptions) -> bool:
    """Whether arguments without a name may state the length of the training."""
    if any(
        word.startswith("@") or _plain(word.rpartition(".")[2]) in _LENGTHS
        for word in words
        if word[:1] != "-"
    ):
        return True  # a file of arguments; `SOLVER.MAX_EPOCHS 5`
    unnamed = any(
        _whole_number(word) is not None and not before.startswith("-")
        for before, word in pairwise(("", *words))
    )
    by_position = any(_LENGTHS & {*option.names} for option in options.declared if not option.flags)
    return unnamed and (by_position or options.reads_argv)


def _unambiguous(values: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    """The names that have exactly one value, which is a number."""
    values_of_option: dict[str, set[int | None]] = {}
    for name, value in values:
        values_of_option.setdefault(name, set()).add(value)
    return {
        name: value
        for name, (value, *others) in values_of_option.items()
        if value is not None and not others
    }


def _declared(nodes: Sequence[ast.AST]) -> Iterator[_Declared]:
    """The options that a script declares."""
    is_whole = not any(
        word.arg == "allow_abbrev"
        and isinstance(word.value, ast.Constant)
        and word.value.value is False
        for node in nodes
        if isinstance(node, ast.Call)
        for word in node.keywords
    )
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        function = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if function == "set_defaults":
            for word in node.keywords:
                yield _Declared(
                    (), (_plain(word.arg or "epochs"),), True, _literal(word.value), False, False
                )
        if function not in _DECLARES:
            continue
        keywords = {word.arg: word.value for word in node.keywords}
        texts = [_text(argument) for argument in node.args]
        default = keywords.get("default")
        names = [_plain(text) for text in (*texts, _text(keywords.get("dest"))) if text]
        if isinstance(default, ast.Name):  # the constant's other name
            names.append(_plain(default.id))
        yield _Declared(
            tuple(text for text in texts if text.startswith("-")),
            tuple(names),
            default is not None and not isinstance(default, ast.Name),
            _literal(default) if default is not None else None,
            is_whole and function != "option",
            "epoch" in _text(keywords.get("help")).lower(),
            _is_switch(keywords),
        )


def _is_switch(keywords: Mapping[str | None, ast.expr]) -> bool:
    """Whether an option with these keywords of `argparse` or `click` takes no value."""
    action, is_flag = keywords.get("action"), keywords.get("is_flag")
    if action is not None and not isinstance(action, ast.Constant):
        return True  # argparse.BooleanOptionalAction
    return _text(action) not in ("", "store") or (
        isinstance(is_flag, ast.Constant) and is_flag.value is True
    )


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


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


def _changed(nodes: Sequence[ast.AST]) -> frozenset[str]:
    """The lengths that a script sets later: `args.epochs = 1`, `epochs *= 2`."""
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.AugAssign):
            names.append(_name_of(node.target))
        elif isinstance(node, ast.Assign) and _name_of(node.value) not in _LENGTHS:
            # otherwise it passes one on
            options = [target for target in node.targets if isinstance(target, ast.Attribute)]
            names += [option.attr for option in options if _name_of(option.value) != "self"]
    return frozenset(map(_plain, names)) & _LENGTHS


def _name_of(node: ast.expr) -> str:
    """The last name of a variable or an attribute; empty of anything else."""
    return _plain(getattr(node, "attr", "") or getattr(node, "id", ""))


def _literal(node: ast.expr) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return (
        _whole_number(str(value))
        if isinstance(value, int | float) and not isinstance(value, bool)
        else None
    )


def _plain(name: str) -> str:
    return name.lstrip("-+").replace("-", "_").lower()


def _whole_number(text: str) -> int | None:
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
