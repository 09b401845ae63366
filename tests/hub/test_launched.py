"""Jobs whose scripts were written for another launcher: its contract, faults, and who speaks for a
job.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.recorded.reader import RunReader

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
"""Finds the others by torchrun's variables, as `torch.distributed` does, with nothing but
sockets.
"""


def events(user: User, run: str, kind: str) -> list[str]:
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return [row["text"] for row in reader.rows("events", f"kind = '{kind}'")]


def logs(user: User, job: str, workers: int) -> list[list[str]]:
    return [
        user.types("logs", f"{job}/worker-{rank}").stdout.splitlines() for rank in range(workers)
    ]


def trains(user: User, workers: int) -> tuple[list[list[str]], float]:
    """What the workers of a script for torchrun print, and the last loss of their job."""
    user.write("ddp.py", DDP)
    user.variables |= {
        "OMP_NUM_THREADS": "1",
        "RANK": "3",
        "WORLD_SIZE": "8",
        "MASTER_PORT": "29500",
    }
    ended = user.json("run", "--workers", str(workers), "ddp.py")
    assert (ended["jobs"][0]["state"], ended["jobs"][0]["reason"]) == ("done", "finished")
    [note] = [text for text in events(user, ended["id"], "note") if "torchrun" in text]
    assert note.startswith("its script calls torch.distributed.init_process_group")
    assert "; each worker gets RANK, WORLD_SIZE" in note
    assert not [text for text in events(user, ended["id"], "warning") if "share nothing" in text]
    with RunReader(user.home / "runs" / ended["id"] / "run.sqlite") as reader:
        waits = [row["task"] for row in reader.rows("spans", "name = 'wait'")]
    assert set(waits) == {f"ddp/worker-{rank}" for rank in range(workers)}
    return logs(user, "ddp", workers), user.jobs()["ddp"]["loss"]


def losses(printed: list[list[str]]) -> list[float]:
    """The mean over workers of what they print in each step."""
    of_workers = [[float(line.split()[-1]) for line in lines] for lines in printed]
    return [sum(step) / len(of_workers) for step in zip(*of_workers)]


@pytest.mark.slow
def test_a_script_of_torchrun_s_trains_in_workers_that_wait_for_each_other(user: User) -> None:
    printed, loss = trains(user, 2)
    means = losses(printed)
    assert len(means) == 10 and means[-1] < means[0]
    assert loss == pytest.approx(means[-1], rel=0.5)


@pytest.mark.long  # torchrun itself takes as long again
@pytest.mark.parametrize("workers", [2, 1])
def test_a_script_of_torchrun_s_trains_as_under_torchrun(
    user: User, workers: int, tmp_path: Path
) -> None:
    printed, loss = trains(user, workers)
    subprocess.run(
        [
            # it takes a port and keeps it
            *("torchrun", "--standalone", "--nproc-per-node", str(workers)),
            *("--redirects", "3", "--log-dir", str(tmp_path), str(user.folder / "ddp.py")),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # PyTorch's threads may abort a process that has left its group, with all of it done
        check=False,
        timeout=120,
    )
    found = sorted(tmp_path.rglob("stdout.log"), key=lambda path: int(path.parent.name))
    of_torchrun = [path.read_text().splitlines() for path in found]
    assert printed == of_torchrun
    assert loss == pytest.approx(losses(of_torchrun)[-1], rel=0.5)


@pytest.mark.long
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
    assert user.log("early/worker-1").splitlines() == ["b'it'"]


@pytest.mark.slow
@pytest.mark.long  # test_stacks.py has those of other jobs
def test_the_stacks_of_a_job_of_torchrun_s_are_those_of_its_script(user: User) -> None:
    """Not of what starts its first worker, nor of the store beside it."""
    waits = """
    import threading
    from pathlib import Path

    import torch.distributed as dist

    def wait_for_nobody():
        Path(f"stands-{dist.get_rank()}").write_text("yes")
        threading.Event().wait()

    dist.init_process_group("gloo")
    wait_for_nobody()
    """
    user.write("waits.py", waits)
    user.detaches("--workers", "2", "waits.py")
    for rank in range(2):
        user.sees(f"stands-{rank}")
    told = user.json("stacks", "waits")
    assert (told["groups"], told["differ"]) == ([["worker-0", "worker-1"]], [])
    assert {
        Path(each["frames"][-1]["file"]).name
        for task in told["tasks"]
        for each in task["threads"][:1]
    } == {"waits.py"}
    user.types("stop", "waits")


@pytest.mark.slow
def test_two_jobs_that_are_told_of_one_port_have_one_each(user: User) -> None:
    user.variables |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "9",
        "RANK": "8",
    }
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
    assert {job: user.sees_state(job, "done", "failed", run=run)["state"] for job in "ab"} == {
        "a": "done",
        "b": "done",
    }
    assert {each.split()[0] for each in told} == {"2"}
    assert len({each.split()[1] for each in told} - {"29500"}) == 2


@pytest.mark.slow
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
    assert any(
        "another program listens at its port" in text for text in events(user, ended["id"], "fault")
    )


@pytest.mark.slow
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
    assert (
        "worker-1: exit code 1, after the line: Error: no more data" in failed["jobs"][0]["reason"]
    )


@pytest.mark.slow
def test_out_of_memory_brings_more_workers_if_they_divide_it_and_advice_if_not(user: User) -> None:
    user.write(
        "holds.py",
        MEETS + '    held = bytearray((400 << 20) // size)\n    print("all of it", flush=True)\n',
    )
    words = ("--launch", "torchrun", "--workers", "2", "--memory", "150MiB", "holds.py")
    told = user.json("run", *words, code=1)["jobs"][0]["reason"]
    assert (
        "over its memory limit of 150 MiB (peak 150 MiB). Next: make its batch smaller, or "
        "raise its limit"
    ) in told
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_script_that_goes_on_from_its_own_checkpoint_can_be_resized_and_no_other(
    user: User,
) -> None:
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
          - {script: grows.py, launch: torchrun, resumes: true,
             plan: {strategy: allreduce, workers: 2}}
          - {name: stays, script: grows.py, launch: torchrun,
             plan: {strategy: allreduce, workers: 2}}
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


@pytest.mark.slow
def test_what_is_told_of_a_launcher_that_headgate_takes_the_place_of(user: User) -> None:
    user.write("tells.py", MEETS + "    print(rank, size, sys.argv[1:], flush=True)\n")
    words = ("torchrun", "--nproc-per-node", "2", "tells.py", "--epochs", "5")
    plain = user.types("run", "--dry-run", *words).stdout
    assert "tells: Headgate takes the place of torchrun, and starts 2 workers" in plain
    assert "--launch none" in plain
    planned = {
        entry["task"]: entry["env"]
        for entry in user.types("run", "--dry-run", "--json", *words).json
    }
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
        (
            ("--workers", "2", "plain.py"),
            "found no --strategy; expected --launch torchrun where a library such as",
        ),
        (
            ("--workers", "2", "hides.py"),
            "found no --strategy, and its script imports hydra; expected --launch torchrun",
        ),
        (
            ("--workers", "2", "own.py"),
            "found no --strategy; expected --strategy allreduce, or --strategy ps with",
        ),
        (("--workers", "2", "--", "python", "-m", "hides"), "expected --launch torchrun"),
        (
            ("--workers", "2", "spawns.py"),
            "starts its processes itself, by torch.multiprocessing.spawn",
        ),
        (("--launch", "jax", "--strategy", "ps", "plain.py"), "found parameter servers"),
        (("torchrun", "--use-agents", "plain.py"), "found --use-agents of torchrun"),
    ],
)
def test_what_makes_no_sense_is_one_message(user: User, words: tuple[str, ...], says: str) -> None:
    user.write("plain.py", "print(1)")
    user.write(
        "hides.py", "import hydra\nhydra.utils.instantiate({'_target_': 'lightning.Trainer'}).fit()"
    )
    user.write("own.py", "import headgate.torch as hg\nhg.prepare()")
    user.write("spawns.py", "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=2)")
    assert says in user.types("run", *words, code=2).message


JAX = """
    import jax

    jax.distributed.initialize()
    from jax.experimental.multihost_utils import process_allgather
    import jax.numpy as jnp

    print(f"step 1 loss {float(process_allgather(jnp.array([1.5])).sum()):.6f}", flush=True)
"""


TENSORFLOW = """
    import os
    import tensorflow as tf

    EPOCHS, STEPS = 3, 10
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()

    def samples(_=None):
        features = tf.random.stateless_normal((256, 8), seed=(1, 2))
        sums = tf.reduce_sum(features, 1, keepdims=True)
        data = tf.data.Dataset.from_tensor_slices((features, sums))
        return data.repeat().batch(32)

    class Linear(tf.Module):
        def __init__(self):
            self.weight = tf.Variable(tf.zeros((8, 1)))
            self.bias = tf.Variable(0.0)

        def loss(self, features, targets):
            return tf.reduce_mean((features @ self.weight + self.bias - targets) ** 2)

        def learn(self, features, targets):
            with tf.GradientTape() as tape:
                loss = self.loss(features, targets)
            context = tf.distribute.get_replica_context()
            gradients = tape.gradient(loss, self.trainable_variables)
            for variable, gradient in zip(self.trainable_variables, gradients):
                if not SERVED:
                    gradient = context.all_reduce("MEAN", gradient)
                variable.assign_sub(0.05 * gradient)
            return loss

    if resolver.task_type == "evaluator":
        model = Linear()
        for latest in tf.train.checkpoints_iterator("saved"):
            try:
                tf.train.Checkpoint(model=model).restore(latest).expect_partial()
            except tf.errors.OpError:  # it may be deleted by now
                continue
            loss = float(model.loss(*next(iter(samples()))))
            print(f"{os.path.basename(latest)} loss {loss:.6f}", flush=True)
            if latest.endswith(f"-{EPOCHS}"):
                raise SystemExit
"""
"""As in TensorFlow's tutorials: its evaluator reads checkpoints, until it has seen the last."""
MIRRORED = (
    "    SERVED = False"
    + TENSORFLOW
    + """
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = Linear()
    first = resolver.task_id == 0
    folder = "saved" if first else f"temporary-{resolver.task_id}"
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), folder, max_to_keep=2)
    batches = iter(strategy.experimental_distribute_dataset(samples()))

    @tf.function
    def step():
        return strategy.reduce("MEAN", strategy.run(model.learn, args=next(batches)), axis=None)

    for epoch in range(EPOCHS):
        losses = [step() for _ in range(STEPS)]
        manager.save()
        print(f"epoch {epoch + 1} loss {float(losses[-1]):.6f}", flush=True)
    """
)
SERVED = (
    "    SERVED = True"
    + TENSORFLOW
    + """
    if resolver.task_type in ("worker", "ps"):
        where = {"job_name": resolver.task_type, "task_index": resolver.task_id}
        tf.distribute.Server(resolver.cluster_spec(), protocol="grpc", **where).join()
    partitioners = tf.distribute.experimental.partitioners
    sharded = partitioners.MinSizePartitioner(min_shard_bytes=4, max_shards=2)
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=sharded)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Linear()
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model), "saved", max_to_keep=2)
    divided = lambda: strategy.distribute_datasets_from_function(samples)
    batches = iter(coordinator.create_per_worker_dataset(divided))

    @tf.function
    def step(batches):
        return strategy.reduce("MEAN", strategy.run(model.learn, args=next(batches)), axis=None)

    for epoch in range(EPOCHS):
        losses = [coordinator.schedule(step, args=(batches,)) for _ in range(STEPS)]
        coordinator.join()
        manager.save()
        print(f"epoch {epoch + 1} loss {float(losses[-1].fetch()):.6f}", flush=True)
    """
)
"""Its workers and servers never end by themselves."""


@pytest.mark.slow
def test_an_evaluator_of_tensorflow_s_is_started_again_alone_and_looks_at_what_was_saved_last(
    user: User,
) -> None:
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
            while not os.path.exists("go"):
                time.sleep(0.02)
            print("the last one", flush=True)
        else:
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
          - {script: evaluated.py, launch: tensorflow, evaluator: true,
             plan: {strategy: allreduce, workers: 2}}
        """,
    )
    run = user.detaches("jobs.yaml")
    trained = user.sees_job(
        "evaluated", lambda job: job["reason"] == "its evaluator has 1 min 0 s to end", run
    )
    user.touch("go")
    ended = user.sees_state("evaluated", "done", "failed", run=run)
    assert (ended["state"], ended["attempt"]) == ("done", 1)
    assert [(job["step"], job["loss"]) for job in (trained, ended)] == [(3, 1.5)] * 2
    assert user.sees("evaluates") == "worker"
    assert user.log("evaluated/evaluator-0").splitlines() == ["step 90 loss 99.5", "the last one"]
    [fault] = events(user, run, "fault")
    assert fault == "evaluator-0 was lost: killed by SIGKILL; it is started again"


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "plan", "tasks"),
    [
        (MIRRORED, "{strategy: allreduce, workers: 2}", ["evaluator-0", "worker-0", "worker-1"]),
        (
            SERVED,
            "{strategy: ps, workers: 3, servers: 2, synchronous: false}",
            ["evaluator-0", "server-0", "server-1", "worker-0", "worker-1", "worker-2"],
        ),
    ],
    ids=["mirrored", "served"],
)
def test_tensorflow_s_tutorials_train_to_their_end_with_an_evaluator_that_sees_it(
    user: User, script: str, plan: str, tasks: list[str]
) -> None:
    user.write("learns.py", script)
    user.write(
        "jobs.yaml",
        f"""
        jobs:
          - {{script: learns.py, launch: tensorflow, allow: [async], evaluator: true, plan: {plan}}}
        """,
    )
    ended = user.json("run", "jobs.yaml")
    [job] = ended["jobs"]
    assert (job["state"], job["attempt"]) == ("done", 1), job["reason"]
    with RunReader(user.home / "runs" / ended["id"] / "run.sqlite") as reader:
        assert sorted(row["id"].rpartition("/")[2] for row in reader.rows("tasks")) == tasks
    first, evaluator = (
        user.log(f"learns/{name}").splitlines() for name in ("worker-0", "evaluator-0")
    )
    losses = [float(line.split()[-1]) for line in first if line.startswith("epoch ")]
    assert len(losses) == 3 and losses[-1] < 0.1 * losses[0]
    assert evaluator[-1].startswith("ckpt-3 loss ") and float(evaluator[-1].split()[-1]) < losses[0]


@pytest.mark.long
def test_scripts_of_jax_s_meet_by_its_own_contract(user: User) -> None:
    user.write("sums.py", JAX)
    ended = user.json("run", "--workers", "2", "sums.py")
    assert ended["jobs"][0]["state"] == "done", ended["jobs"][0]["reason"]
    assert [lines[-1] for lines in logs(user, "sums", 2)] == ["step 1 loss 3.000000"] * 2
