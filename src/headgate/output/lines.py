"""Finds loss, step and epoch in one line of a script's output, as common frameworks and scripts
print them.

A line is searched once for pairs of a name and a number. Repeats are bounded, most are possessive,
and a search can only start at the start of a word. So the time is proportional to the line's
length, whatever the line.
"""

from __future__ import annotations

import re
from itertools import islice

from headgate.output import positions, vocabulary
from headgate.output.line_pairs import (
    EARNS,
    ENDS,
    NUMBER,
    PAIR,
    LinePairs,
    digits,
    note_count,
    progress_of,
    step_alone,
)
from headgate.output.line_progress import LineProgress
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

_TRIAL = re.compile(
    r"\btrial (\d{1,9}) (?:finished with values?: "
    rf"(?:\[{NUMBER}(?=[,\]])|{NUMBER}(?=\s|\.?$))|pruned\b|failed\b)"
)
_OF_TRIAL = frozenset({"value", "values", "objective", "objective_value", "trial_value"})
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
    rf"(?:^|[,|])\s{{0,8}}{NUMBER}\s{{1,3}}(?:train(?:ing)?\s)?loss\s{{0,4}}(?=[,|]|$)"
)
_ROW = re.compile(r"\s{0,8}(\d{1,9})\s{1,4}(?=[\d.])")
_IN_BAR = re.compile(r"% \[(\d{1,9})/(\d{1,9}) [\d:]{1,9}<[\d:?]{1,9} (-?\d{1,9}\.\d{1,9})\]")
_BOOSTING = re.compile(r"\s{0,4}\[(\d{1,9})\]\s")
_AFTER_LOSS = {"value"} | vocabulary.TRAINING | vocabulary.SMOOTHED | vocabulary.VALIDATING


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
            None if self._any_loss else NamedMetric(self._metric, far=f"(?P<number>{NUMBER}){ENDS}")
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
            if not (counts or "episode" in line) or EARNS.search(line) is None:
                return _heading(line) or (step_alone(plain(line)) if counts else None)
        line = plain(line)
        if "'s " in line:
            line = line.replace("'s ", " ")  # «training's l2»
        start = positions.content(line)
        reader = LinePairs(line, start)
        parts: list[tuple[int, int, Part]] | None = None
        for pair in islice(PAIR.finditer(line, start), _MOST_PAIRS):
            described = describe(pair[1])
            if described.counts is not None:
                note_count(reader, described, pair)
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
        return progress_of(reader, parts, self._any_loss) or _heading(line)

    def _trial_progress(self, trial: re.Match[str]) -> LineProgress:
        """The progress of an Optuna trial: the trial is a step, and its value the metric, if the
        job names that.
        """
        text = trial[2] or trial[3]
        value = self._number(text) if text is not None else None
        metrics = {"value": value} if value is not None else {}
        loss = metrics.pop("value", None) if self._metric in _OF_TRIAL else None
        return LineProgress(loss, metrics, int(trial[1]) + 1)

    def _find_far_value(self, reader: LinePairs, parts: list[tuple[int, int, Part]]) -> None:
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

    def _find_unnamed_loss(self, reader: LinePairs) -> None:
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
        reader: LinePairs,
        described: MetricName,
        pair: re.Match[str],
        parts: list[tuple[int, int, Part]],
    ) -> None:
        """Take a name with its number: as the loss, or as another metric."""
        line = reader.line
        named = self._in_context(reader, described, pair, parts)
        if named is None:
            return
        (name, part, is_loss, rank, _), before = named
        last = before[-1] if before else None
        _, _, when, moment, separator, verb, number, of, _ = pair.groups()
        bare = separator is None and verb is None
        if bare and number.isdigit() and not reader.has_only_pairs():
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
            value /= int(digits(of)) or 1
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
        reader: LinePairs,
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
        line, start = reader.line, pair.start()
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
        if separator is None and verb is None and not reader.has_only_pairs():
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
        follower = PAIR.match(line, end)
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
