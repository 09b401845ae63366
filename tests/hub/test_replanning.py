"""A hub that moves a running job to a better plan, on the nodes of a lab."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict

import pytest
from tests.hub.user import User
from tests.planning.jobs import profile

from headgate.recorded.reader import RunReader
from headgate.sampling import machine
from headgate.testing import wait

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None,
    reason="a lab needs root, and the programs ip and tc",
)

LAB = "lab: true\nname: moving\noversubscribe: true\nnodes:\n" + "".join(
    f"  - {{name: {name}, cores: 1, memory: 512MiB, nic: 1Gbit}}\n" for name in "ab"
)
SCRIPT = """
    import json, os
    from headgate.task import Channel, TaskEnvironment

    def save(why):
        path = os.path.join(environment.checkpoints, f"step-{step}.pt")
        with open(path, "w") as file:
            file.write(str(step))
        message = {"type": "checkpoint", "path": path, "step": step, "position": step, "why": why}
        channel.send({**message, "epoch": 0})

    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "plain", "1", 0)
    channel.wait_for(lambda: channel.welcome, 60)
    step = int(open(environment.resume).read()) if environment.resume else 0
    os.write(1, f"begins {step}\\n".encode())
    while not os.path.exists("go"):
        step += 1
        channel.wait_for(lambda: channel.pending, 0.05)
        if channel.stopping:
            save("stop")
            break
        if channel.take_checkpoint():
            save("request")
        channel.take_threads()
        report = {"step": step, "epoch": step // 20, "epochs": 5000}
        report |= {"loss": 1.0 + 1.0 / step, "count": 1}
        channel.send({"type": "progress", **report})
        if step == 30 and not environment.resume:
            channel.send({"type": "profile", "profile": json.load(open("profile.json"))})
    channel.flush(5)
"""


@pytest.fixture
def lab(user: User) -> Iterator[User]:
    user.write("lab.yaml", LAB)
    user.types("lab", "up", "lab.yaml")
    yield user
    user.types("lab", "down", "moving")


def test_first_steps_move_a_job_as_often_as_allowed_but_none_of_another_cluster(lab: User) -> None:
    known = profile(dense_bytes=100_000, memory_peak_bytes=64 << 20, batch=64)
    lab.write("learn.py", SCRIPT)
    lab.write("profile.json", json.dumps(asdict(known)))
    run = lab.detaches("learn.py", "--cluster", "moving", "--moves", "1")

    def events(kind: str) -> list[str]:
        with RunReader(lab.home / "runs" / run / "run.sqlite") as reader:
            return [row["text"] for row in reader.rows("events", "kind = ?", [kind])]

    why = wait.until(
        lambda: next((text for text in events("plan") if "moved" in text), None),
        60,
        what="it is moved",
    )
    assert why is not None
    assert why.startswith("moved to allreduce, 2 workers on a, b: ")
    assert " measured under single, 1 worker on a; saves " in why
    log = lab.home / "runs" / run / "jobs" / "learn" / "worker-1.log"
    wait.until(
        lambda: log.exists() and "begins " in log.read_text(), 60, what="the second worker begins"
    )
    assert int(log.read_text().split()[1]) > 30  # from the checkpoint, and not from the beginning
    [stored] = (lab.home / "profiles").iterdir()
    assert (
        json.loads(stored.read_text())["core_gflops"]
        == machine.detect(lab.home / "node.json").core_gflops
    )
    lab.touch("go")
    lab.sees_state("learn", "done", run=run)
    assert len([text for text in events("plan") if "moved" in text]) == 1

    stored.unlink()
    (lab.folder / "go").unlink()
    twice = 2 * int(log.read_text().split()[1])
    lab.variables["TF_CONFIG"] = "{}"
    run = lab.detaches("learn.py", "--cluster", "moving", "--moves", "1")
    lab.sees_job("learn", lambda job: (job["step"] or 0) > twice, run, f"is past step {twice}")
    [why] = events("plan")
    assert why.startswith(
        "single, 1 worker on a, because its environment names another cluster (TF_CONFIG={}); "
    )
    lab.touch("go")
    lab.sees_state("learn", "done", run=run)
