"""Progress printed as a table: names with rows of numbers below them, or a box with a name and a
number per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from headgate.output import vocabulary
from headgate.output.line_progress import LineProgress, duration
from headgate.output.metric_names import PART_OF, describe, spell
from headgate.output.positions import bar, content

_MOST_COLUMNS = 32
_LONGEST_HEADER = 400
_MOST_LINES = 2000  # of other things between two rows
_MOST_CELLS = 64  # of a box

_NUMBER = re.compile(
    r"[-+]?(?:\d{1,18}(?:\.\d{0,20})?|\.\d{1,20})(?:e[-+]?\d{1,3})?$|nan$|[-+]?inf$"
)
_LIST = re.compile(r"\[(?:[-+]?\d{1,18}\.\d{0,20}(?:e[-+]?\d{1,3})?(?:, |(?=\]))){1,16}\]$")
_SPACES = re.compile(r"\s{2,}")
_COUNT = re.compile(r"(\d{1,9})(?:/(\d{1,9}))?$")
_NAME = re.compile(r"[a-z#][\w#./@() -]{0,27}$")
_CELL = re.compile(
    r"\s{0,8}\|\s{0,40}([a-z][\w./@ -]{0,60}?)\s{0,60}\|\s{0,40}([^|]{0,40}?)\s{0,40}\|\s{0,8}$"
)
_REMAINING = frozenset({"remaining_time", "remaining"})
_BARS = str.maketrans("│┃║", "|||")
_RULE = re.compile(r"\s{0,8}[-+=|─━│└┘┴╰╯├┤┼╘╛═┗┛┻ ]{5,}$")


class _Column(NamedTuple):
    """A column of a table, by its name."""

    name: str
    counts: str | None
    is_loss: bool
    rank: int
    of_training: bool


class PrintedTables:
    """Finds one metric in tables.

    Args:
        metric: Its name, as of `lines.Scanner`.
    """

    def __init__(self, metric: str = "loss") -> None:
        self._metric = spell(metric)
        self._split: str | None = None  # what stands between columns; None: space
        self._columns: list[_Column] = []
        self._age = 0
        self._box: dict[str, float] = {}
        self._section = ""

    def scan(self, text: str) -> LineProgress | None:
        """The progress in a row of a table. None if the line is no row, or has no loss."""
        line = text.lower() if text.isascii() else text.lower().translate(_BARS)
        named = self._metric in line or "loss" in line
        if not named and not self._columns and not self._box and "|" not in line:
            return None
        first = line.lstrip()[:1]
        if (first == "|" or self._box) and (cell := self._cell(line)) is not None:
            return cell
        if self._columns:
            self._age += 1
            if self._age > _MOST_LINES:
                self._columns = []
            elif first.isdigit() or first == "|":
                return self._row(line)
        if named and len(line) <= _LONGEST_HEADER and ":" not in line and "=" not in line:
            self._header(line)
        return None

    # --- columns ----------------------------------------------------------------------------------

    def _header(self, line: str) -> None:
        for split in ("|", ",", None):
            if split is not None and split not in line:
                continue
            text = line.strip().strip("|").strip() if split == "|" else line.strip()
            names = [
                name.strip()
                for name in (text.split(split) if split else re.split(r"\s{2,}|\t", text))
            ]
            if split is None and len(names) < 2:
                names = text.split()
            if not 2 <= len(names) <= _MOST_COLUMNS or not all(_NAME.match(name) for name in names):
                continue
            columns = [_column(name, names) for name in names]
            if any(self._wanted(column) for column in columns) and any(
                column.counts for column in columns
            ):
                self._split, self._columns, self._age = split, columns, 0
                return

    def _row(self, line: str) -> LineProgress | None:
        text = line.strip().strip("|") if self._split == "|" else line[content(line) :]
        cells = [cell.strip().rstrip(":") for cell in text.split(self._split)]
        if self._split is None and len(spaced := _SPACES.split(text.strip())) == len(self._columns):
            cells = spaced  # that have spaces of their own
        columns = self._columns
        if (
            self._split is None
            and len(cells) == len(columns) + 1
            and all(map(_NUMBER.match, cells))
        ):
            cells = cells[1:]  # the first is the number of the row, as in a frame of pandas
        if len(cells) < len(columns):  # one of them may be empty
            columns = [column for column in columns if column.name not in ("cp", "checkpoint")][
                : len(cells)
            ]
        values: dict[str, float] = {}
        counts: dict[str, tuple[int, int | None]] = {}
        left: float | None = None
        for column, cell in zip(columns, cells, strict=False):
            if column.counts is not None:
                if (count := _COUNT.match(cell)) is None:
                    return None
                counts[column.counts] = int(count[1]), int(count[2]) if count[2] else None
            elif column.name in _REMAINING:
                left = duration(cell)
            elif _NUMBER.match(cell):
                values[column.name] = float(cell)
            elif _LIST.match(cell):
                values[column.name] = sum(float(part) for part in cell.strip("[]").split(","))
        wanted = [column for column in columns if self._wanted(column)]
        if (
            self._split is not None
            and values
            and not any(column.name in values for column in wanted)
        ):
            return LineProgress(None, values, evaluates=True)  # a row of the validation alone
        if not wanted or not all(column.name in values for column in wanted):
            return None
        self._age = 0
        epoch, epochs = counts.get("epoch", (None, None))
        step, total = counts.get("step", (None, None))
        if step is None and (drawn := bar(line)) is not None:
            step, total = drawn
        loss, metrics = self._loss(wanted, values)
        return LineProgress(loss, metrics, step, epoch, epochs, total=total, remaining=left)

    # --- boxes ------------------------------------------------------------------------------------

    def _cell(self, line: str) -> LineProgress | None:
        if cell := _CELL.match(line):
            name, value = cell[1].strip(), cell[2]
            if not value and name.endswith("/"):
                self._section = name
            elif _NUMBER.match(value) and len(self._box) < _MOST_CELLS:
                self._box[spell(self._section + name if self._section else name)] = float(value)
            return None
        if self._box and _RULE.match(line):
            box, self._box, self._section = self._box, {}, ""
            return self._boxed(box)
        if not _RULE.match(line):
            self._box, self._section = {}, ""
        return None

    def _boxed(self, box: dict[str, float]) -> LineProgress | None:
        columns = [_column(name, box) for name in box]
        counted = [column.name for column in columns if column.counts == "step"]
        step = max((int(box[name]) for name in counted), default=None)
        epoch = next(
            (int(box[column.name]) for column in columns if column.counts == "epoch"), None
        )
        values = {column.name: box[column.name] for column in columns if column.counts is None}
        wanted = [column for column in columns if self._wanted(column)]
        if not wanted:
            evaluates = any(column.is_loss for column in columns)
            return LineProgress(None, values, evaluates=True) if evaluates else None
        loss, metrics = self._loss(wanted, values)
        return LineProgress(loss, metrics, step, epoch)

    # --- both -------------------------------------------------------------------------------------

    def _wanted(self, column: _Column) -> bool:
        if self._metric == "loss":
            return column.is_loss and column.of_training
        return column.name == self._metric or column.name.endswith(f"_{self._metric}")

    def _loss(
        self, wanted: list[_Column], values: dict[str, float]
    ) -> tuple[float, dict[str, float]]:
        """The most likely loss among some columns. The sum of its parts if no column has the
        whole.
        """
        best = min(wanted, key=lambda column: column.rank)
        parts = [column for column in wanted if column.rank == PART_OF]
        if best.rank == PART_OF and self._metric == "loss" and len(parts) > 1:
            return sum(values[column.name] for column in parts), values
        return values[best.name], {
            name: value for name, value in values.items() if name != best.name
        }


def _column(name: str, names: Iterable[str]) -> _Column:
    bare = spell(name.replace(" ", "_").replace("(", "_").replace(")", ""))
    described = describe(bare)
    counts: str | None = described.counts if described.counts in ("epoch", None) else "step"
    last = bare.rsplit("_", 1)[-1]
    if (
        name == "#"
        or bare == "itn"
        or (counts is None and bare.split("_")[0] == "time" and last in vocabulary.STEPS)
    ):
        counts = "step"
    elif bare in ("e", "ep") and "#" in names:
        counts = "epoch"
    elif bare.endswith("total_timesteps"):
        counts = "step"
    return _Column(
        bare, counts, described.is_loss, described.rank, described.part in (None, "train")
    )
