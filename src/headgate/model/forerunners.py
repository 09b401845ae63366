"""Dependencies between jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def cycle(start: str, forerunners: Mapping[str, Collection[str]]) -> list[str] | None:
    """A cycle of jobs that wait for each other, from one job back to itself; None: there is none.

    Args:
        start: Job to start at.
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
