"""What nodes may read and write of the hub's machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.engines.remote.files import Files
from headgate.isolation.base import Launch
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskId


def test_nodes_get_no_files_but_those_that_launches_name(tmp_path: Path) -> None:
    work, folder, earlier = tmp_path / "work", tmp_path / "checkpoints", tmp_path / "earlier"
    for made in (work, folder, earlier):
        made.mkdir()
        (made / "file").write_text("data")
    (tmp_path / "secret").write_text("of the user")
    (folder / "link").symlink_to(tmp_path / "secret")
    files = Files()
    env = {"HEADGATE_CHECKPOINTS": str(folder), "HEADGATE_RESUME": str(earlier)}
    files.allow(Launch(TaskId("r/a/worker-0"), ("true",), env, str(work), 1))
    assert (
        files.read(str(folder / "file"), 0, 9) == files.read(str(earlier / "file"), 0, 9) == b"data"
    )
    assert files.pack(str(work))
    files.write(str(folder / "new.partial"), 0, b"new")
    files.rename(str(folder / "new.partial"), str(folder / "new"))
    for ask in (
        lambda: files.read(str(tmp_path / "secret"), 0, 9),
        lambda: files.read(f"{folder}/../secret", 0, 9),
        lambda: files.read(str(folder / "link"), 0, 9),
        lambda: files.sizes(str(work / "file")),
        lambda: files.write(str(earlier / "file"), 0, b"x"),
        lambda: files.write(f"{folder}/../new", 0, b"x"),
        lambda: files.rename(str(folder / "new"), str(tmp_path / "new")),
        lambda: files.rename(str(tmp_path / "secret"), str(folder / "secret")),
        lambda: files.pack(str(tmp_path)),
    ):
        with pytest.raises(HeadgateError, match="the request was refused"):
            ask()
    with pytest.raises(PermissionError, match="leads out"):
        (earlier / "link").symlink_to(tmp_path / "secret")
        files.sizes(str(earlier))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoints",
        "earlier",
        "secret",
        "work",
    ]
