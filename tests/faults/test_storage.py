"""No permission, no space, no folder: one message with the cure, and jobs that run go on."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.user import SECONDS, SOURCE, User

from headgate.client.starting import clean
from headgate.model.errors import StorageError
from headgate.testing import wait

WRITES = """
    import os, time
    step = 0
    while not os.path.exists("go"):
        step += 1
        print(f"step {step} loss {1 / step}", "x" * 1000, flush=True)
        time.sleep(0.01)
"""


@pytest.fixture
def small_disk(home: Path) -> Iterator[Path]:
    """A `HEADGATE_HOME` on a file system of 2 MiB."""
    home.mkdir(mode=0o700)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "headgate-test", str(home)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield home
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_a_home_below_a_file_is_refused(user: User) -> None:
    user.write("a.py", "")
    user.write("file", "")
    home = str(user.folder / "file" / "home")
    for words in (("run", "a.py"), ("ps",), ("doctor",)):
        said = user.types(*words, code=4, HEADGATE_HOME=home).message
        assert (
            said
            == f"cannot make {home}: Not a directory; set HEADGATE_HOME to a folder you can write"
        )


def test_a_home_on_a_read_only_disk_is_refused(user: User) -> None:
    user.write("a.py", "")
    sealed = user.folder / "sealed"
    sealed.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "headgate-test", str(sealed)], check=False
    )
    if done.returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        said = user.types("run", "a.py", code=4, HEADGATE_HOME=str(sealed / "home")).message
    finally:
        subprocess.run(["umount", str(sealed)], check=True)
    assert said.endswith("Read-only file system; set HEADGATE_HOME to a folder you can write")


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_a_home_whose_files_cannot_be_locked_is_refused(
    kind: str, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_nfs_without_its_lock_service(fd: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setenv("HEADGATE_HOME", str(user.folder / "home"))
    monkeypatch.setattr(f"fcntl.{kind}", as_nfs_without_its_lock_service)
    with pytest.raises(StorageError, match="cannot be locked: No locks available; two hubs might"):
        clean()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
def test_the_folder_of_somebody_else_is_refused(
    user: User, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = [
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
        sys.executable, "-m", "headgate", "run", "a.py",
    ]  # fmt: skip
    place = Path("/var/tmp") / f"headgate-test-{os.getpid()}"
    place.mkdir(mode=0o755)
    try:
        (place / "a.py").touch()
        for mode, says in ((0o700, "Permission denied"), (0o777, "belongs to another user")):
            home = place / f"home-{mode:o}"
            home.mkdir()
            home.chmod(mode)
            places = {"HEADGATE_HOME": str(home), "XDG_CONFIG_HOME": str(place)}
            done = subprocess.run(
                command,
                cwd=place,
                env=user.variables | places | {"PYTHONPATH": str(SOURCE)},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
            assert done.returncode == 4, done.stderr
            assert done.stderr.startswith("headgate: ")
            assert says in done.stderr
            assert "set HEADGATE_HOME to a folder" in done.stderr
    finally:
        shutil.rmtree(place)


@pytest.mark.long
def test_a_full_disk_stops_no_job_and_what_was_measured_is_written_when_there_is_room(
    small_disk: Path, user: User
) -> None:
    user.write("writes.py", WRITES)
    run = user.detaches("writes.py")
    user.sees_job("writes", lambda job: (job["step"] or 0) > 5)
    watching = user.opens("attach")
    watching.shows("epoch|step")
    fill(small_disk)
    watching.shows("No space left on device; output is lost until it can be written")
    watching.shows("what is measured is kept in memory until it can")
    assert user.traces.tasks()
    (small_disk / "fill").unlink()
    watching.shows("its output is written again")
    watching.shows("the store is written again")
    step = user.jobs()["writes"]["step"]
    user.sees_job("writes", lambda job: job["step"] > step)
    # It is full once more when the job ends.
    fill(small_disk)
    watching.shows(
        r"the store is written again[\s\S]*what is measured is kept in memory until it can"
    )
    user.touch("go")
    assert watching.ends() == 0
    assert user.json("ps")[0]["state"] == "running"  # until all of it is written
    (small_disk / "fill").unlink()
    assert user.sees_state("writes", "done", "failed")["state"] == "done"
    wait.until(lambda: user.json("ps")[0]["state"] == "done", SECONDS, "all is written")
    assert user.json("ps")[0]["id"] == run


def test_on_a_full_disk_a_job_is_stopped_while_another_goes_on(
    small_disk: Path, user: User
) -> None:
    user.write("writes.py", WRITES)
    user.write("other.py", WRITES)
    run = user.detaches("writes.py", "other.py")
    user.sees_job("writes", lambda job: (job["step"] or 0) > 5)
    watching = user.opens("attach")
    watching.shows("epoch|step")
    fill(small_disk)
    watching.shows("what is measured is kept in memory until it can")
    assert user.json("stop", "writes")[run]["writes"]["state"] == "stopped"
    # else the end of the run is waited for as long as it cannot be written
    (small_disk / "fill").unlink()
    assert user.json("stop", "--run", run)[run]["other"]["state"] == "stopped"
    assert watching.ends() == 1


def test_on_a_full_disk_no_run_is_begun(small_disk: Path, user: User) -> None:
    user.write("a.py", "")
    user.types("run", "a.py")
    fill(small_disk)
    said = user.types("run", "a.py", code=4).message
    assert "cannot" in said
    assert "free some space there, or set HEADGATE_HOME" in said
    (small_disk / "fill").unlink()
    assert len(user.json("ps")) == 1
    assert len(list((small_disk / "runs").iterdir())) == 1
    user.types("run", "a.py")


def fill(folder: Path) -> None:
    """Leave no byte free."""
    try:
        with (folder / "fill").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    except OSError:
        pass
