"""The reader is held to what well-known trainers print: `formats.yaml`, a table of lines and right
answers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.model.progress_rule import ProgressRule
from headgate.output.line_progress import LineProgress
from headgate.output.patterns import ProgressReader

FORMATS: list[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("formats.yaml").read_text(), yaml.CSafeLoader
)


def read(lines: list[str], metric: str) -> list[LineProgress]:
    return ProgressReader(ProgressRule(metric=metric)).feed(lines)


def answers(entry: dict[str, Any]) -> dict[str, Any]:
    """What is read from a format, in the form of its right answers, as far as it has them."""
    readings = read(entry["lines"], entry.get("metric", "loss"))
    metrics: dict[str, float] = {}
    for reading in readings:
        metrics |= reading.metrics
    last = [reading for reading in readings if reading.loss is not None][-1:] or [LineProgress()]
    found: dict[str, Any] = {
        "losses": [
            [reading.loss, reading.step, reading.epoch]
            for reading in readings
            if reading.loss is not None
        ]
    }
    if "other" in entry:
        found["other"] = {name: metrics.get(name) for name in entry["other"]}
    if "samples" in entry:
        found["samples"] = last[0].samples
    if "end" in entry:
        found["end"] = {name: getattr(last[0], name) for name in entry["end"]}
    return found


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry["name"])
def test_what_a_trainer_prints_is_read(entry: dict[str, Any]) -> None:
    found = answers(entry)
    expected = {key: entry[key] for key in found}
    if "end" in found and found["end"].get("within") is not None:
        found["end"]["within"] = pytest.approx(found["end"]["within"], abs=6e-4)
    assert found["losses"] == [
        [pytest.approx(loss), *place] for loss, *place in expected.pop("losses")
    ]
    found.pop("losses")
    assert expected == found
