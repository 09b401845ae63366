"""Jobs whose workers MPI's own `mpirun` tells of each other, each of them a task."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.test_launched import events, logs
from tests.hub.user import User

from headgate.testing import wait

pytest.importorskip("mpi4py", exc_type=ImportError)
pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None,
    reason="MPI's processes are started by mpirun, of the package openmpi-bin",
)

LEARNS = """
    import os, signal, sys, time
    from pathlib import Path
    import numpy
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    beside = world.Split_type(MPI.COMM_TYPE_SHARED)
    samples = numpy.random.default_rng(world.rank)
    weights, total = numpy.zeros(64), numpy.zeros(64)
    for step in range(8):
        features = samples.standard_normal((16, 64))
        errors = features @ weights - features.sum(1)
        world.Allreduce(features.T @ errors / 16, total)
        weights -= 0.01 * total / world.size
        print(f"step {step} loss {(errors ** 2).mean():.17g}", flush=True)
"""
"""Averages gradients, as scripts for MPI do."""
WAITS = """
    Path(f"begun-{world.rank}-{os.environ['TORCHELASTIC_RESTART_COUNT']}").write_text(str(os.getpid()))
    while not os.path.exists("go"):
        time.sleep(0.02)
"""


@pytest.fixture
def left(user: User) -> Iterator[Path]:
    """Where daemons write."""
    folder = user.folder / "tmp"
    folder.mkdir()
    user.variables |= {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    yield folder
    user.leaves()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "workers", [2, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 4))]
)
def test_a_script_of_mpi_s_trains_as_under_mpirun(user: User, left: Path, workers: int) -> None:
    script = user.write("learns.py", LEARNS)
    user.variables |= {"SLURM_JOB_ID": "7", "OMPI_COMM_WORLD_RANK": "3"}
    typed = (
        "mpirun",
        "--oversubscribe",
        "-n",
        str(workers),
        "--bind-to",
        "core",
        "python",
        "learns.py",
    )
    words = ("--workers", str(workers), "learns.py") if workers > 1 else typed
    ended = user.types("run", "--json", *words).json
    assert (ended["jobs"][0]["state"], ended["jobs"][0]["reason"]) == ("done", "finished")
    assert any(
        "each worker gets its rank of mpirun" in text for text in events(user, ended["id"], "note")
    )
    out = user.folder / "out"
    theirs = (
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "--output-filename",
        str(out),
        "-n",
        str(workers),
    )
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        (*theirs, "python", str(script)),
        env=variables,
        check=True,
        capture_output=True,
        timeout=120,
    )
    found = sorted(out.rglob("stdout"))
    assert len(found) == workers
    assert logs(user, "learns", workers) == [path.read_text().splitlines() for path in found]


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_attempt_and_retries_start_all_again(
    user: User, left: Path
) -> None:
    user.write("waits.py", LEARNS + WAITS)
    user.write("jobs.yaml", "jobs: [{name: waits, run: mpirun -np 2 python waits.py, retries: 1}]")
    run = user.detaches("jobs.yaml")
    user.sees("begun-0-0")
    begun = int(user.sees("begun-1-0"))
    assert "waits.py" in user.types("stacks", "waits").stdout
    user.kills(begun)
    user.sees("begun-0-1")
    user.sees("begun-1-1")
    user.touch("go")
    assert user.sees_state("waits", "done", "failed", run=run)["attempt"] == 2
    assert "worker-1: killed by SIGKILL" in next(iter(events(user, run, "stopping")))


@pytest.mark.slow
def test_a_rank_saves_on_the_signal_to_stop(user: User, left: Path) -> None:
    saves = """
    def save(*_):
        Path(f"saved-{world.rank}").write_text("1")
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    """
    user.write("saves.py", LEARNS + saves + WAITS)
    run = user.detaches("--workers", "2", "saves.py")
    for rank in range(2):
        user.sees(f"begun-{rank}-0")
    user.types("stop", "saves")
    user.sees_state("saves", "stopped", run=run)
    assert [user.sees(f"saved-{rank}") for rank in range(2)] == ["1", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("guard_too", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_hub_that_is_killed_leaves_no_daemon(user: User, left: Path, guard_too: bool) -> None:
    user.write("waits.py", LEARNS + WAITS)
    user.detaches("--workers", "2", "waits.py")
    ranks = [int(user.sees(f"begun-{rank}-0")) for rank in range(2)]
    hub = user.traces.hub()
    if guard_too:
        user.kills(next(iter(user.traces.processes("headgate.hub.watchdog"))))
    user.kills(hub)
    if guard_too:
        user.types("ps")
    wait.until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in ranks), what="the ranks are gone"
    )
    wait.until(lambda: not user.traces.processes(), what="nothing of it runs")
    user.write("ends.py", LEARNS)
    assert user.json("run", "--workers", "2", "ends.py")["jobs"][0]["state"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mpirun", "says"),
    [
        (None, "found no mpirun on the PATH of this worker; install Open MPI"),
        ("echo There are no slots; exit 1", "slots"),
    ],
)
def test_without_a_working_mpirun_the_reason_says_so(
    user: User, left: Path, mpirun: str | None, says: str
) -> None:
    programs = user.folder / "programs"
    programs.mkdir()
    for name in ("python", "sh"):
        (programs / name).symlink_to(shutil.which(name) or "")
    if mpirun is not None:
        (programs / "mpirun").write_text(f"#!/bin/sh\n{mpirun}\n")
        (programs / "mpirun").chmod(0o700)
    user.write("learns.py", LEARNS)
    user.variables["PATH"] = str(programs)
    failed = user.types("run", "--json", "mpirun", "-n", "2", "python", "learns.py", code=1).json
    assert failed["jobs"][0]["name"] == "learns"
    assert says in failed["jobs"][0]["reason"]


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None,
    reason="a lab needs root, and the programs ip and tc",
)
def test_on_several_nodes_each_has_a_daemon_and_ranks_that_share_memory(
    user: User, left: Path
) -> None:
    nodes = "".join(f"  - {{name: {name}, cores: 0.8, memory: 1GiB}}\n" for name in "ab")
    user.write("lab.yaml", f"lab: true\nname: mpi\nnodes:\n{nodes}")
    user.write("hosts", "localhost slots=4\n")
    user.write(
        "learns.py",
        LEARNS + "    print(world.rank, beside.rank, beside.size, os.uname().nodename)\n" + WAITS,
    )
    user.types("lab", "up", "lab.yaml")
    try:
        words = ("mpirun", "-n", "4", "--hostfile", "hosts", "python", "learns.py")
        run = user.types("run", "--json", "--detach", "--cluster", "mpi", *words).json["run"]
        for rank in range(4):
            user.sees(f"begun-{rank}-0")
        told = [lines[-1] for lines in logs(user, "learns", 4)]
        assert told == ["0 0 2 a", "1 1 2 a", "2 0 2 b", "3 1 2 b"]
        assert any("it ignores --hostfile" in text for text in events(user, run, "note"))
        os.kill(int(user.sees("begun-2-0")), signal.SIGKILL)
        reason = user.sees_state("learns", "failed", run=run)["reason"]
        assert "worker-2" in reason
    finally:
        user.types("lab", "down", "mpi")
