"""The lines of a script's output that look most like progress: a hint where nothing could be read from it."""

from __future__ import annotations

import re

from headgate import goals
from headgate.telemetry.lines import Scanner

_MOST_LINES = 20_000  # that are looked at
_MOST_KEPT = 3
_LONGEST = 120  # characters that are shown

_WORDS = re.compile(
    r"loss|cost|obj(?:f|ective)|err(?:or)?(?![a-z])|epoch|step|iter|batch|acc(?:uracy)?(?![a-z])|perplexity|ppl|reward"
    r"|score|train|valid|metric|likelihood|elbo"
)
_DECIMAL = re.compile(r"\d\.\d|\de-?\d")
_NAMED = re.compile(r"([a-z][\w./@-]{0,40}?)['\"]?(?:\s{0,2}[:=]\s{0,2}|\s)[-+]?\d{0,9}\.\d")
_DIGITS = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


class Nearest:
    """Keeps the lines that look most like progress.

    Args:
        metric: The metric that is looked for.
    """

    def __init__(self, metric: str) -> None:
        self._metric = metric.lower()
        self._seen = 0
        self._kept: dict[str, tuple[int, str]] = {}  # by a line's shape: how near it is, and the line

    def add(self, line: str) -> None:
        """Take in a line in which nothing was found."""
        self._seen += 1
        if self._seen > _MOST_LINES or len(line) > 4 * _LONGEST:
            return
        low = line.lower()
        if not any(c.isdigit() for c in low):
            return
        words = set(_WORDS.findall(low)) | ({self._metric} if self._metric in low else set())
        near = 2 * len(words) + (3 if _DECIMAL.search(low) else 0)
        if not words or near < 5:
            return
        self._kept[_DIGITS.sub("#", low)] = near, line.strip()[:_LONGEST]
        if len(self._kept) > _MOST_KEPT:
            del self._kept[min(self._kept, key=lambda shape: self._kept[shape][0])]

    def lines(self) -> list[str]:
        """These lines, the likeliest first."""
        return [line for _, line in sorted(self._kept.values(), key=lambda kept: -kept[0])]

    def metric(self) -> str | None:
        """The name of a value in these lines that could be followed instead: its name tells which way it gets better.
        None if there is none."""
        for line in self.lines():
            for name in _NAMED.findall(line.lower()):
                if goals.direction(name) is None:
                    continue
                found = Scanner(name).scan(line)
                if found is not None and found.loss is not None:
                    return str(name)
        return None
