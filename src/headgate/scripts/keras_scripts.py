"""What a script that uses headgate.keras tells of itself before it is started: what computes, and
whether it calls `fit` of Keras 3.
"""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Iterator, Mapping
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


def backend(text: str, environment: Mapping[str, str]) -> str:
    """The back end of Keras in a script: `tensorflow`, `jax`, `torch`, or `legacy` (over
    TensorFlow, as before version 3). Empty where the script may choose it in a way that is not
    plain to see.
    """
    own = _settled(text)
    if any(name in text and name not in own for name in _SETTLING):
        return ""
    settled = {**environment, **own}
    if settled.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true") or "tf_keras" in text:
        return "legacy"
    return settled.get("KERAS_BACKEND") or _configured(settled)


def _configured(environment: Mapping[str, str]) -> str:
    """What Keras' file of settings says."""
    folder = environment.get("KERAS_HOME") or Path(environment.get("HOME", ""), ".keras")
    try:
        return str(json.loads(Path(folder, "keras.json").read_text())["backend"])
    except (OSError, ValueError, KeyError, TypeError):
        return "tensorflow"


def fits(text: str) -> bool:
    """Whether a script trains by `fit` of a Keras model, and not by a loop of its own."""
    tree = ast.parse(text)
    called = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    if any(call.func.attr in _OWN_LOOP for call in called if isinstance(call.func, ast.Attribute)):
        return False
    return any(
        call.func.attr == "fit" and _OF_FIT & {keyword.arg for keyword in call.keywords}
        for call in called
        if isinstance(call.func, ast.Attribute)
    )


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


def _settled(text: str) -> dict[str, str]:
    """What a script itself writes into its environment, where that is a plain text."""
    settings: dict[str, str] = {}
    for node in ast.walk(ast.parse(text)):
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
