"""Keeps the lines of a script's output that look most like progress, as a hint if none could be
read.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from headgate.model import goals
from headgate.output.metric_names import spell

_MOST_LINES = 20_000  # that are looked at
_MOST_KEPT = 3
_MOST_OF_A_SHAPE = 8  # lines that are kept, the latest
_LONGEST = 120  # characters that are shown
_MOST_CHARACTERS = 4 * _LONGEST  # that are looked at

_WORDS = re.compile(
    r"loss|cost|obj(?:f|ective)|err(?:or)?(?![a-z])|epoch|step|iter|batch|acc(?:uracy)?(?![a-z])|perplexity|ppl|reward"
    r"|score|train|valid|metric|likelihood|elbo"
)
_DECIMAL = re.compile(r"\d\.\d|\de-?\d")
_NAMED = re.compile(
    r"(?<![\w./@-])(?<!\bfrom )(?<!\bthan "
    r")([a-z][\w./@-]{0,40}?)['\"]?(?:\s{0,2}[:=]\s{0,2}\[?|\s)[-+]?\d{0,9}\.\d?"
)
_EXCEPTION = re.compile(
    r"\s{0,8}(?:\[[\w./ "
    r"-]{1,40}\]:?\s)?[A-Za-z_][\w.]{0,80}(?:Error|Exception|Warning):\s(?![-+.\d])"
)
"""The last line of a traceback, which some programs print alone."""
_DIGITS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")

_MOST_WITHOUT = 3  # lines that name the metric and do not give it
_MOST_EPOCHS = 2  # that end without the metric
_MOST_REPORTS = 50  # without it, where no epochs are told
_FEWEST_REPORTS = 3
_TIMES_THE_GAP = 4  # that there was before, without the metric


class Nearest:
    """Keeps the lines that look most like progress.

    Args:
        metric: The metric to follow.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric.lower()
        self._seen = 0
        # by the shape of a line: its rank, and the lines
        self._kept: dict[str, tuple[int, deque[str]]] = {}

    def add(self, line: str) -> bool:
        """Take a line without the metric. Returns whether it looks like progress."""
        self._seen += 1
        if self._seen > _MOST_LINES:
            return False
        line = line[:_MOST_CHARACTERS]
        low = line.lower()
        if not any(c.isdigit() for c in low) or _EXCEPTION.match(line):
            return False
        words = set(_WORDS.findall(low)) | ({self._metric} if self._metric in low else set())
        near = 2 * len(words) + (3 if _DECIMAL.search(low) else 0)
        if not words or near < 5:
            return False
        shape = _DIGITS.sub("#", low)
        _, lines = self._kept.pop(shape, (near, deque[str](maxlen=_MOST_OF_A_SHAPE)))
        lines.append(line.strip())
        self._kept[shape] = near, lines
        if len(self._kept) > _MOST_KEPT:
            del self._kept[min(self._kept, key=lambda shape: self._kept[shape][0])]
        return True

    def lines(self) -> list[str]:
        """These lines, the most likely first."""
        return [lines[-1][:_LONGEST] for _, lines in self._likeliest()]

    def candidates(self) -> Iterator[tuple[str, list[str]]]:
        """Names of values to follow instead, similar ones first, each with its lines.

        Each name states which direction is better. If another metric than the loss is followed, it
        is the same direction.
        """
        way = goals.direction(self._metric) if self._metric != "loss" else None
        named = [
            (name, list(lines))
            for _, lines in self._likeliest()
            for name in dict.fromkeys(_NAMED.findall(lines[-1].lower()))
            if goals.direction(name) is not None and way in (None, goals.direction(name))
        ]
        yield from sorted(named, key=lambda candidate: not self._is_like(candidate[0]))

    def _is_like(self, name: str) -> bool:
        """Whether a name shares the beginning of one of the metric's words: `acc` for
        `accuracy`.
        """
        return any(
            word.startswith(other) or other.startswith(word)
            for word in spell(name).split("_")
            for other in spell(self._metric).split("_")
        )

    def _likeliest(self) -> list[tuple[int, deque[str]]]:
        return sorted(self._kept.values(), key=lambda kept: -kept[0])


class MissingMetric:
    """Notices that a job's metric never appears, or no longer appears, although the script goes on.

    Args:
        metric: Its name.
    """

    def __init__(self, metric: str) -> None:
        words = r"[\s_./@-]{0,3}".join(
            re.escape(word) for word in re.split(r"[\s_]+", spell(metric))
        )
        self._named = re.compile(rf"(?<![a-z]){words}(?![a-z])\D{{0,80}}\d")
        self._came = 0
        self._gap = 0  # the longest between two of its values, in reports
        self._reports = self._without = self._epochs = 0  # since it came last
        self._epoch: int | None = None

    def came(self) -> None:
        """Note a line with the metric."""
        if self._came:
            self._gap = max(self._gap, self._reports)
        self._came += 1
        self._reports = self._without = self._epochs = 0

    def passed(self, line: str, epoch: int | None) -> None:
        """Note a line of that epoch that looks like progress, without the metric."""
        self._reports += 1
        self._without += self._named.search(line.lower()) is not None
        if epoch is not None and epoch != self._epoch:
            self._epochs += self._epoch is not None
            self._epoch = epoch

    def reports(self) -> int | None:
        """Number of reports without the metric, once there are more than expected; None before."""
        if self._came > 1:
            late = self._without >= _MOST_WITHOUT and self._reports > _TIMES_THE_GAP * max(
                self._gap, _FEWEST_REPORTS
            )
        elif self._without >= _MOST_WITHOUT:
            late = True
        elif self._epoch is None:
            late = not self._came and self._reports >= _MOST_REPORTS
        else:
            late = (
                not self._came and self._epochs >= _MOST_EPOCHS and self._reports >= _FEWEST_REPORTS
            )
        return self._reports if late else None
