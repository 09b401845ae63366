"""The contracts of other launchers: the variables by which the processes of a script find each
other.

Worker `i` has rank `i`.
"""

from __future__ import annotations

import json
import random
import re
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.model.actions import StartTask
from headgate.model.identifiers import EVALUATOR, TaskName
from headgate.model.job_choices import Contract
from headgate.scripts.facts import ScriptFacts
from headgate.task import mpi, rendezvous

_OF_OTHERS = re.compile(
    r"RANK|WORLD_SIZE|NODE_RANK|(LOCAL|GROUP|ROLE|CROSS)_(RANK|SIZE|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|TORCHELASTIC_\w+|PET_\w+|TF_CONFIG|JAX_(COORDINATOR_\w+|NUM_PROCESSES|PROCESS_ID|LOCAL_DEVICE_IDS)"
    r"|OMPI_(COMM_WORLD|UNIVERSE)_\w+|OMPI_MCA_orte_hnp_uri|(PMI|PMIX|MV2_COMM_WORLD|MPI)_\w*(RANK|SIZE|ID)"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|STEP_\w+)"
)
"""Variables by which another launcher tells a process its place. They would be wrong for Headgate's
workers.
"""
_FIRST_PORT, _EPHEMERAL_PORT = 15_000, 32_768
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_TAKEN = re.compile(
    r"(?i)EADDRINUSE|address already in use|failed to add (?:a )?port to server"
)
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError|\b[Oo]ut of "
    r"memory\b|std::bad_alloc|\bMemoryError\b|RESOURCE_EXHAUSTED|ResourceExhaustedError"
    r"|can'?(?:t|not) allocate memory|cudaErrorMemoryAllocation|STATUS_ALLOC_FAILED"
)
"""Error messages of PyTorch on GPUs and CPUs, C++, Python, JAX, TensorFlow, and the system."""
_OF_A_GPU = re.compile(
    r"\b(?:CUDA|HIP)\b[^.]*[Oo]ut of "
    r"memory|cudaErrorMemoryAllocation|STATUS_ALLOC_FAILED|device:GPU|\bGPU_\d+_bfc\b"
)
_SHORTAGES = (
    re.compile(r"(?:CUDA|HIP) out of memory(?:\. Tried to allocate [\d.]+ \w+)?"),
    re.compile(r"RESOURCE_EXHAUSTED: Out of memory(?: while trying to allocate [\d.]+ ?\w+)?"),
    re.compile(r"OOM when allocating tensor with shape ?\[[\d, ]*\]"),
    re.compile(
        r"CUDA error: out of "
        r"memory|cudaErrorMemoryAllocation|\w+_STATUS_ALLOC_FAILED|ResourceExhaustedError"
    ),
)
"""Error messages of PyTorch, JAX, TensorFlow and CUDA, without the text that follows them."""
_OF_A_DEVICE = re.compile(r"RESOURCE_EXHAUSTED|ResourceExhaustedError")
"""JAX and TensorFlow do not always name the device."""
_MEETING: Mapping[Contract, str] = {
    "torchrun": "RANK, WORLD_SIZE, MASTER_ADDR and the other variables of torchrun",
    "deepspeed": (
        "RANK, WORLD_SIZE, MASTER_ADDR and the argument --local_rank, as deepspeed gives them"
    ),
    "tensorflow": "TF_CONFIG",
    "jax": (
        "JAX_COORDINATOR_ADDRESS and the other variables that jax.distributed.initialize() reads"
    ),
    "mpi": "its rank of mpirun, and torchrun's and Slurm's variables",
}


@dataclass(frozen=True, slots=True)
class LaunchedGroup:
    """The tasks of an attempt, as a launcher sees them.

    Args:
        id: Unique to the job.
        nodes: The node of each worker.
        addresses: The address at which the others reach each worker.
        ports: A free port of each worker. All meet at the first worker's.
        restarts: Attempts before this one.
        retries: Most attempts after the first that the user allows.
        servers: Address and port of each parameter server.
        key: Secret of the attempt.
        hosted: Whether Headgate hosts the store by which they meet, as torchrun's agent does. Then
            the store exists until the last worker has ended.
    """

    id: str
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    restarts: int = 0
    retries: int = 0
    servers: tuple[str, ...] = ()
    key: str = ""
    hosted: bool = False

    @classmethod
    def of(
        cls,
        start: StartTask,
        facts: ScriptFacts,
        ports: tuple[int, ...],
        address: Callable[[str], str],
        key: str = "",
    ) -> LaunchedGroup:
        """The tasks of the attempt in which a task is started.

        Args:
            start: The start of the task.
            facts: Facts about the job's script.
            ports: The ports of its workers, then those of its servers.
            address: Returns the address of the tasks on a node, given its name.
            key: Secret of the attempt.
        """
        plan = start.plan
        last = len(plan.worker_nodes)
        servers = tuple(
            f"{address(name)}:{port}" for name, port in zip(plan.server_nodes, ports[last:])
        )
        addresses = tuple(map(address, plan.worker_nodes))
        starts = start.attempt - 1, start.spec.retries
        hosted = (
            last > 1
            and start.spec.contract in ("torchrun", "deepspeed")
            and facts.meets_at_our_port
        )
        return cls(
            start.job, plan.worker_nodes, addresses, ports[:last], *starts, servers, key, hosted
        )

    def local_rank(self, rank: int) -> int:
        """Number of earlier workers on this worker's node."""
        return self.nodes[:rank].count(self.nodes[rank])


def variables(contract: Contract, group: LaunchedGroup, task: TaskName) -> dict[str, str]:
    """The variables of a worker; under TensorFlow also those of a server or the evaluator."""
    rank = task.index
    match contract:
        case "torchrun" | "deepspeed":
            return _of_torchrun(group, rank)
        case "tensorflow":
            return {"TF_CONFIG": json.dumps(_tensorflow_cluster(group, task))}
        case "jax":
            return _of_jax(group, rank)
        case "mpi":
            return {**_of_torchrun(group, rank), **_of_mpi(group, rank)}


def arguments(contract: Contract, group: LaunchedGroup, task: TaskName) -> tuple[str, ...]:
    """Arguments of a worker's script, before its own."""
    return (f"--local_rank={group.local_rank(task.index)}",) if contract == "deepspeed" else ()


def wrapper(contract: Contract, group: LaunchedGroup, task: TaskName) -> tuple[str, ...]:
    """The module that runs a worker's command, with its arguments; empty: none."""
    if contract == "mpi":
        return (mpi.__name__,)
    if group.hosted and task.index == 0:
        return (rendezvous.__name__, group.addresses[0], str(group.ports[0]), str(len(group.nodes)))
    return ()


def without_others(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables of another launcher."""
    return {name: value for name, value in environment.items() if not _OF_OTHERS.fullmatch(name)}


def names_one(text: str) -> bool:
    """Whether a script's text names a variable of a launcher, or the argument that deepspeed
    passes.
    """
    return re.search(rf"\b({_OF_OTHERS.pattern}|local[-_]rank)\b", text) is not None


def in_words(contract: Contract) -> str:
    """The name of the contract, for messages."""
    return _MEETING[contract]


def port_taken(text: str, port: int, variables: str = "MASTER_ADDR and MASTER_PORT") -> str:
    """What a script's last output says about another program that listens at a port; empty:
    nothing.

    Args:
        text: The last output.
        port: The port that the script was given.
        variables: The variables with the port.
    """
    if not _PORT_TAKEN.search(text):
        return ""
    named = re.search(r"\bport:? (\d+)", text)
    if named is None or int(named[1]) == port:
        return "another program listens at its port"
    return (
        f"another program listens at port {named[1]}, which its script names itself; have it "
        f"read {variables} instead"
    )


def is_out_of_memory(text: str) -> bool:
    """Whether a script's last output says that it ran out of memory."""
    return _OUT_OF_MEMORY.search(text) is not None


def out_of_gpu_memory(text: str, on_gpu: bool) -> str:
    """The part of a script's last output which says that it ran out of GPU memory; empty: it does
    not. `on_gpu`: the script computes on one.
    """
    if _OF_A_GPU.search(text) is None and not (on_gpu and _OF_A_DEVICE.search(text)):
        return ""
    matches = (pattern.search(text) for pattern in _SHORTAGES)
    return next((match[0] for match in matches if match is not None), text)


def free_ports(count: int, taken: Collection[int], *, is_here: bool) -> tuple[int, ...]:
    """Ports at which nobody listens, as far as can be known. They lie below those that the kernel
    gives to connections, so a free port stays free until a script listens at it.

    Args:
        count: Number of ports.
        taken: Ports of other jobs, which may not listen yet.
        is_here: Whether the ports are this machine's. Then each is tried. Ports of other nodes are
            drawn at random.
    """
    low = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else _EPHEMERAL_PORT
    known = range(_FIRST_PORT, low) if low > 2 * _FIRST_PORT else range(2 * _FIRST_PORT, 1 << 16)
    drawn = (port for port in random.sample(known, len(known)) if port not in taken)
    ports: list[int] = []
    for port in drawn:
        if len(ports) == count:
            break
        if not is_here or _is_free(port):
            ports.append(port)
    return tuple(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as listening:
        try:
            listening.bind(("", port))
        except OSError:
            return False
    return True


def _tensorflow_cluster(group: LaunchedGroup, task: TaskName) -> dict[str, object]:
    """The value of `TF_CONFIG`. With parameter servers, the first worker is the chief, which
    coordinates the others. An evaluator is in no cluster, because the others would wait for it.
    """
    workers = [f"{address}:{port}" for address, port in zip(group.addresses, group.ports)]
    if not group.servers:
        return {"cluster": {"worker": workers}, "task": {"type": task.role, "index": task.index}}
    kind, index = task.role if task == EVALUATOR else "ps", task.index
    if task.is_worker:
        kind, index = ("worker", index - 1) if index else ("chief", 0)
    cluster = {"chief": workers[:1], "worker": workers[1:], "ps": list(group.servers)}
    return {"cluster": cluster, "task": {"type": kind, "index": index}}


def _of_torchrun(group: LaunchedGroup, rank: int) -> dict[str, str]:
    names = list(dict.fromkeys(group.nodes))
    size, node = len(group.nodes), group.nodes[rank]
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": group.local_rank(rank),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": group.nodes.count(node),
        "GROUP_RANK": names.index(node),
        "GROUP_WORLD_SIZE": len(names),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "MASTER_PORT": group.ports[0],
        "TORCHELASTIC_RESTART_COUNT": group.restarts,
        "TORCHELASTIC_MAX_RESTARTS": max(group.retries, group.restarts),
    }
    return {
        **{name: str(number) for name, number in numbers.items()},
        "ROLE_NAME": "default",
        "MASTER_ADDR": group.addresses[0],
        "TORCHELASTIC_RUN_ID": group.id,
        "TORCHELASTIC_USE_AGENT_STORE": str(group.hosted),  # else rank 0 hosts it
    }


def _of_jax(group: LaunchedGroup, rank: int) -> dict[str, str]:
    """The variables for JAX. It has a variable only for the coordinator's address. It finds the
    rest as under Open MPI.
    """
    address = f"{group.addresses[0]}:{group.ports[0]}"
    size, local = str(len(group.nodes)), str(group.local_rank(rank))
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": size,
        "JAX_PROCESS_ID": str(rank),
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",
        "OMPI_COMM_WORLD_SIZE": size,
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": local,
    }


def _of_mpi(group: LaunchedGroup, rank: int) -> dict[str, str]:
    """A worker's `RankInfo`. `mpirun` itself sets the variables of Open MPI, MPICH or Slurm."""
    position = {"rank": rank, "addresses": group.addresses, "ports": group.ports, "key": group.key}
    size = str(len(group.nodes))
    return {
        mpi.VARIABLE: json.dumps(position),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(group.local_rank(rank)),
        "SLURM_NODEID": str(list(dict.fromkeys(group.nodes)).index(group.nodes[rank])),
        "SLURM_NTASKS": size,
        "SLURM_NPROCS": size,
    }
