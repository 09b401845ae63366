"""Configuration that a script prints before it trains: YAML, JSON, the repr of a dataclass or of
argparse's namespace, or a list or table of hyperparameters. Its `loss` and `epoch` are no progress.

Names decide that are only ever set, such as `seed`. Those that training lines have too, such as
`lr`, decide nothing.
"""

from __future__ import annotations

import re

from headgate.output.positions import content

_LONGEST = 160
"""Characters of a line of a configuration that has one name a line."""
_MOST_LINES = 400
"""Lines of a repr whose brackets nothing closes."""
_SET = re.compile(
    r"(?:(?:random|manual|np|torch)_?)?seed|(?:(?:train|val|eval|test|micro|mini|global|per_device"
    r"(?:_train|_eval)?)_?)?batch_?size|optim(?:izer)?(?:_(?:name|type))?|weight_decay|wd|momentum"
    r"|dropout(?:_(?:rate|prob))?|(?:num|n)_(?:workers|epochs|layers|heads|classes|blocks|gpus)"
    r"|(?:max_?|n|total_|train_)?epochs|hidden(?:_?(?:size|dim|units))?|embed(?:ding)?_?dim"
    r"|d_model|nhead|(?:lr_)?scheduler|warmup\w{0,12}|(?:adam_)?(?:betas|beta_?[12])"
    r"|(?:data|output|out|save|log|checkpoint|ckpt)_?(?:dir|path|root)|dataset(?:_name)?|device"
    r"|(?:log|save|eval|print|checkpoint)_?(?:every|interval|freq|frequency)|(?:save|logging)_steps"
    r"|ima?ge?_?size|pretrained|fp16|bf16|amp|vocab_size|(?:max_)?seq(?:uence)?_len(?:gth)?"
    r"|model_?(?:name|type)|arch|label_smoothing|gradient_accumulation_steps|grad_?clip"
)
_NAMED = re.compile(r"([a-z][\w-]{0,48})['\"]?\s{0,4}[:=](?!=)")
_REPR = re.compile(
    r"(?:[a-zA-Z_]\w{0,40}\s?[:=]\s{0,4})?(?:((?:[Nn]amespace|\w{0,40}(?i:config|configuration|cfg"
    r"|args|arguments|options|settings|hparams|hyperparameters)))|[A-Z]\w{0,40})?[({]"
)
_HEADING = re.compile(
    r"[\W_]{0,80}(?:[a-z]+ ){0,3}(?:configs?|configurations?|cfg|args|arguments|options|settings"
    r"|hparams|hyper-?parameters|parameters?[\s|]{1,40}values?)[\W_]{0,80}$"
)
_ONE = re.compile(
    r"(?:[|*-]\s{0,8})?['\"]?([a-z][\w./-]{0,48})['\"]?(?:\s{0,40}(?:[:=|]|\.{2,80})"
    r"(?:\s{1,40}(?:[^\s|%]{1,120}(?:\s{0,40}\|)?|['\"\[{(].{0,120}))?$|=\S{1,120}$|\s{2,40}\S{1,60}$)"
)
_BETWEEN = re.compile(r"(?:[\W_]{1,160}|-\s{1,4}\S{1,120}|[\d.]{1,20})$")
"""A rule, or an item of a list in YAML."""


class PrintedConfiguration:
    """Tells lines of a configuration from those of the training."""

    def __init__(self) -> None:
        self._is_open = False
        self._brackets = 0  # that are open
        self._lines = 0  # since the first of them
        # the names so far of what is printed now, by how far they are indented
        self._names: dict[int, set[str]] = {}

    def holds(self, text: str) -> bool:
        """Whether a line is one of a configuration."""
        printed = text[content(text.lower()) :].strip()
        line = printed.lower()
        if self._brackets > 0:
            self._lines += 1
            self._brackets += _opened(line)
            return self._lines <= _MOST_LINES
        if (written := _REPR.match(printed)) is not None:
            if written[1] is not None or _sets(line):
                self._brackets, self._lines = _opened(line), 0
                return True
        elif _HEADING.match(line):
            self._is_open, self._names = True, {}
        elif len(line) <= _LONGEST and (entry := _ONE.match(line)) is not None:
            return self._has(entry[1].replace("-", "_"), len(text) - len(text.lstrip()))
        elif not line or not _BETWEEN.match(line):
            self._is_open, self._names = False, {}
        return self._is_open

    def _has(self, name: str, indent: int) -> bool:
        """Whether a line with one name is of a configuration. None has a name twice."""
        self._names = {depth: names for depth, names in self._names.items() if depth <= indent}
        names = self._names.setdefault(indent, set())
        if name in names:
            self._is_open, self._names = False, {}
        elif _SET.fullmatch(name):
            self._is_open = True
        names.add(name)
        return self._is_open


def _sets(line: str) -> bool:
    return any(_SET.fullmatch(name.replace("-", "_")) for name in _NAMED.findall(line))


def _opened(line: str) -> int:
    return sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
