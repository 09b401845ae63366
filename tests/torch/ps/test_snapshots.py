"""What servers save, and what comes back of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headgate.torch.ps.tables.steps import Steps
from headgate.torch.ps.transport import snapshots
from headgate.torch.ps.transport.payload import PayloadError, pack, unpack
from headgate.torch.ps.transport.snapshots import SnapshotError, Writer

TREE = {
    "numbers": [1, 2.5, None, True, "text", float("inf")],
    "options": {"betas": (0.9, 0.999)},
    "by number": {0: {"step": torch.tensor(3.0)}, 1: {}},
    "tensors": [
        torch.randn(70, 100),
        torch.arange(5, dtype=torch.int32),
        torch.zeros(0, 4),
        torch.randn(3).bfloat16(),
    ],
}


def same(value: object, wanted: object) -> bool:
    if isinstance(wanted, torch.Tensor):
        return (
            isinstance(value, torch.Tensor)
            and value.dtype == wanted.dtype
            and torch.equal(value, wanted)
        )
    if isinstance(wanted, dict):
        return (
            isinstance(value, dict)
            and value.keys() == wanted.keys()
            and all(same(value[k], wanted[k]) for k in wanted)
        )
    if isinstance(wanted, (list, tuple)):
        return (
            type(value) is type(wanted)
            and len(value) == len(wanted)
            and all(map(same, value, wanted))
        )
    return value == wanted


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "server-0.snapshot"
    size = snapshots.write(path, *pack(TREE))
    assert path.stat().st_size == size
    assert same(snapshots.read(path), TREE)
    assert list(path.parent.iterdir()) == [path]


def test_what_was_read_can_be_changed_without_changing_the_file(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    snapshots.write(path, *pack({"values": torch.zeros(10_000)}))
    snapshots.read(path)["values"].add_(1)
    assert not snapshots.read(path)["values"].any()


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_a_file_that_is_none_is_said_to_be(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "snapshot"
    snapshots.write(path, *pack(TREE))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SnapshotError, match="snapshot"):
        snapshots.read(path)


def test_no_byte_of_it_can_change_unseen(tmp_path: Path) -> None:
    path = tmp_path / "snapshot"
    snapshots.write(path, *pack({"values": torch.arange(20.0), "steps": 3}))
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        with pytest.raises(SnapshotError):
            snapshots.read(path)


def test_the_one_before_stays(tmp_path: Path) -> None:
    path = tmp_path / "server-0.snapshot"
    for value in (1.0, 2.0, 3.0):
        snapshots.write(path, *pack({"values": torch.full((3,), value)}))
    assert [snapshots.read(file)["values"][0] for file in (path, snapshots.former_of(path))] == [
        3.0,
        2.0,
    ]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_does_not_take_it_is_told_of_once_and_what_was_there_stays(
    tmp_path: Path,
) -> None:
    messages: list[str] = []
    folder = tmp_path / "file"
    folder.write_text("no folder")
    writer = Writer(folder / "snapshot", 1, messages.append)
    for _ in range(2):
        assert writer.take({"values": torch.zeros(3)})
        assert writer._thread is not None
        writer._thread.join()
    assert len(messages) == 1
    assert folder.read_text() == "no folder"


def test_a_job_that_ends_well_leaves_no_snapshot(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "snapshot", 1, pytest.fail)
    writer.take({"values": torch.zeros(3)})
    writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_copies_are_told_of_no_faster_than_they_can_be_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "BROUGHT_BYTES_PER_SECOND", 1000.0)
    copies: list[tuple[Path, int]] = []
    path = tmp_path / "server-0.snapshot"
    writer = Writer(path, 1, pytest.fail, lambda copy, size: copies.append((copy, size)))
    for value in range(2):  # the second within the hour that the first may take
        assert writer.take({"values": torch.full((1_000_000,), float(value))})
        assert writer._thread is not None
        writer._thread.join()
    [(copy, size)] = copies
    assert (copy.name, copy.stat().st_size) == ("server-0.copy", size)
    assert [snapshots.read(file)["state"]["values"][0] for file in (copy, path)] == [0.0, 1.0]
    # Brought while another took its place: the beginning of the one, the end of the other.
    whole = copy.read_bytes(), path.read_bytes()
    copy.write_bytes(whole[0][: size // 2] + whole[1][size // 2 :])
    with pytest.raises(SnapshotError, match="cannot be read"):
        snapshots.read(copy)
    writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_only_plain_values_and_tensors_are_packed() -> None:
    with pytest.raises(PayloadError, match=r"a builtins\.object cannot be sent"):
        pack({"thing": object()})
    with pytest.raises(PayloadError, match="complex64"):
        pack([torch.zeros(1, dtype=torch.complex64)])


@pytest.mark.parametrize(
    "text",
    [b"{", b'{"$tensor": [3, "torch.float32", [1]]}', b'{"$tensor": [0, "torch.float32", [9]]}'],
)
def test_what_was_not_packed_is_not_unpacked(text: bytes) -> None:
    with pytest.raises(PayloadError, match="cannot be read"):
        unpack(text, [b"1234"])


def test_steps_that_workers_know_of_are_not_waited_for_after_a_restart() -> None:
    steps = Steps(taken=3)
    steps.catch_up(5)
    assert steps.taken == 5
    assert steps.next(frozenset({0, 1}), None) is None
