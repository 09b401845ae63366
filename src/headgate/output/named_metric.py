"""Finds a metric that a job names among the names in a line: «Avg. PSNR», «micro F1», «accuracy of
the net on images».
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from headgate.output import vocabulary
from headgate.output.metric_names import NO_LOSS, Part, spell

_ONE_OF_SEVERAL = 2
_OF_EVALUATION = 6  # is added to the rank
_REACH = 24  # characters in which words before a name stand

_WORD_BEFORE = r"(?<![a-z])([a-z]\d|top-?\d{1,3}|[a-z]++)"
_WORDS_BEFORE = re.compile(rf"{_WORD_BEFORE}\.?['\"]?\s{{1,3}}(?:{_WORD_BEFORE}\s{{1,3}})?$")
_WORD = re.compile(r"[a-z]{2,}")

_KINDS = frozenset({"score", "value", "rate", "roc"})
_NEVER = vocabulary.NO_LOSS | vocabulary.SPREADS
_MAY_FOLLOW = (
    vocabulary.SMOOTHED | vocabulary.PLAIN | vocabulary.PARTS | _KINDS | {"macro", "micro"}
)
_SAY_LITTLE = (
    vocabulary.PLAIN
    | vocabulary.PARTS
    | vocabulary.SAYS_NOTHING
    | vocabulary.EPOCHS
    | vocabulary.STEPS
    | _KINDS
)
_WHOLE = (
    vocabulary.PARTS
    | vocabulary.EPOCHS
    | vocabulary.STEPS
    | {
        *(
            "of",
            "on",
            "for",
            "in",
            "over",
            "at",
            "after",
            "the",
            "our",
            "all",
            "whole",
            "full",
            "entire",
            "and",
            "end",
        ),
        *(
            "model",
            "network",
            "net",
            "classifier",
            "cnn",
            "mlp",
            "images",
            "image",
            "samples",
            "data",
            "dataset",
        ),
        *(
            "examples",
            "points",
            "inputs",
            "sentences",
            "documents",
            "batches",
            "split",
            "instances",
            "epochs",
            "this",
        ),
        *("episodes", "runs", "trials", "games", "queries", "users", "folds"),
    }
)
"""Words around a value that belongs neither to a class nor to another part."""
_SAME_PART = {
    **dict.fromkeys(
        ("valid", "validation", "validate", "validating", "eval", "evaluation", "evaluating"), "val"
    ),
    "testing": "test",
}
"""Synonyms for a part of the data."""


class FarValue(NamedTuple):
    """A number as printed, the index of its end, and the rank of its name."""

    number: str
    end: int
    rank: int


class NamedMetric:
    """Distinguishes the names of one metric from those of others.

    Args:
        metric: Its name, in the form of `spell`.
        far: An expression for a number, in a group `number`.
    """

    def __init__(self, metric: str, far: str) -> None:
        words = metric.split("_")
        parts = [_same_part(word) for word in words if word in vocabulary.VALIDATING]
        self._part = parts[0] if parts else None  # of the data, that its name says
        self._words = tuple(word for word in words if word not in vocabulary.VALIDATING) or tuple(
            words
        )
        # whether it was read in the training; otherwise that of an evaluation is meant
        self._trained = False
        name = r"[\s_./@-]{0,2}".join(re.escape(word) for word in self._words)
        self._far = re.compile(
            rf"(?<![\w./@-]){name}(?![\w./@-])\s"
            rf"(?:of|(?P<about>(?:of|on|for|in|over|at|after)\s[^:=|,;]{{1,80}}?)(?:\s?[:=]|\s(?:is|was)))\s{{0,4}}{far}"
        )

    def grade(self, name: str, part: str | None, before: Sequence[str]) -> tuple[int, bool]:
        """How likely a name is that of the metric, and whether it is then one of several: «micro
        F1».

        Once the metric was read in training, that of an evaluation is another metric.

        Args:
            name: In the form of `spell`.
            part: The part of the data that it belongs to, if the line states it.
            before: Up to two words before it.

        Returns:
            0 for the most likely, `NO_LOSS` for another metric.
        """
        tokens = (*(token for word in before for token in spell(word).split("_")), *name.split("_"))
        of_part = next(
            (_same_part(token) for token in tokens if token in vocabulary.VALIDATING), part
        )
        added = self._added(of_part)
        size = len(self._words)
        at = next(
            (i for i in range(len(tokens) - size, -1, -1) if tokens[i : i + size] == self._words),
            None,
        )
        if added is None or at is None:
            return NO_LOSS, False
        leading, trailing = frozenset(tokens[:at]), frozenset(tokens[at + size :])
        if not leading.isdisjoint(_NEVER) or not trailing <= _MAY_FOLLOW:
            return NO_LOSS, False
        meaningful = (leading | trailing) - _SAY_LITTLE
        rank = 0 if not meaningful else 1
        if not meaningful <= vocabulary.SMOOTHED:
            rank = _ONE_OF_SEVERAL
        return rank + added, rank == _ONE_OF_SEVERAL

    def far(self, line: str, parts: Sequence[tuple[int, int, Part]]) -> FarValue | None:
        """A value some words after the name: «accuracy of the net on 10 test images: 54 %».

        Args:
            line: The line in lower case.
            parts: Where it mentions parts of the data, and which parts.
        """
        if (far := self._far.search(line)) is None or not _WHOLE.issuperset(
            _WORD.findall(far["about"] or "")
        ):
            return None
        added = self._added(next((part for start, _, part in parts if start < far.end()), None))
        if added is None or not _NEVER.isdisjoint(words_before(line, far.start())):
            return None
        self.read(added)
        return FarValue(far["number"], far.end(), added)

    def read(self, rank: int) -> None:
        """Note that a value of that rank was found."""
        self._trained = self._trained or rank < _OF_EVALUATION

    def _added(self, part: str | None) -> int | None:
        """The amount to add to the rank of a name for a part of the data; None: it is another
        metric.
        """
        if self._part is not None:
            return 0 if part == self._part else None
        if part in (None, "train"):
            return 0
        return None if self._trained else _OF_EVALUATION


def words_before(line: str, start: int) -> tuple[str, ...]:
    """Up to two words just before an index in a line, in order."""
    words = _WORDS_BEFORE.search(line, max(0, start - _REACH), start)
    return tuple(word for word in words.groups() if word) if words is not None else ()


def _same_part(word: str) -> str:
    return _SAME_PART.get(word, word)
