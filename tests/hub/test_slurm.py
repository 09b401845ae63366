"""Headgate inside a job of a real Slurm, of which slurmctld, slurmd and munged run on the
loopback.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hub.test_launched import events
from tests.hub.user import SECONDS, User

from headgate.recorded.reader import RunReader
from headgate.scripts.contracts import free_ports
from headgate.testing import wait

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge/socket
SlurmctldPort={controller}
SlurmdPort={daemon}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=2000
PartitionName=all Nodes=ALL Default=YES
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which Slurm's commands reach a cluster of this machine alone."""
    folder = tmp_path / "slurm"
    for name in ("munge", "state", "spool"):
        (folder / name).mkdir(parents=True, mode=0o700)
    controller, daemon = free_ports(2, (), is_here=True)
    host = socket.gethostname().partition(".")[0]
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, controller=controller, daemon=daemon))
    (folder / "munge/key").write_bytes(secrets.token_bytes(64))
    (folder / "munge/key").chmod(0o400)
    env = {**os.environ, "SLURM_CONF": str(conf)}
    own = {
        "key-file": "key",
        "socket": "socket",
        "pid-file": "pid",
        "log-file": "log",
        "seed-file": "seed",
    }
    munge = [f"--{option}={folder}/munge/{name}" for option, name in own.items()]
    try:
        subprocess.run(["munged", "--force", *munge], check=True, env=env)
        subprocess.run(["slurmctld", "-f", conf], check=True, env=env)
        subprocess.run(["slurmd", "-f", conf], check=True, env=env)
        words = ["sinfo", "-h", "-o", "%T"]
        wait.until(
            lambda: (
                "idle"
                in subprocess.run(
                    words, env=env, capture_output=True, text=True, check=False
                ).stdout
            ),
            SECONDS,
        )
        yield env
    finally:
        for pid in (folder / "slurmd.pid", folder / "slurmctld.pid", folder / "munge/pid"):
            if pid.exists():
                os.kill(int(pid.read_text()), signal.SIGTERM)
                wait.until(lambda: not pid.exists(), 60)  # noqa: B023


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("slurmd") is None,
    reason="needs root, and slurmd, munged, sbatch",
)
def test_a_job_of_slurm_s_is_the_machine_that_may_be_used(
    user: User, slurm: dict[str, str], tmp_path: Path
) -> None:
    user.write("one.py", "print('loss 1.0')")
    tells = tmp_path / "allotted"
    subprocess.run(
        ["sbatch", "-W", "-c1", "--mem=500", "-o", tells, "--wrap", "env"],
        check=True,
        env=slurm,
        capture_output=True,
    )
    told = dict(
        line.split("=", 1) for line in tells.read_text().splitlines() if line.startswith("SLURM")
    )
    user.variables |= told
    shown = user.types("doctor").stdout
    assert "1 of " in shown and "500 MiB of " in shown
    assert f"Slurm job {told['SLURM_JOB_ID']}: 1 CPU, 500 MiB of memory on this node" in shown
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {script: one.py, launch: tensorflow, evaluator: true,
             plan: {strategy: allreduce, workers: 2}}
          - name: parts
            roles: [{name: serves, script: one.py, count: 2}, {name: works, script: one.py}]
        """,
    )
    planned = user.json("run", "--dry-run", "jobs.yaml")
    assert len(planned) == 6
    for job in ("one", "parts"):
        assert sum(task["entitled_cores"] for task in planned if task["job"] == job) <= 1.0 + 1e-9
    several = user.json("run", "jobs.yaml")
    assert [job["state"] for job in several["jobs"]] == ["done", "done"]
    ended = user.json("run", "one.py")
    with RunReader(user.home / "runs" / ended["id"] / "run.sqlite") as reader:
        [node] = json.loads(reader.meta()["node"])
    assert (node["cores"], node["memory_bytes"]) == (1.0, 500 << 20)
    assert ended["jobs"][0]["state"] == "done"
    assert any(
        "500 MiB of memory on this node" in text for text in events(user, ended["id"], "note")
    )
