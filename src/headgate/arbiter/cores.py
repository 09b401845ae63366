"""Divide the cores of a machine between its users."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headgate.model.shares import WEIGHT_DEFAULT, fill

_LEAST_WEIGHT, _MOST_WEIGHT = 1.0, 10_000.0


@dataclass(frozen=True, slots=True)
class CoreClaim:
    """What a user may have and wants.

    Args:
        shares: The user's shares.
        guaranteed: Cores that the user gets before others do, if wanted.
        largest: The most cores that the user may have.
        wanted: Cores that the user's jobs can put to good use.
    """

    shares: float = 1.0
    guaranteed: float = 0.0
    largest: float = math.inf
    wanted: float = math.inf


def divide(cores: float, claims: Mapping[str, CoreClaim]) -> dict[str, float]:
    """Divide cores by shares, each user's guaranteed part first (weighted max-min fairness).

    What a user does not want goes to the others. What nobody wants is divided too, for users to
    grow into. If all guaranteed parts exceed the machine, they shrink alike.

    Args:
        cores: Cores of the machine.
        claims: The claim of each user.

    Returns:
        The cores of each user; all cores, unless the largest parts leave some.
    """
    wanted = {user: min(claim.wanted, claim.largest, cores) for user, claim in claims.items()}
    parts = _above_guaranteed(cores, claims, wanted)
    spare = max(cores - sum(parts.values()), 0.0)
    more = fill(
        spare,
        {
            user: (claim.shares, max(claim.largest - parts[user], 0.0))
            for user, claim in claims.items()
        },
    )
    return {user: part + more[user] for user, part in parts.items()}


def weights(cores: float, claims: Mapping[str, CoreClaim]) -> dict[str, float]:
    """CPU weights of users such that each gets the divided cores when all want as many as they may
    have. The kernel gives to others what a user leaves.

    Args:
        cores: Cores of the machine.
        claims: The claim of each user with a running job; what it wants does not count.
    """
    parts = _above_guaranteed(
        cores, claims, {user: min(claim.largest, cores) for user, claim in claims.items()}
    )
    scale = WEIGHT_DEFAULT * len(parts) / cores
    return {
        user: min(max(scale * part, _LEAST_WEIGHT), _MOST_WEIGHT) for user, part in parts.items()
    }


def _above_guaranteed(
    cores: float, claims: Mapping[str, CoreClaim], most: Mapping[str, float]
) -> dict[str, float]:
    """Divide by shares within `most`; no user gets less than the guaranteed part of that."""
    least = {user: min(claim.guaranteed, most[user]) for user, claim in claims.items()}
    scale = min(cores / sum(least.values()), 1.0) if any(least.values()) else 1.0
    raised: dict[str, float] = {}
    while True:
        left = max(cores - sum(raised.values()), 0.0)
        parts = fill(
            left,
            {
                user: (claim.shares, most[user])
                for user, claim in claims.items()
                if user not in raised
            },
        )
        low = {user: scale * least[user] for user in parts if parts[user] < scale * least[user]}
        if not low:
            return {user: raised.get(user, parts.get(user, 0.0)) for user in claims}
        raised |= low
