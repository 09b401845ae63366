"""Where a path leads, and who can change what is there."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.config import clusterfile, jobfile, planfile
from headgate.model import paths
from headgate.model.errors import StorageError, UsageError
from headgate.model.paths import below, exposure, is_readable, opened, write_whole
from headgate.planning.interference import read_pairs
from headgate.profiling import store
from headgate.recorded import runs
from headgate.simulation import trace_files
from headgate.simulation.speeds import read_speeds


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("step-1.pt", "step-1.pt"),
        ("a/../step-1.pt", "step-1.pt"),
        ("inside", "step-1.pt"),
        ("../step-1.pt", None),
        ("a/../../checkpoints-of-another/x", None),
        ("outside", None),
        ("away/passwd", None),
        ("loop", None),
        (".", None),
        ("/etc/passwd", None),
    ],
)
def test_a_path_is_below_a_folder_by_where_it_leads(
    tmp_path: Path, path: str, found: str | None
) -> None:
    folder = tmp_path / "checkpoints"
    (folder / "a").mkdir(parents=True)
    (folder / "step-1.pt").touch()
    (folder / "inside").symlink_to("step-1.pt")
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "away").symlink_to("/etc")
    (folder / "loop").symlink_to("../loop")
    assert below(folder, folder / path) == found


@pytest.mark.parametrize("where", ["home", "above", "hub", "runs", "link"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o772])
def test_a_home_that_others_can_write_or_replace_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, mode: int
) -> None:
    above = tmp_path / "above"
    home = above / "home"
    above.mkdir(mode=0o700)
    monkeypatch.setenv("HEADGATE_HOME", str(home))
    runs.home()
    exposed = {
        "home": home,
        "above": above,
        "hub": home / "hub",
        "runs": home / "runs",
        "link": tmp_path / "links",
    }[where]
    if where == "link":
        exposed.mkdir()
        (exposed / "home").symlink_to(home)
        monkeypatch.setenv("HEADGATE_HOME", str(exposed / "home"))
    home.chmod(0o755)
    exposed.chmod(mode)
    if where in ("above", "link") and mode & 0o1000:  # nobody can move there what is another's
        runs.home()
        return
    with pytest.raises(
        StorageError, match=rf"{exposed} can be written by everybody .*chmod go-w.*HEADGATE_HOME"
    ):
        runs.home()
    exposed.chmod(0o755)
    runs.home()


_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link to another user")


@pytest.mark.parametrize(
    "way",
    [
        "link to link",
        "link and back",
        "relative",
        "in a link",
        pytest.param("owner of a link", marks=_AS_ROOT),
    ],
)
def test_whoever_can_change_any_link_on_the_way_can_change_the_home(
    tmp_path: Path, way: str
) -> None:
    home, open_to_all = tmp_path / "home", tmp_path / "open"
    (home / "in").mkdir(mode=0o700, parents=True)
    open_to_all.mkdir()
    first = tmp_path / "first"
    match way:
        case "link to link":
            (open_to_all / "second").symlink_to(home)
            first.symlink_to(open_to_all / "second")
        case "link and back":
            first.symlink_to(f"{open_to_all}/../home")
        case "relative":
            (open_to_all / "second").symlink_to("../home")
            first.symlink_to("open/second")
        case "in a link":
            (open_to_all / "second").symlink_to(tmp_path)
            first.symlink_to(open_to_all / "second" / "home" / "in")
        case _:
            first.symlink_to(home)
    assert exposure(first) is None
    if way == "owner of a link":
        os.lchown(first, 12345, -1)
        assert exposure(first) == f"{first} belongs to user 12345"
    else:
        open_to_all.chmod(0o777)
        assert exposure(first) == f"{open_to_all} can be written by everybody (mode 0777)"


def test_folders_in_one_that_nobody_else_enters_are_safe(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside").chmod(0o777)
    tmp_path.chmod(0o700)
    assert exposure(tmp_path) is None
    tmp_path.chmod(0o755)
    assert str(exposure(tmp_path)).startswith(f"{tmp_path}/inside can be written by everybody")


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can give a folder to a group or user that it is not of"
)
def test_a_group_counts_unless_it_is_the_user_s_own_and_so_does_the_owner_of_a_folder_above(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "above" / "home"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o775)
    assert exposure(folder) is None
    os.chown(folder.parent, -1, 12345)
    assert exposure(folder) == f"{folder.parent} can be written by group 12345 (mode 0775)"
    folder.parent.chmod(0o755)
    os.chown(folder.parent, 12345, -1)
    assert exposure(folder) == f"{folder.parent} belongs to user 12345"


def test_a_folder_of_sockets_that_others_can_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / ("long" * 25)))
    folder = runs.make_sockets()
    try:
        assert folder.parent == Path("/tmp")
        folder.chmod(0o777)
        with pytest.raises(StorageError, match=rf"{folder} can be written by everybody"):
            runs.sockets()
    finally:
        folder.rmdir()


def test_a_pipe_in_which_somebody_writes_is_read_to_its_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"a\r\nb")
    os.close(writing)
    with opened(f"/dev/fd/{reading}", newline="") as file:
        assert file.read() == "a\r\nb"
    os.close(reading)


@pytest.mark.parametrize(
    ("kind", "why"), [("folder", "directory"), ("device", "a device"), ("pipe", "into this pipe")]
)
@pytest.mark.parametrize(
    "read",
    [jobfile.load, clusterfile.read, planfile.load, trace_files.read, read_speeds, read_pairs],
    ids=lambda of: of.__name__,
)
def test_what_is_no_file_and_has_no_end_is_refused_as_a_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    why: str,
    read: Callable[[Any], object],
) -> None:
    monkeypatch.setattr(paths, "PIPE_SECONDS", 0.01)
    path = tmp_path / "file.yaml"
    match kind:
        case "folder":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            os.mkfifo(path)
    if (read, kind) == (trace_files.read, "folder"):
        return  # of a run
    with pytest.raises(UsageError, match=f"cannot read .*{why}"):
        read(str(path) if read in (jobfile.load, clusterfile.read, planfile.load) else path)


def test_a_device_is_no_stored_profile(tmp_path: Path) -> None:
    (tmp_path / "key.json").symlink_to("/dev/zero")
    assert store.load(tmp_path, "key") is None


def test_a_file_is_written_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        write_whole(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_descriptor_above_1023_is_waited_for() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    try:
        reading, writing = os.pipe()
        high = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 1500)
        assert not is_readable(high, 0.0)
        os.write(writing, b"x")
        assert is_readable(high, 60.0)
        for fd in (reading, writing, high):
            os.close(fd)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
