"""What workers are told of each other as other launchers tell it, and which launcher a command or a
script means.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.engines.launch import command, launch
from headgate.model.errors import UsageError
from headgate.model.identifiers import EVALUATOR, JobId, TaskName
from headgate.model.job_choices import Contract
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.scripts import launchers
from headgate.scripts.contracts import (
    LaunchedGroup,
    free_ports,
    is_out_of_memory,
    out_of_gpu_memory,
    port_taken,
    variables,
    without_others,
)
from headgate.scripts.facts import facts_of, source_facts
from headgate.scripts.launchers import divides_memory, doubt, has_launcher, options_of_several

GROUP = LaunchedGroup(
    "r/ddp", ("a", "a", "b"), ("10.0.0.1", "10.0.0.1", "10.0.0.2"), (20_001, 20_002, 20_003), 2, 3
)
SERVER = TaskName.of("server", 0)
TWO = Plan(strategy="allreduce", workers=2, batch_per_worker=None)


def worker(rank: int) -> TaskName:
    return TaskName.of("worker", rank)


def resolved(job: Job) -> tuple[Job, str]:
    return launchers.resolved(job, facts_of(job))


@pytest.mark.parametrize(
    ("rank", "local", "beside", "node"),
    [(0, "0", "2", "0"), (1, "1", "2", "0"), (2, "0", "1", "1")],
)
def test_torchrun_s_variables_count_workers_and_nodes(
    rank: int, local: str, beside: str, node: str
) -> None:
    told = variables("torchrun", GROUP, worker(rank))
    assert (told["RANK"], told["WORLD_SIZE"], told["ROLE_RANK"], told["ROLE_WORLD_SIZE"]) == (
        f"{rank}",
        "3",
    ) * 2
    assert (told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == (local, beside)
    assert (told["GROUP_RANK"], told["GROUP_WORLD_SIZE"]) == (node, "2")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("10.0.0.1", "20001")
    assert (told["TORCHELASTIC_RESTART_COUNT"], told["TORCHELASTIC_MAX_RESTARTS"]) == ("2", "3")
    assert told["TORCHELASTIC_RUN_ID"] == "r/ddp"


def test_torchrun_tells_its_processes_nothing_that_workers_are_not_told(tmp_path: Path) -> None:
    run = pytest.importorskip("torch.distributed.run")
    told = tmp_path / "told.json"
    script = tmp_path / "tells.py"
    script.write_text(f"import json, os; json.dump(dict(os.environ), open({str(told)!r}, 'w'))")
    run.main(["--master-port", str(free_ports(1, (), is_here=True)[0]), str(script)])
    added = {name for name in json.loads(told.read_text()) if name not in os.environ}
    ignored = {name for name in added if name.startswith(("LC_", "TORCH_", "CUDA_"))}
    assert (
        added - ignored - {"OMP_NUM_THREADS", "TORCHELASTIC_ERROR_FILE"}
        <= variables("torchrun", GROUP, worker(0)).keys()
    )


def test_tensorflow_and_jax_have_their_own() -> None:
    told = json.loads(variables("tensorflow", GROUP, worker(2))["TF_CONFIG"])
    assert told["cluster"] == {"worker": ["10.0.0.1:20001", "10.0.0.1:20002", "10.0.0.2:20003"]}
    assert told["task"] == {"type": "worker", "index": 2}
    served = replace(GROUP, servers=("10.0.0.2:20004",))
    roles = [
        json.loads(variables("tensorflow", served, task)["TF_CONFIG"])
        for task in (*map(worker, range(3)), SERVER)
    ]
    assert [(told["task"]["type"], told["task"]["index"]) for told in roles] == [
        ("chief", 0),
        ("worker", 0),
        ("worker", 1),
        ("ps", 0),
    ]
    assert roles[0]["cluster"] == {
        "chief": ["10.0.0.1:20001"],
        "worker": ["10.0.0.1:20002", "10.0.0.2:20003"],
        "ps": ["10.0.0.2:20004"],
    }
    jax = variables("jax", GROUP, worker(1))
    assert (jax["JAX_COORDINATOR_ADDRESS"], jax["JAX_NUM_PROCESSES"], jax["JAX_PROCESS_ID"]) == (
        "10.0.0.1:20001",
        "3",
        "1",
    )


@pytest.mark.parametrize(
    ("servers", "kinds"), [((), ["worker"]), (("10.0.0.3:1",), ["chief", "worker", "ps"])]
)
def test_an_evaluator_of_tensorflow_s_is_in_no_cluster(
    servers: tuple[str, ...], kinds: list[str]
) -> None:
    told = json.loads(
        variables("tensorflow", replace(GROUP, servers=servers), EVALUATOR)["TF_CONFIG"]
    )
    assert (list(told["cluster"]), told["task"]) == (kinds, {"type": "evaluator", "index": 0})


def test_an_evaluator_of_another_launcher_s_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch.distributed as dist\ndist.init_process_group()")
    with pytest.raises(
        UsageError, match="an evaluator, which TensorFlow alone has; expected launch: tensorflow"
    ):
        resolved(Job(name="a", script=str(tmp_path / "a.py"), evaluator=True))


def test_a_worker_of_mpi_s_is_told_of_mpirun_and_of_its_place(tmp_path: Path) -> None:
    job = Job(name="a", run=("./a.out",), launch="mpi")
    started = launch(
        JobId("r/a").task(worker(2)),
        job,
        facts_of(job),
        environment={"PATH": os.environ["PATH"], "OMPI_COMM_WORLD_RANK": "7"},
        threads=1,
        injected=tmp_path,
        checkpoints=tmp_path,
        resume=None,
        group=replace(GROUP, key="secret"),
    )
    assert started.argv[1:] == ("-m", "headgate.task.mpi", "./a.out")
    assert (
        started.env["SLURM_PROCID"],
        started.env["SLURM_LOCALID"],
        started.env["SLURM_NODEID"],
    ) == ("2", "0", "1")
    assert (started.env["RANK"], started.env["SLURM_NTASKS"]) == ("2", "3")
    assert "OMPI_COMM_WORLD_RANK" not in started.env
    assert json.loads(started.env["HEADGATE_MPI"])["key"] == "secret"


def test_what_another_launcher_told_is_no_worker_s() -> None:
    theirs = (
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TF_CONFIG",
        "SLURM_PROCID",
    )
    more = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "JAX_PROCESS_ID", "GROUP_RANK", "PET_NNODES")
    kept = {
        "SLURM_JOB_ID": "7",
        "PATH": "/bin",
        "FRANKS": "1",
        "NCCL_DEBUG": "INFO",
        "JAX_PLATFORMS": "cpu",
    }
    assert without_others({**dict.fromkeys((*theirs, *more), "1"), **kept}) == kept


def test_ports_are_free_and_nobody_else_s() -> None:
    ports = free_ports(3, (), is_here=True)
    assert len(set(ports)) == 3
    with socket.socket() as listening:
        listening.bind(("", ports[0]))
        others = set(range(1 << 16)) - set(ports)
        assert ports[0] not in free_ports(2, others, is_here=True)
        assert ports[0] in free_ports(3, others, is_here=False)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            (
                "DistNetworkError: ... port: 20001, useIpv6: false, code: -98, name: EADDRINUSE, "
                "message: ..."
            ),
            "its port",
        ),
        (
            "DistNetworkError: ... port: 29500, useIpv6: false, code: -98, name: EADDRINUSE",
            "port 29500, which its script",
        ),
        ("OSError: [Errno 98] Address already in use", "its port"),
        ("RuntimeError: Failed to add port to server: Address already in use", "its port"),
    ],
)
def test_a_port_that_is_taken_is_known_by_what_frameworks_say(line: str, says: str) -> None:
    assert f"another program listens at {says}" in port_taken(line, 20_001)
    assert not port_taken("ConnectionRefusedError: [Errno 111] Connection refused", 20_001)


# --- commands -------------------------------------------------------------------------------------


def run(folder: Path, *words: str, plan: Plan | None = None) -> Job:
    (folder / "train.py").write_text("print(1)")
    return Job(name="train", run=words, workdir=str(folder), plan=plan)


@pytest.mark.parametrize(
    ("words", "left", "contract", "workers"),
    [
        ("torchrun train.py --epochs 5", "python train.py --epochs 5", "torchrun", 1),
        ("torchrun --nproc-per-node 2 train.py", "python train.py", "torchrun", 2),
        (
            "torchrun --nnodes=2 --nproc_per_node=4 --rdzv-backend c10d train.py -m x",
            None,
            "torchrun",
            8,
        ),
        (
            "torchrun --standalone --nnodes 2:4 -m train --lr 1",
            "python -m train --lr 1",
            "torchrun",
            2,
        ),
        ("torchrun --nproc-per-node gpu train.py", "python train.py", "torchrun", 1),
        ("torchrun --no-python --nproc-per-node 2 ./serve x", "./serve x", "torchrun", 2),
        (
            "python -m torch.distributed.run --nproc-per-node=2 train.py",
            "python train.py",
            "torchrun",
            2,
        ),
        (
            "python3.11 -m torch.distributed.launch --nproc_per_node=2 train.py",
            None,
            "deepspeed",
            2,
        ),
        ("python -m torch.distributed.launch --use_env train.py", "python train.py", "torchrun", 1),
        (
            "accelerate launch --num_processes 2 --mixed_precision bf16 train.py",
            "python train.py",
            "torchrun",
            2,
        ),
        (
            "deepspeed --num_gpus=2 train.py --deepspeed ds.json",
            "python train.py --deepspeed ds.json",
            "deepspeed",
            2,
        ),
        ("fabric run --devices 2 train.py", "python train.py", "torchrun", 2),
        ("lightning run model --devices 2 train.py", "python train.py", "torchrun", 2),
        ("mpirun python train.py -n 8", "python train.py -n 8", "mpi", 1),
        (
            "mpirun -np 2 --oversubscribe --allow-run-as-root python train.py",
            "python train.py",
            "mpi",
            2,
        ),
        ("mpiexec -n 4 -genv A 1 -ppn 2 ./a.out --mca x", "./a.out --mca x", "mpi", 4),
    ],
)
def test_headgate_takes_the_place_of_a_launcher(
    words: str, left: str | None, contract: Contract, workers: int, tmp_path: Path
) -> None:
    job, note = resolved(run(tmp_path, *words.split()))
    assert (job.contract, job.plan.workers if job.plan else 1) == (contract, workers)
    assert left is None or " ".join((*(job.run or ()), *job.args)) == left
    assert "Headgate takes the place of" in note


def test_workers_that_are_stated_count_more_than_the_launcher_s(tmp_path: Path) -> None:
    job, note = resolved(run(tmp_path, "torchrun", "--nproc-per-node", "8", "train.py", plan=TWO))
    assert job.plan == TWO
    assert "starts 2 workers" in note


def test_a_script_that_uses_headgate_keeps_headgate_s_own_contract(tmp_path: Path) -> None:
    job = run(tmp_path, "torchrun", "--nproc-per-node", "2", "train.py")
    (tmp_path / "train.py").write_text("import headgate.torch as hg\n")
    found, note = resolved(job)
    assert (found.run, found.contract, found.plan) == (("python", "train.py"), None, TWO)
    assert note == "Headgate takes the place of torchrun, and starts 2 workers"
    with pytest.raises(UsageError, match="leave launch torchrun out"):
        resolved(Job(name="a", script=str(tmp_path / "train.py"), launch="torchrun"))


def test_what_a_launcher_sets_is_set(tmp_path: Path) -> None:
    words = (
        "accelerate launch --cpu --mixed_precision=bf16 --num_cpu_threads_per_process 3 train.py"
    )
    job, _ = resolved(run(tmp_path, *words.split()))
    assert job.env == {
        "ACCELERATE_USE_CPU": "true",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "OMP_NUM_THREADS": "3",
    }
    words = "mpirun -n 2 -x A=1=2 -x PATH --mca btl_tcp_if_include eth0 -H a:2 --bind-to core train"
    job, note = resolved(run(tmp_path, *words.split()))
    assert job.env == {"A": "1=2", "OMPI_MCA_btl_tcp_if_include": "eth0"}
    assert "; it ignores -H, --bind-to; each worker gets its rank of mpirun" in note


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "accelerate launch --use_fsdp train.py",
            "found --use_fsdp of accelerate launch, which Headgate does not",
        ),
        (
            "torchrun --nproc-per-node two train.py",
            "found --nproc-per-node two of torchrun; expected a number",
        ),
        ("torchrun --nproc-per-node 2", "torchrun names no script"),
        ("torchrun --nnodes", "torchrun has --nnodes without a value"),
        ("mpirun --mca btl", "mpirun has --mca without a value"),
        (
            "mpirun -n 1 a : -n 1 b",
            "found several programs, parted by `:`, of mpirun; expected one",
        ),
        ("mpirun --wdir /tmp train.py", "found --wdir of mpirun, which Headgate does not support"),
    ],
)
def test_what_nothing_stands_in_for_is_one_clear_error(
    words: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=says):
        resolved(run(tmp_path, *words.split()))


def test_launch_none_leaves_a_launcher_as_it_is(tmp_path: Path) -> None:
    job = Job(
        name="a",
        run=("accelerate", "launch", "--use_fsdp", "a.py"),
        workdir=str(tmp_path),
        launch="none",
    )
    assert resolved(job) == (job, "")


def test_the_interpreter_is_that_of_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, names in (("first", ["python"]), ("other", ["python", "torchrun"])):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path / 'first'}{os.pathsep}{tmp_path / 'other'}")
    job, _ = resolved(run(tmp_path, "torchrun", "train.py"))
    assert job.run == (str(tmp_path / "other" / "python"), "train.py")


def test_deepspeed_s_argument_goes_before_the_script_s_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    words = ("python", "-m", "train", "--epochs", "5")
    module = Job(name="a", run=words, workdir=str(tmp_path))
    assert command(module, None, ("--local_rank=1",)) == (*words[:3], "--local_rank=1", *words[3:])


@pytest.mark.parametrize(
    ("text", "launch", "doubted"),
    [
        ("import numpy", "mpi", True),
        ("import torch", "tensorflow", True),
        ("import torch", "mpi", False),
        ("import os\nprint(os.environ['RANK'])", "torchrun", False),
        ("from package import train", "torchrun", False),
        ("import runpy", "jax", False),
        ("import hydra\nhydra.utils.instantiate(trainer)", "torchrun", False),
    ],
)
def test_a_launcher_that_a_script_plainly_has_no_use_for_is_doubted(
    text: str, launch: Contract, doubted: bool, tmp_path: Path
) -> None:
    (tmp_path / "package.py").touch()
    (tmp_path / "a.py").write_text(text)
    job = Job(name="a", script=str(tmp_path / "a.py"), launch=launch)
    assert (
        f"launch is {launch}, but its script imports none of" in doubt(job, facts_of(job))
    ) == doubted


# --- scripts --------------------------------------------------------------------------------------

GROUPS = "import torch.distributed as dist\n"


@pytest.mark.parametrize(
    ("text", "contract", "needs"),
    [
        (GROUPS + "dist.init_process_group('gloo')", "torchrun", True),
        (
            "from torch.distributed import init_process_group as start\ndef main(): start('nccl')",
            "torchrun",
            True,
        ),
        (
            GROUPS + "import os\nif 'RANK' in os.environ: dist.init_process_group()",
            "torchrun",
            False,
        ),
        (
            GROUPS
            + "import os\nif int(os.environ.get('RANK', -1)) != -1: dist.init_process_group()",
            "torchrun",
            False,
        ),
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(model)",
            "torchrun",
            True,
        ),
        ("import accelerate\naccelerate.Accelerator()", "torchrun", False),
        ("from transformers import Trainer\nTrainer(model)", "torchrun", False),
        ("import lightning as L\nL.Trainer()", "torchrun", False),
        ("from lightning.pytorch import Trainer\nTrainer()", "torchrun", False),
        ("from lightning.pytorch.cli import LightningCLI\nLightningCLI()", "torchrun", False),
        ("import ignite.distributed as idist\nidist.Parallel(backend='gloo')", "torchrun", False),
        ("import deepspeed\ndeepspeed.initialize(model=1)", "torchrun", True),
        (
            "import deepspeed\nparser.add_argument('--local_rank')\ndeepspeed.initialize(model=1)",
            "deepspeed",
            True,
        ),
        (
            "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()",
            "tensorflow",
            False,
        ),
        ("import jax\njax.distributed.initialize()", "jax", True),
        ("from mpi4py import MPI\n" + GROUPS + "dist.init_process_group('gloo')", "mpi", False),
        ("def main():\n    import horovod.torch as hvd", "mpi", False),
    ],
)
def test_a_script_that_plainly_says_so_is_known(
    text: str, contract: Contract, needs: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(text)
    found = source_facts(tmp_path / "a.py").launcher
    assert found is not None
    assert (found.contract, found.needs) == (contract, needs)
    alone, note = resolved(Job(name="a", script=str(tmp_path / "a.py")))
    assert alone.contract == (contract if needs else None)
    assert "--workers N" in note
    assert "or --batch per-worker" in note
    chosen, note = resolved(Job(name="a", script=str(tmp_path / "a.py"), batch="global"))
    assert chosen.contract == contract
    assert "--batch" not in note
    several, _ = resolved(Job(name="a", script=str(tmp_path / "a.py"), plan=TWO))
    assert several.contract == contract
    assert options_of_several(alone, facts_of(alone)) == ""


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed",
        "import torch.distributed as dist\n# dist.init_process_group()",
        "import torch.distributed as dist, headgate.torch\ndist.init_process_group()",
        "from transformers import AutoModel\nAutoModel()",
        "try:\n    from mpi4py import MPI\nexcept ImportError:\n    MPI = None",
        "print 'of another Python'; dist.init_process_group()",
    ],
)
def test_a_script_that_does_not_say_so_or_uses_headgate_is_left_alone(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(text)
    job = Job(name="a", script=str(tmp_path / "a.py"), plan=TWO)
    assert not has_launcher(job, facts_of(job))
    assert options_of_several(job, facts_of(job)) == " --strategy allreduce"
    assert resolved(job) == (job, "")


@pytest.mark.parametrize(
    "spawn", ["mp.spawn(main, nprocs=2)", "dist.init_process_group()\nmp.Process(target=main)"]
)
def test_a_script_that_starts_its_processes_itself_is_not_started_several_times(
    spawn: str, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(f"{GROUPS}import torch.multiprocessing as mp\n{spawn}")
    job = Job(name="a", script=str(tmp_path / "a.py"))
    assert resolved(job) == (job, "")
    with pytest.raises(UsageError, match="starts its processes itself"):
        resolved(Job(name="a", script=str(tmp_path / "a.py"), plan=TWO))


PS = Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None)


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        (
            "os.environ['TF_CONFIG'] = json.dumps({})\ntf.distribute.MultiWorkerMirroredStrategy()",
            "TF_CONFIG",
        ),
        ("os.environ['RANK'] = '0'\ntf.distribute.MultiWorkerMirroredStrategy()", "RANK"),
        ("if 'TF_CONFIG' not in os.environ:\n    os.environ['TF_CONFIG'] = '{}'\n", ""),
        ("os.environ['RANK'] = os.environ['SLURM_PROCID']\n", ""),
    ],
)
def test_a_script_that_gives_all_its_processes_one_place_is_refused(
    text: str, sets: str, tmp_path: Path
) -> None:
    script = tmp_path / "a.py"
    script.write_text(
        "import os, json\nimport tensorflow as "
        f"tf\n{text}\ntf.distribute.MultiWorkerMirroredStrategy()"
    )
    job = Job(name="a", script=str(script), plan=TWO)
    if not sets:
        assert resolved(job)[0].launch == "tensorflow"
        return
    with pytest.raises(
        UsageError, match=f"sets {sets} itself, so that each of its workers would take itself for"
    ):
        resolved(job)


def test_words_of_each_framework_for_too_little_memory_are_known() -> None:
    for text in (
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
            "total capacity of 79 GiB"
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't "
            "allocate memory: you tried"
        ),
        "std::bad_alloc: std::bad_alloc",
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
            "8589934592 bytes."
        ),
        (
            "ResourceExhaustedError: {{function_node}} OOM when allocating tensor with "
            "shape[65536,65536] [Op:MatMul]"
        ),
        "killed: this machine ran out of memory (peak 2 GiB)",
        "MemoryError",
    ):
        assert is_out_of_memory(text), text
    assert not is_out_of_memory("RuntimeError: Connection closed by peer [127.0.0.1]:31000")


@pytest.mark.parametrize(
    ("text", "on_gpu", "words"),
    [
        (
            (
                "exit code 1, after the line: torch.OutOfMemoryError: CUDA out of memory. Tried to "
                "allocate 2.00 GiB. GPU"
            ),
            False,
            "CUDA out of memory. Tried to allocate 2.00 GiB",
        ),
        ("RuntimeError: CUDA error: out of memory", True, "CUDA error: out of memory"),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB.",
            True,
            "HIP out of memory. Tried to allocate 2.00 MiB",
        ),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            True,
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
        (
            (
                "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
                "8589934592 bytes."
            ),
            True,
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes",
        ),
        (
            (
                "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
                "8589934592 bytes."
            ),
            False,
            "",
        ),
        (
            (
                "ResourceExhaustedError: OOM when allocating tensor with shape[65536,65536] on "
                "/job:localhost/device:GPU:0"
            ),
            False,
            "OOM when allocating tensor with shape[65536,65536]",
        ),
        (
            (
                "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to "
                "allocate 1 bytes"
            ),
            True,
            "",
        ),
        ("MemoryError", True, ""),
    ],
)
def test_memory_of_a_gpu_is_told_from_that_of_the_machine(
    text: str, on_gpu: bool, words: str
) -> None:
    assert is_out_of_memory(text)
    assert out_of_gpu_memory(text, on_gpu) == words


@pytest.mark.parametrize(
    ("text", "args", "divides"),
    [
        ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(1)", (), True),
        ("import deepspeed\ndeepspeed.initialize()", (), True),
        ("from lightning import Trainer\nTrainer(strategy='fsdp')", (), True),
        ("from transformers import Trainer\nTrainer()", ("--deepspeed", "zero3.json"), True),
        ("from transformers import Trainer\nTrainer()", (), False),
        (
            "from torch.nn.parallel import DistributedDataParallel\nDistributedDataParallel(1)",
            (),
            False,
        ),
    ],
)
def test_scripts_that_divide_the_model_are_told_from_those_that_copy_it(
    text: str, args: tuple[str, ...], divides: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(text)
    job = Job(name="a", script=str(tmp_path / "a.py"), args=args)
    assert divides_memory(job, facts_of(job)) is divides


@pytest.mark.parametrize(
    ("text", "args", "hosted"),
    [
        ("import torch", (), True),
        ("from package import train", (), True),
        ("import os, socket", (), False),
        (
            (
                "import torch.distributed as dist\ndist.init_process_group('gloo', "
                "init_method='tcp://localhost:23456')"
            ),
            (),
            False,
        ),
        ("import os, torch\nos.environ['MASTER_PORT'] = '12355'", (), False),
        ("import os, torch\nprint(os.environ['MASTER_PORT'] == '1')", (), True),
        ("import torch", ("--dist-url", "tcp://127.0.0.1:9999"), False),
    ],
)
def test_the_store_is_hosted_for_scripts_that_meet_where_they_are_told(
    text: str, args: tuple[str, ...], hosted: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(text)
    job = Job(name="a", script=str(tmp_path / "a.py"), args=args)
    assert facts_of(job).meets_at_our_port is hosted


SERVED = "import tensorflow as tf\ntf.distribute.ParameterServerStrategy()"


@pytest.mark.parametrize(
    ("text", "plan", "says"),
    [
        (
            GROUPS + "dist.init_process_group()",
            PS,
            "found parameter servers for a job with launch torchrun, which has",
        ),
        (
            GROUPS + "dist.init_process_group()",
            replace(TWO, batch_per_worker=8),
            "found `batch_per_worker` for a job",
        ),
        (
            SERVED,
            PS,
            (
                "a plan that TensorFlow's parameter servers cannot follow; expected --strategy "
                "ps --async"
            ),
        ),
        (SERVED, TWO, "ParameterServerStrategy; expected --strategy ps --async --servers M"),
        (
            SERVED,
            replace(PS, workers=1, synchronous=False),
            "at least 2, as the first is the chief",
        ),
    ],
)
def test_a_plan_that_such_a_script_cannot_follow_is_refused(
    text: str, plan: Plan, says: str, tmp_path: Path
) -> None:
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(UsageError) as refused:
        resolved(
            Job(name="a", script=str(tmp_path / "a.py"), plan=plan, allow=frozenset({"async"}))
        )
    assert says in str(refused.value)


def test_workers_of_mpi_s_in_containers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found workers of MPI in containers"):
        resolved(
            replace(run(tmp_path, "mpirun", "-n", "2", "python", "train.py"), isolation="container")
        )


def test_servers_of_tensorflow_s_run_the_script_itself(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text(SERVED)
    plan = replace(PS, synchronous=False)
    job, note = resolved(Job(name="a", script=str(script), plan=plan, allow=frozenset({"async"})))
    assert "each worker gets TF_CONFIG" in note
    started = launch(
        JobId("r/a").task(SERVER),
        job,
        facts_of(job),
        environment={"PATH": os.environ["PATH"]},
        threads=1,
        injected=tmp_path,
        checkpoints=tmp_path,
        resume=None,
        group=replace(GROUP, servers=("10.0.0.2:20004",)),
    )
    assert started.argv[1:] == (str(script),)
    assert json.loads(started.env["TF_CONFIG"])["task"] == {"type": "ps", "index": 0}
