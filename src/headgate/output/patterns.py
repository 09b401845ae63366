"""Reads progress from the output of scripts that do not report it themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headgate.model.errors import UsageError
from headgate.model.progress_rule import ProgressRule
from headgate.output.configurations import PrintedConfiguration
from headgate.output.counts import KerasFits, LossOfParts, RunningCount, differ, starts_anew
from headgate.output.expressions import Expression, TooSlowError, check_pattern, group_of
from headgate.output.line_progress import LineProgress
from headgate.output.lines import Scanner
from headgate.output.nearest import MissingMetric, Nearest
from headgate.output.plain_lines import shown
from headgate.output.tables import PrintedTables
from headgate.output.tracebacks import TracebackLines

_NEAR = 3  # lines after a bar in which a loss is at its step
_BELOW = 64  # lines below one that says a step, in which a loss is at it
_MOST_BARS = 4096
_RECALLED = 3  # lines below a heading of what was the best
_FRACTION = 0.01  # of an epoch, that a count may differ from

_COUNTS_SAMPLES = re.compile(r"Train on (\d{1,12}) samples")  # of Keras


class ProgressReader:
    """Reads progress from lines of output, in order.

    Args:
        rule: The metric, and the job's own expression if it has one.

    Raises:
        UsageError: The job's own expression cannot be used (see `check_pattern`).
    """

    def __init__(self, rule: ProgressRule) -> None:
        self.problem: str | None = None
        """Why the job's own expression is no longer searched for; None while it is."""
        self._expression: Expression | None = None
        if rule.pattern is not None:
            reason = check_pattern(rule.pattern, rule.metric)
            if reason is not None:
                raise UsageError(f"progress.pattern {rule.pattern!r}: {reason}")
            self._expression = Expression(rule.pattern)
            self._group = group_of(self._expression.pattern, rule.metric) or rule.metric
        self._as_fraction = rule.goal is not None and rule.goal <= 1.0
        self._scanner = Scanner(rule.metric, as_fraction=self._as_fraction)
        self._tables = PrintedTables(rule.metric)
        # as long as no line told progress
        self._configuration: PrintedConfiguration | None = PrintedConfiguration()
        self._epoch: int | None = None
        self._epochs: int | None = None
        self._fits = KerasFits()
        self._steps = RunningCount()
        self._samples = RunningCount()
        # by epoch: step and loss of finished ones
        self._bars: dict[int, tuple[int, float | None]] = {}
        self._bar: LineProgress | None = None  # the last one of Keras in this epoch
        self._evaluating = False  # whether the last line that told something was of an evaluation
        self._headed = False  # whether a heading says so, and no line since then
        # a step and its total, from a line without a loss
        self._place: tuple[int, int | None] | None = None
        # number of lines with a loss since then, and the most at one step
        self._place_lines, self._place_reach = 0, 0
        self._recalled = 0  # so many lines may be of what was the best
        self._tells_steps = False  # whether a line with a loss said its step itself
        self._turns = False  # whether counts are of an epoch and the step in it
        self._loss = LossOfParts()
        # the totals of Keras bars that count samples
        self._in_samples: int | None = None
        # whether bars whose total is the number of epochs count those
        self._over_epochs: bool | None = None
        # whether no line of the training had the metric yet
        self._only_evaluated = rule.metric != "loss"
        self._last: LineProgress | None = None
        self._rule = rule
        # while the metric appears, or is not missed yet
        self._nearest: Nearest | None = Nearest(rule.metric)
        self._asked = rule.pattern is not None or rule.goal is not None or rule.metric != "loss"
        self._missing: MissingMetric | None = MissingMetric(rule.metric) if self._asked else None
        self._came = False  # whether any line had the metric
        self._tracebacks = TracebackLines()

    def hint(self) -> str | None:
        """A hint for the user if no line has the metric.

        None if a line has one, if a warning was given, or if no line looks like progress and the
        user asked for no metric.
        """
        if self._nearest is None or self._came or (not self._asked and not self._nearest.lines()):
            return None
        return self._advice(self._nearest, "in what it prints")

    def missed(self) -> str | None:
        """A warning, once, that the job's metric never appears, or no longer appears, although the
        script goes on.
        """
        if (
            self._missing is None
            or self._nearest is None
            or (reports := self._missing.reports()) is None
        ):
            return None
        where = f"in its first {reports} reports"
        if self._came:
            where = f"in its latest {reports} reports, though there was one before"
        warning = self._advice(self._nearest, where)
        self._missing = self._nearest = None
        return warning

    def _advice(self, nearest: Nearest, where: str) -> str:
        rule, near = self._rule, nearest.lines()
        finding = (
            f"{'the pattern of its `progress:` found no' if rule.pattern else 'found no'} "
            f"{rule.metric}"
        )
        shown = f"; nearest came: {' | '.join(near)}" if near else ""
        candidates = nearest.candidates() if rule.pattern is None else ()
        other = next((name for name, lines in candidates if _follows(name, lines)), None)
        cure = (
            f"`progress: {{metric: {other}}}` follows that instead"
            if other
            else "`progress:` says how to read it"
        )
        return f"{finding} {where}; in a job file, {cure}{shown}"

    def feed(self, lines: Iterable[str]) -> list[LineProgress]:
        """The readings in these lines. A line without progress, or one that repeats the last
        reading, gives none.

        Steps and samples are as the script counts them, but continuous over epochs. A line without
        a step has the last one.
        """
        readings = []
        for line in lines:
            for text in () if self._tracebacks.holds(line) else shown(line):
                if self._recalled:
                    self._recalled -= 1
                progress = (
                    self._search(self._expression, text) if self._expression else self._scan(text)
                )
                reading = None
                for line_progress in self._loss.released(progress) if progress is not None else ():
                    if (reading := self._reading(line_progress)) is not None:
                        self._last = reading
                        readings.append(reading)
                self._note_metric(text, reading)
        return readings

    def _note_metric(self, text: str, reading: LineProgress | None) -> None:
        """Note whether a line had the metric, or else how similar it is to one that has."""
        if self._nearest is None:
            return
        if reading is not None and self._has_metric(reading):
            self._came = True
            if self._missing is None:
                self._nearest = None
            else:
                self._missing.came()
        elif (self._nearest.add(text) or reading is not None) and self._missing is not None:
            self._missing.passed(text, self._epoch)

    def _has_metric(self, reading: LineProgress) -> bool:
        return reading.loss is not None or self._rule.metric in reading.metrics

    def _scan(self, text: str) -> LineProgress | None:
        if text.startswith("Train on") and (header := _COUNTS_SAMPLES.match(text)) is not None:
            self._in_samples = int(header[1])
        if self._configuration is not None and self._configuration.holds(text):
            return None
        return self._tables.scan(text) or self._scanner.scan(text)

    def _reading(self, progress: LineProgress) -> LineProgress | None:
        heading = progress.loss is None and not progress.metrics and not progress.evaluates
        if self._is_heading_alone(progress, heading) or (
            self._recalled and self._is_recalled(progress)
        ):
            return None
        if self._is_drawn_again(progress):
            return None
        self._tells_steps = self._tells_steps or (
            progress.loss is not None and progress.step is not None
        )
        whole = self._loss.of(
            self._with_step_of_bar(progress),
            below=self._place_reach == _BELOW and not self._tells_steps,
        )
        if whole is None:
            return None
        progress = (
            whole
            if whole.total is None or whole.step is None
            else self._swap_batch_and_epoch(self._count_epochs(whole))
        )
        progress = self._fits.without_heading(progress, self._bar)
        epoch, epochs = self._fits.run_on(progress, heading, self._bar)
        new_epoch = epoch is not None and epoch != self._epoch
        if new_epoch:
            self._epoch = epoch
            self._bar = None
        if epochs is not None:
            self._epochs = epochs
        if progress.keras and progress.step is not None and self._is_evaluation_bar(progress):
            progress = self._renamed(progress, "eval")
        elif self._evaluating and not progress.evaluates and self._continues_evaluation(progress):
            progress = self._renamed(progress, "val")
        else:
            self._headed = False
        self._evaluating = progress.evaluates
        if progress.evaluates:
            return self._evaluation_reading(progress, new_epoch)
        if heading and not new_epoch and (progress.step is None or not progress.drawn):
            return None
        self._only_evaluated = self._only_evaluated and progress.loss is None
        averaged = (
            (progress.step, progress.total)
            if progress.keras and progress.step is not None
            else None
        )
        progress = self._counted(progress)
        if progress.loss is not None:
            self._configuration = None
        if heading and not new_epoch:
            return None
        reading = LineProgress(
            step=self._steps.latest,
            epoch=self._epoch,
            epochs=self._epochs,
            loss=progress.loss,
            metrics=progress.metrics,
            samples=None if progress.samples is None else self._samples.latest,
            # A bar of Keras may be the first of many calls of `fit`.
            steps=self._total_steps(progress),
            within=progress.within
            if progress.within is not None
            else self._epoch_fraction(progress),
            averaged=averaged,
            remaining=progress.remaining,
        )
        # Bars are redrawn repeatedly; a script that counts no steps may print the same loss twice.
        return None if reading.step is not None and self._repeats(reading) else reading

    def _is_drawn_again(self, progress: LineProgress) -> bool:
        """Whether a bar belongs to a finished epoch and is redrawn beside the current one, because
        Rich redraws all bars at each change.
        """
        if (
            not progress.drawn
            or progress.epoch is None
            or progress.step is None
            or progress.step != progress.total
        ):
            return False
        ended = progress.step, progress.loss
        if progress.epoch != self._epoch and self._bars.get(progress.epoch) == ended:
            return True
        if len(self._bars) < _MOST_BARS:
            self._bars[progress.epoch] = ended
        return False

    def _renamed(self, progress: LineProgress, part: str) -> LineProgress:
        """The line as one of an evaluation. A metric that no training line has is the job's
        nevertheless.
        """
        renamed = progress.renamed(part, self._rule.metric)
        return renamed._replace(loss=progress.loss) if self._only_evaluated else renamed

    def _is_heading_alone(self, progress: LineProgress, heading: bool) -> bool:
        """Whether a line is only a heading of the lines below it: of a step, an evaluation, or the
        best epoch.
        """
        if progress.bar is not None:
            self._place, self._place_lines, self._place_reach = progress.bar, 0, _NEAR
        elif progress.heads:
            self._evaluating = self._headed = True
        elif progress.recalls:
            self._recalled = _RECALLED + 1
        elif heading and progress.step is not None and not progress.drawn and not progress.keras:
            if not self._tells_steps:
                self._place, self._place_lines, self._place_reach = (
                    (progress.step, progress.total),
                    0,
                    _BELOW,
                )
            return progress.epoch is None
        else:
            return False
        return True

    def _counted(self, progress: LineProgress) -> LineProgress:
        """A training line with continuous counts. A bar of Keras may count samples."""
        if progress.keras and progress.total is not None and progress.total == self._in_samples:
            progress = progress._replace(step=None, samples=progress.step)
        if progress.step is not None:
            self._steps.count(progress.step, progress.total, self._epoch)
        if progress.samples is not None:
            self._samples.count(progress.samples, progress.total, self._epoch)
        return progress

    def _evaluation_reading(self, progress: LineProgress, new_epoch: bool) -> LineProgress | None:
        """The reading of a line of an evaluation, which has its own counts."""
        if not progress.metrics and progress.loss is None:
            self._headed = True
            if not new_epoch:
                return None
        step = self._steps.latest
        if step is None and progress.total is None:
            step = progress.step  # no line of the training says where it is
        reading = LineProgress(progress.loss, progress.metrics, step, self._epoch, self._epochs)
        return None if self._repeats(reading) else reading

    def _repeats(self, reading: LineProgress) -> bool:
        return self._last is not None and reading.values == self._last.values

    def _epoch_fraction(self, progress: LineProgress) -> float | None:
        """The fraction of the epoch that is done, by a count that restarts in each epoch."""
        running = self._samples if progress.samples is not None else self._steps
        if (
            self._epoch is None
            or progress.total is None
            or (progress.step is None and progress.samples is None)
        ):
            return None
        return running.part(progress.total)

    def _continues_evaluation(self, progress: LineProgress) -> bool:
        """Whether an unmarked line continues the evaluation of the last line. Then it has no
        position in the training, although others have, or its count has another total.
        """
        if progress.epoch is not None or progress.samples is not None or progress.steps is not None:
            return False
        if progress.loss is None and not progress.metrics:
            return False
        if progress.trains:
            return False
        if self._headed and progress.step is not None and self._steps.is_behind(progress.step):
            return True
        if progress.step is None:
            known = self._steps.latest is not None or self._samples.latest is not None
            return known or (self._headed and self._epoch is not None)
        return (
            progress.total is not None
            and progress.total != self._steps.total
            and self._steps.total is not None
        )

    def _with_step_of_bar(self, progress: LineProgress) -> LineProgress:
        """A loss without a step, with the step of the bar just before it, or of the line above."""
        self._place_lines += 1
        if (
            self._place is None
            or progress.loss is None
            or progress.step is not None
            or progress.samples is not None
        ):
            return progress
        done, total = self._place
        if self._place_lines > self._place_reach:
            return progress
        if self._place_reach == _BELOW:
            return progress._replace(step=done, total=total) if progress.epoch is None else progress
        if done == total and self._steps.total != total:
            return progress
        # If epochs are fractions, the bar is over all of them.
        return progress._replace(
            step=done, total=total, steps=total if progress.within is not None else None
        )

    def _is_recalled(self, progress: LineProgress) -> bool:
        """Whether a line below a heading about the best values is no further in the training than
        earlier lines.
        """
        if progress.loss is None and not progress.metrics:
            return False
        if progress.step is not None:
            return self._steps.is_behind(progress.step)
        return progress.samples is None and (
            progress.epoch is None or progress.epoch == self._epoch
        )

    def _count_epochs(self, progress: LineProgress) -> LineProgress:
        """A bar whose total is the number of epochs, and that is at the current epoch, counts
        epochs.
        """
        if not progress.drawn or progress.step is None or progress.epoch is None:
            return progress
        if progress.total != progress.epochs or self._over_epochs is False:
            return progress
        self._over_epochs = abs(progress.step - progress.epoch) <= 1
        return progress._replace(step=None, total=None) if self._over_epochs else progress

    def _swap_batch_and_epoch(self, progress: LineProgress) -> LineProgress:
        """A line whose total grows with the epoch: «batch 3/100» then means batch 100 of epoch
        3.
        """
        if (
            progress.evaluates
            or progress.drawn
            or progress.keras
            or progress.step is None
            or progress.total is None
        ):
            return progress
        if (
            not self._turns
            and progress.step == self._epoch
            and progress.epoch in (None, self._epoch)
        ):
            self._turns = self._steps.grows(progress.step, progress.total)
        if not self._turns:
            return progress
        self._steps.total = None
        return progress._replace(step=progress.total, total=None)

    def _total_steps(self, progress: LineProgress) -> int | None:
        """Number of steps of the whole training; None if the line does not state it."""
        if progress.steps is not None or progress.keras:
            return progress.steps
        if (
            progress.within is not None
            and progress.step is not None
            and progress.total
            and not progress.drawn
        ):
            # An epoch that is a fraction shows whether the count is over all epochs.
            return (
                progress.total
                if abs(progress.step / progress.total - progress.within) > _FRACTION
                else None
            )
        return self._steps.all(self._epoch)

    def _is_evaluation_bar(self, progress: LineProgress) -> bool:
        """Whether a Keras bar belongs to `evaluate`: after the epoch's own bar, and of another
        length or starting anew. Without redrawing: the second bar of an epoch.
        """
        before = self._bar
        validated = any(name.startswith("val_") for name in progress.metrics)
        anew = before is not None and (
            differ(progress.total, before.total) or starts_anew(progress, before)
        )
        if before is not None and not validated and (before.evaluates or anew):
            self._bar = before._replace(evaluates=True)
            return True
        self._bar = progress
        return False

    def _search(self, expression: Expression, text: str) -> LineProgress | None:
        if self.problem is not None:
            return None
        try:
            match = expression.search(text)
        except TooSlowError as error:
            self.problem = (
                f"progress.pattern {error}; it is no longer searched for, and the job goes on"
            )
            return None
        if match is None:
            return None
        values = {
            name: _number(text) for name, text in match.groupdict().items() if text is not None
        }
        loss = values.pop(self._group, None)
        if loss is not None and self._as_fraction and "%" in text[match.end(self._group) - 1 :][:3]:
            loss /= 100.0
        step, epoch, epochs = (
            _whole(values.pop(name, None)) for name in ("step", "epoch", "epochs")
        )
        metrics = {name: value for name, value in values.items() if value is not None}
        if loss is None and epoch is None and not metrics:
            return None
        return LineProgress(loss=loss, metrics=metrics, step=step, epoch=epoch, epochs=epochs)


def _follows(metric: str, lines: list[str]) -> bool:
    """Whether a metric is read in each of these lines."""
    reader = ProgressReader(ProgressRule(metric))
    return all(any(reading.loss is not None for reading in reader.feed([line])) for line in lines)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").removesuffix("%"))
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and abs(value) < 1e15 else None
