"""Classifies names of metrics in a script's output: the training loss, others, and counts of steps
or epochs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

from headgate.output import vocabulary

NO_LOSS, STANDS_IN, PART_OF = 9, 5, 3
"""Ranks of a name as the loss: none, a substitute (`nll`), a part (`policy_loss`)."""

_SEPARATOR = re.compile(r"[_./@-]+")
_FUSED = re.compile(r"\b(train|val|valid|validation|test|eval)(?=loss|acc)")

Part = Literal["train", "val", "test"]
Counts = Literal["epoch", "epochs", "ep", "step", "batch", "all"]


class MetricName(NamedTuple):
    """The meaning of a name in a line.

    Attributes:
        name: The name of the metric.
        part: The part of the data that it belongs to; None if not stated.
        is_loss: Whether it is a loss.
        rank: How likely it is the training loss; 0: most likely.
        counts: What it counts; None if it is a metric.
    """

    name: str
    part: Part | None
    is_loss: bool
    rank: int
    counts: Counts | None


def spell(name: str) -> str:
    """A metric's name in normal form: `trainLoss`, `train/loss` and `train-loss` become
    `train_loss`.
    """
    words = _FUSED.sub(r"\1_", name.lower())
    return "_".join(token for token in _SEPARATOR.split(words) if token) or name


@lru_cache(maxsize=4096)
def describe(key: str) -> MetricName:
    """The meaning of a name in a line."""
    if key.endswith(".py"):  # where a logger says it was called
        return MetricName("time", None, False, NO_LOSS, None)
    name = spell(key)
    tokens = frozenset(name.split("_"))
    # «Up. 500» counts updates
    if (counts := "step" if key == "up." else _counts(name, tokens)) is not None:
        return MetricName(name, None, False, NO_LOSS, counts)
    losses = {
        token for token in tokens if token.endswith(("loss", "losses"))
    } - vocabulary.NOT_LOSSES
    is_loss = bool(losses) and tokens.isdisjoint(vocabulary.NO_LOSS)
    part: Part | None = None
    if tokens & vocabulary.VALIDATING:
        part = "val"
    elif tokens & vocabulary.TRAINING:
        part = "train"
    if not losses:
        bare = name.removeprefix("train_")
        stands_in = bare in vocabulary.STANDS_IN or bare.startswith("l_")
        return MetricName(name, part, False, STANDS_IN if stands_in else NO_LOSS - 1, None)
    other_words = tokens - vocabulary.PLAIN - losses
    smoothed = vocabulary.SMOOTHED | vocabulary.LANGUAGE_MODEL
    rank = PART_OF
    if not other_words:
        rank = 0
    elif other_words <= smoothed:
        rank = 1
    elif other_words <= smoothed | {"epoch"}:
        rank = 2
    return MetricName(name, part, is_loss, rank, None)


def _counts(name: str, tokens: frozenset[str]) -> Counts | None:
    """What a name counts; None if it is a metric."""
    if name in vocabulary.EPOCHS:
        return "epoch"
    if name == "epochs":
        return "epochs"
    if name == "ep":
        return "ep"
    if name in vocabulary.STEPS:
        return "batch" if "batch" in name or name == "episode" else "step"
    if name in vocabulary.TOTALS:
        return "all"
    counted = tokens - vocabulary.BESIDE_COUNTED
    if len(counted) != 1 or not counted <= vocabulary.COUNTED or name.startswith("num_"):
        return None
    if name.startswith("train") and name.endswith("s") and "num" not in tokens:
        return None  # `train_steps` are all there are
    word = next(iter(counted))
    if word == "epoch":
        return "epoch"
    return "batch" if "batch" in word else "step"
