"""Published figures beside made-up measurements: what holds, what does not, and what was not
measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.studies.test_findings import about, cell, figures, measurement, of_batches

from headgate.model.errors import InvalidFileError
from headgate.studies import grid, report, studyfile
from headgate.studies.findings import Findings, findings
from headgate.studies.journal import Measurement
from headgate.studies.published import PublishedFigure, comparisons

STATEMENT = {
    "says": "twice the batch takes twice as long",
    "source": "another machine, 2018",
    "scenario": "solo",
    "of": {"batch": "16"},
    "against": {"batch": "8"},
    "low": 1.8,
    "high": 2.2,
    "differs": "A cache that is larger.",
}


def found(told: dict[str, Any], kept: Sequence[Measurement], **changed: Any) -> Findings:
    statement = studyfile.PublishedEntry.model_validate(STATEMENT | changed)
    return findings("made", {**told, "published": [statement.model_dump()]}, kept)


def compared(told: dict[str, Any], kept: Sequence[Measurement], **changed: Any) -> PublishedFigure:
    [only] = comparisons(found(told, kept, **changed))
    return only


@pytest.mark.parametrize(
    ("ratio", "bounds", "holds"),
    [
        (2.0, {}, "yes"),
        (1.25, {}, "no"),
        (1.25, {"low": None, "high": 1.5}, "yes"),
        (2.0, {"low": 2.5, "high": None}, "no"),
        (2.0, {"low": 2.0, "high": None}, "not clear"),
    ],
)
def test_a_published_ratio_holds_or_not_and_then_the_reason_is_told(
    ratio: float, bounds: Mapping[str, Any], holds: str
) -> None:
    only = compared(*of_batches(ratio), **bounds)
    assert only.holds == holds
    assert only.here is not None and only.here.low <= ratio <= only.here.high
    assert only.why == ("" if holds == "yes" else "A cache that is larger.")


def test_what_was_not_measured_is_told_with_what_it_lacked() -> None:
    told, kept = of_batches(2.0)
    few = [each for each in kept if each.cell["values"] == [("batch", "8")]]
    refused = [
        replace(each, state="not measured", reason="no Docker", figures={})
        for each in kept
        if each.cell["values"] == [("batch", "16")]
    ]
    assert [compared(told, few + refused).holds, compared(told, few + refused).why] == [
        "not measured",
        "no Docker",
    ]
    assert compared(told, [*refused, *(each for each in kept if each not in few)]).here is None
    nowhere = compared(told, kept, scenario="distributed")
    assert (nowhere.holds, nowhere.why) == ("not measured", "the study has no such cell")


def test_it_is_compared_for_each_workload_that_it_is_about() -> None:
    cells = [
        cell("solo", job, values=[("batch", batch)])
        for job in ("a", "b", "c")
        for batch in ("8", "16")
    ]
    kept = [
        measurement(
            told,
            block,
            figures({told["workloads"][0]: 10.0 if told["values"][0][1] == "8" else 5.0}),
        )
        for block in range(5)
        for told in cells
    ]
    rows = comparisons(found(about(cells, batch=["8", "16"]), kept, workload=["a", "c"]))
    assert [(each.compared, each.holds) for each in rows] == [
        ("step, a solo, batch 16 against 8", "yes"),
        ("step, c solo, batch 16 against 8", "yes"),
    ]


def test_bytes_of_workers_are_compared_with_those_of_the_model() -> None:
    one = cell("distributed", "a", values=[("batch", "8")])
    made = figures({"a": 10.0})
    made["jobs"]["a"]["model_bytes"] = 5e5  # and a worker receives a million
    statement = {"scenario": "distributed", "of": {}, "against": {}, "figure": "received"}
    only = compared(about([one], batch=["8"]), [measurement(one, 0, made)], **statement)
    assert only.here is not None and (only.here.value, only.holds) == (2.0, "yes")
    made["jobs"]["a"]["workers"]["worker-1"] = {
        "step_seconds": None,
        "received": None,
        "sent": None,
    }
    assert (
        compared(about([one], batch=["8"]), [measurement(one, 0, made)], **statement).holds
        == "not measured"
    )


def test_the_page_has_them_in_a_table_with_their_source(tmp_path: Path) -> None:
    told, kept = of_batches(1.25)
    study = found(told, kept)
    for page in (report.as_markdown(study), report.write(study, tmp_path, kept).read_text()):
        assert page.index("Published figures") < page.index("Cells, means")
        assert "another machine, 2018" in page and "A cache that is larger." in page
    assert report.as_json(study)["published"][0]["holds"] == "no"


def test_frameworks_that_tell_samples_and_those_that_tell_steps_are_compared_by_the_batch() -> None:
    cells = [cell("solo", "a", values=[("framework", name)]) for name in ("torch", "tensorflow")]
    ours, theirs = (figures({"a": rate}) for rate in (800.0, 5.0))
    ours["jobs"]["a"] |= {"unit": "samples", "batch": 80}
    kept = [measurement(told, 0, made) for told, made in zip(cells, (ours, theirs), strict=True)]
    told = about(cells, framework=["torch", "tensorflow"])
    [step] = [each for each in findings("made", told, kept).effects if each.metric == "step"]
    assert step.ratio.value == pytest.approx(2.0)
    ours["jobs"]["a"]["batch"] = None
    assert not [each for each in findings("made", told, kept).effects if each.metric == "step"]


WRONG = """
workloads: [{name: a, script: a.py}]
vary: {cores: ["1", "2"]}
published:
  - {says: x, source: y, scenario: solo, of: {cores: "3"}, against: {cores: "1"}, low: 1}
  - {says: x, source: y, scenario: shared, of: {cores: "2"}, against: {cores: "2"}, low: 1}
  - {says: x, source: y, scenario: solo, of: {cores: "2"}, against: {cores: "1"}}
  - {says: x, source: y, scenario: solo, of: {cores: "2"}, low: 1}
  - {says: x, source: y, scenario: solo, workload: [b], where: {nic: none}, figure: sent, low: 1}
"""


def test_a_statement_that_is_about_nothing_in_the_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("")
    (tmp_path / "study.yaml").write_text(WRONG)
    with pytest.raises(InvalidFileError) as error:
        studyfile.load(str(tmp_path / "study.yaml"))
    said = str(error.value)
    for line in (
        "found '3'; expected one of 1, 2",
        "found 'shared'; expected one of solo",
        "found '2'; expected one of 1",
        "found neither `low` nor `high`",
        "found 'step'",
        "found 'b'",
        "found 'none'",
    ):
        assert line in said, said


@pytest.mark.parametrize("name", studyfile.bundled())
def test_each_statement_of_a_study_that_comes_with_headgate_is_about_a_cell_of_it(
    name: str,
) -> None:
    made = studyfile.load(studyfile.path_of(name))
    told = {
        **about(
            [{**grid_cell(each), "name": each.name} for each in grid.cells(made)], **grid.axes(made)
        ),
        "published": [each.model_dump() for each in made.published],
    }
    study = findings(name, told, [])
    assert not [
        each.published for each in comparisons(study) if each.why == "the study has no such cell"
    ]


def grid_cell(made: grid.Cell) -> dict[str, Any]:
    return {
        "scenario": made.scenario,
        "workloads": made.workloads,
        "values": made.values,
        "is_repeat": made.is_repeat,
    }
