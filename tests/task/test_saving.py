"""A checkpoint takes its place whole or not at all, be it a file or a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.task.saving import CheckpointError, replacing, size


def _file(path: Path) -> None:
    path.write_bytes(b"12345")


def _folder(path: Path) -> None:
    (path / "state").mkdir(parents=True)
    (path / "state" / "0").write_bytes(b"12345")


BOTH = pytest.mark.parametrize("write", [_file, _folder])
Write = Callable[[Path], None]


@BOTH
def test_the_newest_two_stay_and_nothing_half_written(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for process in (77, os.getpid()):  # of processes that were killed; one had the number that this one has now
        _folder(folder / f".step-2.{process}.partial")
    for step in (1, 2, 2, 3):
        path = folder / f"step-{step}.kind"
        with replacing(path) as partial:
            write(partial)
        assert size(path) == 5
    assert sorted(each.name for each in folder.iterdir()) == ["step-2.kind", "step-3.kind"]


@BOTH
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left"), "step-1.kind could not be written: [Errno 28] No space left"),
        (ValueError("no such leaf"), "step-1.kind could not be written: no such leaf"),
    ],
)
def test_what_was_there_stays_where_it_fails(write: Write, error: Exception, said: str, tmp_path: Path) -> None:
    path = tmp_path / "step-1.kind"
    with replacing(path) as partial:
        write(partial)
    with pytest.raises(CheckpointError) as raised, replacing(path) as partial:
        write(partial)
        raise error
    assert str(raised.value).endswith(said)
    assert [each.name for each in tmp_path.iterdir()] == ["step-1.kind"]
    assert size(path) == 5


def test_an_archive_s_error_is_told_by_the_system_s_that_caused_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="File too large"), replacing(tmp_path / "step-1.pt"):
        try:
            raise OSError(27, "File too large")
        except OSError:
            raise RuntimeError("unexpected pos 64 vs 0") from None
