"""What pairs of jobs cost each other: predicted for jobs that were never measured in pairs, with a
band.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path

import numpy as np
import pytest

from headgate.model.errors import UsageError
from headgate.planning.interference import (
    STORED,
    UTILISATION,
    Interference,
    StoredPairs,
    read_pairs,
    stored_pairs,
)
from headgate.planning.pair_model import PairModel

GAVEL = (
    Path(os.environ.get("HEADGATE_DATA", Path(__file__).parents[3] / "shared" / "data"))
    / "gavel"
    / "pairs.json"
)


def made(
    count: int = 12, noise: float = 0.0
) -> tuple[dict[str, dict[str, float]], dict[tuple[str, str], float]]:
    """Jobs that suffer by how much of their step goes to memory, beside others by how much these
    move.
    """
    drawn = np.random.default_rng(5)
    solo = {
        f"j{i}": {"memory": drawn.uniform(0.1, 3.0), "cores": drawn.uniform(0.5, 2.0)}
        for i in range(count)
    }
    pairs = {
        (a, b): float(
            np.clip(
                1.0 / (1.0 + 0.3 * x["memory"] * y["memory"]) + noise * drawn.normal(), 0.05, 1.0
            )
        )
        for a, x in solo.items()
        for b, y in solo.items()
        if a != b
    }
    return solo, pairs


def test_a_job_without_pairs_is_predicted_from_what_it_uses_alone() -> None:
    solo, pairs = made()
    known = {pair: kept for pair, kept in pairs.items() if "j3" not in pair}
    model = PairModel(solo, known)
    mean = statistics.fmean(known.values())
    new = {pair: kept for pair, kept in pairs.items() if "j3" in pair}
    off = statistics.fmean(abs(model.predict(*pair).part - kept) for pair, kept in new.items())
    assert off < 0.3 * statistics.fmean(abs(mean - kept) for kept in new.values())
    assert model.error < 0.1


def test_the_band_holds_nine_of_ten_and_is_narrower_between_jobs_that_were_measured() -> None:
    solo, pairs = made(16, noise=0.05)
    known = {
        pair: kept for pair, kept in pairs.items() if "j3" not in pair and pair != ("j4", "j5")
    }
    model = PairModel(solo, known)
    told = [(model.predict(*pair), kept) for pair, kept in pairs.items() if "j3" in pair]
    assert statistics.fmean(each.low <= kept <= each.high for each, kept in told) > 0.75
    between, new = model.predict("j4", "j5"), model.predict("j3", "j5")
    assert between.high - between.low < new.high - new.low


def test_a_figure_that_nobody_or_only_one_job_has_does_no_harm() -> None:
    solo, pairs = made()
    solo["j0"] |= {"disk": 1e9, "idle": 0.0}
    assert PairModel(solo, pairs).error < 0.1
    assert 0.0 < PairModel({}, pairs).predict("j1", "unknown").part <= 1.0


def test_with_few_pairs_only_what_was_measured_is_told() -> None:
    few = Interference({"": {"a": {"b": 0.8}, "b": {"a": 0.9}, "c": {}}})
    assert (few.kept("", "a", "b"), few.kept("", "a", "c")) == (0.8, None)
    assert few.crowd("", "c", ["a", "b"]) == 2.0


def test_what_is_not_known_of_a_gpu_divides_its_time_by_how_busy_each_keeps_it() -> None:
    half = Interference({}, {"g": {"a": {UTILISATION: 0.5}, "b": {UTILISATION: 0.75}}})
    assert half.on_gpu("g", "a", ["b"]) == 1 / 1.25
    assert half.on_gpu("g", "a", ["a"]) == 1.0
    assert half.on_gpu("g", "a", ["unknown"]) == 1 / 1.5
    assert half.on_gpu("g", "x", ["y", "z"]) == 1 / 3


def test_a_table_is_kept_in_the_home_folder_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    assert not stored_pairs(tmp_path)
    path = tmp_path / "pairs.json"
    path.write_text(
        json.dumps(
            {"": {"a": {"null": 2.0, "b": [1.0, 3.0], "solo": {"cores": 1.5}}, "b": {"null": 4.0}}}
        )
    )
    found = stored_pairs(tmp_path)
    assert found.kept("any kind", "a", "b") == 0.5
    assert found.solo[""]["a"]["cores"] == 1.5
    path.write_text(json.dumps({"": {"a": {"null": 2.0, "solo": {"cores": -1}}}}))
    with pytest.raises(UsageError, match=r"pairs\.json has no measured pairs"):
        stored_pairs(tmp_path)


@pytest.mark.long
@pytest.mark.skipif(not GAVEL.exists(), reason="needs gavel/pairs.json in HEADGATE_DATA")
def test_on_measured_pairs_it_errs_less_than_equal_time_and_the_mean_on_unseen_jobs() -> None:
    table = read_pairs(GAVEL)
    for device, rows in table.pairs.items():
        pairs = {(job, other): part for job, row in rows.items() for other, part in row.items()}
        kept = list(pairs.values())
        spread = statistics.fmean(abs(part - statistics.fmean(kept)) for part in kept)
        assert PairModel(table.solo[device], pairs).error < 0.6 * spread, device


def test_the_stored_table_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    stored, path = StoredPairs(tmp_path), tmp_path / STORED
    assert (stored.is_new, bool(stored.read())) == (False, False)
    table = {"": {"a": {"null": 2.0, "b": [1.0, 1.0]}, "b": {"null": 2.0, "a": [1.0, 1.0]}}}
    path.write_text(json.dumps(table))
    assert stored.is_new
    known = stored.read()
    assert (known.kept("", "a", "b"), stored.is_new, stored.read() is known) == (0.5, False, True)
    path.write_text("what no study writes")
    assert (bool(stored.read()), stored.is_new) == (False, False)
    path.unlink()
    assert (stored.is_new, bool(stored.read())) == (True, False)
