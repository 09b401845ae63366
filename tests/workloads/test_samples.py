"""Data of workloads is drawn from a seed, once, and is what its checksum says."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headgate.workloads import WorkloadError, samples


def test_clicks_have_39_features_of_which_few_come_often() -> None:
    ids, values, clicked = samples.made("sparse", "full", 512, seed=0)
    assert ids.shape == values.shape == (512, 39)
    assert ids.min() == 0 and ids.max() < 33_762_578
    assert all(len(set(row)) == 39 for row in ids)
    _, counts = np.unique(ids[:, samples.NUMBERS :], return_counts=True)
    assert counts.max() > 50 and (counts == 1).sum() > 1_000
    assert 0.2 < clicked.mean() < 0.8


def test_samples_of_a_seed_are_the_same_in_memory_and_in_a_folder(tmp_path: Path) -> None:
    asked = samples.make(tmp_path / "a", "alexnet", "small", 4, count=300)
    again = samples.make(tmp_path / "b", "alexnet", "small", 4, count=300)
    assert [array.tobytes() for array in asked] == [array.tobytes() for array in again]
    manifests = [(tmp_path / name / "manifest.json").read_text() for name in ("a", "b")]
    assert manifests[0] == manifests[1]
    for first in (True, False):
        from_files = samples.Samples(asked, 600, channels_first=first).batches(100)
        in_memory = samples.Samples(
            samples.made("alexnet", "small", 300, 4, first), 600, first
        ).batches(100)
        assert len(from_files) == 6
        for one, other in itertools.chain(*map(zip, from_files, in_memory)):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(from_files[4][0], from_files[1][0])
        np.testing.assert_array_equal(
            samples.Samples(asked, 600, first).taken([298, 299, 300])[1], asked[1][[-2, -1, 0]]
        )


def test_files_that_were_changed_are_told(tmp_path: Path) -> None:
    samples.make(tmp_path, "mlp", "small", count=10)
    assert samples.check(tmp_path)["samples"] == 10
    with (tmp_path / "samples.npy").open("r+b") as file:
        file.seek(-1, 2)
        last = file.read()
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    with pytest.raises(WorkloadError, match=r"samples\.npy is not what was made; remove"):
        samples.check(tmp_path)
    (tmp_path / "samples.npy").write_bytes(b"")
    with pytest.raises(WorkloadError, match="is missing or not whole"):
        samples.make(tmp_path, "mlp", "small", count=10)


def test_a_folder_with_other_data_is_refused(tmp_path: Path) -> None:
    samples.make(tmp_path, "mlp", "small", count=10)
    assert len(samples.make(tmp_path, "mlp", "small")[0]) == 10
    with pytest.raises(
        WorkloadError,
        match="holds data of workload 'mlp'; expected workload 'alexnet', size 'small'",
    ):
        samples.make(tmp_path, "alexnet", "small", count=10)


def test_processes_that_ask_at_once_make_a_folder_once(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "headgate.workloads",
        "--make",
        "mlp",
        "--data",
        str(tmp_path),
        "--samples",
        "2000",
    ]
    asking = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate()[0] for process in asking}
    assert len(answers) == 1 and "2000 samples of mlp" in answers.pop()
    assert json.loads((tmp_path / "manifest.json").read_text()) == samples.check(tmp_path)
