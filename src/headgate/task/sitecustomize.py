"""Python imports this by itself as it starts, where its folder is the first on the path:
`engines.launch` has the script of a task observed so. The module of this name that it stands in
front of is run as well.
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
