"""Declarations of Headgate's own cluster engines, for commands and their help.

Each engine is a package of this folder with an `ENGINE`. Importing that package imports nothing
that the engine needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.engines.base import Engine, EngineSpec


@dataclass(frozen=True, slots=True)
class Option:
    """An option of an engine, on the command line and from Python.

    Args:
        name: A field of `EngineSpec`; with hyphens, the command-line option.
        help: Its help in a few words, without a full stop.
        metavar: Name of its value in help; empty: it is a flag.
        variable: Environment variable with a default value; empty: none.
    """

    name: str
    help: str
    metavar: str = ""
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Declaration:
    """An engine as commands know it.

    Args:
        name: Its name for `--engine`.
        make: Makes an engine, not yet open, from its `EngineSpec` and Headgate's folder, where it
            may keep what it learns about a cluster. Raises `MissingExtraError` if a package that it
            needs is not installed.
        options: Its options.
        example: Options of a command line that uses it, for help; empty: none.
        distribution: The distribution that it needs; empty: none.
        requirement: The same with versions, in pip's form.
    """

    name: str
    make: Callable[[EngineSpec, Path], Engine]
    options: tuple[Option, ...] = ()
    example: str = ""
    distribution: str = ""
    requirement: str = ""


@cache
def declared() -> Mapping[str, Declaration]:
    """Headgate's own engines of clusters, by name."""
    folder = str(Path(__file__).parent)
    packages = [
        import_module(f"headgate.engines.{module.name}")
        for module in iter_modules([folder])
        if module.ispkg
    ]
    engines: list[Declaration] = [
        package.ENGINE for package in packages if hasattr(package, "ENGINE")
    ]
    return {engine.name: engine for engine in engines}


def usual(engine: str, option: str) -> str:
    """The value of an engine's option in the environment; empty: none."""
    options = declared()[engine].options if engine in declared() else ()
    variables = [
        engine_option.variable
        for engine_option in options
        if engine_option.name == option and engine_option.variable
    ]
    return "".join(os.environ.get(variable, "") for variable in variables)


def takers(option: str) -> tuple[str, ...]:
    """Names of the engines that take an option."""
    return tuple(
        engine.name
        for engine in declared().values()
        if any(engine_option.name == option for engine_option in engine.options)
    )
