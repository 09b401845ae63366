"""Finds places where a script multiplies something, such as its batch size, by the number of
workers.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Container, Iterator
from itertools import islice
from typing import NamedTuple

from headgate.task.channel import Channel

_COUNTS = frozenset({"num_replicas_in_sync", "num_replicas"})
"""Attributes that hold the number of workers or devices that train together."""
_COUNTING = frozenset({"device_count", "process_count", "get_world_size", "world_size"})
"""Functions of JAX and PyTorch that return it."""
_MOST_FILES = 50
_MOST_TOLD = 3


class Growth(NamedTuple):
    """An expression that grows with the number of workers."""

    file: str
    line: int
    text: str


def growing(text: str, file: str) -> Iterator[Growth]:
    """The products in a script with the number of workers as a factor, given directly or by a
    variable.

    Raises:
        SyntaxError: The text is no Python.
    """
    tree = ast.parse(text)
    names = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_worker_count(node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            factors = [node.left, node.right]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult):
            factors = [node.value]
        else:
            continue
        if any(_is_worker_count(factor, names) for factor in factors):
            yield Growth(
                file, node.lineno, " ".join((ast.get_source_segment(text, node) or "").split())
            )


def warn(channel: Channel, workers: int) -> None:
    """Warn the user of products with the number of workers, in the script or in modules imported
    from its folder.
    """
    for growth in islice(_products(), _MOST_TOLD):
        text = (
            f"{growth.file}, line {growth.line}: {growth.text} is {workers} times what it is in "
            "one task; Headgate divides a batch among the workers, so leave the factor out, unless "
            "training is to change with their number"
        )
        channel.send({"type": "note", "warns": True, "text": text})


def _products() -> Iterator[Growth]:
    """The products in the script and in modules imported from its folder."""
    script = os.path.abspath(getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0])
    folder = os.path.join(os.path.dirname(script), "")
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    beside = [
        file
        for file in files
        if file and file.startswith(folder) and "-packages" not in file[len(folder) :]
    ]
    for file in dict.fromkeys([script, *beside[:_MOST_FILES]]):
        try:
            with open(file, encoding="utf-8") as source:
                text = source.read()
            yield from growing(text, os.path.relpath(file, folder))
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue


def _is_worker_count(node: ast.expr, names: Container[str]) -> bool:
    """Whether an expression is the number of workers or devices that train together."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return node.attr in _COUNTS
    if not isinstance(node, ast.Call):
        return False
    called = (
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    )
    if called in ("int", "len", "max") and node.args:
        return any(
            _is_worker_count(argument, names) or _is_devices(argument) for argument in node.args
        )
    return called in _COUNTING


def _is_devices(node: ast.expr) -> bool:
    """Whether an expression lists the devices that train together."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "devices"
    )
