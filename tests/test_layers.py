"""What is lower never imports what is higher, and the training side needs nothing but its
framework.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import headgate
from headgate.engines.engine_options import declared

PACKAGE = Path(headgate.__file__).parent

# From the top down: a room may import those below it.
LAYERS = (
    "__main__",
    "cli",
    "agents",
    "web",
    "testing",
    "studies",
    "client",
    "exports",
    "reports",
    "hub",
    "verification",
    "simulation",
    "lab",
    "arbiter",
    "controller",
    "policies",
    "planning",
    "profiling",
    "diagnosis",
    "forecast",
    "recorded",
    "engines",
    "config",
    "scripts",
    "isolation",
    "sampling",
    "output",
    "machine",
    "model",
)
RANK = {name: rank for rank, name in enumerate(reversed(LAYERS))}

# What runs in a user's process, and what it may import besides the standard library and itself.
OF_KERAS = {"keras", "tensorflow", "jax", "torch", "numpy", "ml_dtypes"}
TRAINING_SIDE = {
    "task": set(),
    "torch": {"torch", "zmq"},
    "keras": OF_KERAS,
    "jax": {"jax", "numpy", "orbax"},
    "workloads": {*OF_KERAS, "pyspark"},
}
BESIDE = {
    "keras": {"headgate.jax"},
    "workloads": {f"headgate.{side}" for side in ("torch", "keras", "jax")},
}
"""Where Keras computes over JAX, its workers are joined as those of a JAX script are. Workloads are
scripts.
"""
OTHERS_WITH_A_SLASH = {"model/shares.py", "lab/record.py"}
"""What these take apart is no identifier: the share `1/3`, and the place `LAB/NODE`."""
RECORDS = ("faults", "jobs", "progress", "proofs", "rows", "sampled", "steps", "usage")
"""Modules of `recorded` that diagnosis stands on."""
NEWER_THAN_3_9 = {"tomllib"}
NEWER_KEYWORDS = {"dataclass": {"slots", "kw_only"}, "field": {"kw_only"}, "zip": {"strict"}}

PROGRAMS = {"ssh"}
"""Engines with the name of a program that others may speak of."""

MODULES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    """The first part of a module's name below `headgate`; empty for the package itself."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py").removeprefix("__init__")


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Line and full name of everything that a module imports, lazily or not, imports by a constant
    name included.
    """
    return list(_imports(path))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            yield from (
                (node.lineno, str(name.value))
                for name in node.args[:1]
                if isinstance(name, ast.Constant)
            )


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def training_side() -> list[Path]:
    return [path for path in MODULES if room(path) in TRAINING_SIDE]


def test_every_module_has_its_place() -> None:
    rooms = {room(path) for path in MODULES} - TRAINING_SIDE.keys() - {""}
    assert rooms <= RANK.keys()


def test_what_stands_lower_never_imports_what_stands_higher() -> None:
    wrong = []
    for path in MODULES:
        here = room(path)
        for line, name in imports(path):
            parts = name.split(".")
            there = parts[1] if parts[0] == "headgate" and len(parts) > 1 else ""
            if here in RANK and there in RANK and RANK[there] > RANK[here]:
                wrong.append(f"{path.relative_to(PACKAGE)}:{line}: {here} imports {name}")
    assert wrong == []


def test_modules_import_each_other_in_no_circle() -> None:
    names = {
        path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in MODULES
    }
    modules = {name.removesuffix(".__init__"): path for path, name in names.items()}
    graph = {
        module: {name if name in modules else name.rpartition(".")[0] for _, name in imports(path)}
        & (modules.keys() - {module})
        for module, path in modules.items()
    }
    order = list(TopologicalSorter(graph).static_order())  # raises where there is none
    assert len(order) == len(modules)


def test_the_training_side_is_imported_by_nobody_else() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in MODULES
        if room(path) in RANK and room(path) != "testing"
        for line, name in imports(path)
        if name.startswith(tuple(f"headgate.{side}" for side in ("torch", "keras", "jax")))
    ]
    assert wrong == []


def test_the_training_side_needs_only_its_framework() -> None:
    wrong = []
    standard = sys.stdlib_module_names - NEWER_THAN_3_9
    for path in training_side():
        here = room(path)
        allowed = {
            "headgate.__version__",
            *(f"headgate.{side}" for side in ("task", here)),
            *BESIDE.get(here, ()),
        }
        for line, name in imports(path):
            top = name.split(".")[0]
            ours = top == "headgate" and (
                name in allowed or ".".join(name.split(".")[:2]) in allowed
            )
            if not (ours or top in standard or top in TRAINING_SIDE[here]):
                wrong.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert wrong == []


@pytest.mark.parametrize(
    "path",
    [*training_side(), PACKAGE / "__init__.py"],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_a_script_s_own_python_may_be_as_old_as_3_9(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    annotated = any(
        isinstance(node, ast.AnnAssign) or getattr(node, "returns", None) for node in ast.walk(tree)
    )
    assert not annotated or (0, "__future__.annotations") in {
        (0, name) for _, name in imports(path)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            newer = NEWER_KEYWORDS.get(_called(node), set()) & {
                keyword.arg for keyword in node.keywords
            }
            assert not newer, (
                f"{path}:{node.lineno}: {_called(node)}({newer.pop()}=) is newer than Python 3.9"
            )


@pytest.mark.parametrize(
    "name",
    [
        *(
            f"{room}/{p.name}"
            for room in ("controller", "diagnosis", "forecast")
            for p in (PACKAGE / room).glob("*.py")
        ),
        *(f"recorded/{name}.py" for name in RECORDS),
    ],
)
def test_the_core_has_no_clock_no_files_and_no_sockets(name: str) -> None:
    outside = {
        "asyncio",
        "io",
        "os",
        "pathlib",
        "select",
        "selectors",
        "socket",
        "sqlite3",
        "subprocess",
        "threading",
        "time",
    }
    assert outside.isdisjoint(imported.split(".")[0] for _, imported in imports(PACKAGE / name))


@pytest.mark.parametrize("name", declared())
def test_an_engine_of_a_cluster_is_named_in_its_own_package_alone(name: str) -> None:
    own = PACKAGE / "engines" / name
    others = [path for path in MODULES if own not in path.parents]
    as_engine = rf"engine `?{name}\b|engines[./]{name}\b|[\"']{name}[\"']"
    word = as_engine if name in PROGRAMS else rf"\b{name}\b"
    assert [path for path in others if re.search(word, path.read_text(), re.IGNORECASE)] == []


def test_a_hub_starts_without_what_takes_long_to_import() -> None:
    slow = {"numpy", "scipy", "pydantic", "rich", "torch", "docker", "ray"}
    code = f"import sys, headgate.hub.server; print(sorted({slow} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_identifiers_are_taken_apart_in_one_module() -> None:
    wrong = []
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        if room(path) in TRAINING_SIDE or name == "model/identifiers.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)
            ):
                continue
            match _called(node), node.args[0].value:
                case "split" | "rsplit" | "partition" | "rpartition", "/" if (
                    name not in OTHERS_WITH_A_SLASH
                ):
                    wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
                case (
                    "startswith" | "removeprefix" | "count" | "find",
                    "worker-" | "server-" | "worker" | "server",
                ):
                    wrong.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


@pytest.mark.parametrize("name", headgate.__all__)
def test_every_exported_name_resolves(name: str) -> None:
    assert getattr(headgate, name) is not None


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'headgate' has no attribute 'jbo'"):
        headgate.jbo  # noqa: B018
