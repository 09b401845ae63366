"""One name, one thing: no two classes of the package are called the same, with the exceptions that
are listed. A docstring describes the arguments that there are.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import headgate

PACKAGE = Path(headgate.__file__).parent

FRAMEWORKS = {"torch", "keras", "jax"}
OF_EACH_FRAMEWORK = {"Costs", "Session", "TrainingState"}
"""The same thing for PyTorch, Keras and JAX; a script has one of them."""
OF_SAMPLERS = {"_Node", "_Processes"}
"""What a sampler reads of a node, and of the processes of a task; each in the module of its
sampler.
"""
OF_METERS = {"Step": {"task/step_timing.py", "torch/meter.py"}}
"""A measured step: for PyTorch with forward, backward and exchange, for the others without."""


def classes() -> dict[str, list[str]]:
    """The modules that define a class of each name, by that name; a name defined twice in a module
    has it twice.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(PACKAGE).as_posix())
    return found


def is_allowed(name: str, modules: list[str]) -> bool:
    """Whether classes of a name in several modules are one of the exceptions."""
    folders = [module.partition("/")[0] for module in modules]
    if name in OF_EACH_FRAMEWORK:
        return set(folders) <= FRAMEWORKS and len(set(folders)) == len(folders)
    if name in OF_SAMPLERS:
        return set(folders) == {"sampling"} and len(set(modules)) == len(modules)
    return set(modules) == OF_METERS.get(name) and len(set(modules)) == len(modules)


def test_no_two_classes_are_called_the_same() -> None:
    several = {name: modules for name, modules in classes().items() if len(modules) > 1}
    assert not {name: modules for name, modules in several.items() if not is_allowed(name, modules)}
    exceptions = OF_EACH_FRAMEWORK | OF_SAMPLERS | set(OF_METERS)
    assert exceptions <= several.keys(), (
        "an exception for a name that is unique is left out of the list"
    )


def described(node: ast.FunctionDef | ast.ClassDef) -> list[str]:
    """What stands for names below `Args:` in a docstring."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", ast.get_docstring(node) or "", re.MULTILINE)
    return re.findall(r"^    \*{0,2}([^\s:][^:\n]*)", section[1], re.MULTILINE) if section else []


def parameters(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Names of what a function takes, or a class by its fields or its constructor."""
    if isinstance(node, ast.FunctionDef):
        return {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
    fields = {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
    makers = (part for part in node.body if isinstance(part, ast.FunctionDef))
    return fields.union(
        *(parameters(maker) for maker in makers if maker.name in ("__init__", "__new__"))
    )


def undescribed(source: str) -> Iterator[str]:
    """Arguments that docstrings describe and nothing takes; inherited constructors are not seen."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (taken := parameters(node)):
            yield from (f"{node.name}: {name}" for name in described(node) if name not in taken)


def test_docstrings_describe_the_arguments_that_there_are() -> None:
    wrong = {path: list(undescribed(path.read_text())) for path in PACKAGE.rglob("*.py")}
    assert not {str(path): names for path, names in wrong.items() if names}


def test_an_argument_that_was_renamed_is_seen() -> None:
    source = 'def f(a):\n    """Say it.\n\n    Args:\n        b: It.\n    """'
    assert list(undescribed(source)) == ["f: b"]
    source = source.replace("b: It.", "As of `g`.")
    assert list(undescribed(source)) == ["f: As of `g`."]
