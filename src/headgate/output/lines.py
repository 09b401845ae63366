"""Finds loss, step and epoch in one line of a script's output, as common frameworks and scripts
print them.

A line is searched once for pairs of a name and a number. Repeats are bounded, most are possessive,
and a search can only start at the start of a word. So the time is proportional to the line's
length, whatever the line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import islice

from headgate.model.goals import direction
from headgate.output import positions, vocabulary
from headgate.output.line_progress import LineProgress, remaining
from headgate.output.metric_names import (
    NO_LOSS,
    PART_OF,
    STANDS_IN,
    MetricName,
    Part,
    describe,
    spell,
)
from headgate.output.named_metric import NamedMetric, words_before
from headgate.output.plain_lines import plain

_MOST_PAIRS = 32
_MOST_EPOCHS, _MOST_DIGITS = 1e9, 15  # what is more counts nothing

_NAME = (
    r"(?<![\w./@-])([a-z_][\w./@-]{0,63}+)['\"]?+(?:\s?\(([^()]{1,24})\)|\s\[\d{1,9}-\d{1,9}\])?+"
)
_WHEN = r"(?:\s(?:at|after|for|in)\s([a-z]{1,12}+)\s#?(\d{1,9}+))?+"
_IS = (
    r"(?:\s{0,4}+([:=](?!>)|[-=]{1,2}>|→|(?<=\s)-(?=\s))\s{0,8}+|\s{1,4}+((?:is(?:\snow)?|was|value|reached)(?::|\s))\s{0,4}+|\s{1,8}+#?|(?=\[\s{0,4}\d))"
    r"['\"\[]?+\s{0,6}+(?:(?:tensor|array|tf\.tensor|np\.float\d\d)\(\[?)?+"
)
# Thousands may have separators, and decimals a comma: see `Scanner._number`.
_NUMBER = (
    r"([-+]?(?:\d{1,18}(?:[.,_]\d{1,20}){0,6}+\.?(?:e[-+]?\d{1,3})?"
    r"|\.\d{1,20}(?:e[-+]?\d{1,3})?|nan|inf(?:inity)?))"
)
_COUNT = r"(\d{1,12}(?:[,_]\d{3}){0,4}+)"
_OUT_OF = r"(?:\s{0,6}(?:/|(?:out\s)?of)\s{0,6}" + _COUNT + ")?"
# Not followed by a character that would make it part of a version, a date, a time, a range or a
# quantity with a unit.
_ENDS = r"(?!\w|\.\d|[:/-]\d)"
_PAIR = re.compile(
    _NAME + _WHEN + _IS + _NUMBER + _OUT_OF + r"([km](?=\s|,|$)(?!\s\d{1,2}s))?+" + _ENDS
)
_THOUSANDS = {None: 1, "k": 1_000, "m": 1_000_000}
_PERCENT = re.compile(r"\s?%")
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:(?:,\d{3})+|(?:_\d{3})+)(?:\.\d+)?$")
_DECIMAL_COMMA = re.compile(r"[-+]?\d{1,3}(?:\.\d{3})+,\d+$|[-+]?\d+,\d+$")
_UNNAMED = re.compile(
    r"\s{0,8}(\d{1,9})\s{0,2}/\s{0,8}(\d{1,9})\s{0,2}:\s{1,4}(-?\d{1,9}\.\d{1,12})\s{0,4}$"
)
_DARKNET = re.compile(r"\d: (-?nan|-?\d{1,12}\.\d{1,12}), (-?nan|-?\d{1,12}\.\d{1,12}) avg")
_SPEAKS = (
    "loss",
    "epoch",
    "xent",
    "nll",
    "entropy",
    "cost",
    "learn:",
    "avg,",
    "%|",
    "pass ",
    "train-",
)
_STANDS_IN = re.compile(
    rf"(?<![a-z])(?:{'|'.join(sorted(vocabulary.STANDS_IN - {'learn'}))})(?![a-z])"
)
_CLOSING = re.compile(r"train_runtime|\b(?:finished|completed?|done|overall)\b|total training")

_TRIAL = re.compile(
    r"\btrial (\d{1,9}) (?:finished with values?: "
    rf"(?:\[{_NUMBER}(?=[,\]])|{_NUMBER}(?=\s|\.?$))|pruned\b|failed\b)"
)
_OF_TRIAL = frozenset({"value", "values", "objective", "objective_value", "trial_value"})
_EARNS = re.compile(
    r"(?:return|reward|score|accuracy)s?(?:\s{0,2}[=:]\s{0,4}\[?\s?|\s{1,4}(?=-?\d{1,12}\.\d))[-+]?\d"
)
"""Values that make a line with a step count as progress, even without a loss."""
_LONGEST_HEADING = 80
_END_OF_HEADING = frozenset(":.*-=")
_HEADED = re.compile(
    r"[^\w]*(?:test(?:ing)?|val(?:id(?:at(?:ion|ing))?)?|eval(?:uat(?:ion|ing))?)(?: "
    r"(?:phase|set|loop))?[^\w]*$"
)
_HEADING = re.compile(
    r"[^\d=]{0,60}?\b(?:test(?:ing)?|val|valid|validat(?:ion|ing)|eval|evaluat(?:ion|ing))\b[^\d=]*[:.*=-]\s*$"
)
_PART = re.compile(
    r"(?<![\w/.-])(?:(train(?:ing)?)|((?:val(?:id(?:ation|ating|ate)?)?|eval(?:uation|uate|uating)?|dev"
    r"|inference|saving "
    r"dict|cv)(?:_\d|_iter|_epoch|_step)?)|(test(?:ing)?(?:_iter|_epoch|_step)?))(?![\w/-]|\.\S)"
)
_AFTER_COUNT = re.compile(r"[:\s]\s{0,4}(-?\d{1,12}\.\d{1,12}(?:e[-+]?\d{1,3})?)(?![\w:/]|\.\d)")
_REVERSED = re.compile(
    rf"(?:^|[,|])\s{{0,8}}{_NUMBER}\s{{1,3}}(?:train(?:ing)?\s)?loss\s{{0,4}}(?=[,|]|$)"
)
_ROW = re.compile(r"\s{0,8}(\d{1,9})\s{1,4}(?=[\d.])")
_IN_BAR = re.compile(r"% \[(\d{1,9})/(\d{1,9}) [\d:]{1,9}<[\d:?]{1,9} (-?\d{1,9}\.\d{1,9})\]")
_BOOSTING = re.compile(r"\s{0,4}\[(\d{1,9})\]\s")
_WORD = re.compile(r"[a-z]{2,}")
_AFTER_LOSS = {"value"} | vocabulary.TRAINING | vocabulary.SMOOTHED | vocabulary.VALIDATING


class _Reader:
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


class Scanner:
    """Finds one metric in lines of output.

    Args:
        metric: Its name as the script prints it; `loss` finds the training loss under any of its
            usual names.
        as_fraction: Whether to convert a value with a percent sign to a fraction.
    """

    def __init__(self, metric: str = "loss", *, as_fraction: bool = False) -> None:
        self._as_fraction = as_fraction
        self._metric = spell("_".join(metric.split()))
        self._any_loss = self._metric == "loss"
        self._named_metric = (
            None
            if self._any_loss
            else NamedMetric(self._metric, far=f"(?P<number>{_NUMBER}){_ENDS}")
        )
        self._comma = False  # whether numbers have a decimal comma
        self._named = False  # whether a loss was found that says it is one
        self._hint = self._metric.rsplit("_", 1)[-1]

    def scan(self, text: str) -> LineProgress | None:
        """The training progress in a line; None if there is none."""
        line = text.lower()
        if "best" in line and line.rstrip().endswith(":"):
            return LineProgress(None, {}, recalls=True)
        if "trial " in line and (trial := _TRIAL.search(line)) is not None:
            return self._trial_progress(trial)
        begin = line.lstrip()[:1]
        speaks = (
            self._hint in line
            or any(word in line for word in _SPEAKS)
            or begin == "["
            or begin.isdigit()
        )
        if not speaks and not (self._any_loss and _STANDS_IN.search(line)):
            counts = "step" in line or "iter" in line
            if not (counts or "episode" in line) or _EARNS.search(line) is None:
                return _heading(line) or (_place(plain(line)) if counts else None)
        line = plain(line)
        if "'s " in line:
            line = line.replace("'s ", " ")  # «training's l2»
        start = positions.content(line)
        reader = _Reader(line, start)
        parts: list[tuple[int, int, Part]] | None = None
        for pair in islice(_PAIR.finditer(line, start), _MOST_PAIRS):
            described = describe(pair[1])
            if described.counts is not None:
                _count(reader, described, pair)
                continue
            if parts is None:
                parts = _parts(line)
            self._value(reader, described, pair, parts)
        if parts is None:
            parts = _parts(line)
        if reader.loss is None and self._any_loss:
            self._find_unnamed_loss(reader)
        elif reader.loss is None:
            self._find_far_value(reader, parts)
        return _result(reader, parts, self._any_loss) or _heading(line)

    def _trial_progress(self, trial: re.Match[str]) -> LineProgress:
        """The progress of an Optuna trial: the trial is a step, and its value the metric, if the
        job names that.
        """
        text = trial[2] or trial[3]
        value = self._number(text) if text is not None else None
        metrics = {"value": value} if value is not None else {}
        loss = metrics.pop("value", None) if self._metric in _OF_TRIAL else None
        return LineProgress(loss, metrics, int(trial[1]) + 1)

    def _find_far_value(self, reader: _Reader, parts: list[tuple[int, int, Part]]) -> None:
        """Find a value of the job's metric some words after its name."""
        if (
            self._named_metric is None
            or (far := self._named_metric.far(reader.line, parts)) is None
        ):
            return
        if (value := self._number(far.number)) is not None:
            reader.loss = (
                value / 100.0
                if self._as_fraction and _PERCENT.match(reader.line, far.end)
                else value
            )
            reader.name, reader.rank, reader.end = self._metric, far.rank, far.end

    def _find_unnamed_loss(self, reader: _Reader) -> None:
        """Find a loss without a name of its own."""
        line, start = reader.line, reader.start
        if _BOOSTING.match(line, start):
            reader.loss = _boosting_error(reader.metrics)
        elif alone := _UNNAMED.match(line, start):
            reader.loss, reader.step = float(alone[3]), (int(alone[1]), int(alone[2]))
        elif darknet := _DARKNET.search(line, start):
            reader.loss, reader.metrics["avg_loss"] = float(darknet[1]), float(darknet[2])
        elif bar := _IN_BAR.search(line):
            reader.loss, reader.step = float(bar[3]), (int(bar[1]), int(bar[2]))
        elif reverse := _REVERSED.search(line, start):  # «7.01 loss, 0.12 acc»
            reader.loss = self._number(reverse[1])
            if row := _ROW.match(line, start):
                reader.step = (int(row[1]), None)

    def _number(self, text: str) -> float | None:
        """A number as printed, with separated thousands or a decimal comma; None for a version such
        as `1.2.3`.
        """
        text = text.removesuffix(".")  # of a sentence
        if "," not in text and "_" not in text:
            return float(text) if text.count(".") <= 1 else None
        if _GROUPED.match(text) and not (self._comma and "." not in text):
            return float(text.replace(",", "").replace("_", ""))
        if _DECIMAL_COMMA.match(text):
            self._comma = True
            return float(text.replace(".", "").replace(",", "."))
        first = text.partition(",")[0]  # of several
        return float(first) if first.count(".") <= 1 and "_" not in first else None

    def _value(
        self,
        reader: _Reader,
        described: MetricName,
        pair: re.Match[str],
        parts: list[tuple[int, int, Part]],
    ) -> None:
        """Take a name with its number: as the loss, or as another metric."""
        line = reader.line
        named = self._in_context(line, described, pair, parts)
        if named is None:
            return
        (name, part, is_loss, rank, _), before = named
        last = before[-1] if before else None
        _, _, when, moment, separator, verb, number, of, _ = pair.groups()
        if separator is None and verb is None and number.isdigit():
            if (after := _AFTER_COUNT.match(line, pair.end())) is None:
                return  # «loss 3 times»
            # «train loss 100 0.5»
            reader.step, number = reader.step or (int(number), None), after[1]
        if is_loss:
            reader.about_loss = True
            reader.trains = reader.trains or part in (None, "train")
        if when in vocabulary.STEPS and moment is not None:
            reader.step = reader.step or (int(moment), None)
        value = self._number(number)
        if value is None:
            return
        if of is not None:
            value /= int(_digits(of)) or 1
        if is_loss and last not in (None, "loss", *vocabulary.PARTS, *vocabulary.SAYS_NOTHING):
            rank = max(rank, describe(f"{last}_loss").rank)  # «average loss»
            if rank == PART_OF and part in (None, "train"):
                name = f"{last}_{name}"  # «policy loss»
        rank, is_part = self._rank(described, MetricName(name, part, is_loss, rank, None), before)
        if rank < reader.rank:
            if self._as_fraction and _PERCENT.match(reader.line, pair.end()):
                value /= 100.0
            if reader.loss is not None:  # only a part of what this is the whole of
                reader.metrics.setdefault(reader.name, reader.loss)
            reader.loss, reader.name, reader.rank, reader.end = value, name, rank, pair.end()
            reader.is_part = is_part
            self._named = self._named or rank < STANDS_IN
        elif name not in vocabulary.NOT_METRICS and not (
            number.isdigit() and name in vocabulary.PARTS
        ):
            reader.metrics.setdefault(name, value)

    def _rank(
        self, printed: MetricName, meant: MetricName, before: tuple[str, ...]
    ) -> tuple[int, bool]:
        """How likely a name is that of the job's metric; and whether it is then a part of it, or
        one of several.
        """
        if self._named_metric is not None:
            rank, is_part = self._named_metric.grade(printed.name, meant.part, before)
            self._named_metric.read(rank)
            return rank, is_part
        is_loss = meant.is_loss or (meant.rank == STANDS_IN and not self._named)
        if meant.part not in (None, "train") or not is_loss:
            return NO_LOSS, False
        return meant.rank, meant.rank == PART_OF

    def _in_context(
        self,
        line: str,
        described: MetricName,
        pair: re.Match[str],
        parts: list[tuple[int, int, Part]],
    ) -> tuple[MetricName, tuple[str, ...]] | None:
        """The meaning of a name in its context, and up to two words before it; None if it names no
        metric.
        """
        name, part, is_loss, rank, counts = described
        _, aside, _, _, separator, verb, number, of, thousands = pair.groups()
        if thousands is not None:
            return None  # a quantity
        if of is not None and (is_loss or not self._metric.endswith(name)):
            return None
        start = pair.start()
        before = words_before(line, start)
        # «loss value: 0.5», «gen loss total: 0.5», «loss train: 0.5»
        if name in _AFTER_LOSS and "loss" in before:
            name, is_loss, rank = (
                f"{name}_loss" if name in vocabulary.VALIDATING else "loss",
                True,
                0,
            )
        if aside is not None and part is None and (which := describe(aside).part) is not None:
            part, name = which, name if which == "train" else f"{which}_{name}"  # «loss (val): 0.5»
        if is_loss and (
            not vocabulary.NO_LOSS.isdisjoint(before) or line[pair.end() : pair.end() + 1] == "%"
        ):
            return None  # «packet loss: 3%», «best val loss: 0.2»
        if separator is None and verb is None:
            may_be_the_metric = f"_{name}".endswith(f"_{self._metric}") or self._metric.endswith(
                f"_{name}"
            )
            if not (
                is_loss
                or rank == STANDS_IN
                or name in vocabulary.WITHOUT_SEPARATOR
                or may_be_the_metric
            ):
                return None
            if number.isdigit() and not is_loss:
                return None
        if before and not is_loss and before[-1] not in vocabulary.PARTS and rank != STANDS_IN:
            name = f"{spell(before[-1])}_{name}"  # «learning rate: 1e-4»
        if part is None and parts:
            part = _part_before(parts, line, start)
            if part is not None and part != "train":
                name = f"{part}_{name}"
        return MetricName(name, part, is_loss, rank, counts), before


def _heading(line: str) -> LineProgress | None:
    """The progress of a line that only announces an evaluation; None for any other line."""
    end = line.rstrip()[-1:]
    if len(line) > _LONGEST_HEADING or not (
        _HEADED.match(line) or (end in _END_OF_HEADING and _HEADING.match(line))
    ):
        return None
    return LineProgress(None, {}, heads=True)


def _letters(line: str, start: int) -> int:
    """Index of the first letter or digit of a line."""
    while start < len(line) and not line[start].isalpha() and not line[start].isdigit():
        start += 1
    return start


def _digits(count: str) -> str:
    return count.replace(",", "").replace("_", "")


def _count(reader: _Reader, described: MetricName, pair: re.Match[str]) -> None:
    number, of = _digits(pair[7]), pair[8]
    line, start = reader.line, pair.start()
    if not number[0].isdigit() or line[pair.end() : pair.end() + 1] == "%":
        return
    if pair[9] is not None and described.counts in ("epoch", "epochs", "ep"):
        return  # «epoch 2m»
    number = number.removesuffix(".")
    total = int(_digits(of)) * _THOUSANDS[pair[9]] if of and len(of) <= _MOST_DIGITS else None
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


def _parts(line: str) -> list[tuple[int, int, Part]]:
    """Start, end and kind of each mention of training, validation or testing in a line. Computed
    only if needed.
    """
    if not (
        "val" in line
        or "test" in line
        or "dev" in line
        or "inference" in line
        or "dict" in line
        or "cv" in line
    ):
        return []
    parts: list[tuple[int, int, Part]] = []
    for match in islice(_PART.finditer(line), 8):
        part: Part = "train" if match[1] else "test"
        if match[2] and not match[1]:
            part = "val"
        parts.append((match.start(), match.end(), part))
    return parts


def _part_before(parts: list[tuple[int, int, Part]], line: str, start: int) -> Part | None:
    """The part of the data that a value belongs to. In «Val Loss: 1, Loss: 2» only the first value
    is of validation, in «val: loss 1, acc 2» both are.
    """
    part: Part | None = None
    for begin, end, which in parts:
        if begin >= start:
            break
        if not line[end:start].strip(" ."):
            return which
        while end < start and line[end].isspace():
            end += 1
        follower = _PAIR.match(line, end)
        part = which if follower is None or not _is_value(follower) else None
    return part


def _is_value(pair: re.Match[str]) -> bool:
    """Whether a pair is a value: «loss 0.5», not «step 5» or «split 0»."""
    stated = pair[5] not in (None, "-") or pair[6] is not None or not pair[7].isdigit()
    return stated and describe(pair[1]).counts is None


def _boosting_error(metrics: dict[str, float]) -> float | None:
    """The training error of gradient boosting: `[10]<tab>train-rmse:0.5<tab>eval-rmse:0.6`."""
    for name in metrics:
        words = name.split("_")
        if vocabulary.VALIDATING.isdisjoint(words) and not vocabulary.BOOSTING.isdisjoint(words):
            return metrics.pop(name)
    return None


def _place(line: str) -> LineProgress | None:
    """The progress of a line that only states a step; its values are printed below it."""
    start = positions.content(line)
    pair = _PAIR.search(line, start)
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
    reader = _Reader(line, start)
    _count(reader, described, pair)
    at = reader.step or reader.batch
    return LineProgress(None, {}, at[0], total=at[1]) if at is not None else None


def _is_earned(metrics: Mapping[str, float]) -> bool:
    """Whether one of these values is a measure of a model's quality."""
    return any(
        name.endswith(("return", "reward", "score", "accuracy")) and direction(name)
        for name in metrics
    )


def _result(
    reader: _Reader, parts: list[tuple[int, int, Part]], any_loss: bool
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
        and _EARNS.search(line) is not None
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
        return _place(line)
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
