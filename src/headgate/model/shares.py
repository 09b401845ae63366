"""What a task is granted now."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import TypeVar

Name = TypeVar("Name", bound=str)


class Unlimited(Enum):
    UNLIMITED = "unlimited"

    def __repr__(self) -> str:
        return "UNLIMITED"


UNLIMITED = Unlimited.UNLIMITED
"""In a `Share`: lift the limit, where None leaves it as it is."""

WEIGHT_DEFAULT = 100.0
"""CPU weight of a task that nothing was said about; on the scale of cgroup v2 (1 to 10,000)."""
_LITTLE = 0.25
"""Of a core, that no thread is started for."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a task is granted, or a change to it: None leaves a field as it is, `UNLIMITED` lifts
    it.

    Args:
        cpu_weight: Share of the contended CPU relative to other tasks, 1 to 10,000, 100 by default.
        cpu_cap_cores: Most cores that the task may use, fractions allowed, contended or not.
        memory_bytes: Most resident memory; past it the task is killed.
        disk_bytes_per_second: Most bytes a second read, and as many written.
        gpu_fraction: Fraction of time on its GPU, 0 to 1.
    """

    cpu_weight: float | None = None
    cpu_cap_cores: float | Unlimited | None = None
    memory_bytes: int | Unlimited | None = None
    disk_bytes_per_second: float | Unlimited | None = None
    gpu_fraction: float | Unlimited | None = None

    def __post_init__(self) -> None:
        for name in FIELDS:
            value = getattr(self, name)
            if value is None or isinstance(value, Unlimited):
                continue
            if not value > 0:
                raise ValueError(
                    f"Share.{name} is {value!r}; expected a positive number, None or UNLIMITED"
                )
        if self.cpu_weight is not None and not 1 <= self.cpu_weight <= 10_000:
            raise ValueError(f"Share.cpu_weight is {self.cpu_weight!r}; expected 1 to 10,000")
        if isinstance(self.gpu_fraction, int | float) and self.gpu_fraction > 1:
            raise ValueError(f"Share.gpu_fraction is {self.gpu_fraction!r}; expected at most 1")

    def merged(self, change: Share) -> Share:
        """This share after `change`: fields that `change` leaves as None are kept."""
        if change is NOTHING:
            return self
        given = {name: value for name in FIELDS if (value := getattr(change, name)) is not None}
        return replace(self, **given) if given else self


class Lever(StrEnum):
    """What of a task can be controlled; the value is what people call it."""

    CPU_WEIGHT = "CPU weight"
    CPU_CAP = "CPU cap"
    CPU_PRIORITY = "CPU priority"
    CPU_SET = "CPU set"
    MEMORY = "memory limit"
    DISK_RATE = "disk rate"
    BUFFERED_WRITES = "disk rate of writes through the page cache"
    GPU_FRACTION = "GPU fraction"
    ENDING = "ending a task"
    CONTAINERS = "containers"
    GUESTS = "guests"


@dataclass(frozen=True, slots=True)
class Uncontrolled:
    """What cannot be controlled, or only approximately.

    Args:
        lever: What it is.
        reason: What stands in for it, why, and what to do; for people.
        value: The value that was asked for, in words; empty: it holds for any.
        scope: Of what alone it cannot be controlled, in words; empty: of every task.
    """

    lever: Lever
    reason: str
    value: str = ""
    scope: str = ""

    def __str__(self) -> str:
        return f"{' '.join(filter(None, (self.lever, self.value, self.scope)))}: {self.reason}"


FIELDS = ("cpu_weight", "cpu_cap_cores", "memory_bytes", "disk_bytes_per_second", "gpu_fraction")
"""Names of what a `Share` grants."""

NOTHING = Share()
"""No change."""


def fill(cores: float, claims: Mapping[Name, tuple[float, float]]) -> dict[Name, float]:
    """Divide cores by weight within caps; what a cap leaves goes to the others (max-min fairness by
    water-filling).

    Args:
        cores: Cores to divide.
        claims: Weight and cap in cores of each claimant.
    """
    result: dict[Name, float] = {}
    left = dict(claims)
    while left:
        total = sum(weight for weight, _ in left.values())
        full = {id: cap for id, (weight, cap) in left.items() if cap <= cores * weight / total}
        if not full:
            return result | {id: cores * weight / total for id, (weight, _) in left.items()}
        result |= full
        cores = max(cores - sum(full.values()), 0.0)
        left = {id: claim for id, claim in left.items() if id not in full}
    return result


def entitled(cores: float, shares: Mapping[Name, Share]) -> dict[Name, float]:
    """Cores that each task of a node gets when everybody wants all they may have: by weight, within
    the caps.

    One whose share has no weight is said to have all it may, as the system's own sharing lets it
    try.

    Args:
        cores: Cores of the node.
        shares: Share of each of its tasks.
    """
    caps = _caps(cores, shares)
    weights = {
        task: share.cpu_weight for task, share in shares.items() if share.cpu_weight is not None
    }
    return caps | fill(cores, {task: (weight, caps[task]) for task, weight in weights.items()})


def threads(
    cores: float, shares: Mapping[Name, Share], entitled: Mapping[Name, float]
) -> dict[Name, int]:
    """Compute threads of each task of a node, at least one.

    Who may have all that its cap or its node allows has as many threads as that is cores, rounded
    up but for a little. Where tasks share by weight a thread has a core of its own: one that shares
    its core holds up those that wait for it at the end of every operation, the longer the more
    there are, until two are slower than one. So each has as many as whole cores, or one more where
    hardly any of the last core is missing (`spare`), and of the cores that are over then those have
    one more each who lack least of it.

    Args:
        cores: Cores of the node.
        shares: Share of each of its tasks.
        entitled: Cores that each is entitled to.
    """
    caps = _caps(cores, shares)
    count, lacking = {}, {}
    for task, mine in entitled.items():
        if mine >= caps[task] * (1.0 - 1e-9):
            count[task] = max(math.ceil(mine - _LITTLE), 1)
            continue
        whole = math.floor(mine + 1e-9)
        count[task] = max(whole + (mine + spare(whole + 1) >= whole + 1), 1)
        if count[task] < min(mine, caps[task] - _LITTLE):
            lacking[task] = count[task] + 1 - mine
    over = math.floor(cores - sum(min(count[task], caps[task]) for task in count) + 1e-9)
    for task in sorted(lacking, key=lambda task: lacking[task])[: max(over, 0)]:
        count[task] += 1
    return count


def spare(threads: int) -> float:
    """The part of a core that so many threads may lack: with n threads and all but a part m of n
    cores a job is as fast as its slowest thread, n (1 - m), so that m may be 1 / n at most before
    one less is as fast; half of that, because the last one brings the least.
    """
    return 0.5 / threads


def _caps(cores: float, shares: Mapping[Name, Share]) -> dict[Name, float]:
    """The most cores that each task of a node may use."""
    caps = {task: share.cpu_cap_cores for task, share in shares.items()}
    return {
        task: min(cap, cores) if isinstance(cap, int | float) else cores
        for task, cap in caps.items()
    }


_FRACTION = re.compile(r"([1-9]\d{0,5})/([1-9]\d{0,5})")
FRACTIONS = "a fraction of the machine, above 0 and at most 1, such as 1/3"
"""What a job's `share` may be."""


def is_fraction(text: str) -> bool:
    """Whether a text is a fraction that a job can be pinned to."""
    match = _FRACTION.fullmatch(text)
    return match is not None and int(match[1]) <= int(match[2])


def slice_of(share: str) -> float:
    """What such a text comes to: `1/3` is a third."""
    part, _, whole = share.partition("/")
    return int(part) / int(whole)
