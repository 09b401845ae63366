"""What users have had of a machine, where the past counts less the longer ago it is."""

from __future__ import annotations

from collections.abc import Mapping

_NOTHING = 1e-6
"""Past use below this fraction of the machine is forgotten."""


class PastUse:
    """The mean part of the machine that each user had: exponentially weighted, with a half-life.

    Source: fair share of Slurm, by the same decay; the part is that of the user's dominant resource
    (Ghodsi et al., NSDI 2011).

    Args:
        half_life: Seconds after which use counts half.
    """

    def __init__(self, half_life: float) -> None:
        self.half_life = half_life
        self._means: dict[str, tuple[float, float]] = {}  # until when, and the mean then
        self._parts: dict[str, float] = {}

    def hold(self, now: float, user: str, part: float) -> None:
        """A user has this part of the machine from now on, 0 to 1."""
        mean = self.mean(now, user)
        self._parts[user] = part
        self._means[user] = now, mean
        if part <= 0.0 and mean < _NOTHING:
            del self._means[user], self._parts[user]

    def mean(self, now: float, user: str) -> float:
        """The mean part of a user until now, 0 to 1."""
        if user not in self._means:
            return 0.0
        then, mean = self._means[user]
        part = self._parts[user]
        return float(part + (mean - part) * 0.5 ** (max(now - then, 0.0) / self.half_life))

    def means(self, now: float) -> dict[str, float]:
        """The mean part of each user until now, to keep across a restart."""
        return {user: self.mean(now, user) for user in self._means}

    def restore(self, now: float, means: Mapping[str, float]) -> None:
        """Go on from kept means; nobody has a part yet."""
        self._means = {user: (now, mean) for user, mean in means.items()}
        self._parts = dict.fromkeys(means, 0.0)
