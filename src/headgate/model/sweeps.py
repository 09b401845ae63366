"""Sweeps: one job for each combination of parameters."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from headgate.model.declarations import Kind, declared, documented

Passing = Literal["flags", "hydra", "environment"]
"""How a script is given its parameters: `--lr 0.1`, `lr=0.1`, or a variable `lr`."""
Value = str | int | float
Combination = Mapping[str, str]
"""Values by the names of their parameters, as typed."""

MOST: int = 10_000
"""Most jobs of a sweep whose user states no limit."""
_MOST_STATED = 100_000
_MOST_LETTERS = 64  # of a job's name
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WHOLE = re.compile(r"-?(0|[1-9]\d*)")
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.(\d{1,18}))?")
_LIKE_A_RANGE = re.compile(r"[-+.\deE]*\.\.[-+.\deE]*")
_NAME = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_NO_LETTERS = re.compile(r"[^A-Za-z0-9._-]+")
_Swept = TypeVar("_Swept", bound=Any)


StopRule = Literal["asha", "median", "predicted"]
"""The rules of `forecast.stop_early`."""


@documented
@dataclass(frozen=True, slots=True)
class StopEarly:
    """Ends jobs of a sweep that will not be among its best."""

    rule: StopRule = field(
        default="predicted",
        metadata=declared(
            "Which jobs end: `predicted`, if the predicted end cannot reach the best; `asha` and "
            "`median`, as published."
        ),
    )
    metric: str | None = field(
        default=None,
        metadata=declared("The metric that they are judged by; else that of `progress`."),
    )
    keep: int = field(
        default=1, metadata=declared("How many of the best are kept at least.", least=1)
    )


@dataclass(frozen=True, slots=True)
class SweepTrial:
    """What makes a job one of a sweep.

    Args:
        sweep: Name of the sweep, common to its jobs.
        parameters: The job's values, numbers as numbers.
        stop_early: The rule that may end the job before its time; None: none.
        at_once: How many of its jobs may run at once, or `auto`; None: as many as of its run.
    """

    sweep: str
    parameters: Mapping[str, Value]
    stop_early: StopEarly | None = None
    at_once: int | Literal["auto"] | None = None


@documented
@dataclass(frozen=True, slots=True)
class Sweep:
    """A job for each combination of parameters.

    Of `grid`, `zip` and `list`, each combination of one goes with each of the others.
    """

    grid: Mapping[str, Sequence[str]] = field(
        default_factory=dict,
        metadata=declared(
            "Values by parameter, in every combination: `{lr: [0.1, 0.01], seed: 0..9}`.",
            kind=Kind.PARAMETERS,
        ),
    )
    zip: Mapping[str, Sequence[str]] = field(
        default_factory=dict,
        metadata=declared(
            "Values by parameter, the first ones together, then the second ones: "
            "`{width: [64, 128], depth: [4, 2]}`.",
            kind=Kind.PARAMETERS,
        ),
    )
    combinations: tuple[Combination, ...] = field(
        default=(),
        metadata=declared(
            "Combinations as they are: `[{lr: 0.1, width: 64}, {lr: 0.01, width: 128}]`.",
            key="list",
            kind=Kind.COMBINATIONS,
        ),
    )
    exclude: tuple[Combination, ...] = field(
        default=(),
        metadata=declared(
            "Values whose combinations are left out: `[{lr: 0.1, seed: 3}]`.",
            kind=Kind.COMBINATIONS,
        ),
    )
    passing: Passing = field(
        default="flags",
        metadata=declared(
            "How the script is given them: `flags` (`--lr 0.1`), `hydra` (`lr=0.1`), or "
            "`environment` (a variable `lr`).",
            key="as",
        ),
    )
    most: int = field(
        default=MOST,
        metadata=declared("The most jobs that the sweep may have.", least=1, most=_MOST_STATED),
    )
    stop_early: StopEarly | None = field(
        default=None,
        metadata=declared(
            "Ends jobs that will not be among the best: `{rule: predicted, metric: val_acc}`."
        ),
    )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters, in the order in which they are stated."""
        listed = (name for combination in self.combinations for name in combination)
        return tuple(dict.fromkeys((*self.grid, *self.zip, *listed)))

    def problems(self) -> Iterator[tuple[str, str, str]]:
        """What is wrong with it: the key, what was found, and the cure."""
        if not self.parameters:
            yield "grid", "found a sweep of nothing", "give values: `grid: {lr: [0.1, 0.01]}`"
            return
        stated = [*self.grid, *self.zip, *dict.fromkeys(itertools.chain(*self.combinations))]
        for name in self.parameters:
            if self.passing == "environment" and not _VARIABLE.fullmatch(name):
                cure = "letters, digits and '_' make the name of a variable"
                yield "as", f"found `environment` with the parameter {name!r}", cure
            if stated.count(name) > 1:
                yield "grid", f"found {name!r} in two places", "keep one of `grid`, `zip`, `list`"
        lengths = {name: len(values) for name, values in self.zip.items()}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{count} of {name}" for name, count in lengths.items())
            yield "zip", f"found {counts}", "give as many values of each"
        for excluded in self.exclude:
            if unknown := [name for name in excluded if name not in self.parameters]:
                known = ", ".join(self.parameters)
                yield "exclude", f"found {unknown[0]!r}", f"expected some of {known}"
            for name, text in excluded.items():
                if name in self.parameters and value_of(text) not in self._values_of(name):
                    yield "exclude", f"found {name} {text!r}", "this is none of its values"
        if twice := _repeated(self.combinations):
            yield "list", f"found {_spelt(twice)} twice", "keep one"
        if (count := self._count()) > self.most:
            cure = f"give fewer values, or state `most: {count}` in a job file"
            if count > _MOST_STATED:
                cure = f"give fewer values: {_MOST_STATED:,} at most"
            yield "most", f"found {count:,} combinations; the sweep has {self.most:,} at most", cure
        elif not any(True for _ in self.chosen()):
            yield "exclude", "found that it leaves out every combination", "keep some"

    def _values_of(self, name: str) -> set[Value]:
        listed = (chosen[name] for chosen in self.combinations if name in chosen)
        texts = (*self.grid.get(name, ()), *self.zip.get(name, ()), *listed)
        return set(map(value_of, texts))

    def _count(self) -> int:
        """How many combinations there are before some are left out."""
        zipped = min(map(len, self.zip.values()), default=1)
        return math.prod(map(len, self.grid.values())) * zipped * max(len(self.combinations), 1)

    def chosen(self) -> Iterator[Combination]:
        """Its combinations, the last parameter changing first."""
        left_out = [_values(excluded) for excluded in self.exclude]
        zipped = [dict(zip(self.zip, row)) for row in zip(*self.zip.values())] or [{}]
        for whole, together, row in itertools.product(
            self.combinations or ({},), zipped, itertools.product(*self.grid.values())
        ):
            combination = {**whole, **together, **dict(zip(self.grid, row))}
            values = _values(combination).items()
            if not any(excluded.items() <= values for excluded in left_out):
                yield combination

    def jobs(self, job: _Swept, at_once: int | Literal["auto"] | None = None) -> list[_Swept]:
        """Its jobs.

        Args:
            job: A job that has their command and all else.
            at_once: How many of them may run at once; None: as many as of their run.

        Raises:
            ValueError: A job is invalid.
        """
        combinations = list(self.chosen())
        names = _job_names(job.name, combinations)
        return [
            replace(
                job,
                name=name,
                trial=SweepTrial(job.name, _values(combination), self.stop_early, at_once),
                **self._given(job, combination),
            )
            for name, combination in zip(names, combinations)
        ]

    def _given(self, job: Any, combination: Combination) -> dict[str, Any]:
        if self.passing == "environment":
            return {"env": {**job.env, **combination}}
        if self.passing == "hydra":
            return {"args": (*job.args, *(f"{name}={text}" for name, text in combination.items()))}
        words = (
            # a value such as -0.1 alone would be taken for a flag
            (f"--{name}={text}",) if text.startswith("-") else (f"--{name}", text)
            for name, text in combination.items()
        )
        return {"args": (*job.args, *itertools.chain(*words))}


def value_of(text: str) -> Value:
    """The value that a text means: a whole number, a number, or the text itself."""
    if _WHOLE.fullmatch(text) and len(text) < 19:
        return int(text)
    if _NUMBER.fullmatch(text) and not _leads_with_zero(text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _leads_with_zero(text: str) -> bool:
    """Whether a number is written as none would be, as in the name of a file 007."""
    digits = text.lstrip("+-")
    return len(digits) > 1 and digits[0] == "0" and digits[1].isdecimal()


def swept_values(texts: Sequence[str]) -> tuple[str, ...]:
    """The values of a parameter, with ranges such as `0..9` or `0..100..10` written out.

    Raises:
        ValueError: There are none, one is given twice, or a range is invalid.
    """
    values = tuple(itertools.chain.from_iterable(map(_written_out, texts)))
    if not values:
        raise ValueError("expected at least one value")
    seen: set[Value] = set()
    for text in values:
        if (value := value_of(text)) in seen:
            raise ValueError(f"{text} is given twice; keep one")
        seen.add(value)
    return values


def _written_out(text: str) -> Sequence[str]:
    if not _LIKE_A_RANGE.fullmatch(text):
        return [text]
    match = _RANGE.fullmatch(text)
    if match is None or match[3] == "0":
        raise ValueError("expected a range of whole numbers, such as 0..9 or 0..100..10")
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if last < first:
        raise ValueError(f"the range ends before it begins; expected {last}..{first}")
    count = (last - first) // step + 1
    if count > _MOST_STATED:
        raise ValueError(f"these are {count:,} values; give {_MOST_STATED:,} at most")
    return list(map(str, range(first, last + 1, step)))


def is_parameter(name: str) -> bool:
    """Whether a text can be the name of a parameter, such as `lr`, `batch-size` or
    `+model.width`.
    """
    return _NAME.fullmatch(name) is not None


PARAMETER = "a parameter's name, such as lr, batch-size or model.width"
"""What `is_parameter` expects, for messages."""


def _values(combination: Combination) -> dict[str, Value]:
    return {name: value_of(text) for name, text in combination.items()}


def _repeated(combinations: Sequence[Combination]) -> Combination | None:
    seen = set()
    for combination in combinations:
        values = frozenset(_values(combination).items())
        if values in seen:
            return combination
        seen.add(values)
    return None


def _spelt(combination: Combination) -> str:
    return ", ".join(f"{name} {text}" for name, text in combination.items())


def _job_names(base: str, combinations: Sequence[Combination]) -> list[str]:
    """Names of jobs that say their values; numbered where these are too long or not unique."""
    values = [
        _NO_LETTERS.sub("_", "-".join(itertools.chain(*combination.items())))
        for combination in combinations
    ]
    names = [f"{base}-{text}" for text in values]
    if len(set(names)) == len(names) and max(map(len, names)) <= _MOST_LETTERS:
        return names
    digits = len(str(len(combinations)))
    start = base[: _MOST_LETTERS // 2 - digits]
    return [
        f"{start}-{number:0{digits}}-{text}"[:_MOST_LETTERS]
        for number, text in enumerate(values, 1)
    ]
