"""Jobs that come after others."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def cycle(start: str, forerunners: Mapping[str, Collection[str]]) -> list[str] | None:
    """A chain of jobs that come after each other, from one back to itself; None: there is none.

    Args:
        start: The job.
        forerunners: Names of the jobs that each job comes after.
    """
    came_from = dict[str, str]()
    names = [start]
    while names:
        name = names.pop()
        for first in forerunners.get(name, ()):
            if first == start:
                chain = [start]
                while name != start:
                    chain.append(name)
                    name = came_from[name]
                return [start, *reversed(chain)]
            if first not in came_from:
                came_from[first] = name
                names.append(first)
    return None
