"""All of a task's output goes to its log, and its lines to whoever reads progress."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headgate.engines import log as module
from headgate.engines.log import (
    BYTES_A_SECOND,
    GATHER_SECONDS,
    LINES_A_SECOND,
    TaskLog,
    gone_before,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.log"


def test_a_log_that_is_full_is_begun_anew_and_its_former_part_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 10)
    log = TaskLog(str(path))
    former = path.with_name("worker-0.log.1")
    log.write(b"12345\n", 0.0)
    log.write(b"678\n", 0.0)
    assert (path.read_bytes(), former.exists()) == (b"12345\n678\n", False)
    log.write(b"next\n", 0.0)
    assert (path.read_bytes(), former.read_bytes()) == (b"next\n", b"12345\n678\n")
    log.write(b"and the next\n", 0.0)
    assert (path.read_bytes(), former.read_bytes()) == (b"and the next\n", b"next\n")
    log.close()


def test_a_log_that_was_there_counts_as_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 10)
    path.write_bytes(b"an earlier attempt\n")
    log = TaskLog(str(path))
    log.write(b"x", 0.0)
    assert path.read_bytes() == b"x"
    assert path.with_name("worker-0.log.1").read_bytes() == b"an earlier attempt\n"
    log.close()


@pytest.mark.parametrize(
    "pieces", [[b"ab\ncd", b"ef\ngh", b"ij\n", b"kl\nmn\n"], [b"0123456", b"78", b"9\rab", b"cd\n"]]
)
def test_a_full_log_is_renamed_where_a_line_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch, pieces: list[bytes]
) -> None:
    """However lines lie in what is read of a task."""
    monkeypatch.setattr(module, "LOG_BYTES", 6)
    log = TaskLog(str(path))
    former, whole = path.with_name("worker-0.log.1"), b""
    for piece in pieces:
        log.write(piece, 0.0)
        whole += piece
        left = (former.read_bytes() if former.exists() else b"") + path.read_bytes()
        assert whole.endswith(left)
        assert len(whole) - len(left) == gone_before(path)
        assert not former.exists() or former.read_bytes().endswith((b"\n", b"\r"))
    assert former.exists()
    log.close()


def test_a_line_without_an_end_does_not_keep_a_log_from_being_renamed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOG_BYTES", 10)
    monkeypatch.setattr(module, "_LINE_MOST", 10)
    log = TaskLog(str(path))
    for _ in range(10):
        log.write(b"12345", 0.0)
    assert path.stat().st_size <= 25
    log.close()


def test_a_log_is_for_its_user_only(path: Path) -> None:
    log = TaskLog(str(path))
    log.write(b"x", 0.0)
    assert path.stat().st_mode & 0o777 == 0o600
    log.close()
    log.close()


def test_what_cannot_be_written_is_told_until_it_can(tmp_path: Path) -> None:
    log = TaskLog(str(tmp_path / "folder" / "log"))
    assert log.write(b"lost\n", 0.0) == ["lost"], "its lines are delivered all the same"
    assert log.trouble is not None
    assert "No such file or directory" in log.trouble
    (tmp_path / "folder").mkdir()
    assert log.write(b"kept\n", 0.0) == ["kept"]
    assert log.trouble is None
    assert (tmp_path / "folder" / "log").read_bytes() == b"kept\n"
    log.close()


def test_what_follows_lost_output_is_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = TaskLog(str(tmp_path / "worker-0.log"))
    room = 4

    def write(fd: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os_write(fd, data[:room])
        room -= written
        return written

    os_write = os.write
    monkeypatch.setattr(os, "write", write)
    log.write(b"one\ntwo\n", 0.0)
    trouble = log.trouble
    log.write(b"", 1.0)  # as at its end
    assert log.trouble == trouble and "No space left" in str(trouble)
    room = 1
    log.write(b"three\n", 2.0)
    room = 100
    log.write(b"four\n", 3.0)
    assert log.trouble is None
    log.close()
    assert (tmp_path / "worker-0.log").read_text() == "one\nt\nfour\n"


def test_a_full_disk_is_told() -> None:
    log = TaskLog("/dev/full")
    log.write(b"lost\n", 0.0)
    assert (
        log.trouble
        == "cannot write /dev/full: No space left on device; output is lost until it can be written"
    )
    log.close()


def test_what_the_system_takes_in_parts_is_written_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    log = TaskLog(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
        log.write(b"more than three bytes\n", 0.0)
    log.close()
    assert path.read_bytes() == b"more than three bytes\n"


def test_lines_are_put_together_from_pieces(path: Path) -> None:
    log = TaskLog(str(path))
    assert log.write(b"be", 0.0) == []
    assert log.write(b"gin\r\nmid", 0.0) == ["begin"]
    assert log.write(b"dle\r", 0.0) == ["middle"]
    assert log.write(b"\n", 0.0) == []
    assert log.write(b"end", 0.0) == []
    assert log.rest() == ["end"]
    assert log.rest() == []
    log.close()


def test_of_a_flood_a_thousand_lines_a_second_are_delivered(path: Path) -> None:
    log = TaskLog(str(path))
    flood = b"x\n" * 700
    assert [len(log.write(flood, now)) for now in (5.0, 5.5, 5.9, 6.0)] == [
        700,
        LINES_A_SECOND - 700,
        0,
        700,
    ]
    log.close()
    assert path.stat().st_size == 4 * len(flood)


@pytest.mark.parametrize("begin", ["accuracy: 0.99 ", "ação é ü 損失 loss: 0.5 "])
@pytest.mark.parametrize("piece", [100, 4096, 65536, 200_000])
def test_of_a_long_line_the_beginning_is_handed_on_however_it_comes(
    path: Path, begin: str, piece: int
) -> None:
    log = TaskLog(str(path))
    text = begin + "é" * 110_000
    data = (text + "\nnext").encode()
    lines = [
        line for at in range(0, len(data), piece) for line in log.write(data[at : at + piece], 0.0)
    ]
    assert lines == [text[:4096]]
    log.write(b"y" * 65536, 0.0)
    assert log.rest() == [("next" + "y" * 5000)[:4096]]
    log.close()


def test_a_bar_that_is_drawn_again_by_backspaces_is_handed_on_in_each_state(path: Path) -> None:
    log = TaskLog(str(path))
    states = [f"{n}/5000 [=>...] - loss: 0.{n}" for n in range(1, 300)]
    data = "".join(state + "\b" * len(state) for state in states).encode()
    assert log.write(data, 0.0) == states
    log.close()


def test_bytes_that_are_no_text_do_no_harm(path: Path) -> None:
    log = TaskLog(str(path))
    assert log.write(b"\xff\xfe loss 0.5\n", 0.0) == ["�� loss 0.5"]
    log.close()


def test_who_writes_too_fast_waits_for_the_next_second(path: Path) -> None:
    log = TaskLog(str(path))
    half = b"x" * (BYTES_A_SECOND // 2)
    log.write(half, 7.25)
    assert log.resumes_in(7.25) == 0.0
    log.write(half, 7.25)
    assert log.resumes_in(7.25) == 0.75
    assert log.resumes_in(8.0) == 0.0
    log.close()


def test_one_that_prints_all_the_time_is_read_fifty_times_a_second(path: Path) -> None:
    log = TaskLog(str(path))
    waits = []
    for data, now in (
        (b"step\n", 1.0),
        (b"step\n", 1.001),
        (b"step\n", 1.03),
        (b"step\n", 5.0),
        (b"x" * 20_000, 5.02),
    ):
        log.write(data, now)
        waits.append(log.resumes_in(now))
    assert waits == [0.0, GATHER_SECONDS, GATHER_SECONDS, 0.0, 0.0]
    log.close()


def test_the_last_lines_of_a_flood_are_handed_on_at_its_end(path: Path) -> None:
    log = TaskLog(str(path))
    flood = b"".join(b"%d\n" % i for i in range(LINES_A_SECOND + 500))
    assert len(log.write(flood + b"ValueError: why it failed\nno end", 5.0)) == LINES_A_SECOND
    rest = log.rest()
    assert rest[-2:] == ["ValueError: why it failed", "no end"]
    assert rest[0] == str(LINES_A_SECOND + 500 - 99)
    log.write(flood, 6.0)
    assert log.write(b"told in the next second\n", 7.0) == ["told in the next second"]
    assert log.rest() == []
    log.close()
