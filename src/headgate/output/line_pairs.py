"""The pairs of a name and a number in one line, and the progress that they state."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from headgate.model.goals import direction
from headgate.output import positions, vocabulary
from headgate.output.line_progress import LineProgress, remaining
from headgate.output.metric_names import NO_LOSS, STANDS_IN, MetricName, Part, describe

_NAME = (
    r"(?<![\w./@-])([a-z_][\w./@-]{0,63}+)['\"]?+(?:\s?\(([^()]{1,24})\)|\s\[\d{1,9}-\d{1,9}\])?+"
)
_WHEN = r"(?:\s(?:at|after|for|in)\s([a-z]{1,12}+)\s#?(\d{1,9}+))?+"
_IS = (
    r"(?:\s{0,4}+([:=](?!>)|[-=]{1,2}>|→|(?<=\s)-(?=\s))\s{0,8}+|\s{1,4}+((?:is(?:\snow)?|was|value|reached)(?::|\s))\s{0,4}+|\s{1,8}+#?|(?=\[\s{0,4}\d))"
    r"['\"\[]?+\s{0,6}+(?:(?:tensor|array|tf\.tensor|np\.float\d\d)\(\[?)?+"
)
# Thousands may have separators, and decimals a comma: see `Scanner._number`.
NUMBER = (
    r"([-+]?(?:\d{1,18}(?:[.,_]\d{1,20}){0,6}+\.?(?:e[-+]?\d{1,3})?"
    r"|\.\d{1,20}(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))"
)
_COUNT = r"(\d{1,12}(?:[,_]\d{3}){0,4}+)"
_OUT_OF = r"(?:\s{0,6}(?:/|(?:out\s)?of)\s{0,6}" + _COUNT + ")?"
# Not followed by a character that would make it part of a version, a date, a time, a range or a
# quantity with a unit.
ENDS = r"(?!\w|\.\d|[:/-]\d)"
PAIR = re.compile(
    _NAME + _WHEN + _IS + NUMBER + _OUT_OF + r"([km](?=\s|,|$)(?!\s\d{1,2}s))?+" + ENDS
)
_QUALIFIER = "|".join(sorted(vocabulary.PARTS | vocabulary.SMOOTHED))
_ONLY_PAIRS = re.compile(
    rf"(?:(?:(?:{_QUALIFIER})\s)?+[a-z_][\w./@-]{{0,63}}+[\s:=]{{1,8}}+{NUMBER}(?:/\d{{1,12}})?+"
    r"(?![^\s,;|])[\s,;|]{0,8}+){1,32}+$"
)
EARNS = re.compile(
    r"(?:return|reward|score|accuracy)s?(?:\s{0,2}[=:]\s{0,4}\[?\s?|\s{1,4}(?=-?\d{1,12}\.\d))[-+]?\d"
)
"""Values that make a line with a step count as progress, even without a loss."""


_MOST_EPOCHS, _MOST_DIGITS = 1e9, 15  # what is more counts nothing
_THOUSANDS = {None: 1, "k": 1_000, "m": 1_000_000}
_CLOSING = re.compile(r"train_runtime|\b(?:finished|completed?|done|overall)\b|total training")
_WORD = re.compile(r"[a-z]{2,}")


class LinePairs:
    """Collects the pairs of one line."""

    __slots__ = (
        *(
            "line",
            "start",
            "loss",
            "name",
            "rank",
            "end",
            "is_part",
            "about_loss",
            "trains",
            "metrics",
        ),
        *("step", "batch", "epoch", "epochs", "epoch_end", "epoch_is_sure", "steps", "within"),
        "_only_pairs",
    )

    def __init__(self, line: str, start: int) -> None:
        self.line = line
        self.start = start  # of its content
        self.loss: float | None = None
        self.name = ""
        self.rank = NO_LOSS
        self.end = 0  # of the loss
        self.is_part = False  # whether the loss is a part of one, or that of one of several
        self.about_loss = False  # validation's included
        self.trains = False  # whether it has a loss of training
        self.metrics: dict[str, float] = {}
        self.step: tuple[int, int | None] | None = None
        self.batch: tuple[int, int | None] | None = None
        self.epoch: int | None = None
        self.epochs: int | None = None
        self.epoch_end = 0
        self.epoch_is_sure = False  # whether its name says no more than that
        self.steps: int | None = None
        self.within: float | None = None
        self._only_pairs: bool | None = None

    def has_only_pairs(self) -> bool:
        """Whether the line is only names with numbers: «step 3 loss 1 val_acc 0»."""
        if self._only_pairs is None:
            self._only_pairs = _ONLY_PAIRS.match(self.line, self.start) is not None
        return self._only_pairs


def _letters(line: str, start: int) -> int:
    """Index of the first letter or digit of a line."""
    while start < len(line) and not line[start].isalpha() and not line[start].isdigit():
        start += 1
    return start


def digits(count: str) -> str:
    return count.replace(",", "").replace("_", "")


def note_count(reader: LinePairs, described: MetricName, pair: re.Match[str]) -> None:
    number, of = digits(pair[7]), pair[8]
    line, start = reader.line, pair.start()
    if not number[0].isdigit() or line[pair.end() : pair.end() + 1] == "%":
        return
    if pair[9] is not None and described.counts in ("epoch", "epochs", "ep"):
        return  # «epoch 2m»
    number = number.removesuffix(".")
    total = int(digits(of)) * _THOUSANDS[pair[9]] if of and len(of) <= _MOST_DIGITS else None
    if described.counts in ("epoch", "epochs", "ep"):
        if described.counts == "epochs" and total is None:
            return  # how many there are
        sure = described.name in vocabulary.EPOCHS
        if reader.epoch is not None and (reader.epoch_is_sure or not sure):
            return
        if not _is_other_epoch(line, start):
            done = float(number) if number.count(".") <= 1 else math.inf
            if done >= _MOST_EPOCHS:
                return
            reader.epoch, reader.epochs, reader.epoch_end = int(done), total, pair.end()
            reader.epoch_is_sure = sure
            if "." in number and done > 0.0:  # so much is done: 1.5 is in the middle of the second
                reader.epoch = math.ceil(done)
                reader.within = done - reader.epoch + 1
        return
    whole = number.rstrip("0").removesuffix(".") if "." in number else number
    if not whole.isdigit() or len(whole) > _MOST_DIGITS:
        return
    if total is None:
        whole = str(int(whole) * _THOUSANDS[pair[9]])
    if pair[1] == "it" and total is None and reader.epoch is None:
        return  # the word
    if described.counts == "all":
        reader.steps = reader.steps or int(whole)
    elif described.counts == "batch":
        reader.batch = reader.batch or (int(whole), total)
    else:
        reader.step = reader.step or (int(whole), total)


def _is_other_epoch(line: str, start: int) -> bool:
    """Whether the word before says that it is not the current epoch: «seconds per epoch: 3», «best
    epoch 7».
    """
    words = line[max(0, start - 24) : start].split()
    return bool(words) and words[-1] in vocabulary.ASIDES


def step_alone(line: str) -> LineProgress | None:
    """The progress of a line that only states a step; its values are printed below it."""
    start = positions.content(line)
    pair = PAIR.search(line, start)
    if pair is None or (described := describe(pair[1])).counts not in ("step", "batch"):
        return None
    before, rest = line[start : pair.start()], line[pair.end() :]
    words = _WORD.findall(before)
    if (
        len(words) > 1
        or any(c.isdigit() for c in before)
        or not vocabulary.ASIDES.isdisjoint(words)
    ):
        return None
    if not vocabulary.VALIDATING.isdisjoint(words):
        return None
    if _WORD.search(rest) is not None and not any(c.isdigit() for c in rest):
        return None  # «step 2: load the data», «step 2/5: train»
    no_place = described.counts == "batch" or described.name.endswith("s") or described.name == "it"
    if pair[8] is None and no_place:
        return None  # «batch: 32», «steps: 1000»
    reader = LinePairs(line, start)
    note_count(reader, described, pair)
    at = reader.step or reader.batch
    return LineProgress(None, {}, at[0], total=at[1]) if at is not None else None


def _is_earned(metrics: Mapping[str, float]) -> bool:
    """Whether one of these values is a measure of a model's quality."""
    return any(
        name.endswith(("return", "reward", "score", "accuracy")) and direction(name)
        for name in metrics
    )


def progress_of(
    reader: LinePairs, parts: list[tuple[int, int, Part]], any_loss: bool
) -> LineProgress | None:
    line = reader.line
    if reader.epoch is None:
        if (over := positions.over_epochs(line)) is not None:
            return LineProgress(reader.loss, reader.metrics, epoch=over.epoch, epochs=over.epochs)
        if (
            reader.loss is None
            and not reader.about_loss
            and (bar := positions.bare_bar(line)) is not None
        ):
            return LineProgress(None, {}, bar=bar)
    start = reader.start
    at = positions.position(line, start, reader.epoch_end, reader.end)
    named = reader.step or reader.batch
    if reader.loss is None and reader.batch is not None and "episode" in line:
        named = reader.batch  # the steps are those of the episode
    epoch_known = reader.epoch is not None
    step, total = named if named is not None else (at.step, at.total)
    if named is not None and total is None and at.step == step:
        total = at.total
    if (
        named is not None
        and total is None
        and at.drawn
        and at.total
        and reader.within is None
        and epoch_known
    ):
        # the count continues, the bar starts anew
        reader.within = min((at.step or 0) / at.total, 1.0)
    if named is not None and at.keras:
        at = at._replace(keras=False)
    epoch, epochs = (
        (reader.epoch, reader.epochs) if reader.epoch is not None else (at.epoch, at.epochs)
    )
    samples = at.samples if named is None else None
    if samples is not None:
        total = at.total
    loss, rank, metrics = reader.loss, reader.rank, reader.metrics
    earned = (
        named is not None
        and loss is None
        and EARNS.search(line) is not None
        and _is_earned(metrics)
    )
    nowhere = step is None and epoch is None and samples is None
    if (
        any_loss
        and nowhere
        and (rank == STANDS_IN or (1 <= rank < STANDS_IN and _CLOSING.search(line)))
    ):
        return None  # of nothing that learns, or of what was
    if epoch is None and loss is None and not reader.about_loss and not earned:
        return step_alone(line)
    # Hugging Face's last line repeats the mean over the whole run as train_loss
    if "train_runtime" in line:
        return None
    evaluates = (
        not reader.trains
        and (loss is None or rank != STANDS_IN)
        and any(p != "train" for *_, p in parts[:1])
    )
    return LineProgress(
        loss,
        metrics,
        step,
        epoch,
        epochs,
        samples,
        total,
        reader.steps,
        reader.within,
        evaluates or (loss is None and reader.about_loss and not reader.trains),
        at.keras,
        at.drawn,
        trains=line.startswith("train", _letters(line, start)),
        part=reader.name if loss is not None and reader.is_part else None,
        remaining=remaining(line),
    )
