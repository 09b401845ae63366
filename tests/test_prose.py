"""No code reads text that was made for people: what one part tells another is a value."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate

PACKAGE = Path(headgate.__file__).parent

FOR_PEOPLE = {
    *("advice", "answer", "caution", "complaint", "detail", "doubt", "failure", "hint"),
    *("message", "note", "notes", "problem", "reason", "sentence", "skipped", "text", "verdict"),
    *("warning", "warnings", "words"),
}
"""Names of attributes, variables and functions that hold or make text for people."""
MEANS_MUCH = {"answer", "failure", "message", "notes", "text", "words"}
"""Of these a variable is as often what a person, a file or a script wrote: they count as attributes
alone.
"""
READS = {
    *("endswith", "find", "index", "partition", "removeprefix", "removesuffix", "rfind", "rindex"),
    *("rpartition", "rsplit", "split", "startswith"),
}
SEARCHES = {"findall", "finditer", "fullmatch", "match", "search", "sub"}
LEFT_OUT = ("output/", "task/", "torch/", "keras/", "jax/", "workloads/", "testing/")
"""Rooms that read what scripts print, that run in a user's process, or that hold words to what
contracts say.
"""
EXCEPTIONS = {
    ("controller/out_of_gpu_memory.py", "_ASKED"): "what PyTorch or JAX says that it asked for",
    ("hub/parts/listener.py", "_NO_INPUT"): "the last line that a script printed",
    ("hub/state/attempt.py", "_OF_ONE_FILE"): "the last line that a script printed",
    ("hub/state/attempt.py", "_MAY_BE_OF_ONE_FILE"): "the last line that a script printed",
    ("engines/ray/jobs_api.py", "_NO_AGENT"): "an answer of Ray, which has no code for it",
    ("isolation/container/daemon.py", "already in progress"): "an answer of Docker Engine",
    ("isolation/process.py", "launch.task"): "an error names its task once",
    ("recorded/faults.py", "last.text"): "the same line is shown once",
    ("scripts/arguments.py", "option.text"): "an argument, as its user wrote it",
}
"""Module and a part of the expression, and what is read there: mostly words of other programs."""


def readings(source: str) -> Iterator[tuple[int, str]]:
    """Line and expression of each place that takes apart, searches or compares such text."""
    tree = ast.parse(source)
    errors = {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and any(
            _is_for_people(value, errors) for value in _read(node)
        ):
            yield node.lineno, ast.unparse(node)


def _read(node: ast.expr) -> list[ast.expr]:
    """The expressions that a call or a comparison looks into."""
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Attribute):
            return []
        if node.func.attr in READS:
            return [node.func.value]
        return list(node.args) if node.func.attr in SEARCHES else []
    if not isinstance(node, ast.Compare):
        return []
    sides = [node.left, *node.comparators]
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        return sides[1:]
    texts = [side.value for side in sides if isinstance(side, ast.Constant)]
    is_compared = any(isinstance(text, str) and text for text in texts)
    return sides if isinstance(node.ops[0], ast.Eq | ast.NotEq) and is_compared else []


def _is_for_people(value: ast.expr, errors: set[str | None]) -> bool:
    match value:
        case ast.Attribute(attr=name):
            return name in FOR_PEOPLE
        case ast.Name(id=name):
            return name in FOR_PEOPLE - MEANS_MUCH
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name in FOR_PEOPLE
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in errors
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.endswith("in_words")
        case ast.BoolOp(values=values):
            return any(_is_for_people(inner, errors) for inner in values)
    return False


def places() -> Iterator[tuple[str, int, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        if not module.startswith(LEFT_OUT):
            yield from ((module, line, text) for line, text in readings(path.read_text()))


def test_text_for_people_decides_nothing() -> None:
    wrong = [
        f"{module}:{line}: {text}"
        for module, line, text in places()
        if not any(module == name and part in text for name, part in EXCEPTIONS)
    ]
    assert wrong == []


def test_each_exception_is_still_needed() -> None:
    known = list(places())
    unused = [
        (name, part)
        for name, part in EXCEPTIONS
        if not any(module == name and part in text for module, _, text in known)
    ]
    assert unused == []


@pytest.mark.parametrize(
    "planted",
    [
        'job.reason.startswith("for ")',
        'row["reason"].split(":")[0]',
        '"its memory limit" in in_words(exit)',
        '"its memory limit" in failure.in_words()',
        'phase.reason == "started"',
        'warning.text.partition("; ")',
        're.search("lost", fault.text)',
        '_NAMED.search(exit.reason or "")',
        'any("rules" in note for note in notes)',
        'line = job.detail.removeprefix("x")',
        "try:\n    f()\nexcept ValueError as error:\n    a = str(error).partition('; ')",
    ],
)
def test_a_planted_reading_is_seen(planted: str) -> None:
    assert list(readings(planted))


@pytest.mark.parametrize(
    "innocent",
    [
        'name.startswith("a")',
        "reason.kind == ReasonKind.STARTED",
        "a = reason != job.reason",
        'print(f"{job.reason}")',
        'text.split(",")',
        'a = row["reason"] is None',
        'a = job.reason == ""',
    ],
)
def test_other_uses_of_text_are_left_alone(innocent: str) -> None:
    assert not list(readings(innocent))
