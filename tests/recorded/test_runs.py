"""Where runs are kept, which of them are alive, and how one is named."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import headgate
from headgate.client.starting import connect_or_start
from headgate.model.errors import HubError, NotFoundError, StorageError, UsageError
from headgate.model.jobs import Job
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import text_of
from headgate.recorded import retention, runs
from headgate.recorded.store import Recorder


def make(name: str, *jobs: tuple[str, str], **meta: str) -> Path:
    """A run as a hub leaves it: its store, and a folder for each job (name, state)."""
    folder = runs.home() / "runs" / name
    folder.mkdir()
    recorder = Recorder(folder / runs.STORE)
    for key, value in {
        "state": "done",
        "began": "1000.5",
        "policy": "equal",
        "command": "run a.py",
        **meta,
    }.items():
        recorder.add("meta", key=key, value=value)
    for position, (job, state) in enumerate(jobs):
        recorder.add(
            "jobs", name=job, position=position, state=state, reason=f"it is {state}", submitted=0.0
        )
        (folder / "jobs" / job).mkdir(parents=True)
    recorder.close()
    return folder


# --- the folder


def test_its_folder_is_made_for_its_user_only(home: Path) -> None:
    assert runs.home() == home
    for folder in (home, home / "runs", home / "hub"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert runs.home() == home


def test_it_is_below_the_user_s_home_where_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runs.home() == tmp_path / ".local" / "share" / "headgate"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError("uid not found")

    for name in ("HOME", "HEADGATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(
        StorageError, match="there is no HOME, and this user has none; set HEADGATE_HOME"
    ):
        runs.home()


def test_a_file_in_its_place_is_named_with_the_cure(home: Path) -> None:
    home.touch()
    with pytest.raises(
        StorageError,
        match=f"cannot make {home}: File exists; set HEADGATE_HOME to a folder you can",
    ):
        runs.home()


@pytest.fixture
def sealed(home: Path) -> Iterator[Path]:
    """A Headgate folder that cannot be written: for root, who may write anywhere, on a read-only
    file system.
    """
    runs.home()
    if os.geteuid() != 0:
        (home / "runs").chmod(0o500)
        yield home
        (home / "runs").chmod(0o700)
        return
    kept = home.with_name("kept")
    shutil.copytree(home, kept)
    mount = ["mount", "-t", "tmpfs", "-o", "mode=700", "headgate-test", str(home)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        shutil.copytree(kept, home, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(home)], check=True)
        yield home
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def test_one_on_a_read_only_disk_can_be_looked_at_and_has_no_new_run(sealed: Path) -> None:
    if os.geteuid() != 0:
        with pytest.raises(StorageError, match=f"no permission to write in {sealed}; set HEAD"):
            runs.home()
        return
    assert runs.home() == sealed
    assert runs.listing() == []
    with pytest.raises(StorageError, match="Read-only file system; mount its disk so that"):
        runs.create()
    with pytest.raises(HubError, match=r"no hub can be started: cannot write .*; mount its disk"):
        connect_or_start()


def test_one_of_somebody_else_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.home()
    somebody = os.geteuid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: somebody)
        with pytest.raises(
            StorageError, match=f"{home} belongs to another user; set HEADGATE_HOME"
        ):
            runs.home()


# --- the sockets


def test_sockets_are_in_the_folder_where_their_path_is_short_enough(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    short = tmp_path_factory.mktemp("h")
    monkeypatch.setenv("HEADGATE_HOME", str(short))
    assert runs.make_sockets() == short / "hub"
    runs.remove_sockets()
    assert (short / "hub").is_dir()


@pytest.fixture
def long_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    home = tmp_path / ("a-name-of-some-length-" * 6)
    monkeypatch.setenv("HEADGATE_HOME", str(home))
    yield home
    spare = runs.sockets()
    if spare.is_dir():
        shutil.rmtree(spare)


def test_otherwise_they_are_below_tmp_as_long_as_there_is_a_hub(
    long_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs.make_sockets()
    assert folder.parent == Path("/tmp")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "channel.sock"))
    monkeypatch.setenv("TMPDIR", str(long_home))
    assert runs.sockets() == folder, "a terminal with another TMPDIR would not find the hub"
    runs.remove_sockets()
    assert not folder.exists()
    runs.remove_sockets()


def test_two_long_folders_have_sockets_of_their_own(
    long_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runs.sockets()
    monkeypatch.setenv("HEADGATE_HOME", f"{long_home}-too")
    assert runs.sockets() != first


def test_a_link_that_somebody_laid_there_is_refused(long_home: Path, tmp_path: Path) -> None:
    spare = runs.sockets()
    spare.symlink_to(tmp_path)
    try:
        with pytest.raises(StorageError, match=f"{spare} was made by somebody else"):
            runs.make_sockets()
    finally:
        spare.unlink()


def test_a_file_that_lies_there_is_named(long_home: Path) -> None:
    spare = runs.sockets()
    spare.touch()
    try:
        with pytest.raises(StorageError, match=f"cannot make {spare}"):
            runs.make_sockets()
    finally:
        spare.unlink()


# --- runs


def test_a_new_run_is_named_after_its_time_and_comes_last() -> None:
    made = [runs.create() for _ in range(3)]
    assert len(set(made)) == 3
    for folder in made:
        assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{4,}", folder.name)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [path.name[:19] for path in sorted(made)] == [path.name[:19] for path in made]


def test_two_runs_of_one_millisecond_do_not_get_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = iter(("aa", "aa", "aa", "bb"))
    monkeypatch.setattr("headgate.recorded.runs.secrets.token_hex", lambda _: next(ends))
    monkeypatch.setattr("headgate.recorded.runs.time.time", lambda: 1_800_000_000.5)
    assert [runs.create().name[-5:] for _ in range(2)] == ["500aa", "500bb"]


def test_a_run_comes_after_those_of_before_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((1_800_000_000.5, 1_799_990_000.0, 1_799_990_001.0, 1_800_000_002.0))
    monkeypatch.setattr("headgate.recorded.runs.time.time", lambda: next(clock))
    made = [runs.create().name for _ in range(4)]
    assert made == sorted(made)
    assert [name[16:19] for name in made] == ["500", "501", "502", "000"]


def test_a_run_without_a_store_is_none_yet() -> None:
    runs.create()
    assert runs.listing() == []
    made = make("20260101-000000-0000")
    assert runs.listing() == [made]


def test_the_latest_run_is_found_where_none_is_named() -> None:
    with pytest.raises(NotFoundError, match="there are no runs yet; start one with: headgate run"):
        runs.find()
    make("20260101-000000-ffff")
    latest = make("20260102-000000-0000")
    assert runs.find() == latest


def test_a_run_is_found_by_what_its_name_begins_with_or_contains() -> None:
    first = make("20260101-120000-aaaa")
    second = make("20260102-120000-bbbb")
    third = make("20260102-120000-bbbbc")
    assert runs.find("20260101") == first
    assert runs.find("aaaa") == first
    assert runs.find(second.name) == second, "its whole name is that of no other"
    assert runs.find("bbbbc") == third
    with pytest.raises(
        UsageError, match=f"'20260102' could be any of {second.name}, {third.name}; give more of it"
    ):
        runs.find("20260102")
    with pytest.raises(UsageError, match="could be any of"):
        runs.find("120000")
    with pytest.raises(
        NotFoundError, match="no run 'cccc'; `headgate ps` lists the runs there are"
    ):
        runs.find("cccc")
    (second / "jobs" / "digits").mkdir(parents=True)
    with pytest.raises(
        NotFoundError, match=f"no run 'digits'; that is a job of run {second.name}: name the run"
    ):
        runs.find("digits")
    for trial in ("tries-lr-1", "tries-lr-2", "tries-lr-3"):
        (second / "jobs" / trial).mkdir()
    begun = f"jobs of run {second.name} begin with it (tries-lr-1, tries-lr-2 and 1 more)"
    for what, asked, cure in (
        ("no run 'tries'", runs.find, "name the run"),
        ("no job 'tries' in any run", runs.find_job, "name one"),
    ):
        with pytest.raises(NotFoundError) as refused:
            asked("tries")
        assert str(refused.value) == f"{what}; {begun}: {cure}"


def test_what_a_name_begins_with_counts_before_what_it_contains() -> None:
    make("20260101-202601-aaaa")
    begins = make("20260102-000000-bbbb")
    assert runs.find("20260102") == begins
    assert runs.find("202601-a").name == "20260101-202601-aaaa"


def test_a_run_for_a_profile_is_the_latest_only_where_there_is_no_other() -> None:
    profiled = make("20261121-103000-3333", ("a", "done"), mode="profile")
    assert runs.find() == profiled
    assert runs.find_job("a") == (profiled, "a")
    run = make("20261121-093000-1111", ("a", "done"), mode="run")
    assert runs.find() == run
    assert runs.find_job("a") == (run, "a")
    assert runs.find("3333") == profiled
    assert runs.find_job("3333/a") == (profiled, "a")


def test_a_job_is_found_in_the_latest_run_that_has_it() -> None:
    first = make("20260101-000000-aaaa", ("digits", "done"), ("text", "done"))
    second = make("20260102-000000-bbbb", ("digits", "done"))
    assert runs.find_job("digits") == (second, "digits")
    assert runs.find_job("text") == (first, "text")
    assert runs.find_job("digits", "aaaa") == (first, "digits")
    assert runs.find_job("20260101/digits") == (first, "digits")


@pytest.mark.parametrize("name", ["nobody", "", "..", ".", "/", "bbbb/", "bbbb/..", "bbbb/nobody"])
def test_what_is_no_job_is_not_found(name: str) -> None:
    make("20260102-000000-bbbb", ("digits", "done"))
    with pytest.raises(NotFoundError):
        runs.find_job(name)


# --- alive or not


def test_a_run_is_alive_as_long_as_its_lock_is_held() -> None:
    run = make("20260101-000000-aaaa", state="running")
    assert not runs.alive(run)
    held = runs.lock(run)
    try:
        assert runs.alive(run)
        assert runs.alive(run), "looking at it let it go"
    finally:
        os.close(held)
    assert not runs.alive(run)


def test_two_hubs_never_have_one_run() -> None:
    held = runs.lock(run := runs.create())
    with pytest.raises(BlockingIOError):
        runs.lock(run)
    os.close(held)
    os.close(runs.lock(run))


def test_a_lock_goes_with_the_process_that_held_it() -> None:
    run = make("20260101-000000-aaaa", state="running")
    code = (
        "import pathlib, sys; from headgate.recorded import runs; "
        "runs.lock(pathlib.Path(sys.argv[1])); print(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(headgate.__file__).parents[1])},
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert runs.alive(run)
        holder.kill()
        holder.wait()
        assert not runs.alive(run)


def test_a_run_is_done_though_the_rule_of_a_sweep_ended_some_jobs() -> None:
    early = Reason.of(ReasonKind.STOPPED_EARLY, metric="loss", rule="asha")
    asked = Reason.of(ReasonKind.STOPPED_BY_USER)
    for after, state in ((early, "done"), (asked, "stopped")):
        folder = make(f"20260314-0900-{state}", ("a", "done"))
        recorder = Recorder(folder / runs.STORE)
        why = text_of(Reason.of(ReasonKind.ENDED_AS_ASKED, after=after))
        recorder.add("jobs", name="b", position=1, state="stopped", submitted=0.0, why=why)
        recorder.close()
        summary = runs.summary(folder)
        assert (summary.state, summary.jobs[1].succeeded) == (state, state == "done")


def test_what_a_run_says_of_itself() -> None:
    run = make("20260101-000000-aaaa", ("a", "done"), ("b", "failed"), ended="12.5")
    summary = runs.summary(run)
    assert (summary.id, summary.path, summary.state) == (run.name, str(run), "failed")
    assert (summary.began, summary.ended, summary.policy, summary.command) == (
        1000.5,
        12.5,
        "equal",
        "run a.py",
    )
    assert [(job.name, job.state, job.reason) for job in summary.jobs] == [
        ("a", "done", "it is done"),
        ("b", "failed", "it is failed"),
    ]
    assert (summary.jobs[0].submitted, summary.jobs[0].started, summary.jobs[0].attempt) == (
        0.0,
        None,
        0,
    )


@pytest.mark.parametrize("jump", [-3600.0, 86_400.0])
def test_how_long_a_run_takes_does_not_follow_a_clock_that_is_set(
    jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(
        "20260101-000000-aaaa",
        ("a", "running"),
        state="running",
        began=repr(time.time()),
        clock=runs.clock(),
    )
    before = make(
        "20260101-000000-bbbb", ("a", "running"), state="running", began=repr(time.time())
    )
    held = [runs.lock(each) for each in (run, before)]
    now = time.time() + jump
    monkeypatch.setattr("headgate.recorded.runs.time.time", lambda: now)
    took, guessed = runs.summary(run).took, runs.summary(before).took
    for each in held:
        os.close(each)
    assert took is not None and 0 <= took < 60
    assert guessed is not None and guessed >= 0
    assert runs.summary(run).took is None, "nobody knows when its hub died"


def test_a_run_whose_hub_died_was_interrupted_and_so_were_its_jobs() -> None:
    states = ("done", "waiting", "running", "stopping", "failed")
    run = make(
        "20260101-000000-aaaa", *((f"job-{state}", state) for state in states), state="running"
    )
    held = runs.lock(run)
    alive = runs.summary(run)
    os.close(held)
    dead = runs.summary(run)
    assert (alive.state, dead.state) == ("running", "interrupted")
    assert [job.state for job in alive.jobs] == list(states)
    assert [job.state for job in dead.jobs] == [
        "done",
        "interrupted",
        "interrupted",
        "interrupted",
        "failed",
    ]
    assert dead.jobs[2].reason == f"the hub died; go on with: headgate resume {run.name}"


def test_a_job_that_never_began_is_no_reason_to_start_anything_from_scratch() -> None:
    """With `--from-scratch` the one that has a checkpoint would begin anew, as no job lacks one."""
    run = make("20260101-000000-aaaa")
    recorder = Recorder(run / runs.STORE)
    for name, started in (("learns", 1.0), ("waits", None), ("prints", 1.0)):
        recorder.add("jobs", name=name, position=0, state="stopped", started=started)
    recorder.close()
    saved = run / "jobs" / "learns" / "checkpoints"
    saved.mkdir(parents=True)
    (saved / "step-3.pt").touch()
    learns, waits, prints = (Job(name=name, run="true") for name in ("learns", "waits", "prints"))
    plainly = f"go on with: headgate resume {run.name}"
    assert runs.resume_hint(run, [learns, waits]) == plainly
    anew = "--from-scratch, which runs prints from the"
    assert anew in runs.resume_hint(run, [learns, prints])
    assert runs.resume_hint(run, [learns, replace(prints, resumes=True)]) == plainly


# --- removing


def test_a_run_that_has_ended_is_removed() -> None:
    run = make("20260101-000000-aaaa", ("digits", "done"))
    retention.remove(run)
    assert not run.exists()


def test_one_that_runs_is_not() -> None:
    run = make("20260101-000000-aaaa", state="running")
    held = runs.lock(run)
    try:
        with pytest.raises(UsageError, match=f"run {run.name} is running; stop it first"):
            retention.remove(run)
        assert run.exists()
    finally:
        os.close(held)


def test_one_that_is_gone_already_is_an_error() -> None:
    gone = runs.home() / "runs" / "20260101-000000-aaaa"
    with pytest.raises(StorageError, match=f"cannot delete {gone}: No such file or directory"):
        retention.remove(gone)


def save(run: Path, job: str = "digits") -> None:
    """A checkpoint of a job of a run."""
    folder = run / "jobs" / job / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "step-10.pt").touch()


def test_a_run_that_a_running_one_goes_on_from_is_not_removed_nor_those_before_it() -> None:
    first = make("20260101-000000-aaaa", ended="1.0")
    second = make("20260102-000000-aaaa", ended="1.0", resumed_from=first.name)
    other = make("20260103-000000-aaaa", ended="1.0")
    third = make("20260104-000000-aaaa", state="running", resumed_from=second.name)
    held = runs.lock(third)
    try:
        for former in (first, second):
            with pytest.raises(
                UsageError, match=f"run {third.name} goes on from run {former.name}"
            ):
                retention.remove(former)
        assert retention.outdated(0) == [other]
        assert retention.retain("0") == [other.name]
        assert runs.listing() == [first, second, third]
    finally:
        os.close(held)
    assert retention.outdated(1) == []  # what the newest would go on from, which was interrupted
    assert retention.outdated(0) == [first, second, third]


def test_the_oldest_ended_runs_beyond_a_limit_go() -> None:
    made = [make(f"2026010{day}-000000-aaaa", ended="1.0") for day in range(1, 6)]
    held = runs.lock(made[1])
    try:
        assert retention.outdated(2) == [made[0], made[2]]
        assert retention.outdated(5) == []
        assert retention.retain("5") == []
        assert retention.retain("2") == [made[0].name, made[2].name]
        assert runs.listing() == [made[1], made[3], made[4]]
    finally:
        os.close(held)


@pytest.mark.parametrize("state", ["done", "failed", "stopped", "killed", "interrupted"])
def test_a_sweep_of_short_runs_deletes_no_checkpoint_and_no_long_training(state: str) -> None:
    saved, long = (
        make(f"2026010{day}-000000-aaaa", ("digits", state), ended="1.0") for day in (1, 2)
    )
    save(saved)
    shutil.rmtree(long)
    long = make(long.name, ("digits", state), ended="86400.0")
    cut_off = make("20260103-000000-aaaa", ("digits", state), state="running")
    damaged = make("20260104-000000-aaaa")
    (damaged / runs.STORE).write_bytes(b"no store")
    own = make("20260105-000000-aaaa", ("digits", state), ended="1.0")
    (own / "jobs" / "digits" / "checkpoints").mkdir(parents=True, exist_ok=True)
    (own / "jobs" / "digits" / "checkpoints" / "best.pt").write_text("of the script itself")
    sweep = [
        make(f"20260201-{hour:02}0000-aaaa", ("digits", "done"), ended="9.0") for hour in range(12)
    ]
    assert retention.retain("3") == [folder.name for folder in sweep[:-3]]
    assert runs.listing() == [saved, long, cut_off, damaged, own, *sweep[-3:]]
    assert saved in retention.outdated(3)  # which `headgate rm --keep` deletes
    retention.remove(saved)
    assert not saved.exists()


def test_runs_of_calls_count_apart_and_wait_for_their_callers() -> None:
    own = make("20260101-000000-aaaa", ("digits", "done"), ended="1.0")
    calls = [
        make(f"2026020{day}-000000-aaaa", ("power-1", "done"), ended="1.0") for day in range(1, 6)
    ]
    for run in calls:
        (run / runs.CALLS).touch()
    for run in calls[1:]:
        (run / "jobs" / "power-1" / retention.READ).touch()
    assert runs.find() == own
    assert runs.find_job("power-1") == (calls[-1], "power-1")
    assert retention.retain("1") == [run.name for run in calls[1:-1]]
    os.utime(calls[0] / runs.STORE, (0.0, 0.0))
    assert retention.retain("1") == [calls[0].name]
    assert runs.listing() == [own, calls[-1]]


def test_two_hundred_runs_are_kept_where_nothing_is_said() -> None:
    names = [f"20260101-{n // 60:02}{n % 60:02}00-aaaa" for n in range(202)]
    made = make(names[0], ended="1.0")
    for name in names[1:]:
        shutil.copytree(made, made.with_name(name))
    assert retention.retain() == names[:2]


@pytest.mark.parametrize("written", ["many", "-1", "", "²"])
def test_a_limit_that_is_no_number_is_refused(written: str) -> None:
    with pytest.raises(UsageError, match="expected a number of runs"):
        retention.retain(written)
