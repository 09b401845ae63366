"""Compare published figures with those measured by a study: where they agree, where not, and
why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headgate.reports.words import MISSING
from headgate.studies.cells import StudyCell
from headgate.studies.findings import Findings
from headgate.studies.statistics import Ratio, over_blocks, say_ratio
from headgate.studies.words import title

Holds = Literal["yes", "no", "not clear", "not measured"]


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published statement, and the corresponding measurement of the study.

    Args:
        published: The statement.
        source: Where it was measured: hardware, and the year.
        compared: The part of this study that is compared.
        bounds: Bounds of the statement, in words.
        here: The measurement; None: none.
        holds: `yes`: its interval lies within the bounds; `no`: outside; else `not clear`.
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
        """The figure as a row of a table."""
        ratio_text = say_ratio(self.here) if self.here is not None else MISSING
        return (
            self.published,
            self.source,
            self.compared,
            self.bounds,
            ratio_text,
            self.holds,
            self.why or MISSING,
        )


def comparisons(study: Findings) -> list[PublishedFigure]:
    """Each statement of the study's file with each cell that it is about."""
    return [
        published_ratio
        for published_entry in study.about.get("published", ())
        for published_ratio in _compared(study, published_entry)
    ]


def _compared(study: Findings, published_entry: Mapping[str, Any]) -> Iterator[PublishedFigure]:
    of = {**published_entry["where"], **published_entry["of"]}
    cells = [
        (cell, job)
        for cell in study.cells
        if not cell.is_repeat
        and cell.scenario == published_entry["scenario"]
        and of.items() <= dict(cell.values).items()
        for job in cell.workloads
        if job in (published_entry["workload"] or cell.workloads)
    ]
    is_comparable = False
    for cell, job in cells:
        if not published_entry["against"]:
            is_comparable = True
            yield _comparison(
                published_entry,
                f"{published_entry['figure']}, {cell.name}",
                _of_model(cell, job, published_entry["figure"]),
                cell,
            )
            continue
        [(axis, base)] = published_entry["against"].items()
        for effect in study.effects:
            other_settings = tuple(setting for setting in cell.values if setting[0] != axis)
            effect_key = (
                effect.job,
                effect.scenario,
                effect.what,
                effect.base,
                effect.rest,
                effect.metric,
            )
            value = dict(cell.values).get(axis, cell.scenario)
            if (
                effect_key
                == (job, cell.scenario, axis, base, other_settings, published_entry["figure"])
                and effect.value == value
            ):
                is_comparable = True
                yield _comparison(
                    published_entry,
                    f"{published_entry['figure']}, {title(effect)}",
                    effect.ratio,
                    cell,
                )
                break
        else:
            is_comparable = True
            yield _comparison(
                published_entry,
                f"{published_entry['figure']}, {cell.name}, against {base}",
                None,
                cell,
            )
    if not is_comparable:
        yield _comparison(
            published_entry,
            f"{published_entry['figure']}, {published_entry['scenario']}",
            None,
            None,
        )


def _comparison(
    published_entry: Mapping[str, Any], compared: str, ratio: Ratio | None, cell: StudyCell | None
) -> PublishedFigure:
    low, high = published_entry["low"], published_entry["high"]
    bounds = " to ".join(f"{bound:g}" for bound in (low, high) if bound is not None)
    if low is None or high is None:
        bounds = f"at {'most' if low is None else 'least'} {bounds}"
    lack = (
        cell.reason
        if cell is not None and not cell.figures
        else "what it is compared with was not measured"
    )
    least, most = low if low is not None else 0.0, high if high is not None else float("inf")
    holds: Holds = "not measured"
    if ratio is not None:
        lies = least <= ratio.low and ratio.high <= most
        holds = "no" if ratio.high < least or ratio.low > most else "not clear"
        if lies:
            holds = "yes"
    why = {"yes": "", "not measured": lack if cell is not None else "the study has no such cell"}
    return PublishedFigure(
        published_entry["says"],
        published_entry["source"],
        compared,
        bounds,
        ratio,
        holds,
        why.get(holds, published_entry["differs"]),
    )


def _of_model(cell: StudyCell, job: str, figure: str) -> Ratio | None:
    """Bytes that a worker receives or sends in a step, relative to the model's bytes."""
    seconds_by_run: dict[int, float] = {}
    for block, figures in cell.figures.items():
        of_job = figures["jobs"][job]
        moved = [worker[figure] for worker in of_job.get("workers", {}).values()]
        if moved and None not in moved and of_job.get("model_bytes"):
            seconds_by_run[block] = sum(moved) / len(moved) / of_job["model_bytes"]
    return (
        over_blocks(seconds_by_run.__getitem__, sorted(seconds_by_run))
        if all(seconds_by_run.values())
        else None
    )
