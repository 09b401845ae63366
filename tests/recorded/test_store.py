from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.output.damaging import damage

from headgate.model.errors import NotFoundError, StorageError
from headgate.recorded.reader import RunReader
from headgate.recorded.store import Recorder
from headgate.testing.wait import until


def test_rows_come_back_as_they_were_added(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add(
        "progress", t=1.5, task="a/worker-0", step=3, loss=0.25, count=2, metrics={"accuracy": 0.5}
    )
    recorder.add("progress", t=2.5, task="a/worker-0", step=4, loss=float("nan"), nan=1, count=1)
    assert recorder.flush()
    with RunReader(tmp_path / "run.sqlite") as reader:
        first, second = reader.rows("progress")
    assert (first["step"], first["loss"], first["metrics"]) == (3, 0.25, '{"accuracy": 0.5}')
    assert (second["loss"], second["nan"]) == (None, 1)
    recorder.close()
    recorder.close()


def test_a_row_with_a_primary_key_replaces_the_former(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("jobs", name="a", state="running")
    recorder.add("jobs", name="a", state="done")
    recorder.close()
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert [row["state"] for row in reader.rows("jobs")] == ["done"]


def test_what_is_read_together_is_of_one_moment(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("tasks", id="a/worker-0", job="a", attempt=1)
    assert recorder.flush()

    def read(reader: RunReader) -> tuple[list[object], list[object]]:
        pids: list[object] = [row["pid"] for row in reader.rows("tasks")]
        if not added:
            recorder.add("tasks", id="a/worker-0", job="a", attempt=1, pid=7)
            recorder.add("progress", t=1.0, task="a/worker-0", step=5, count=1)
            added.append(recorder.flush())
        return pids, [row["step"] for row in reader.rows("progress")]

    added = list[bool]()
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert read(reader) == ([None], [])
    assert added == [True]
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert read(reader) == ([7], [5])
    recorder.close()


def test_what_a_power_cut_left_half_written_is_taken_back_by_who_reads(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("jobs", name="a", state="done")
    recorder.close()
    cut = tmp_path / "cut"
    cut.mkdir()
    with closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
        db.execute("PRAGMA cache_size = 1")  # pages are written before the transaction ends
        db.execute("UPDATE jobs SET state = 'running'")
        db.executemany("INSERT INTO meta VALUES (?, ?)", [(f"{i}", "x" * 3000) for i in range(50)])
        for file in tmp_path.glob("run.sqlite*"):
            shutil.copy(file, cut)
    assert (cut / "run.sqlite-journal").exists()
    with RunReader(cut / "run.sqlite") as reader:
        assert [row["state"] for row in reader.rows("jobs")] == ["done"]
        assert "0" not in reader.meta()


def test_a_key_that_no_column_has_is_refused(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    with pytest.raises(TypeError, match="colour"):
        recorder.add("jobs", name="a", colour="red")
    recorder.close()


def test_a_store_that_an_earlier_version_began_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE usage (t REAL, memory_bytes REAL, target TEXT)")
        db.execute("INSERT INTO usage VALUES (1.0, 5.0, 'a/worker-0')")
    recorder = Recorder(path)
    recorder.add("usage", t=2.0, target="a/worker-0", cpu_system=0.5, memory_bytes=6.0)
    recorder.close()
    with RunReader(path) as reader:
        rows = [(row["t"], row["cpu_system"], row["memory_bytes"]) for row in reader.rows("usage")]
    assert rows == [(1.0, None, 5.0), (2.0, 0.5, 6.0)]


def test_what_sqlite_does_not_take_is_made_so_that_it_does(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("events", t=float("inf"), text="a\udc80b")
    recorder.add("progress", step=2**70, samples=10**400)
    assert recorder.flush()
    with RunReader(tmp_path / "run.sqlite") as reader:
        [event] = reader.rows("events")
        [progress] = reader.rows("progress")
    assert (event["t"], event["text"]) == (None, "a?b")
    assert (progress["step"], progress["samples"]) == (2**70, None)
    recorder.close()


def test_kill_9_while_writing_leaves_a_readable_store(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    writer = (
        "import sys, itertools; from pathlib import Path; from headgate.recorded.store import "
        "Recorder\n"
        "r = Recorder(Path(sys.argv[1]))\n"
        "for i in itertools.count():\n"
        "    r.add('events', t=float(i), kind='note', text='x' * 200)\n"
        "    if i % 500 == 0: r.flush(); print(i, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", writer, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    flushed = 0
    for line in process.stdout:
        flushed = int(line)
        if flushed >= 5000:
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with RunReader(path) as reader:
        times = [row["t"] for row in reader.rows("events")]
        assert reader.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    assert len(times) > flushed
    assert times == [float(i) for i in range(len(times))]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_loses_no_row(tmp_path: Path) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "headgate-test", str(tmp_path)], check=True
    )
    recorder: Recorder | None = None
    try:
        said: list[str | None] = []
        recorder = Recorder(tmp_path / "run.sqlite", said.append)
        filler = tmp_path / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 4096)
        for i in range(2000):
            recorder.add("events", t=float(i), kind="note", text="y" * 100)
        assert not recorder.flush(timeout=2)
        until(lambda: said, what="the full disk to be told of")
        now = threading.Event()
        recorder.when_secured(now.set)  # that waits for no room
        assert now.is_set()
        assert len(said) == 1 and said[0] is not None and "full" in said[0]
        filler.unlink()
        assert recorder.secured(60.0), "writing after space was freed"
        assert said[-1] is None
        with RunReader(tmp_path / "run.sqlite") as reader:
            assert [row["t"] for row in reader.rows("events")] == [float(i) for i in range(2000)]
    finally:
        if recorder is not None:
            recorder.close()
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_damaged_part_of_a_store_is_said(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    recorder = Recorder(path)
    recorder.add("meta", key="state", value="done")
    recorder.add("jobs", name="a")
    recorder.close()
    damage(path, "jobs")
    with RunReader(path) as reader:
        assert reader.meta() == {"state": "done"}
        for read in (
            lambda: list(reader.rows("jobs")),
            lambda: reader.query("SELECT * FROM jobs"),
            lambda: reader.tuples("SELECT * FROM jobs"),
        ):
            with pytest.raises(
                StorageError, match=f"^cannot read {path}: database disk image is malformed"
            ):
                read()


def test_the_facts_of_a_damaged_store_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    recorder = Recorder(path)
    recorder.add("meta", key="state", value="done")
    recorder.close()
    damage(path, "meta")
    with RunReader(path) as reader, pytest.raises(StorageError, match=f"^cannot read {path}: "):
        reader.meta()


def test_what_is_not_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        RunReader(tmp_path / "none.sqlite")
    (tmp_path / "text.sqlite").write_text("not a database" * 100)
    with pytest.raises(StorageError, match="cannot read"):
        RunReader(tmp_path / "text.sqlite")
    with pytest.raises(StorageError, match="cannot write"):
        Recorder(tmp_path / "missing" / "run.sqlite")


def test_a_row_that_cannot_be_written_costs_nothing_but_itself_and_is_told(tmp_path: Path) -> None:
    told: list[str | None] = []
    recorder = Recorder(tmp_path / "run.sqlite", told.append)
    recorder.add("events", t=1.0, text="before")
    recorder.add("events", t=2.0, text={"a", "set"})
    recorder.add("events", t=3.0, text="after")
    assert recorder.flush()
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert [row["text"] for row in reader.rows("events")] == ["before", "after"]
    assert [
        str(text).startswith("a row of events could not be written and is left out")
        for text in told
    ] == [True]
    recorder.close()


def test_the_first_row_after_a_time_is_found_though_some_come_late(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    times = [float(t) for t in range(1000)]
    times[500], times[503] = times[503], times[500]
    for t in [*times, None]:
        recorder.add("usage", t=t, target="a/worker-0", cpu_cores=1.0)
    recorder.close()
    with RunReader(tmp_path / "run.sqlite") as reader:
        for after in (0.0, 20.0, 501.0, 777.5, 999.0, 5000.0):
            first = reader.first_row("usage", after)
            kept = {
                t
                for (t,) in reader.tuples(
                    "SELECT t FROM usage WHERE rowid >= ? AND t IS NOT NULL", (first,)
                )
            }
            assert kept >= {t for t in times if t >= after}
            assert len(kept) <= max(1000 - after, 0.0) + 35
        assert reader.first_row("checkpoints", 100.0) <= 1


def test_what_is_secured_is_on_a_disk_whose_power_is_cut(tmp_path: Path) -> None:
    image, cut, folder = tmp_path / "disk", tmp_path / "cut", tmp_path / "mounted"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["/sbin/mke2fs", "-q", "-t", "ext4", str(image)], check=True)
    with _mounted(image, folder):
        recorder = Recorder(folder / "run.sqlite")
        recorder.add_secured("jobs", name="told", state="done")
        assert recorder.flush()
        shutil.copy(image, cut)  # what the disk has, and not what is in memory
        assert _jobs_on(cut, folder.with_name("first")) == ["told"]
        recorder.add("jobs", name="awaited", state="done")
        assert recorder.flush()  # written: no row is left for what secures it
        secured = threading.Event()
        recorder.when_secured(secured.set)
        assert secured.wait(60.0)
        shutil.copy(image, cut)
        assert _jobs_on(cut, folder.with_name("second")) == ["told", "awaited"]
        recorder.add("jobs", name="left", state="done")
        assert recorder.flush()
        taken_up = Recorder(folder / "run.sqlite")  # as after the end of a hub
        assert taken_up.secured(10.0)
        shutil.copy(image, cut)
        taken_up.close()
        recorder.close()
    assert _jobs_on(cut, folder) == ["told", "awaited", "left"]


def _jobs_on(disk: Path, folder: Path) -> list[str]:
    folder.mkdir(exist_ok=True)
    with _mounted(disk, folder), RunReader(folder / "run.sqlite") as reader:
        return [row["name"] for row in reader.rows("jobs")]


@contextmanager
def _mounted(image: Path, folder: Path) -> Iterator[None]:
    mount = ["mount", "-o", "loop", str(image), str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
