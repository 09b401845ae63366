"""What is too much for one expression is written out: conditional expressions within others, and
comprehensions over more than two levels.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import headgate

PACKAGE = Path(headgate.__file__).parent
MOST_LEVELS = 2
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


def levels(node: ast.AST) -> int:
    """How many loops are within each other in an expression, at the deepest."""
    own = len(node.generators) if isinstance(node, Comprehension) else 0
    return own + max(map(levels, ast.iter_child_nodes(node)), default=0)


def nested(source: str) -> Iterator[int]:
    """The lines of expressions that are too much for one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Comprehension) and levels(node) > MOST_LEVELS:
            yield node.lineno
        elif isinstance(node, ast.IfExp):
            inside = [inner for inner in ast.walk(node) if inner is not node]
            if any(isinstance(inner, ast.IfExp) for inner in inside):
                yield node.lineno


def test_what_is_too_much_for_one_expression_is_written_out() -> None:
    places = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in nested(path.read_text())
    ]
    assert places == []


def test_such_expressions_are_seen() -> None:
    assert [*nested("a if b else c if d else e")] == [1]
    assert [*nested("x = [[c for c in b] for b in a for d in b]")] == [1]
    assert [*nested("x = [c for b in a for c in b]\ny = a if b else c")] == []
