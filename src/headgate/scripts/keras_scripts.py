"""Facts about a script that uses headgate.keras: its back end, and whether it calls `fit` of Keras
3.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_SETTLING = ("KERAS_BACKEND", "TF_USE_LEGACY_KERAS")
_OF_FIT = frozenset(
    {
        "epochs",
        "callbacks",
        "validation_data",
        "steps_per_epoch",
        "initial_epoch",
        "validation_split",
    }
)
"""Arguments of Keras' `fit` that scikit-learn's `fit` lacks."""
_OWN_LOOP = frozenset(
    {"experimental_distribute_dataset", "distribute_datasets_from_function", "schedule"}
)
"""Functions of a training loop over replicas. A script with one may not call `fit`."""


def backend(text: bytes, own: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The back end of Keras in a script: `tensorflow`, `jax`, `torch`, or `legacy` (over
    TensorFlow, before version 3). Empty if it is not plain.

    Args:
        text: Text of the script.
        own: The variables that the script sets itself.
        environment: Its other variables.
    """
    if any(name.encode() in text and name not in own for name in _SETTLING):
        return ""
    settled = {**environment, **own}
    if settled.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") or b"tf_keras" in text:
        return "legacy"
    return settled.get("KERAS_BACKEND") or _configured(settled)


def _configured(environment: Mapping[str, str]) -> str:
    """The back end in Keras' settings file."""
    folder = environment.get("KERAS_HOME") or Path(environment.get("HOME", ""), ".keras")
    try:
        return str(json.loads(Path(folder, "keras.json").read_text())["backend"])
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow"


def fits(nodes: Iterable[ast.AST]) -> bool:
    """Whether a script trains by `fit` of a Keras model, and not by its own loop.

    Args:
        nodes: All nodes of its syntax tree.
    """
    calls = [
        (node.func.attr, {keyword.arg for keyword in node.keywords})
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    return not any(name in _OWN_LOOP for name, _ in calls) and any(
        name == "fit" and _OF_FIT & keywords for name, keywords in calls
    )


def own_variables(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """The variables that a script itself sets in its environment to literal values."""
    settings: dict[str, str] = {}
    for node in nodes:
        match node:
            case ast.Assign(
                targets=[
                    ast.Subscript(
                        value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name))
                    )
                ],
                value=ast.Constant(value=str(value)),
            ):
                settings[name] = value
    return settings


def version(python: str | None, path: str | None) -> str:
    """The version of Keras that an interpreter imports; empty if unknown without starting it.

    Args:
        python: The interpreter as a job names it; None: the first `python` on the PATH.
        path: The PATH.
    """
    interpreter = shutil.which(python or "python", path=path)
    if interpreter is None:
        return ""
    for place in _places(Path(interpreter).parent.parent):
        for about in place.glob("keras-*.dist-info"):
            return about.name.removeprefix("keras-").removesuffix(".dist-info")
    return ""


def _places(prefix: Path) -> Iterator[Path]:
    """The folders where a Python installed there looks for packages."""
    for site in prefix.glob("lib/python3*/*-packages"):
        yield site
        for pointer in site.glob("*.pth"):
            lines = pointer.read_text(errors="replace").splitlines()
            yield from (Path(line) for line in lines if line.startswith("/"))
