"""What jobs keep of their rates side by side on a GPU, as it is stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headgate.model.events import KeptSideBySide
from headgate.profiling.gpu_neighbours import STORED, recall, remember


def test_what_was_measured_is_known_of_each_job_and_the_latest_counts(tmp_path: Path) -> None:
    pair = KeptSideBySide("node H200", ("a", "b"), (0.8, 0.7))
    elsewhere = replace(pair, place="node H100", jobs=("b", "c"))
    for measured in (pair, elsewhere, replace(pair, kept=(0.6, 0.5))):
        remember(tmp_path, measured)
    assert recall(tmp_path, "a") == (replace(pair, kept=(0.6, 0.5)),)
    assert recall(tmp_path, "b") == (elsewhere, replace(pair, kept=(0.6, 0.5)))
    assert recall(tmp_path, "d") == ()


def test_a_table_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    for content in ("", "{}", "[[1]]", '[["node", ["a"], [0.5, 0.5]]]', '[["node", ["a"], [7]]]'):
        (tmp_path / STORED).write_text(content)
        assert recall(tmp_path, "a") == ()
