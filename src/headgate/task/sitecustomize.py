"""Starts the observation of a script. Python imports this module at its start, because
`engines.launch` puts its folder first on the path. It also runs the module of the same name that it
hides.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


def _run_next() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec(
        "sitecustomize", [path for path in sys.path if os.path.abspath(path) != folder]
    )
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    try:
        from headgate.task.observing import install

        install()
    finally:
        _run_next()
