"""Third-party engines, isolations, policies and samplers, found through entry points.

A package registers one in its `pyproject.toml`:

    [project.entry-points."headgate.samplers"]
    power = "my_package:PowerSampler"

Built-in ones need no entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from headgate.model.errors import UsageError

T = TypeVar("T")

GROUPS = ("headgate.engines", "headgate.isolations", "headgate.policies", "headgate.samplers")
"""Groups that are looked up."""


class Loaded(NamedTuple):
    """What was found under a group by name, and one line for each that could not be loaded."""

    found: Mapping[str, object]
    warnings: tuple[str, ...]


def load(group: str) -> Loaded:
    """Import everything registered under an entry-point group.

    A broken one is never fatal: whatever its import raises becomes a warning that names it, the
    package that brought it and the cause. Of two with one name the first is kept.
    """
    from importlib import metadata  # and with it what reads e-mail

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
            # Another's module may do anything at import, a sys.exit() included.
            warnings.append(f"plug-in {origin} is left out: {type(error).__name__}: {error}")
    return Loaded(loaded, tuple(warnings))


def make(
    group: str,
    kind: type[object],
    name: str,
    built_in: Collection[str],
    call: Callable[[Callable[..., T]], T],
) -> T:
    """What the plug-in of that name makes.

    Args:
        group: Entry-point group that it is registered under.
        kind: What it has to make.
        name: What is asked for, and is none of Headgate's own.
        built_in: Names of Headgate's own, for who looks for another.
        call: Has the plug-in make it.

    Raises:
        UsageError: There is none, or it makes something else; plug-ins that could not be loaded are
            named.
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
