"""What is installed for an interpreter: listed once, as long as nothing changes where it looks for packages."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

_SECONDS = 60.0
_KEPT = 20
_LISTS = """
import importlib.metadata, json, os, site, sys
os.nice(19)
found = list(importlib.metadata.distributions())
looked_at = [sys.executable, site.getusersitepackages(), *filter(None, sys.path)]
looked_at += [str(each._path) for each in found if getattr(each, "_path", None) is not None]
changed = {path: os.stat(path).st_mtime_ns if os.path.exists(path) else None for path in looked_at}
packages = sorted({"%s==%s" % (about["Name"], about["Version"]) for about in (each.metadata for each in found)})
print(json.dumps({"changed": changed, "packages": packages}))
"""


def packages(python: str, cache: Path) -> list[str] | None:
    """Names and versions, as `name==version`; None where the interpreter cannot be asked.

    To ask it takes some tenths of a second of CPU time, in a process of its own.

    Args:
        python: The interpreter.
        cache: A JSON file of what interpreters answered before.
    """
    key = f"{python}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    known = _read(cache)
    with suppress(KeyError, TypeError, AttributeError):  # what it was is no answer
        if _is_unchanged(known[key]["changed"]):
            return list(known[key]["packages"])
    try:
        asked = [python, "-c", _LISTS]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
        found: dict[str, Any] = json.loads(answer)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    known.pop(key, None)
    known[key] = found
    fresh = cache.with_name(f"{cache.name}.{os.getpid()}")
    try:
        fresh.write_text(json.dumps(dict(list(known.items())[-_KEPT:])))
        fresh.replace(cache)
    except OSError:
        fresh.unlink(missing_ok=True)  # it is asked again
    return list(found["packages"])


def _read(cache: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(cache.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _is_unchanged(before: dict[str, int | None]) -> bool:
    return all(_changed(path) == changed for path, changed in before.items())


def _changed(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
