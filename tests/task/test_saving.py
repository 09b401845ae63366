"""A checkpoint takes its place whole or not at all, be it a file or a folder."""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate.task.saving import CheckpointError, ResumeError, damage, replacing, restored, size


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
    # of processes that were killed; one had the number that this one has now
    for process in (77, os.getpid()):
        _folder(folder / f".step-2.{process}.partial")
    for step in (1, 2, 2, 3):
        path = folder / f"step-{step}.kind"
        with replacing(path) as partial:
            write(partial)
        assert (path / "state" / "0").read_bytes() == b"12345" if path.is_dir() else size(path) == 5
    assert sorted(file.name for file in folder.iterdir()) == ["step-2.kind", "step-3.kind"]


@BOTH
def test_the_newest_two_stay_though_the_clock_is_set_back(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    kept = []
    for step in (1, 2, 3, 4):
        path = folder / f"step-{step}.kind"
        with replacing(path) as partial:
            write(partial)
            if step == 2:  # until then it was a day ahead
                for file in folder.glob("step-*"):
                    date = file.stat().st_mtime_ns + 86_400 * 10**9
                    os.utime(file, ns=(date, date))
        kept.append(sorted(file.name for file in folder.iterdir()))
    assert kept[1:] == [[f"step-{step - 1}.kind", f"step-{step}.kind"] for step in (2, 3, 4)]


@BOTH
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(28, "No space left"),
            "step-1.kind could not be written: [Errno 28] No space left",
        ),
        (ValueError("no such leaf"), "step-1.kind could not be written: no such leaf"),
    ],
)
def test_what_was_there_stays_where_it_fails(
    write: Write, error: Exception, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "step-1.kind"
    with replacing(path) as partial:
        write(partial)
    with pytest.raises(CheckpointError) as raised, replacing(path) as partial:
        write(partial)
        raise error
    assert str(raised.value).endswith(said)
    assert [each.name for each in tmp_path.iterdir()] == ["step-1.kind"]
    assert damage(path) is None if path.is_dir() else size(path) == 5


def test_an_archive_s_error_is_told_by_the_system_s_that_caused_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="File too large"), replacing(tmp_path / "step-1.pt"):
        try:
            raise OSError(27, "File too large")
        except OSError:
            raise RuntimeError("unexpected pos 64 vs 0") from None


# --- whether one is whole


def _archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for part in range(3):
            archive.writestr(f"archive/data/{part}", random.Random(part).randbytes(700))


def _parts(path: Path) -> None:
    (path / "state").mkdir(parents=True)
    for part in range(3):
        (path / "state" / str(part)).write_bytes(random.Random(part).randbytes(70))


@pytest.fixture(params=[_archive, _parts], ids=["archive", "folder"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint, a file or a folder."""
    path = tmp_path / "step-1.kind"
    with replacing(path) as partial:
        request.param(partial)
    return path


def _pieces(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]


def test_what_was_written_is_whole(saved: Path) -> None:
    assert damage(saved) is None


def _read(path: Path) -> list[bytes]:
    if path.is_dir():
        return [file.read_bytes() for file in _pieces(path)]
    with zipfile.ZipFile(path) as archive:
        return [archive.read(name) for name in archive.namelist()]


def test_no_byte_of_what_is_read_can_change_unseen(saved: Path) -> None:
    read = _read(saved)
    for piece in _pieces(saved):
        content = piece.read_bytes()
        for at in range(len(content)):
            piece.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
            assert damage(saved) is not None or _read(saved) == read, f"byte {at} of {piece.name}"
        piece.write_bytes(content)
    assert damage(saved) is None


def test_no_piece_can_be_cut_short_or_empty_or_gone(saved: Path) -> None:
    for piece in _pieces(saved):
        content = piece.read_bytes()
        for length in (0, 1, len(content) // 2, len(content) - 1):
            piece.write_bytes(content[:length])
            assert damage(saved) is not None, f"{length} bytes of {piece.name}"
        piece.unlink()
        reason = damage(saved)
        # as before 0.2
        assert (
            reason is None if piece.name == "files.json" else reason and reason.endswith("is gone")
        )
        piece.write_bytes(content)
    assert damage(saved) is None


def test_what_is_no_checkpoint_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no checkpoint")
    (tmp_path / "folder").mkdir()
    with zipfile.ZipFile(tmp_path / "parts", "w"):
        pass
    assert damage(tmp_path / "notes") == "is cut short, or is no checkpoint"
    assert damage(tmp_path / "folder") == "is empty"
    assert damage(tmp_path / "parts") == "is damaged: its list of parts is not what was written"
    assert damage(tmp_path / "none") == "is gone"


def test_one_without_a_seal_goes_by_what_its_format_has(tmp_path: Path) -> None:
    _archive(tmp_path / "file")  # as an earlier version wrote it
    _parts(tmp_path / "folder")
    assert [damage(tmp_path / name) for name in ("file", "folder")] == [None, None]


def test_a_task_tells_its_engine_of_a_checkpoint_that_is_not_whole_and_reads_nothing_of_it(
    saved: Path,
) -> None:
    sent: list[object] = []
    assert restored(str(saved), lambda path: f"read {path}", sent.append) == f"read {saved}"
    _pieces(saved)[0].write_bytes(b"")
    with pytest.raises(ResumeError, match=r"step-1.kind is .*; resume from another one"):
        restored(str(saved), pytest.fail, sent.append)
    assert sent == [{"type": "checkpoint_damaged", "path": str(saved), "error": damage(saved)}]
