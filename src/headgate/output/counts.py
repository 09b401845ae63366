"""Combines several lines: counts that restart in each epoch, and the job's loss among several."""

from __future__ import annotations

from headgate.output.line_progress import LineProgress

_MOST_PARTS = 16  # losses that are a part of one, before one is the job's though others were
_ENDED = 0.9  # of a count that starts anew, at the least, if it had come to its end


class LossOfParts:
    """Finds the job's loss in lines with one loss each: the whole loss, or a part of it.

    Below a line with the position, the whole loss may come after its parts. So these are held back
    the first time.
    """

    def __init__(self) -> None:
        # name of the part; None: the job's loss is the whole one, or unknown
        self._name: str | None = None
        self._whole = False
        self._others = 0  # parts since the job's own
        self._held: LineProgress | None = None

    def released(self, progress: LineProgress) -> tuple[LineProgress, ...]:
        """A line, after held-back lines that turned out to be the job's, because another position
        follows.
        """
        held = self._held
        if held is None or progress.loss is not None or progress.metrics:
            return (progress,)
        self._name, self._held = held.part, None
        return held, progress

    def of(self, progress: LineProgress, below: bool) -> LineProgress | None:
        """The line, with a loss other than the job's among its metrics. None while the job's is
        unknown.
        """
        if progress.loss is None or (progress.evaluates and progress.part is None):
            return progress
        if progress.part is None:
            self._whole, self._others, self._held = True, 0, None
            return progress
        if self._whole or (self._name is not None and self._name != progress.part):
            self._others += 1
            if self._others <= _MOST_PARTS:
                return progress._replace(
                    loss=None, metrics={progress.part: progress.loss, **progress.metrics}
                )
            self._whole = False
        elif below and self._name is None:
            self._held = self._held or progress
            return None
        self._name, self._others = progress.part, 0
        return progress


class RunningCount:
    """Makes a count that restarts in each epoch continuous.

    Attributes:
        latest: The latest count; None before the first.
        total: The total of the count, of an epoch or of all.
    """

    def __init__(self) -> None:
        self.latest: int | None = None
        self.total: int | None = None
        self._base = 0
        self._count = 0
        self._begun = 1  # the first count of the epoch
        self._gap = 1  # between the latest two
        self._epoch: int | None = None
        # whether it restarts in each epoch; None: unknown yet
        self._anew: bool | None = None

    def count(self, count: int, total: int | None, epoch: int | None) -> None:
        if self.latest is not None:
            if epoch != self._epoch:
                anew = count <= self._count
                self._anew = anew if self._anew is None or total is None or anew else self._anew
            else:
                ended = self.total is not None and self._count >= _ENDED * self.total
                anew = epoch is None and ended and count < self._count
                self._anew = True if anew else self._anew
            if anew:
                self._base += self.total if self.total is not None else self._ended()
                self._begun, self._gap = count, 1
            elif count > self._count:
                self._gap = count - self._count
        else:
            self._begun = count
        self._count, self._epoch = count, epoch
        self.total = total if total is not None else self.total
        self.latest = self._base + count

    def _ended(self) -> int:
        """Number of items in an epoch without a total. One that counts from 0 had one more than its
        last count.
        """
        return self._count + self._gap if self._begun == 0 else self._count

    def all(self, epoch: int | None) -> int | None:
        """The total count of the whole training; None if the total may be that of an epoch."""
        is_of_all = self._anew is False or (self._anew is None and epoch is None)
        return (
            self.total
            if is_of_all and self.total is not None and self._count <= self.total
            else None
        )

    def grows(self, count: int, total: int) -> bool:
        """Whether a count is where it was, but has a larger total."""
        return count == self._count and self.total is not None and total > self.total

    def is_behind(self, count: int) -> bool:
        """Whether a count is not beyond the latest one."""
        return self.latest is not None and count <= self._count

    def part(self, total: int) -> float | None:
        """The fraction of an epoch that is done; None if the count does not restart in each."""
        return min(self._count / total, 1.0) if total > 0 and self._anew is not False else None


def differ(total: int | None, other: int | None) -> bool:
    """Whether two totals are known and differ."""
    return total is not None and other is not None and total != other


def starts_anew(bar: LineProgress, before: LineProgress) -> bool:
    """Whether a bar of Keras is behind the last one, or, if bars are not redrawn, a repetition of
    it.
    """
    if bar.step is None or before.step is None:
        return False
    again = bar.step == bar.total == before.step and not bar.drawn and bar.loss != before.loss
    return again or bar.step < before.step


class KerasFits:
    """Numbers the epochs continuously in a script that calls Keras's `fit` repeatedly.

    A call for one epoch prints no heading. So each bar that starts anew is a call, and bars of
    another length belong to an evaluation.
    """

    def __init__(self) -> None:
        self._headed = False
        self._calls = 0
        self._before = 0  # epochs of the calls before
        self._epoch = 0
        self._epochs: int | None = None

    def without_heading(self, progress: LineProgress, bar: LineProgress | None) -> LineProgress:
        """A bar of Keras without a heading, with its epoch."""
        if self._headed or not progress.keras:
            self._headed = self._headed or progress.epoch is not None
            return progress
        if bar is None or (
            not differ(bar.total, progress.total) and (bar.evaluates or starts_anew(progress, bar))
        ):
            self._calls += 1
        return progress._replace(epoch=self._calls) if self._calls > 1 else progress

    def run_on(
        self, progress: LineProgress, heading: bool, bar: LineProgress | None
    ) -> tuple[int | None, int | None]:
        """Epoch and number of epochs of a line, counted on from earlier calls."""
        epoch, epochs = progress.epoch, progress.epochs
        if epoch is None:
            return None, None
        if (
            heading
            and epochs is not None
            and bar is not None
            and bar.step == bar.total
            and epoch <= self._epoch
        ):
            self._before += self._epoch
        self._epoch = epoch
        if self._before:
            # A loop over calls of the same length prints its number nowhere.
            epochs = (
                self._before + epochs if epochs is not None and epochs != self._epochs else None
            )
        else:
            self._epochs = epochs if epochs is not None else self._epochs
        return self._before + epoch, epochs
