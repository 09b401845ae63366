"""The part of a machine that each user gets."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from headgate.arbiter.cores import CoreClaim, divide, weights
from headgate.arbiter.holdings import Holding
from headgate.arbiter.records import Hub, UserPart
from headgate.model.cluster import Node
from headgate.model.sharing import UserShare


def user_parts(
    node: Node,
    shares: Mapping[str, UserShare],
    wanted: Mapping[Hub, float],
    held: Mapping[str, Holding],
) -> dict[str, UserPart]:
    """Divide a machine between users.

    Args:
        node: The machine.
        shares: What each user may have.
        wanted: Cores that the jobs of each hub can put to good use.
        held: What users hold.
    """
    hubs = defaultdict[str, dict[str, float]](dict)
    for hub, most in wanted.items():
        hubs[hub.user][hub.name] = most
    claims = {user: _claim(share, sum(hubs[user].values())) for user, share in shares.items()}
    by_user = weights(node.cores, {user: claims[user] for user in claims if user in held})
    granted = sum(have.memory_bytes for have in held.values())
    parts = {}
    for user, cores in divide(node.cores, claims).items():
        share, memory = shares[user], held.get(user, Holding()).memory_bytes
        largest = share.largest
        most = max(node.memory_bytes - granted + memory, 0)
        if largest.memory_bytes is not None:  # a new limit takes nothing from running jobs
            most = min(most, max(largest.memory_bytes, memory))
        parts[user] = UserPart(
            user,
            cores,
            by_user.get(user, 0.0),
            largest.cores,
            memory,
            most,
            share.processes,
            _between_hubs(cores, hubs[user]),
        )
    return parts


def _between_hubs(cores: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """The cores of each hub of a user, where there are several."""
    if len(wanted) < 2:
        return {}
    return divide(cores, {name: CoreClaim(wanted=most) for name, most in wanted.items()})


def _claim(share: UserShare, wanted: float) -> CoreClaim:
    largest = share.largest.cores
    return CoreClaim(
        share.shares,
        share.guaranteed.cores or 0.0,
        math.inf if largest is None else largest,
        wanted,
    )
