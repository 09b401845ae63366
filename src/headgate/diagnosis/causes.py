"""Names of what may hold a job back, and one such cause with what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from headgate.diagnosis.attribution import LEAST_PART, TimeEstimate
from headgate.model.units import say_seconds

Name = Literal[
    "neighbour-cores",
    "neighbour-memory",
    "neighbour-disk",
    "neighbour-network",
    "neighbour-gpu",
    "own-cap",
    "own-memory",
    "own-tasks",
    "own-threads",
    "hypervisor",
    "input",
    "disk",
    "communication",
    "network",
    "checkpoints",
    "evaluation",
    "garbage-collection",
    "between-steps",
    "loader",
    "decoding",
    "servers",
    "straggler",
    "slow-node",
    "slow-nic",
    "dense-pulls",
    "small-steps",
    "faults",
    "starting",
    "learned",
    "diverged",
    "failed",
    "waiting",
    "healthy",
    "not-known",
]
NAMES: tuple[Name, ...] = get_args(Name)

LEAST_SECONDS_TOLD = 1.0
"""What cost less is not worth a verdict, nor what cost less than `LEAST_PART`."""


@dataclass(frozen=True, slots=True)
class Cause:
    name: Name
    cost: TimeEstimate
    why: str
    next: str
    least: float = LEAST_PART
    culprit: str = ""
    order: tuple[str, ...] = ()


def sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def part_of(seconds: float, elapsed: float) -> str:
    return (
        f"{say_seconds(seconds)} ({seconds / elapsed:.0%} of its time)"
        if elapsed > 0.0
        else say_seconds(seconds)
    )
