"""How a job's progress is read, and when it has converged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headgate.model import goals
from headgate.model.declarations import Kind, declared, documented
from headgate.model.records import FORMER_NAME
from headgate.model.sweeps import Sweep


@documented
@dataclass(frozen=True, slots=True)
class ProgressRule:
    """How a job's progress is read, and when the job has converged.

    `script_stopping` is the patience and least gain that the script states while it runs; used if
    `patience` is not given.
    """

    metric: str = field(
        default="loss",
        metadata=declared(
            "The name of the metric that shows the job's progress, as the script prints or reports "
            "it.",
            kind=Kind.PATH,
        ),
    )
    pattern: str | None = field(
        default=None,
        metadata=declared(
            "A regular expression that finds the metric in a line of output; it has a group for "
            "the value.",
            kind=Kind.PATH,
        ),
    )
    better: goals.Better | None = field(
        default=None,
        kw_only=True,
        metadata=declared(
            "Whether the metric gets better as it falls (`lower`) or rises (`higher`); without it, "
            "the name decides."
        ),
    )
    goal: float | None = field(
        default=None,
        metadata=declared("The value of the metric at which the job has reached its goal."),
    )
    patience: int | None = field(
        default=None,
        metadata=declared(
            "Epochs without a gain after which the script stops by itself (early stopping).",
            above=0,
        ),
    )
    min_delta: float = field(
        default=0.0,
        metadata=declared(
            "The least change of the metric that early stopping counts as a gain.", least=0
        ),
    )
    script_stopping: tuple[int, float] | None = field(default=None, metadata={FORMER_NAME: "told"})

    @property
    def stopping(self) -> tuple[int, float] | None:
        """Patience in reports, and the least gain that counts; None: the script is not known to
        stop early.
        """
        if self.patience is not None:
            return self.patience, self.min_delta
        if self.script_stopping is None:
            return None
        patience, least_gain = self.script_stopping
        return patience, self.min_delta or least_gain

    @property
    def rising(self) -> bool:
        """Whether a greater metric is better: by `better`, else by the metric's name, else yes."""
        return (self.direction(self.metric) or "higher") == "higher"

    def direction(self, metric: str) -> goals.Better | None:
        """Which way a metric of the job improves; None: neither `better` nor its name says."""
        return (self.better if metric == self.metric else None) or goals.direction(metric)

    def against(self, sweep: Sweep) -> Iterator[tuple[str, str, str]]:
        """What is wrong with the rule of a sweep of such jobs; as of `Sweep.problems`."""
        stated = sweep.stop_early
        metric = stated.metric or self.metric if stated is not None else None
        if metric is not None and self.direction(metric) is None:
            fault = f"found metric {metric!r}, whose name does not say which way it improves"
            cure = f"state `progress: {{metric: {metric}, better: lower}}`, or `higher`"
            yield "stop_early", fault, cure

    def watch(self) -> goals.GoalWatch | None:
        """A watch for its goal, to be given all reports; None: no goal."""
        return (
            goals.GoalWatch(self.metric, self.goal, rising=self.rising)
            if self.goal is not None
            else None
        )

    def raw_value(self, loss: float | None, metrics: Mapping[str, float]) -> float | None:
        """The reported value of the metric."""
        return metrics.get(self.metric, loss if self.metric == "loss" else None)

    def value(self, loss: float | None, metrics: Mapping[str, float]) -> float | None:
        """The value on the goal's scale: percent become a fraction if the goal is a fraction."""
        value = self.raw_value(loss, metrics)
        if value is None:
            return None
        return goals.scaled(value, self.metric, self.goal, self.rising)
