"""Third-party engines, isolations, policies and samplers, loaded from entry points.

A package registers a class in its `pyproject.toml`:

    [project.entry-points."headgate.samplers"]
    power = "my_package:PowerSampler"

Built-in classes need no entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from headgate.model.errors import UsageError

T = TypeVar("T")

GROUPS = ("headgate.engines", "headgate.isolations", "headgate.policies", "headgate.samplers")
"""The supported entry-point groups."""


class Loaded(NamedTuple):
    """Plug-ins of a group by name, and a warning for each that could not be loaded."""

    found: Mapping[str, object]
    warnings: tuple[str, ...]


def load(group: str) -> Loaded:
    """Import all plug-ins of an entry-point group.

    A broken plug-in is never fatal. Any exception of its import becomes a warning with its name,
    its package and the cause. Of two with the same name, the first is kept.
    """
    from importlib import metadata  # imported late: it pulls in the e-mail parser

    loaded: dict[str, object] = {}
    warnings: list[str] = []
    for entry in metadata.entry_points(group=group):
        origin = (
            f"{entry.name!r} of {entry.dist.name if entry.dist else 'an unknown package'} ({group})"
        )
        if entry.name in loaded:
            warnings.append(f"plug-in {origin} is left out: another one has the same name")
            continue
        try:
            loaded[entry.name] = entry.load()
        except (Exception, SystemExit) as error:  # noqa: BLE001
            # A third-party module may do anything at import, even call sys.exit().
            warnings.append(f"plug-in {origin} is left out: {type(error).__name__}: {error}")
    return Loaded(loaded, tuple(warnings))


def make(
    group: str,
    kind: type[object],
    name: str,
    built_in: Collection[str],
    call: Callable[[Callable[..., T]], T],
) -> T:
    """Make an object with the plug-in of this name.

    Args:
        group: Its entry-point group.
        kind: Type that it has to make.
        name: The requested name, not a built-in one.
        built_in: Built-in names, for the message.
        call: Calls the plug-in.

    Raises:
        UsageError: No such plug-in exists, or it makes another type. The message names plug-ins
            that could not be loaded.
    """
    loaded = load(group)
    factory: Any = loaded.found.get(name)
    if callable(factory):
        made = call(factory)
        if isinstance(made, kind):
            return made
    known = ", ".join(sorted({*built_in, *loaded.found}))
    problem = f"no {kind.__name__.lower()} {name!r}; expected one of {known}"
    raise UsageError("; ".join((problem, *loaded.warnings)))
