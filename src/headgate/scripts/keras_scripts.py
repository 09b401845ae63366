"""What a script that uses headgate.keras tells of itself before it is started: what computes, and
whether it calls `fit` of Keras 3.
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
"""Arguments that `fit` of Keras has, and of scikit-learn has not."""
_OWN_LOOP = frozenset(
    {"experimental_distribute_dataset", "distribute_datasets_from_function", "schedule"}
)
"""What a loop over several replicas has; a script with one may not call its `fit`."""


def backend(text: bytes, own: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The back end of Keras in a script: `tensorflow`, `jax`, `torch`, or `legacy` (over
    TensorFlow, as before version 3). Empty where the script may choose it in a way that is not
    plain to see.

    Args:
        text: Of the script.
        own: The variables that the script sets itself.
        environment: What else it has.
    """
    if any(name.encode() in text and name not in own for name in _SETTLING):
        return ""
    settled = {**environment, **own}
    if settled.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") or b"tf_keras" in text:
        return "legacy"
    return settled.get("KERAS_BACKEND") or _configured(settled)


def _configured(environment: Mapping[str, str]) -> str:
    """What Keras' file of settings says."""
    folder = environment.get("KERAS_HOME") or Path(environment.get("HOME", ""), ".keras")
    try:
        return str(json.loads(Path(folder, "keras.json").read_text())["backend"])
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow"


def fits(nodes: Iterable[ast.AST]) -> bool:
    """Whether a script trains by `fit` of a Keras model, and not by a loop of its own.

    Args:
        nodes: All of its syntax tree.
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
    """What a script itself writes into its environment, where that is a plain text."""
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
    """Version of the Keras that an interpreter finds; empty where that cannot be told without
    starting it.

    Args:
        python: As a job names it; None: the first `python` on the PATH.
        path: That PATH.
    """
    interpreter = shutil.which(python or "python", path=path)
    if interpreter is None:
        return ""
    for place in _places(Path(interpreter).parent.parent):
        for about in place.glob("keras-*.dist-info"):
            return about.name.removeprefix("keras-").removesuffix(".dist-info")
    return ""


def _places(prefix: Path) -> Iterator[Path]:
    """Where a Python that is installed there looks for packages."""
    for site in prefix.glob("lib/python3*/*-packages"):
        yield site
        for pointer in site.glob("*.pth"):
            lines = pointer.read_text(errors="replace").splitlines()
            yield from (Path(line) for line in lines if line.startswith("/"))
