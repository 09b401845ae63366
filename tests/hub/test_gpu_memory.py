"""Jobs that hold memory of a GPU, on a real hub and a made-up machine with four of 80 GiB each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.hub.user import SECONDS, User
from tests.sampling import made_up

from headgate.recorded.reader import RunReader
from headgate.testing import wait

HOLDS = """
    import os, sys, time
    name, gib = sys.argv[1:]
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    file = os.path.join(os.environ["MADE_UP_GPU_MEMORY"], f"{gpu}-{os.getpid()}")
    with open(file + ".new", "w") as out:
        out.write(str(int(gib) << 30))
    os.replace(file + ".new", file)
    print("on", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    while not os.path.exists(name):
        time.sleep(0.05)
    if name.startswith("fails"):
        raise MemoryError("CUDA out of memory. Tried to allocate 10.00 GiB")
"""


@pytest.fixture
def gpus(user: User) -> User:
    """Of which jobs may use the first."""
    folder = Path(next(iter(made_up.__path__)))
    user.variables["PYTHONPATH"] = os.pathsep.join([str(folder), user.variables["PYTHONPATH"]])
    user.variables["CUDA_VISIBLE_DEVICES"] = "0"
    held = user.folder / "held"
    held.mkdir()
    user.variables["MADE_UP_GPU_MEMORY"] = str(held)
    user.write("holds.py", HOLDS)
    return user


def jobs(user: User, *entries: tuple[str, int, str], file: str = "jobs.yaml") -> str:
    """A file of jobs that hold so many GiB, with what is said of each."""
    lines = [
        f"  - {{name: {name}, script: holds.py, args: [{name}, '{gib}']{more}}}"
        for name, gib, more in entries
    ]
    user.write(file, "\n".join(["jobs:", *lines]))
    return file


def sees_held(user: User, run: str, job: str, gib: int) -> None:
    """Wait until a job is recorded to hold so many GiB."""

    def is_recorded() -> bool:
        with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
            rows = reader.query(
                f"SELECT cpu_cores, gpu_memory_bytes FROM usage WHERE target = '{job}/worker-0'"
            )
        return any(row["cpu_cores"] and row["gpu_memory_bytes"] == gib << 30 for row in rows)

    wait.until(is_recorded, SECONDS, f"{job} is recorded to hold {gib} GiB")


def states_need(gib: int) -> str:
    return f", limits: {{gpu_memory: {gib}GiB}}"


@pytest.mark.long  # tests/controller/test_gpu_memory.py has its decisions
def test_jobs_that_need_more_than_the_gpu_has_run_one_after_the_other(gpus: User) -> None:
    run = gpus.detaches(
        jobs(
            gpus,
            ("a", 50, states_need(50)),
            ("b", 50, states_need(50)),
            ("c", 0, ", limits: {gpus: 0}"),
        )
    )
    gpus.sees_state("a", "running", run=run)
    gpus.sees_state("c", "running", run=run)
    words = "for GPU memory: needs 50 GiB, 30 GiB free on GPU 0 of node"
    waits = gpus.sees_job(
        "b",
        lambda job: words in job["reason"] and "; a has some of it" in job["reason"],
        run,
        words,
    )
    assert waits["state"] == "waiting"
    assert words in " ".join(gpus.types("status").stdout.split())
    gpus.touch("a")
    gpus.sees_state("b", "running", run=run)
    gpus.touch("b")
    gpus.touch("c")
    gpus.sees_state("b", "done", run=run)


@pytest.mark.long  # tests/controller/test_gpu_memory.py has its decisions
def test_jobs_that_fit_run_at_once(gpus: User) -> None:
    run = gpus.detaches(jobs(gpus, ("a", 20, states_need(20)), ("b", 20, states_need(20))))
    for name in "ab":
        gpus.sees_state(name, "running", run=run)
    for name in "ab":
        gpus.touch(name)


@pytest.mark.slow
def test_what_a_job_held_before_it_is_expected_to_need(gpus: User) -> None:
    file = jobs(gpus, ("a", 50, ""))
    first = gpus.detaches(file)
    sees_held(gpus, first, "a", 50)
    gpus.touch("a")
    gpus.sees_state("a", "done", run=first)
    (gpus.folder / "a").unlink()

    def is_known() -> bool:
        [planned] = gpus.json("run", file, "--dry-run")
        return bool(planned["gpu_memory"] == "50 GiB on each of its GPUs, as it held before")

    wait.until(is_known, SECONDS, "what it held is remembered")
    again = gpus.detaches(file)
    gpus.sees_state("a", "running", run=again)
    later = gpus.detaches(jobs(gpus, ("other", 40, states_need(40)), file="other.yaml"))
    words = "needs 40 GiB, 30 GiB free on GPU 0"
    gpus.sees_job("other", lambda job: words in job["reason"], later, words)
    gpus.touch("a")
    gpus.sees_state("other", "running", run=later)
    gpus.touch("other")


@pytest.mark.slow
def test_programs_outside_are_waited_for(gpus: User) -> None:
    other = gpus.folder / "held" / f"0-{os.getpid()}"
    other.write_text(str(60 << 30))
    run = gpus.detaches(jobs(gpus, ("a", 30, states_need(30))))
    words = "20 GiB free on GPU 0 of node"
    gpus.sees_job("a", lambda job: words in job["reason"], run, words)
    other.unlink()
    gpus.sees_state("a", "running", run=run)
    gpus.touch("a")


@pytest.mark.long  # tests/controller/test_gpu_memory.py has its decisions
def test_a_job_goes_where_it_fits(gpus: User) -> None:
    gpus.variables["CUDA_VISIBLE_DEVICES"] = "0,1"
    run = gpus.detaches(jobs(gpus, ("a", 50, states_need(50)), ("b", 50, states_need(50))))
    for name, gpu in (("a", "0,1"), ("b", "1,0")):
        gpus.sees_state(name, "running", run=run)
        assert (
            gpus.sees(str(gpus.home / "runs" / run / "jobs" / name / "worker-0.log")).strip()
            == f"on {gpu}"
        )
    for name in "ab":
        gpus.touch(name)


def test_what_no_gpu_has_is_refused_and_what_nothing_is_known_of_is_told(gpus: User) -> None:
    refused = gpus.types("run", jobs(gpus, ("a", 1, states_need(100))), code=2).message
    assert "its GPUs have 80 GiB of memory, 100 GiB are asked for" in refused
    refused = gpus.types(
        "run", "holds.py", "--gpu-memory", "100GiB", "--", "a", "1", code=2
    ).message
    assert "100 GiB are asked for" in refused
    told = gpus.types("run", jobs(gpus, ("a", 1, "")), "--dry-run").stdout
    assert "GPU memory: not known: it gets a GPU that no other job has" in told


def test_a_job_that_runs_out_of_gpu_memory_is_told_who_had_it(gpus: User) -> None:
    run = gpus.detaches(jobs(gpus, ("a", 60, states_need(60)), ("fails", 10, states_need(10))))
    for name in ("a", "fails"):
        sees_held(gpus, run, name, 60 if name == "a" else 10)
    gpus.touch("fails")
    reason = gpus.sees_state("fails", "failed", run=run)["reason"]
    told, _, cure = reason.partition(" Next: ")
    assert told.startswith(
        "CUDA out of memory. Tried to allocate 10.00 GiB. It held 10 GiB, and its need was "
        "taken to be 10 GiB."
    )
    assert told.endswith(", a had 60 GiB.")
    assert cure == (
        "state at least 20 GiB (`limits: {gpu_memory: …}` or --gpu-memory), and it waits "
        "until that is free"
    )
    explained = " ".join(gpus.types("explain", run, "fails").stdout.split())
    assert "a had 60 GiB. (failed) Next: State at least 20 GiB" in explained
    gpus.touch("a")


@pytest.fixture
def two_gpus(gpus: User) -> User:
    """Of which jobs may use the first two."""
    gpus.variables["CUDA_VISIBLE_DEVICES"] = "0,1"
    return gpus


def first_gpu(user: User, run: str, job: str) -> str:
    """The GPU that a job's tasks see first."""
    return (
        user.sees(str(user.home / "runs" / run / "jobs" / job / "worker-0.log"))
        .split()[1]
        .partition(",")[0]
    )


@pytest.mark.long  # the others have one of its parts each
def test_of_five_plain_scripts_on_two_gpus_none_runs_out_of_memory(two_gpus: User) -> None:
    run = two_gpus.detaches(jobs(two_gpus, *((name, 45, "") for name in "abcde")))
    for name, gpu in (("a", "0"), ("b", "1")):
        two_gpus.sees_state(name, "running", run=run)
        assert first_gpu(two_gpus, run, name) == gpu
    waits = two_gpus.sees_job(
        "c", lambda job: "GPU memory: needs 49.5 GiB" in job["reason"], run, "waits for room"
    )
    assert waits["state"] == "waiting"
    told = two_gpus.jobs(run)["c"]["waits"]
    assert (told["kind"], told["is_known"], told["gpu"] in (0, 1)) == ("gpu-memory", True, True)
    assert sorted(told["holders"]) == ["a", "b"]
    two_gpus.touch("b")
    two_gpus.sees_state("c", "running", run=run)
    assert first_gpu(two_gpus, run, "c") == "1"
    assert {name: job["state"] for name, job in two_gpus.jobs(run).items() if name in "de"} == {
        "d": "waiting",
        "e": "waiting",
    }
    two_gpus.types("stop", "--run", run)


@pytest.mark.slow
@pytest.mark.long  # tests/controller/test_gpu_memory.py has its decisions
def test_gpus_of_which_somebody_else_holds_most_are_left_alone(two_gpus: User) -> None:
    (two_gpus.folder / "held" / f"0-{os.getpid()}").write_text(str(66 << 30))

    def runs(name: str, *options: str) -> str:
        words = ("run", "--detach", "--json", "--name", name, *options, "holds.py", "--", name, "3")
        return str(two_gpus.types(*words).json["run"])

    first = runs("holds", "--gpus", "1")
    two_gpus.sees_state("holds", "running", run=first)
    assert first_gpu(two_gpus, first, "holds") == "1"
    alone = runs("alone", "--exclusive", "--gpu-memory", "3GiB")
    two_gpus.sees_state("alone", "running", run=alone)
    assert first_gpu(two_gpus, alone, "alone") == "0"
    other = runs("other", "--gpus", "1", "--exclusive")
    waits = two_gpus.sees_job(
        "other", lambda job: "no other job uses" in job["reason"], other, "waits"
    )
    assert waits["state"] == "waiting"
    two_gpus.touch("holds")
    two_gpus.sees_state("other", "running", run=other)
    for name in ("alone", "other"):
        two_gpus.touch(name)


@pytest.mark.slow
def test_a_job_that_runs_out_of_gpu_memory_is_tried_once_where_there_is_room(
    two_gpus: User,
) -> None:
    run = two_gpus.detaches(jobs(two_gpus, ("fails", 10, "")))
    sees_held(two_gpus, run, "fails", 10)
    two_gpus.touch("fails")
    reason = two_gpus.sees_state("fails", "failed", run=run)["reason"]
    assert "On GPU 1 of node" in reason
    with RunReader(two_gpus.home / "runs" / run / "run.sqlite") as reader:
        told = [row["text"] for row in reader.rows("events", "kind = 'waiting'")]
    assert any(
        "GPU 1 of node" in text and text.endswith("and it is tried there once") for text in told
    ), told
