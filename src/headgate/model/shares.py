"""Resource shares of tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import TypeVar

from headgate.model.reasons import Reason, ReasonKind

Name = TypeVar("Name", bound=str)


class Unlimited(Enum):
    UNLIMITED = "unlimited"

    def __repr__(self) -> str:
        return "UNLIMITED"


UNLIMITED = Unlimited.UNLIMITED
"""In a `Share`: remove the limit. None leaves the limit as it is."""

WEIGHT_DEFAULT = 100.0
"""Default CPU weight of a task, on the scale of cgroup v2 (1 to 10,000)."""
_LITTLE = 0.25
"""Fraction of a core that is too small for a thread of its own."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a task is granted, or a change to that. None leaves a field as it is; `UNLIMITED`
    removes the limit.

    Args:
        cpu_weight: Weight for contended CPU relative to other tasks, 1 to 10,000; default 100.
        cpu_cap_cores: Most cores that the task may use, contended or not; fractions are allowed.
        memory_bytes: Most resident memory; beyond it the task is killed.
        disk_bytes_per_second: Most bytes read a second, and as many written.
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
        """This share after `change`: fields that are None in `change` are kept."""
        if change is NOTHING:
            return self
        given = {name: value for name in FIELDS if (value := getattr(change, name)) is not None}
        return replace(self, **given) if given else self


class Lever(StrEnum):
    """A resource of a task that can be controlled; the value is its name for people."""

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
    """A resource that cannot be controlled, or only approximately.

    Args:
        lever: The resource.
        reason: What is used instead, why, and what to do; for people.
        value: The requested value that cannot be set, in words; empty: any value.
        scope: The tasks that it concerns, in words; empty: all tasks.
    """

    lever: Lever
    reason: str
    value: str = ""
    scope: str = ""

    def warning(self) -> Reason:
        """The reason for a warning of it."""
        about = {"lever": str(self.lever), "value": self.value, "scope": self.scope}
        return Reason.of(ReasonKind.UNCONTROLLED, **about, text=self.reason)


FIELDS = ("cpu_weight", "cpu_cap_cores", "memory_bytes", "disk_bytes_per_second", "gpu_fraction")
"""Names of the fields of a `Share`."""

NOTHING = Share()
"""A share without any change."""


def fill(cores: float, claims: Mapping[Name, tuple[float, float]]) -> dict[Name, float]:
    """Divide cores by weight within caps; others get what a cap leaves (max-min fairness by
    water-filling).

    Args:
        cores: Cores to divide.
        claims: Weight and cap in cores of each claimant.

    Returns:
        The cores of each claimant.
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
    """Cores of each task of a node when all tasks want as many as they may have: by weight, within
    the caps.

    A task without a weight is entitled to all cores that it may use, as the kernel's scheduler lets
    it try.

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

    A task that may use all cores of its cap or node gets that many threads, rounded up unless the
    excess is small. Tasks that share by weight get one thread for each whole core: a thread that
    shares a core delays the others at the end of every operation. A task gets one more thread if
    its last core is nearly complete (`spare`). Cores left over then give one more thread each,
    first to tasks that lack the least.

    Args:
        cores: Cores of the node.
        shares: Share of each of its tasks.
        entitled: Cores that each task is entitled to.
    """
    caps = _caps(cores, shares)
    count, lacking = {}, {}
    for task, own_cores in entitled.items():
        if own_cores >= caps[task] * (1.0 - 1e-9):
            count[task] = max(math.ceil(own_cores - _LITTLE), 1)
            continue
        whole_cores = math.floor(own_cores + 1e-9)
        count[task] = max(whole_cores + (own_cores + spare(whole_cores + 1) >= whole_cores + 1), 1)
        if count[task] < min(own_cores, caps[task] - _LITTLE):
            lacking[task] = count[task] + 1 - own_cores
    over = math.floor(cores - sum(min(count[task], caps[task]) for task in count) + 1e-9)
    for task in sorted(lacking, key=lambda task: lacking[task])[: max(over, 0)]:
        count[task] += 1
    return count


def spare(threads: int) -> float:
    """The fraction of a core that this many threads may lack.

    On all but a fraction m of n cores a job of n threads runs as fast as its slowest thread, n (1 -
    m). Fewer threads are as fast from m = 1 / n on. Half of that is allowed, because the last
    thread adds the least.
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
"""Valid values of a job's `share`, for messages."""


def is_fraction(text: str) -> bool:
    """Whether a text is a fraction that a job can be pinned to."""
    match = _FRACTION.fullmatch(text)
    return match is not None and int(match[1]) <= int(match[2])


def slice_of(share: str) -> float:
    """The value of a job's `share`: `1/3` is a third."""
    part, _, denominator = share.partition("/")
    return int(part) / int(denominator)
