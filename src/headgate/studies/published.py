"""Published figures beside those that a study measured: where the same holds, where not, and
why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headgate.reports.words import MISSING
from headgate.studies.findings import Findings, StudyCell
from headgate.studies.statistics import Ratio, over_blocks, say_ratio

Holds = Literal["yes", "no", "not clear", "not measured"]


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published statement, and what a cell of the study says to it.

    Args:
        published: What was published.
        source: Where it was measured: hardware, and the year.
        compared: What of this study is held against it.
        bounds: Between what it holds, in words.
        here: What was measured; None: nothing.
        holds: `yes` if all of its interval lies within the bounds, `no` if all of it lies outside,
            else `not clear`.
        why: Why it does not hold here, or was not measured, as far as known.
    """

    published: str
    source: str
    compared: str
    bounds: str
    here: Ratio | None
    holds: Holds
    why: str

    @property
    def row(self) -> tuple[str, ...]:
        """As a row of a table."""
        here = say_ratio(self.here) if self.here is not None else MISSING
        return (
            self.published,
            self.source,
            self.compared,
            self.bounds,
            here,
            self.holds,
            self.why or MISSING,
        )


def comparisons(study: Findings) -> list[PublishedFigure]:
    """Each statement of the study's file, with each cell that it is about."""
    return [each for told in study.about.get("published", ()) for each in _compared(study, told)]


def _compared(study: Findings, told: Mapping[str, Any]) -> Iterator[PublishedFigure]:
    of = {**told["where"], **told["of"]}
    cells = [
        (cell, job)
        for cell in study.cells
        if not cell.is_repeat
        and cell.scenario == told["scenario"]
        and of.items() <= dict(cell.values).items()
        for job in cell.workloads
        if job in (told["workload"] or cell.workloads)
    ]
    found = False
    for cell, job in cells:
        if not told["against"]:
            found = True
            yield _comparison(
                told, f"{told['figure']}, {cell.name}", _of_model(cell, job, told["figure"]), cell
            )
            continue
        [(what, base)] = told["against"].items()
        for effect in study.effects:
            rest = tuple(each for each in cell.values if each[0] != what)
            mine = (
                effect.job,
                effect.scenario,
                effect.what,
                effect.base,
                effect.rest,
                effect.metric,
            )
            value = dict(cell.values).get(what, cell.scenario)
            if (
                mine == (job, cell.scenario, what, base, rest, told["figure"])
                and effect.value == value
            ):
                found = True
                yield _comparison(told, f"{told['figure']}, {effect.title}", effect.ratio, cell)
                break
        else:
            found = True
            yield _comparison(told, f"{told['figure']}, {cell.name}, against {base}", None, cell)
    if not found:
        yield _comparison(told, f"{told['figure']}, {told['scenario']}", None, None)


def _comparison(
    told: Mapping[str, Any], compared: str, here: Ratio | None, cell: StudyCell | None
) -> PublishedFigure:
    low, high = told["low"], told["high"]
    bounds = " to ".join(f"{each:g}" for each in (low, high) if each is not None)
    if low is None or high is None:
        bounds = f"at {'most' if low is None else 'least'} {bounds}"
    lack = (
        cell.reason
        if cell is not None and not cell.figures
        else "what it is compared with was not measured"
    )
    least, most = low if low is not None else 0.0, high if high is not None else float("inf")
    holds: Holds = "not measured"
    if here is not None:
        lies = least <= here.low and here.high <= most
        holds = "yes" if lies else "no" if here.high < least or here.low > most else "not clear"
    why = {"yes": "", "not measured": lack if cell is not None else "the study has no such cell"}
    return PublishedFigure(
        told["says"], told["source"], compared, bounds, here, holds, why.get(holds, told["differs"])
    )


def _of_model(cell: StudyCell, job: str, figure: str) -> Ratio | None:
    """Bytes that a worker receives or sends in a step, over those of the model."""
    found: dict[int, float] = {}
    for block, figures in cell.figures.items():
        of_job = figures["jobs"][job]
        moved = [each[figure] for each in of_job.get("workers", {}).values()]
        if moved and None not in moved and of_job.get("model_bytes"):
            found[block] = sum(moved) / len(moved) / of_job["model_bytes"]
    return over_blocks(found.__getitem__, sorted(found)) if all(found.values()) else None
