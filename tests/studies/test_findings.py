"""What follows from measurements that are made up: effects, sharing, machines that changed, lines
half written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headgate.model.errors import StorageError, UsageError
from headgate.planning.interference import read_pairs
from headgate.studies import journal, pair_table, report, words
from headgate.studies.cell_sharing import Priorities
from headgate.studies.findings import Findings, between, findings
from headgate.studies.journal import Journal, Measurement
from headgate.studies.tables import tables

HERE = {"host": "one", "CPU": "fast", "CPUs": "2"}
Values = Sequence[tuple[str, str]]


def cell(scenario: str, *jobs: str, values: Values = (), again: bool = False) -> dict[str, Any]:
    name = f"{' + '.join(jobs)} {scenario}{dict(values) or ''}{again or ''}"
    return {
        "scenario": scenario,
        "workloads": jobs,
        "values": values,
        "is_repeat": again,
        "name": name,
    }


def figures(
    rates: Mapping[str, float], disturbed: bool = False, to: str = "", low: float = 4.0
) -> dict[str, Any]:
    jobs = {
        job: {
            "unit": "steps",
            "rate": rate,
            "step_seconds": 1 / rate,
            "elapsed": 10.0,
            "startup": 1.0,
            "cpu_seconds_per_step": 0.1,
            "memory_peak_bytes": 1e6,
            "loss": 0.5,
            "workers": {"worker-0": {"step_seconds": 1 / rate, "received": 1e6, "sent": 1e5}},
            "verdict": "neighbour-cores" if to else "healthy",
            "why": "",
            "lost": [{"to": to, "resource": "cores", "seconds": 5.0, "low": low}] if to else [],
            "more": {
                "cores": {
                    "1.25": {"speedup": 1.2, "low": 1.1, "high": 1.3},
                    "2": None,
                    "inf": {"speedup": 100.0, "low": 28.0, "high": 100.0},
                }
            },
        }
        for job, rate in rates.items()
    }
    node: dict[str, Any] = {
        name: [1.0, 2.0]
        for name in ("idle", "cpu_cores", "cpu_fullest_core", "memory_bytes", "net_in", "net_out")
    }
    node |= {name: [None, None] for name in ("disk_read", "disk_write")}
    run = {
        "run": "r",
        "seconds": 10.0,
        "disturbed": disturbed,
        "foreign_cores": 0.0,
        "stolen_cores": 0.0,
    }
    return {**run, "jobs": jobs, "nodes": {"vm": {"cores": 2.0, "memory": 2**30, **node}}}


def measurement(
    told: Mapping[str, Any], block: int, found: Mapping[str, Any], attempt: int = 0
) -> Measurement:
    return Measurement(
        f"key of {told['name']}", told, block, attempt, "measured", "", HERE, 0.0, found
    )


def about(cells: Sequence[Mapping[str, Any]], **axes: Sequence[str]) -> dict[str, Any]:
    return {
        "name": "made",
        "seed": 0,
        "repetitions": 6,
        "machine": HERE,
        "axes": axes,
        "cells": cells,
    }


def of_batches(ratio: float) -> tuple[dict[str, Any], list[Measurement]]:
    """A study of one workload with two batches, in six blocks."""
    draw = np.random.default_rng(1)
    few, many = (cell("solo", "a", values=[("batch", batch)]) for batch in ("8", "16"))
    again = {**few, "is_repeat": True, "name": "again"}
    kept = [
        measurement(
            told, block, figures({"a": 10.0 / slower * float(np.exp(draw.normal(0, 0.01)))})
        )
        for block in range(6)
        for told, slower in ((few, 1.0), (many, ratio), (again, 1.0))
    ]
    return about([few, many, again], batch=["8", "16"]), kept


def of_twins(
    priority: float, to: str, seed: int = 2, low: float = 4.0
) -> tuple[dict[str, Any], list[Measurement]]:
    """Two jobs at once on two cores: the first gets `priority` times what the second gets."""
    draw = np.random.default_rng(seed)
    names = ("a", "b")
    parts = {"a": priority / (1 + priority), "b": 1 / (1 + priority)}
    alone = [cell(scenario, job) for scenario in ("solo", "slice") for job in names]
    both, again = cell("simultaneous", *names), cell("simultaneous", *names, again=True)
    kept = []
    for block in range(6):
        noise = iter(np.exp(draw.normal(0, 0.01, 8)))
        for told in alone:
            rate = 10.0 if told["scenario"] == "solo" else 5.0
            kept.append(
                measurement(told, block, figures({told["workloads"][0]: rate * next(noise)}))
            )
        for told in (both, again):
            rates = {job: 10 * parts[job] * next(noise) for job in names}
            kept.append(measurement(told, block, figures(rates, to=to, low=low)))
    return about([*alone, both, again]), kept


def found(study: tuple[dict[str, Any], list[Measurement]]) -> Findings:
    return findings("made", *study)


def test_a_planted_effect_is_told_with_its_interval() -> None:
    [step] = [each for each in found(of_batches(1.25)).effects if each.metric == "step"]
    assert step.change == "slower"
    assert step.ratio.low <= 1.25 <= step.ratio.high
    assert words.title(step) == "a solo, batch 16 against 8"
    assert words.sentences(found(of_batches(1.25)))[0].startswith(
        "a solo, batch 16 against 8: slower by 2"
    )
    assert "no difference seen (floor" in words.sentences(found(of_batches(1.0)))[0]


def test_twins_share_evenly() -> None:
    every = [found(of_twins(1.0, "b", seed)).sharing[0] for seed in range(20)]
    for ratios in (
        [each.total for each in every],
        *([each.phi[job] for each in every] for job in ("a", "b")),
    ):
        assert sum(ratio.low <= 1.0 <= ratio.high for ratio in ratios) >= 17
    assert sum(each.dominates for each in every) <= 1
    assert every[0].cause == "cores"
    assert found(of_twins(1.0, "b", low=0.0)).sharing[0].cause is None  # it may have lost nothing
    assert any(
        line.startswith("No job dominates: D = ")
        for line in words.sentences(found(of_twins(1.0, "")))
    )


def test_three_times_the_priority_is_three_times_the_share() -> None:
    told, kept = of_twins(3.0, "b")
    [sharing] = findings("made", {**told, "priorities": {"a": 3.0, "b": 1.0}}, kept).sharing
    assert sharing.cause == Priorities(3.0, 1.0)
    assert sharing.dominates
    assert (sharing.most, sharing.least) == ("a", "b")
    assert sharing.dominance.value == pytest.approx(3.0, rel=0.05)
    assert sharing.phi["a"].value == pytest.approx(1.5, rel=0.05)


def test_a_mitigation_is_told_with_what_it_gave() -> None:
    told, kept = of_twins(3.0, "b")
    _, even = of_twins(1.0, "")
    ways = {way: [("mitigation", way)] for way in ("none", "cores 1")}
    cells = {way: cell("simultaneous", "a", "b", values=values) for way, values in ways.items()}

    def at_once(made: Sequence[Measurement], way: str) -> list[Measurement]:
        return [
            replace(each, cell=cells[way])
            for each in made
            if each.cell["name"] == "a + b simultaneous"
        ]

    alone = [each for each in kept if each.cell["scenario"] != "simultaneous"]
    cells_of = [
        *(each for each in told["cells"] if each["scenario"] != "simultaneous"),
        *cells.values(),
    ]
    study = findings(
        "made",
        about(cells_of, mitigation=list(ways)),
        [*alone, *at_once(kept, "none"), *at_once(even, "cores 1")],
    )
    plain, mitigated = study.sharing
    assert plain.phi["b"].value == pytest.approx(0.5, rel=0.05)
    assert mitigated.phi["b"].value == pytest.approx(1.0, rel=0.05)
    assert words.sentences(study)[-1].startswith(
        f"With cores 1 each, b got {mitigated.phi['b'].value:.2f} ("
    )
    assert f"of its due instead of {plain.phi['b'].value:.2f} (" in words.sentences(study)[-1]
    assert any(
        "b simultaneous, mitigation cores 1 against none: faster by" in line
        for line in words.sentences(study)
    )


def test_a_page_in_markdown_has_findings_first_and_then_every_table() -> None:
    study = found(of_batches(1.25))
    page = report.as_markdown(study)
    at = [page.index(f"## {table.title}") for table in tables(study)]
    assert page.index(words.sentences(study)[0]) < at[0] and at == sorted(at)


def test_workers_are_told_with_what_they_move_against_the_model_and_what_a_batch_uses() -> None:
    job: dict[str, Any] = {"model_bytes": 4e5, "touched_bytes": 2e4}
    job["workers"] = {
        f"worker-{rank}": {"step_seconds": 0.1 + rank, "received": 1e6, "sent": None}
        for rank in (0, 1)
    }
    one = cell("distributed", "a")
    made = figures({"a": 10.0})
    made["jobs"]["a"] |= job
    made["nodes_testing"] = made["nodes"]
    study = findings("made", about([one]), [measurement(one, 0, made)])
    found_tables = {table.title: table.rows for table in tables(study)}
    [workers] = [rows for title, rows in found_tables.items() if title.startswith("Workers")]
    assert workers[0] == (
        "a distributed: worker-0",
        "100 ms",
        "976.56 KiB",
        "–",
        "390.62 KiB",
        "19.53 KiB",
        "10",
    )
    assert workers[1] == ("a distributed: worker-1", "1.1 s", "976.56 KiB", "–", "", "", "")
    [[*_, at_a_quarter, at_twice, at_any, _]] = [
        row
        for title, rows in found_tables.items()
        if title.startswith("Bottleneck")
        for row in rows[:1]
    ]
    # as `headgate explain` says it
    assert (at_a_quarter, at_twice, at_any) == ("1.20", "–", "over 10")
    [nodes] = [rows for title, rows in found_tables.items() if title.startswith("Use of nodes")]
    assert [row[0] for row in nodes] == ["a distributed on vm", "a distributed on vm, testing"]


def test_of_a_block_that_was_done_again_the_calm_attempt_counts() -> None:
    told, kept = of_batches(1.0)
    disturbed = [
        replace(each, figures={**each.figures, "disturbed": True})
        for each in kept
        if each.block == 0
    ]
    calm = [replace(each, attempt=1, figures=figures({"a": 99.0})) for each in disturbed]
    rest = [each for each in kept if each.block]
    study = findings("made", told, [*disturbed, *rest, *calm])
    assert study.cells[0].figures[0]["jobs"]["a"]["rate"] == 99.0
    assert study.cells[0].tries == 7
    # not done again yet
    assert findings("made", told, [*disturbed, *rest, *calm[:2]]).cells[0].disturbed == 1


def test_measurements_of_another_machine_and_of_other_scripts_are_kept_apart() -> None:
    told, kept = of_batches(1.0)
    there = [replace(each, machine={**HERE, "CPU": "slow"}) for each in kept]
    changed = [replace(each, key=f"new {each.key}") for each in kept[:3]]
    study = findings(
        "made",
        told,
        [*kept, *there, *[replace(each, machine=there[0].machine) for each in changed]],
    )
    assert study.apart == len(kept) + len(there)
    assert "CPU fast → slow" in next(words.notes(study))


def test_what_could_not_be_measured_is_told_with_the_reason() -> None:
    told, kept = of_batches(1.0)
    refused = [
        replace(each, state="not measured", reason="no Docker", figures={})
        if each.cell["name"] == "again"
        else each
        for each in kept
    ]
    assert "again: not measured: no Docker." in words.notes(findings("made", told, refused))
    assert any("its turn has not come" in note for note in words.notes(findings("made", told, [])))


def test_two_studies_are_compared_cell_by_cell() -> None:
    told, kept = of_batches(1.25)
    faster = [
        replace(each, figures=figures({"a": 2 * each.figures["jobs"]["a"]["rate"]}))
        for each in kept
    ]
    rows, only = between(findings("one", told, kept), findings("two", told, faster))
    assert [ratio.value for _, ratio, _ in rows] == pytest.approx([0.5, 0.5])
    assert only == []


def test_the_page_holds_every_table_and_escapes_names(tmp_path: Path) -> None:
    told, kept = of_twins(3.0, "b")
    kept = [replace(each, cell={**each.cell, "name": f"<i>{each.cell['name']}"}) for each in kept]
    told["cells"] = [{**each, "name": f"<i>{each['name']}"} for each in told["cells"]]
    study = findings("<b>made", told, kept)
    page = report.write(study, tmp_path, kept).read_text()
    assert "<b>made" not in page and "<i>a" not in page
    for table in tables(study):
        assert f"<h2>{table.title}" in page
    assert len((tmp_path / "cells.csv").read_text().splitlines()) == 1 + 6 * (4 + 2 * 2)
    assert json.loads(json.dumps(report.as_json(study)))["sharing"][0]["dominates"] is True
    told, kept = of_batches(1.25)
    drawn = report.write(findings("made", told, kept), tmp_path, kept).read_text()
    assert '<svg id="effects"' in drawn


def test_a_line_half_written_is_no_measurement_and_harms_no_other(tmp_path: Path) -> None:
    _, kept = of_batches(1.0)
    book = Journal(tmp_path)
    book.add(kept[0])
    with (tmp_path / journal.RESULTS).open("a") as file:
        file.write('{"key": "half')
    book.add(kept[1])
    assert [each.cell["name"] for each in book.measurements()] == [
        each.cell["name"] for each in kept[:2]
    ]


def test_a_full_disk_is_told_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    _, kept = of_batches(1.0)
    (tmp_path / journal.RESULTS).symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"No space left.*--resume"):
        Journal(tmp_path).add(kept[0])


def test_of_a_study_that_tries_mitigations_pairs_are_those_without(tmp_path: Path) -> None:
    alone = [cell(scenario, job) for scenario in ("solo", "slice") for job in ("a", "b")]
    plain, mitigated = (
        cell("simultaneous", "a", "b", values=[("mitigation", way)]) for way in ("none", "cores 1")
    )
    kept = [measurement(each, 0, figures({each["workloads"][0]: 8.0})) for each in alone]
    kept += [
        measurement(plain, 0, figures({"a": 4.0, "b": 6.0})),
        measurement(mitigated, 0, figures({"a": 7, "b": 7})),
    ]
    told = about([*alone, plain, mitigated], mitigation=["none", "cores 1"])
    assert pair_table.keep(findings("made", told, kept), tmp_path / "pairs.json") == 1
    assert read_pairs(tmp_path / "pairs.json").kept("", "a", "b") == pytest.approx(0.5)


def test_pairs_are_kept_in_the_table_with_what_each_uses_alone(tmp_path: Path) -> None:
    rates = {"solo": 10.0, "slice": 8.0}
    alone = [cell(scenario, job) for scenario in rates for job in ("a", "b")]
    both = cell("simultaneous", "a", "b")
    kept = [
        measurement(each, 0, figures({each["workloads"][0]: rates[each["scenario"]]}))
        for each in alone
    ]
    kept.append(measurement(both, 0, figures({"a": 4.0, "b": 6.0})))
    table = tmp_path / "pairs.json"
    table.write_text(json.dumps({"": {"a": {"null": 1.0, "c": [0.25, 3.0]}}, "v100": {}}))
    assert pair_table.keep(findings("made", about([*alone, both]), kept), table) == 1
    found = read_pairs(table)
    assert found.kept("", "a", "b") == pytest.approx(0.5)
    assert found.kept("", "b", "a") == pytest.approx(0.75)
    assert found.kept("", "a", "c") == 0.25  # as it was measured before, at another rate
    assert found.solo[""]["a"]["gain_of_all_cores"] == pytest.approx(1.25)
    assert found.solo[""]["a"]["cores"] == pytest.approx(1.0)
    assert pair_table.keep(findings("alone", about(alone), kept[:-1]), tmp_path / "none") == 0
    table.write_text("[1]")
    with pytest.raises(UsageError, match="has no measured pairs"):
        pair_table.keep(findings("made", about([*alone, both]), kept), table)


def test_the_table_of_sharing_names_the_jobs_of_each_pair_and_has_figures_for_each() -> None:
    alone = [cell(scenario, job) for scenario in ("solo", "slice") for job in ("a", "b", "c")]
    pairs = [cell("simultaneous", *names) for names in (("a", "b"), ("a", "c"))]
    kept = [measurement(each, 0, figures({each["workloads"][0]: 8.0})) for each in alone]
    kept += [measurement(each, 0, figures(dict.fromkeys(each["workloads"], 6.0))) for each in pairs]
    study = findings("made", about([*alone, *pairs]), kept)
    [rows] = [table.rows for table in tables(study) if table.title.startswith("Sharing")]
    assert [row[:2] for row in rows] == [
        ("a + b", "a"),
        ("a + b", "b"),
        ("a + c", "a"),
        ("a + c", "c"),
    ]
    assert [bool(row[3]) for row in rows] == [True, False, True, False]
