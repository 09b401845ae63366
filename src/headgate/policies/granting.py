"""From the parts of the CPU that a policy wants jobs to have to the weights that are set: floors, few changes."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.events import JobId
from headgate.shares import WEIGHT_DEFAULT, Share

FLOOR = 0.05
"""Of an equal share, that every job is left unless its user says otherwise."""
MOST_CHANGES = 6
"""Of a job's share in a minute."""

KEPT = 1
"""Of a minute's changes, kept for lifting a job to its floor,"""
_KEPT_FOR_LARGE = 2
"""and so many more for changes by at least this part of all weights: who changes places far behind the first has little
of it, and must not be left there for it when his turn comes."""
_LARGE = 0.2
_SLIGHT = 0.05
"""A weight that would change by no more than this part stays,"""
_TINY = 0.02
"""and so does one that would change by no more than this part of all weights: a job has few changes, none to waste."""
_MINUTE = 60.0
_LEAST, _MOST = 1.0, 10_000.0
_FIGURES = re.compile(r"(?<=.)\b\d[\d.e+-]*")


class Changes:
    """When a job's share was changed of late.

    Args:
        most: Of them in a minute; infinity: any number.
    """

    __slots__ = ("_at",)

    def __init__(self, most: float = MOST_CHANGES) -> None:
        self._at: deque[float] = deque(maxlen=int(most) if most < math.inf else 0)

    def note(self, now: float) -> None:
        """It changes (s)."""
        self._at.append(now)

    def free_at(self, most: float) -> float:
        """From when on a change would be at most the `most`-th of a minute (s)."""
        return self._at[-int(most)] + _MINUTE if len(self._at) >= most else 0.0


@dataclass(slots=True)
class _Held:
    """A job's weight; None until it is granted one. `why` is the reason that was told last, at `told`."""

    weight: float | None = None
    why: str = ""
    told: float = 0.0
    changes: Changes = field(default_factory=Changes)


class Grants:
    """The weights that jobs have, and what is changed of them.

    Weights count only relative to each other, so they are kept on the scale on which most stay as they are.

    Args:
        floor: Least part of an equal share that a job is left.
    """

    def __init__(self, floor: float = FLOOR) -> None:
        self._floor = floor
        self._held: dict[JobId, _Held] = {}

    def arrive(self, job: JobId) -> None:
        """A job starts, and has no weight yet."""
        self._held[job] = _Held()

    def leave(self, job: JobId) -> None:
        """A job has ended."""
        self._held.pop(job, None)

    def change(self, now: float, job: JobId) -> bool:
        """Whether something else of a job's share may change now, and count it where it may."""
        free = self._held[job].changes.free_at(MOST_CHANGES - KEPT) <= now
        if free:
            self._held[job].changes.note(now)
        return free

    def settle(
        self, now: float, wanted: Mapping[JobId, tuple[float, str]]
    ) -> tuple[dict[JobId, tuple[Share, str]], float | None]:
        """What changes.

        Args:
            now: Seconds.
            wanted: Of every job that is present what it should have of the CPU, on any scale, and why.

        Returns:
            New shares with their reasons, and when to settle again because a change has to wait; None: none has.
        """
        if not wanted:
            return {}, None
        parts = self._floored({job: part for job, (part, _) in wanted.items()})
        scale = self._scale(parts)
        changes: dict[JobId, float] = {}
        waits: list[float] = []
        for job, part in parts.items():
            held, target = self._held[job], round(min(max(scale * part, _LEAST), _MOST), 3)
            if held.weight is None:
                changes[job] = target
            elif abs(target - held.weight) > max(_SLIGHT * held.weight, _TINY * scale):
                large = abs(target - held.weight) >= _LARGE * scale
                free = held.changes.free_at(MOST_CHANGES - KEPT - (0 if large else _KEPT_FOR_LARGE))
                if free <= now:
                    changes[job] = target
                else:
                    waits.append(free)
        lifted = self._lift(now, changes)
        for job, weight in changes.items():
            self._held[job].weight = weight
            self._held[job].changes.note(now)
        reasons = {job: "lifted to its floor" if job in lifted else wanted[job][1] for job in changes}
        for job, reason in reasons.items():
            self._held[job].why, self._held[job].told = reason, now
        return {job: (Share(cpu_weight=weight), reasons[job]) for job, weight in changes.items()}, min(
            waits, default=None
        )

    def reasons(self, now: float, wanted: Mapping[JobId, tuple[float, str]]) -> dict[JobId, str]:
        """Why jobs whose share stays have it, where that is another reason than was told last; other figures alone are
        news once a minute."""
        news = {}
        for job, (_, why) in wanted.items():
            held = self._held[job]
            if why != held.why and (now - held.told >= _MINUTE or _kind(why) != _kind(held.why)):
                held.why, held.told = why, now
                news[job] = why
        return news

    def _floored(self, parts: Mapping[JobId, float]) -> dict[JobId, float]:
        """Parts that add up to 1, none below its floor: a little more, so that what stays slightly off stays above."""
        least = min(self._floor * (1.0 + 3.0 * _SLIGHT), 1.0) / len(parts)
        above = {job: max(part, 0.0) for job, part in parts.items()}
        result = dict.fromkeys(parts, least)
        while above:
            left, total = 1.0 - least * (len(parts) - len(above)), sum(above.values())
            if total <= 0.0:
                return result | dict.fromkeys(above, left / len(above))
            below = [job for job, part in above.items() if part * left < least * total]
            if not below:
                return result | {job: part * left / total for job, part in above.items()}
            for job in below:
                del above[job]
        return result

    def _scale(self, parts: Mapping[JobId, float]) -> float:
        known = ((self._held[job].weight, part) for job, part in parts.items())
        scales = sorted(weight / part for weight, part in known if weight is not None)
        scale = scales[len(scales) // 2] if scales else WEIGHT_DEFAULT * len(parts)
        return min(max(scale, _LEAST / min(parts.values())), _MOST / max(parts.values()))

    def _lift(self, now: float, changes: dict[JobId, float]) -> set[JobId]:
        """Lift who would be left below its floor because others may not be changed yet; far enough for a while."""
        lifted: set[JobId] = set()
        weights = {job: changes.get(job) or held.weight or _LEAST for job, held in self._held.items()}
        least = self._floor / len(weights)
        for _ in weights:
            total = sum(weights.values())
            low = [job for job, weight in weights.items() if weight < least * total * (1.0 - 1e-9)]
            low = [job for job in low if job in changes or self._held[job].changes.free_at(MOST_CHANGES) <= now]
            low = [job for job in low if job not in lifted]
            if not low:
                break
            for job in low:
                weights[job] = changes[job] = round(min(max(4.0 * least * total, _LEAST), _MOST), 3)
            lifted.update(low)
        return lifted


def _kind(reason: str) -> str:
    """A reason but for its figures; a number that it begins with is a rank, and counts."""
    return _FIGURES.sub("#", reason)
