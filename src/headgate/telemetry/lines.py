"""One line of a script's output: loss, step and epoch, as the usual frameworks and scripts print them.

A line is searched once for pairs of a name and a number. Repeats are bounded, most are possessive, and a search can
start only where a word starts, so that no line, however odd, costs more than a time in proportion to its length.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from headgate.telemetry import vocabulary

_MOST_PAIRS = 24
_MOST_EPOCHS, _MOST_DIGITS = 1e9, 15  # what is more counts nothing

_NAME = r"(?<![\w./@-])([a-z_][\w./@-]{0,63}+)['\"]?+(?:\s?\([^()]{1,24}\))?+"
_WHEN = r"(?:\s(?:at|after|for|in)\s([a-z]{1,12}+)\s#?(\d{1,9}+))?+"
_IS = r"(?:\s{0,4}+([:=]|->)\s{0,8}+|\s{1,8}+#?)['\"\[]?+\s{0,6}+(?:(?:tensor|array|tf\.tensor|np\.float\d\d)\()?+"
_NUMBER = r"([-+]?(?:\d{1,18}(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?|\.\d{1,20}(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))"
_OUT_OF = r"(?:\s{0,6}(?:/|of)\s{0,6}(\d{1,12}))?"
# Not followed by what would make it part of a version, a date, a time, a range or a quantity with a unit.
_ENDS = r"(?!\w|\.\d|[:/-]\d)"
_PAIR = re.compile(_NAME + _WHEN + _IS + _NUMBER + _OUT_OF + _ENDS)
_PERCENT = re.compile(r"\s?%")
_WORDS_BEFORE = re.compile(r"([a-z]+)['\"]?\s{1,3}(?:([a-z]+)\s{1,3})?$")

_COUNTED = re.compile(r"\[\s{0,8}(\d{1,12})\s{0,2}/\s{0,2}(\d{1,12})(?:\s{0,2}(\(\d{1,3}(?:\.\d{1,3})?%\)))?\s{0,2}\]")
_TQDM = re.compile(r"\|\s{0,3}(\d{1,12})/(\d{1,12})\s{0,2}\[")
_TQDM_OVER_EPOCHS = re.compile(r"\s{0,4}epochs?\s{0,2}:?\s{0,4}\d{1,3}%\|")
_KERAS = re.compile(r"\s{0,8}(\d{1,9})/(\d{1,9}|unknown)\s{1,4}(?:[━\[]|-\s|\d{1,6}m?s\s)")
_EPOCH_AND_STEP = re.compile(r"\s{0,4}\[\s{0,4}(\d{1,9})\s{0,2},\s{0,8}(\d{1,9})\s{0,2}\]")
_BOOSTING = re.compile(r"\[(\d{1,9})\]\s")

_PART = re.compile(
    r"(?<![\w/.-])(?:(train(?:ing)?)|(val(?:id(?:ation)?)?(?:_\d)?|eval(?:uation|uate)?|dev)|(test(?:ing)?))(?![\w/.-])"
)
_SEPARATOR = re.compile(r"[_./@-]+")
_FUSED = re.compile(r"\b(train|val|valid|validation|test|eval)(?=loss|acc)")

Part = Literal["train", "val", "test"]


class Found(NamedTuple):
    """What a line says. `step` and `samples` are as printed, often counted from the start of the epoch.

    `total` is the steps (or samples) of an epoch, where the line says so; `keras` tells that the line is one of Keras's
    bars, which look alike in training and in evaluation.
    """

    loss: float | None
    metrics: Mapping[str, float]
    step: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    samples: int | None = None
    total: int | None = None
    keras: bool = False


class _Name(NamedTuple):
    """A name in a line: as a metric; the part of the data that it speaks of; whether it is a loss, and how likely that
    of training, 0 the likeliest; what it counts."""

    name: str
    part: Part | None
    is_loss: bool
    rank: int
    counts: Literal["epoch", "step", "batch"] | None


class _Reader:
    """Collects the pairs of one line."""

    __slots__ = (
        *("line", "loss", "name", "rank", "end", "about_loss", "metrics"),
        *("step", "batch", "epoch", "epochs", "epoch_end"),
    )

    def __init__(self, line: str) -> None:
        self.line = line
        self.loss: float | None = None
        self.name = ""
        self.rank = 9
        self.end = 0  # of the loss
        self.about_loss = False  # validation's included
        self.metrics: dict[str, float] = {}
        self.step: tuple[int, int | None] | None = None
        self.batch: tuple[int, int | None] | None = None
        self.epoch: int | None = None
        self.epochs: int | None = None
        self.epoch_end = 0


class Scanner:
    """Finds one metric in lines of output.

    Args:
        metric: Its name as the script prints it; `loss` finds the training loss under any of its usual names.
        as_fraction: Whether what is printed with a percent sign is wanted as a fraction.
    """

    def __init__(self, metric: str = "loss", *, as_fraction: bool = False) -> None:
        self._as_fraction = as_fraction
        self._metric = spell(metric)
        self._any_loss = self._metric == "loss"
        self._hint = self._metric.rsplit("_", 1)[-1]

    def scan(self, text: str) -> Found | None:
        """What the line says of the training's progress; None when nothing."""
        line = text.lower()
        if "loss" not in line and "epoch" not in line and self._hint not in line and line[:1] != "[":
            return None
        if "train_runtime" in line:  # Hugging Face's closing line repeats the mean over the whole run as train_loss
            return None
        reader = _Reader(line)
        parts: list[tuple[int, int, Part]] | None = None
        for pair in islice(_PAIR.finditer(line), _MOST_PAIRS):
            described = _describe(pair[1])
            if described.counts is not None:
                _count(reader, described, pair)
                continue
            if parts is None:
                parts = _parts(line)
            self._value(reader, described, pair, parts)
        if reader.loss is None and self._any_loss and line[:1] == "[":
            reader.loss = _boosted(line, reader.metrics)
        return _result(reader)

    def _value(
        self, reader: _Reader, described: _Name, pair: re.Match[str], parts: list[tuple[int, int, Part]]
    ) -> None:
        name, part, is_loss, rank, _ = described
        _, when, moment, separator, number, of = pair.groups()
        if of is not None:
            return
        line, start = reader.line, pair.start()
        words = _WORDS_BEFORE.search(line, max(0, start - 24), start)
        before = (words[1], words[2]) if words is not None else ()
        if is_loss and (not vocabulary.NO_LOSS.isdisjoint(before) or line[pair.end() : pair.end() + 1] == "%"):
            return  # «packet loss: 3%», «best val loss: 0.2»
        if separator is None:
            if not (is_loss or name in vocabulary.WITHOUT_SEPARATOR or name == self._metric):
                return
            if number.isdigit():
                return  # «loss 3 times»
        if part is None and parts:
            part = _part_before(parts, line, start)
            if part is not None and part != "train":
                name = f"{part}_{name}"
        last = before[-1] or before[0] if before else None
        if last is not None and not is_loss and last not in vocabulary.PARTS:
            name = f"{last}_{name}"  # «learning rate: 1e-4»
        if is_loss:
            reader.about_loss = True
        if when in vocabulary.STEPS and moment is not None:
            reader.step = reader.step or (int(moment), None)
        value = float(number)
        if rank < reader.rank and self._is_wanted(name, part, is_loss):
            if self._as_fraction and _PERCENT.match(line, pair.end()):
                value /= 100.0
            if reader.loss is not None:  # only a part of what this is the whole of
                reader.metrics.setdefault(reader.name, reader.loss)
            reader.loss, reader.name, reader.rank, reader.end = value, name, rank, pair.end()
        elif name not in vocabulary.NOT_METRICS:
            reader.metrics.setdefault(name, value)

    def _is_wanted(self, name: str, part: Part | None, is_loss: bool) -> bool:
        if self._any_loss:
            return is_loss and part in (None, "train")
        return name == self._metric or name.removeprefix("train_") == self._metric


def spell(name: str) -> str:
    """A metric's name as it is written here: `trainLoss`, `train/loss` and `train-loss` are `train_loss`."""
    words = _FUSED.sub(r"\1_", name.lower())
    return "_".join(token for token in _SEPARATOR.split(words) if token) or name


@lru_cache(maxsize=4096)
def _describe(key: str) -> _Name:
    if key.endswith(".py"):  # where a logger says it was called
        return _Name("time", None, False, 9, None)
    name = spell(key)
    if name in ("epoch", *vocabulary.STEPS):
        return _Name(name, None, False, 9, "epoch" if name == "epoch" else "batch" if "batch" in name else "step")
    tokens = frozenset(name.split("_"))
    losses = {token for token in tokens if token.endswith(("loss", "losses"))} - vocabulary.NOT_LOSSES
    is_loss = bool(losses) and tokens.isdisjoint(vocabulary.NO_LOSS)
    part: Part | None = None
    if tokens & vocabulary.VALIDATING:
        part = "val"
    elif tokens & vocabulary.TRAINING:
        part = "train"
    rest = tokens - vocabulary.PLAIN - losses
    rank = 0 if not rest else 1 if rest <= vocabulary.SMOOTHED else 2 if rest <= vocabulary.SMOOTHED | {"epoch"} else 3
    return _Name(name, part, is_loss, rank, None)


def _count(reader: _Reader, described: _Name, pair: re.Match[str]) -> None:
    number, of = pair[5], pair[6]
    line, start = reader.line, pair.start()
    if not number[0].isdigit() or line[pair.end() : pair.end() + 1] == "%":
        return
    if described.counts == "epoch":
        if reader.epoch is None and not _is_aside(line, start):
            value = float(number)
            reader.epoch = int(value) if value < _MOST_EPOCHS else None
            reader.epochs = int(of) if of else None
            reader.epoch_end = pair.end()
    elif number.isdigit() and len(number) <= _MOST_DIGITS:
        count = int(number), int(of) if of else None
        if described.counts == "batch":
            reader.batch = reader.batch or count
        else:
            reader.step = reader.step or count


def _is_aside(line: str, start: int) -> bool:
    """Whether the word before makes it no header: «seconds per epoch: 3», «best epoch 7»."""
    words = line[max(0, start - 24) : start].split()
    return bool(words) and words[-1] in vocabulary.ASIDES


def _parts(line: str) -> list[tuple[int, int, Part]]:
    """Where a line speaks of training, validation or testing: start, end, which. Only asked for where it matters."""
    if "val" not in line and "test" not in line and "dev" not in line:
        return []
    return [
        (match.start(), match.end(), "train" if match[1] else "val" if match[2] else "test")
        for match in islice(_PART.finditer(line), 8)
    ]


def _part_before(parts: list[tuple[int, int, Part]], line: str, start: int) -> Part | None:
    """The part that a value belongs to: «Val Loss: 1, Loss: 2» speaks of validation only in its first, «val: loss 1,
    acc 2» in both."""
    part: Part | None = None
    for begin, end, which in parts:
        if begin >= start:
            break
        if not line[end:start].strip():
            return which
        while end < start and line[end].isspace():
            end += 1
        follower = _PAIR.match(line, end)
        part = which if follower is None or _describe(follower[1]).counts is not None else None
    return part


def _boosted(line: str, metrics: dict[str, float]) -> float | None:
    """The training error of gradient boosting: `[10]<tab>train-rmse:0.5<tab>eval-rmse:0.6`."""
    if _BOOSTING.match(line):
        for name in metrics:
            if name.startswith("train_") and not vocabulary.BOOSTING.isdisjoint(name.split("_")):
                return metrics.pop(name)
    return None


def _result(reader: _Reader) -> Found | None:
    line, epoch, epochs = reader.line, reader.epoch, reader.epochs
    said = reader.loss is not None or reader.about_loss
    if epoch is None:
        if (bar := _TQDM_OVER_EPOCHS.match(line)) and (count := _TQDM.search(line, bar.end() - 1)):
            return Found(reader.loss, reader.metrics, epoch=int(count[1]), epochs=int(count[2]))
        if not said:
            return None
    at = reader.step or reader.batch
    if at is not None:
        return Found(reader.loss, reader.metrics, at[0], epoch, epochs, total=at[1])
    if "[" in line:
        if epoch is None and (both := _EPOCH_AND_STEP.match(line)):
            return Found(reader.loss, reader.metrics, int(both[2]), int(both[1]))
        if place := _COUNTED.search(line, reader.epoch_end):
            done, total = int(place[1]), int(place[2])
            # PyTorch's tutorials count samples: «[6400/60000 (11%)]», and «loss: 2.3  [   64/60000]».
            if place[3] or (reader.end and place.start() >= reader.end and not line[place.end() :].strip()):
                return Found(reader.loss, reader.metrics, None, epoch, epochs, samples=done, total=total)
            return Found(reader.loss, reader.metrics, done, epoch, epochs, total=total)
        if bar := _TQDM.search(line):
            return Found(reader.loss, reader.metrics, int(bar[1]), epoch, epochs, total=int(bar[2]))
        if boosting := _BOOSTING.match(line):
            return Found(reader.loss, reader.metrics, int(boosting[1]), epoch, epochs)
    if keras := _KERAS.match(line):
        total_known = int(keras[2]) if keras[2].isdigit() else None
        return Found(reader.loss, reader.metrics, int(keras[1]), epoch, epochs, total=total_known, keras=True)
    return Found(reader.loss, reader.metrics, None, epoch, epochs)
