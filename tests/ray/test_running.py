"""What runs on one machine runs unchanged on a Ray cluster: files go there; output, losses,
checkpoints return.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.dockerd import linked_daemon
from tests.hub.test_gating import STEPS
from tests.hub.test_memory_kills import EATS
from tests.hub.test_memory_kills import JOBS as JOBS_THAT_LOSE_ONE
from tests.hub.test_stopping import SAVES
from tests.ray.hill import ADDRESS, ENDLESS, RAY, Hill, Somebody

from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import OWNER
from headgate.testing import wait

pytestmark = pytest.mark.timeout(300)  # the first test waits for the cluster too

LEARNS = """
    import argparse, socket, sys, time, torch
    import headgate.torch as hg

    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    data = torch.utils.data.TensorDataset(torch.randn(512, 16), torch.randn(512, 1))
    hidden, dropout = torch.nn.Linear(16, 32), torch.nn.Dropout(0.1)
    model = torch.nn.Sequential(hidden, dropout, torch.nn.Linear(32, 1))
    loader = torch.utils.data.DataLoader(data, 32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = hg.prepare(model, optimizer, loader)
    for epoch in hg.epochs(args.epochs):
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hg.report(loss=loss)
            time.sleep(0.02)  # others use these cores as well
        print("loss", loss.item())
"""
JOBS = """
    jobs:
      - {name: one, script: learns.py, args: [--seed, "1"], limits: {cores: 1}}
      - {name: two, script: learns.py, args: [--seed, "2"], limits: {cores: 1}}
"""


@pytest.mark.long  # on one node: tests/engines/ray/test_calls.py
def test_results_of_calls_come_back_from_nodes_without_shared_files(user: Somebody) -> None:
    script = user.write(
        "calls.py",
        f"""
        import headgate

        def away(value):
            import os
            return value * 2, "HEADGATE_CHECKPOINTS_AWAY" in os.environ

        def fails():
            raise KeyError("there")

        with headgate.Executor(2, engine="ray", address={ADDRESS!r}) as executor:
            doubled, failed = executor.submit(away, 21), executor.submit(fails)
            print(doubled.result(), repr(failed.exception()))
        """,
    )
    said = subprocess.run(
        user.on_the_head(sys.executable, str(script)),
        cwd=user.folder,
        env=user.variables,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert said == "(42, True) KeyError('there')\n"


@pytest.mark.long
def test_a_script_runs_on_a_node_that_has_none_of_its_files(user: Somebody) -> None:
    user.write("part.py", "WORD = 'shipped'\n")
    user.write(
        "train.py",
        """
        import os, socket
        from part import WORD
        for epoch in range(1, 4):
            print(f"epoch {epoch}/3 loss {1 / epoch:.4f}", flush=True)
        print(WORD, socket.gethostname(), os.getcwd(), flush=True)
        """,
    )
    run = user.runs("train.py", "--nodes", "b")
    word, host, cwd = user.log("train").splitlines()[-1].split()
    assert (word, host) == ("shipped", "b")
    assert cwd != str(user.folder)
    assert not Path(cwd).exists()
    [task] = user.rows(run, "tasks")
    assert task["node"] == "b"
    assert [row["loss"] for row in user.rows(run, "progress")][-1] == 0.3333


@pytest.mark.long
def test_the_same_job_file_gives_the_same_losses_as_on_this_machine(user: Somebody) -> None:
    user.write("learns.py", LEARNS)
    user.write("jobs.yaml", JOBS)
    there = user.runs("jobs.yaml")
    here = user.types("run", "jobs.yaml").stdout.split()[1]
    for name in ("one", "two"):
        assert user.losses(there, name)[-1][0] == user.losses(here, name)[-1][0] == 2 * 16
        losses = [user.log(f"{run}/{name}") for run in (there, here)]
        assert losses[0].count("loss ") == 2 and losses[0] == losses[1]


@pytest.mark.long
def test_two_jobs_on_one_gpu_of_a_node_take_turns_by_their_priorities(user: Somebody) -> None:
    limits = "limits: {cores: 0.4}"
    for name in ("a", "b"):
        user.write(f"{name}.py", STEPS)
    user.write(
        "jobs.yaml", f"jobs: [{{script: a.py, priority: 3, {limits}}}, {{script: b.py, {limits}}}]"
    )
    user.types("run", "--detach", "jobs.yaml", "--policy", "equal", "--nodes", "b", *RAY)

    def steps(job: str) -> int:
        return int((user.stands(job) or {}).get("step") or 0)

    wait.until(
        lambda: any(Path("/tmp").glob("headgate-ray-*/turns/gpu-0")), 90, "both step, by turns"
    )
    before = steps("a"), steps("b")
    wait.until(lambda: steps("a") + steps("b") > sum(before) + 400, 90, "steps are done")
    a, b = steps("a") - before[0], steps("b") - before[1]
    assert a / (a + b) == pytest.approx(0.75, abs=0.07)
    for name in ("a", "b"):
        user.types("stop", name)
        user.sees_state(name, "stopped")


@pytest.mark.long  # what agents do: tests/engines/ray; what workers do: tests/torch
def test_workers_on_two_nodes_learn_together(user: Somebody) -> None:
    user.write("learns.py", LEARNS)
    for plan in (("ps", "--workers", "2", "--servers", "1"), ("allreduce", "--workers", "2")):
        run = user.runs("learns.py", "--nodes", "b,c", "--strategy", *plan)
        nodes = {row["id"].split("/")[1]: row["node"] for row in user.rows(run, "tasks")}
        assert {nodes["worker-0"], nodes["worker-1"]} == {"b", "c"}
        [job] = user.rows(run, "jobs")
        assert (job["state"], job["attempt"]) == ("done", 1)
        used = {row["target"] for row in user.rows(run, "usage") if row["memory_bytes"]}
        assert {"node:b", "node:c"} <= used


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("mpirun") is None,
    reason="MPI's processes are started by mpirun, of the package openmpi-bin",
)
def test_ranks_of_mpi_s_find_each_other_across_nodes_of_ray_s(user: Somebody) -> None:
    user.write(
        "ranks.py",
        """
        import os
        from mpi4py import MPI

        world = MPI.COMM_WORLD
        beside = world.Split_type(MPI.COMM_TYPE_SHARED)
        for step in range(3):
            print(f"step {step} loss {world.allreduce(float(world.rank + step))}", flush=True)
        print(world.rank, world.size, beside.rank, beside.size, flush=True)
        """,
    )
    words = ("--nodes", "b,c", "mpirun", "-n", "4", "python", "ranks.py")
    run = user.types("run", *RAY, *words).stdout.split()[1]
    [job] = user.rows(run, "jobs")
    assert (job["state"], job["attempt"]) == ("done", 1), job["reason"]
    last = [user.log(f"{run}/ranks/worker-{rank}").splitlines()[-2:] for rank in range(4)]
    assert last == [["step 2 loss 14.0", f"{rank} 4 {rank % 2} 2"] for rank in range(4)]


@pytest.mark.long
def test_workers_in_containers_learn_together_on_the_networks_of_their_nodes(
    user: Somebody, hill: Hill
) -> None:
    says = (
        f"\n    import os; print(os.stat('/').st_dev == {os.stat('/').st_dev}, os.uname().nodename)"
    )
    user.write("learns.py", says + LEARNS)
    plan = ("--nodes", "b,c", "--strategy", "allreduce", "--workers", "2")
    with linked_daemon(hill.docker) as docker:
        run = user.runs("learns.py", *plan, "--isolation", "container")
        wait.until(lambda: not Daemon(docker).find(OWNER), 60, "no container is left")
    [job] = user.rows(run, "jobs")
    assert (job["state"], job["attempt"]) == ("done", 1)
    first = [user.log(f"{run}/learns/worker-{index}").splitlines()[0] for index in range(2)]
    assert sorted(first) == ["False b", "False c"]  # in files of its own, on its node
    assert {"node:b", "node:c"} <= {
        row["target"] for row in user.rows(run, "usage") if row["memory_bytes"]
    }


@pytest.mark.long
def test_ctrl_c_brings_a_checkpoint_back_and_a_resume_goes_on_from_it_on_another_node(
    user: Somebody,
) -> None:
    user.write("learns.py", LEARNS)
    before = user.all_runs()
    started = user.starts("run", "learns.py", "--nodes", "b", *RAY, *ENDLESS)
    [run] = wait.until(lambda: user.all_runs() - before, 60, "the run begins")
    user.sees_progress("learns", run)
    os.kill(started.pid, signal.SIGINT)
    assert started.wait(60) == 130
    user.sees_state("learns", "stopped", run=run)
    saved = user.rows(run, "checkpoints")[-1]
    assert saved["why"] == "stop"
    path = Path(saved["path"])
    assert path.parent == user.home / "runs" / run / "jobs" / "learns" / "checkpoints"
    assert path.is_file()
    again = user.json("resume", run, "--detach", "--nodes", "c")["run"]
    user.sees_progress("learns", again)
    first = next(row for row in user.rows(again, "progress") if row["step"] is not None)
    assert first["step"] > saved["step"]
    assert user.rows(again, "tasks")[0]["node"] == "c"
    user.types("stop", "--kill", "learns")
    user.sees_state("learns", "killed", run=again)


@pytest.mark.long
def test_a_script_there_is_asked_by_its_own_signal_and_a_killed_child_is_told(
    user: Somebody,
) -> None:
    user.write("saves.py", SAVES)
    user.write("ignores.py", EATS + JOBS_THAT_LOSE_ONE["ignores"])
    saves = "{name: a, run: 'python saves.py; echo after', stop_signal: SIGINT}"
    user.write("jobs.yaml", f"jobs: [{saves}, {{script: ignores.py, limits: {{memory: 96MiB}}}}]")
    run = user.json("run", "jobs.yaml", "--detach", "--nodes", "b", *RAY)["run"]
    ended = user.sees_state("ignores", "done", run=run)
    assert ended["reason"] == "finished, but 1 of its processes was killed for want of memory"
    assert any(
        "one of its processes was killed" in each["text"]
        for each in user.json("status", run)["warnings"]
    )
    wait.until(lambda: "ready" in user.log("a"), 60, "it is ready")
    user.types("stop", "a")
    user.sees_state("a", "stopped", run=run)
    assert user.log("a").split() == ["ready", "saved", "after"]


@pytest.mark.long
def test_a_hub_that_is_killed_leaves_nothing_on_any_node_and_its_job_can_be_resumed(
    user: Somebody, hill: Hill
) -> None:
    user.write("learns.py", LEARNS)
    plan = ("--strategy", "ps", "--workers", "2", "--servers", "1", "--nodes", "b,c")
    run = user.begins("learns.py", *plan)
    assert len(user.traces.tasks()) >= 3
    user.types("checkpoint", "learns")
    wait.until(lambda: user.rows(run, "checkpoints"), 60, "a checkpoint")
    user.kills(user.traces.hub())
    wait.until(lambda: not user.traces.tasks(), 60, "the tasks have ended")
    hill.finds_nothing_left()
    user.finds_nothing_left()
    again = user.json("resume", run, "--detach")["run"]
    user.sees_progress("learns", again)
    user.types("stop", "--kill", "learns")
    user.sees_state("learns", "killed", run=again)
