"""Jobs whose scripts were written for another launcher: its contract, faults, and who speaks for a job."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.engines.contracts import free_ports
from headgate.telemetry.store import RunReader

DDP = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    samples = torch.Generator().manual_seed(dist.get_rank())
    for step in range(10):
        features = torch.randn(16, 8, generator=samples)
        loss = nn.functional.mse_loss(model(features), features.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.9g}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""
"""As PyTorch's tutorial does."""

MEETS = """
    import os, signal, socket, sys, time
    from pathlib import Path

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

    def meet():
        if rank == 0:
            with socket.create_server(meeting) as listening:
                return [listening.accept()[0] for _ in range(size - 1)]
        for _ in range(600):
            try:
                return [socket.create_connection(meeting)]
            except ConnectionRefusedError:
                time.sleep(0.05)
        sys.exit("nobody listens")
"""
"""Finds the others by torchrun's variables, as `torch.distributed` does, with nothing but sockets."""


def events(user: User, run: str, kind: str) -> list[str]:
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return [row["text"] for row in reader.rows("events", f"kind = '{kind}'")]


def logs(user: User, job: str, workers: int) -> list[list[str]]:
    return [user.types("logs", f"{job}/worker-{rank}").stdout.splitlines() for rank in range(workers)]


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.long)])
def test_a_script_of_torchrun_s_trains_as_under_torchrun(user: User, workers: int, tmp_path: Path) -> None:
    script = user.write("ddp.py", DDP)
    user.variables |= {"OMP_NUM_THREADS": "1", "RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "29500"}
    ended = user.json("run", "--workers", str(workers), "ddp.py")
    assert (ended["jobs"][0]["state"], ended["jobs"][0]["reason"]) == ("done", "finished")
    [note] = [text for text in events(user, ended["id"], "note") if "torchrun" in text]
    assert note.startswith("its script calls torch.distributed.init_process_group")
    assert "; each worker gets RANK, WORLD_SIZE" in note
    assert not [text for text in events(user, ended["id"], "warning") if "share nothing" in text]
    theirs = subprocess.run(
        [
            *("torchrun", "--master-port", str(free_ports(1, (), here=True)[0]), "--nproc-per-node", str(workers)),
            *("--redirects", "3", "--log-dir", str(tmp_path), str(script)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert theirs.returncode == 0
    found = sorted(tmp_path.rglob("stdout.log"), key=lambda path: int(path.parent.name))
    assert logs(user, "ddp", workers) == [path.read_text().splitlines() for path in found]
    told = [[float(line.split()[-1]) for line in path.read_text().splitlines()] for path in found]
    means = [sum(losses) / workers for losses in zip(*told)]
    assert user.jobs()["ddp"]["loss"] == pytest.approx(means[-1], rel=0.5)


def test_the_first_worker_may_end_before_the_others_as_under_torchrun(user: User) -> None:
    user.write(
        "early.py",
        """
        import os
        import torch.distributed as dist
        from pathlib import Path

        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 0:
            Path("pid").write_text(str(os.getpid()))
            dist.barrier()
        else:
            dist.barrier()
            first = Path("/proc", Path("pid").read_text())
            while first.exists():
                pass
            store = dist.distributed_c10d._get_default_store()
            store.set("found", "it")
            print(store.get("found"), flush=True)
        """,
    )
    ended = user.json("run", "--workers", "2", "early.py")
    assert ended["jobs"][0]["state"] == "done", ended["jobs"][0]["reason"]
    assert logs(user, "early", 2) == [[], ["b'it'"]]


def test_two_jobs_that_are_told_of_one_port_have_one_each(user: User) -> None:
    user.variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "9", "RANK": "8"}
    held = """
    peers = meet()
    Path(f"{Path(__file__).stem}-{rank}").write_text("%d %d" % (size, meeting[1]))
    while not os.path.exists("go"):
        time.sleep(0.02)
    """
    for name in ("a.py", "b.py"):
        user.write(name, MEETS + held)
    run = user.detaches("--launch", "torchrun", "--workers", "2", "a.py", "b.py")
    told = {user.sees(f"{name}-{rank}") for name in "ab" for rank in range(2)}
    user.touch("go")
    assert {job: user.sees_state(job, "done", "failed", run=run)["state"] for job in "ab"} == {"a": "done", "b": "done"}
    assert {each.split()[0] for each in told} == {"2"}
    assert len({each.split()[1] for each in told} - {"29500"}) == 2


def test_a_port_that_another_took_costs_no_retry(user: User) -> None:
    user.write(
        "taken.py",
        MEETS
        + """
    if rank == 0 and restarts == 0:
        other = socket.create_server(meeting)
    if rank == 0 or restarts:
        meet()
    else:
        time.sleep(600)
    """,
    )
    ended = user.json("run", "--launch", "torchrun", "--workers", "2", "taken.py")
    assert (ended["jobs"][0]["state"], ended["jobs"][0]["attempt"]) == ("done", 2)
    assert any("another program listens at its port" in text for text in events(user, ended["id"], "fault"))


def test_a_lost_worker_ends_the_attempt_and_retries_start_all_again(user: User) -> None:
    user.write(
        "lost.py",
        MEETS
        + """
    saved = Path("saved")
    begin = int(saved.read_text()) if saved.exists() else 0
    peers = meet()
    for step in range(begin, 6):
        print(f"step {step} loss {6 - step}.5", flush=True)
        if rank == 0:
            saved.write_text(str(step))
        if step == 3 and restarts == 0:
            if rank == 1:
                while not saved.exists() or saved.read_text() != "3":
                    time.sleep(0.02)
                os.kill(os.getpid(), signal.SIGKILL)
            peers[0].recv(1)
            signal.pause()
    print("begun at", begin, "after", restarts, flush=True)
    """,
    )
    user.write(
        "jobs.yaml",
        """
        jobs:
          - script: lost.py
            launch: torchrun
            resumes: true
            retries: 1
            plan: {strategy: allreduce, workers: 2}
        """,
    )
    ended = user.json("run", "jobs.yaml")
    assert (ended["jobs"][0]["state"], ended["jobs"][0]["attempt"]) == ("done", 2)
    assert [lines[-1] for lines in logs(user, "lost", 2)] == ["begun at 3 after 1"] * 2


@pytest.mark.long  # the grace takes ten seconds
def test_a_worker_that_ignores_the_signal_to_end_is_killed_after_the_grace(user: User) -> None:
    user.write(
        "deaf.py",
        MEETS
        + """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    peers = meet()
    if rank == 1:
        sys.exit("Error: no more data")
    while True:
        time.sleep(1)
    """,
    )
    failed = user.json("run", "--launch", "torchrun", "--workers", "2", "deaf.py", code=1)
    assert "worker-1: exit code 1, after the line: Error: no more data" in failed["jobs"][0]["reason"]


def test_a_job_that_runs_out_of_memory_gets_more_workers_if_they_divide_it_and_else_is_told_what_to_change(
    user: User,
) -> None:
    user.write("holds.py", MEETS + '    held = bytearray((400 << 20) // size)\n    print("all of it", flush=True)\n')
    words = ("--launch", "torchrun", "--workers", "2", "--memory", "150MiB", "holds.py")
    told = user.json("run", *words, code=1)["jobs"][0]["reason"]
    assert "over its memory limit of 150 MiB (peak 150 MiB); make its batch smaller, or raise its limit" in told
    ended = user.types("run", "--json", *words, "--", "--deepspeed", "zero.json").json
    assert (ended["jobs"][0]["state"], ended["jobs"][0]["attempt"]) == ("done", 2)
    assert logs(user, "holds", 4) == [["all of it"]] * 4
    [fault] = events(user, ended["id"], "fault")
    assert "more than 2 workers to hold its model, and is started again with 4" in fault


def test_the_first_rank_that_prints_speaks_for_the_job(user: User) -> None:
    user.write(
        "quiet.py",
        MEETS
        + """
    peers = meet()
    for step in range(8):
        if rank:
            print(f"step {step} loss {8 - step}.25", flush=True)
            time.sleep(0.2)
    """,
    )
    ended = user.json("run", "--launch", "torchrun", "--workers", "3", "quiet.py")
    assert ended["jobs"][0]["state"] == "done"
    job = user.jobs()["quiet"]
    assert (job["step"], job["loss"]) == (7, 1.25)


def test_ranks_that_print_in_pieces_at_the_same_time_are_read_apart(user: User) -> None:
    user.write(
        "pieces.py",
        MEETS
        + """
    [peer] = meet()
    for step in range(4):
        for piece in (f"step {step + 50 * rank} ", "loss ", f"{step}.{rank}5", "\\n"):
            print(piece, end="", flush=True)
            peer.sendall(b".")  # the other has printed a piece of its own line
            peer.recv(1)
    """,
    )
    ended = user.json("run", "--launch", "torchrun", "--workers", "2", "pieces.py")
    assert ended["jobs"][0]["state"] == "done"
    job = user.jobs()["pieces"]
    assert (job["step"], job["loss"]) == (3, pytest.approx((3.05 + 3.15) / 2))


def test_a_script_that_goes_on_from_its_own_checkpoint_can_be_resized_and_no_other(user: User) -> None:
    user.write(
        "grows.py",
        MEETS
        + """
    peers = meet()
    job = os.environ["TORCHELASTIC_RUN_ID"].rpartition("/")[2]
    Path(f"{job}-{rank}-of-{size}").write_text("1")
    while not os.path.exists("go"):
        time.sleep(0.02)
    """,
    )
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {script: grows.py, launch: torchrun, resumes: true, plan: {strategy: allreduce, workers: 2}}
          - {name: stays, script: grows.py, launch: torchrun, plan: {strategy: allreduce, workers: 2}}
        """,
    )
    run = user.detaches("jobs.yaml")
    user.sees("grows-1-of-2")
    user.sees("stays-1-of-2")
    assert "resumes: true" in user.types("resize", "stays", "--workers", "3", code=2).message
    user.types("resize", "grows", "--workers", "3")
    user.sees("grows-2-of-3")
    user.touch("go")
    for job in ("grows", "stays"):
        user.sees_state(job, "done", run=run)


def test_what_is_told_of_a_launcher_that_headgate_takes_the_place_of(user: User) -> None:
    user.write("tells.py", MEETS + "    print(rank, size, sys.argv[1:], flush=True)\n")
    words = ("torchrun", "--nproc-per-node", "2", "tells.py", "--epochs", "5")
    plain = user.types("run", "--dry-run", *words).stdout
    assert "tells: Headgate takes the place of torchrun, and starts 2 workers" in plain
    assert "--launch none" in plain
    planned = {entry["task"]: entry["env"] for entry in user.types("run", "--dry-run", "--json", *words).json}
    assert [planned[f"tells/worker-{rank}"]["RANK"] for rank in range(2)] == ["0", "1"]
    assert len({env["MASTER_PORT"] for env in planned.values()}) == 1
    user.write("plain.py", "print('loss 1.0')")
    plain = user.types("run", "--dry-run", "--launch", "mpi", "plain.py").stdout
    assert "plain: launch is mpi, but its script imports none of mpi4py" in plain
    ended = user.json("run", "--launch", "mpi", "plain.py")
    assert any("launch is mpi, but" in text for text in events(user, ended["id"], "warning"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workers", "2", "plain.py"), "found no --strategy"),
        (("--workers", "2", "spawns.py"), "starts its processes itself, by torch.multiprocessing.spawn"),
        (("--launch", "jax", "--strategy", "ps", "plain.py"), "found parameter servers"),
        (("torchrun", "--use-agents", "plain.py"), "found --use-agents of torchrun"),
    ],
)
def test_what_makes_no_sense_is_one_message(user: User, words: tuple[str, ...], says: str) -> None:
    user.write("plain.py", "print(1)")
    user.write("spawns.py", "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)")
    assert says in user.types("run", *words, code=2).message


TENSORFLOW = """
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(1.0)
    total = strategy.reduce("SUM", strategy.run(lambda: weight + 0.5), axis=None)
    print(f"step 1 loss {float(total):.6f}", flush=True)
"""
JAX = """
    import jax

    jax.distributed.initialize()
    from jax.experimental.multihost_utils import process_allgather
    import jax.numpy as jnp

    print(f"step 1 loss {float(process_allgather(jnp.array([1.5])).sum()):.6f}", flush=True)
"""


SERVED = """
    import os
    import tensorflow as tf

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        where = {"job_name": resolver.task_type, "task_index": resolver.task_id}
        tf.distribute.Server(resolver.cluster_spec(), protocol="grpc", **where).join()
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(1.0)
    value = coordinator.schedule(tf.function(lambda: weight.assign_add(0.5)))
    coordinator.join()
    print(f"step 1 loss {float(value.fetch()):.6f}", flush=True)
"""
"""As TensorFlow's tutorial does: its workers and servers never end by themselves."""


def test_an_evaluator_of_tensorflow_s_is_started_again_alone_and_ends_with_the_job(user: User) -> None:
    user.write(
        "evaluated.py",
        """
        import json, os, signal, time
        from pathlib import Path

        told = json.loads(os.environ["TF_CONFIG"])
        lost, evaluates = Path("lost"), Path("evaluates")
        if told["task"]["type"] == "evaluator":
            if not lost.exists():
                lost.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            print("step 90 loss 99.5", flush=True)
            evaluates.write_text(" ".join(told["cluster"]))
            signal.pause()
        while not evaluates.exists():
            time.sleep(0.02)
        for step in range(4):
            print(f"step {step} loss {4 - step}.5", flush=True)
        """,
    )
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {script: evaluated.py, launch: tensorflow, evaluator: true, plan: {strategy: allreduce, workers: 2}}
        """,
    )
    ended = user.json("run", "jobs.yaml")
    assert (ended["jobs"][0]["state"], ended["jobs"][0]["attempt"]) == ("done", 1)
    assert user.sees("evaluates") == "worker"
    job = user.jobs()["evaluated"]
    assert (job["step"], job["loss"]) == (3, 1.5)
    assert user.log("evaluated/evaluator-0").splitlines() == ["step 90 loss 99.5"]
    [fault] = events(user, ended["id"], "fault")
    assert fault == "evaluator-0 was lost: killed by SIGKILL; it is started again"


@pytest.mark.long
def test_tensorflow_s_parameter_servers_train_and_end_with_their_chief(user: User) -> None:
    user.write("served.py", SERVED)
    ended = user.json("run", "--workers", "2", "--servers", "1", "--async", "served.py")
    assert ended["jobs"][0]["state"] == "done", ended["jobs"][0]["reason"]
    assert user.types("logs", "served/worker-0").stdout.splitlines()[-1] == "step 1 loss 1.500000"


@pytest.mark.long
@pytest.mark.parametrize("script", [JAX, TENSORFLOW], ids=["jax", "tensorflow"])
def test_scripts_of_other_frameworks_meet_by_their_own_contracts(user: User, script: str) -> None:
    user.write("sums.py", script)
    ended = user.json("run", "--workers", "2", "sums.py")
    assert ended["jobs"][0]["state"] == "done", ended["jobs"][0]["reason"]
    assert [lines[-1] for lines in logs(user, "sums", 2)] == ["step 1 loss 3.000000"] * 2
