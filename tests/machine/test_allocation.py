"""Which part of a machine a process was allotted, told from files as kernels show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.machine.allocation import Allocation, current, say_cpus, slurm_share
from headgate.model.reason_text import in_words


class Machine:
    """Files of a machine of four CPUs, with a process in cgroups of v1 or v2."""

    def __init__(self, root: Path, kind: str) -> None:
        self._root = root
        self._kind = kind
        self.write("sys/devices/system/cpu/online", "0-3")
        self.allow("1", "0-3")
        self.allow("self", "0-3")
        self.enter("/")
        mounts = "30 1 0:1 / /cg rw - cgroup2 cgroup rw"
        if kind == "v1":
            mounts = "\n".join(
                f"{n} 1 0:{n} / /cg/{name} rw - cgroup c rw,{name}"
                for n, name in self.hierarchies()
            )
        self.write("proc/self/mountinfo", mounts)

    def hierarchies(self) -> list[tuple[int, str]]:
        return [(2, "memory"), (3, "cpu"), (4, "cpuset")] if self._kind == "v1" else [(0, "")]

    def write(self, path: str, text: str) -> None:
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        (self._root / path).write_text(f"{text}\n")

    def allow(self, process: str, cpus: str) -> None:
        self.write(
            f"proc/{process}/status", f"Name:\tx\nCpus_allowed:\tf\nCpus_allowed_list:\t{cpus}"
        )

    def enter(self, path: str) -> None:
        self.write(
            "proc/self/cgroup", "\n".join(f"{n}:{name}:{path}" for n, name in self.hierarchies())
        )

    def limit(self, controller: str, path: str, file: str, text: str) -> None:
        self.write(f"cg/{controller if self._kind == 'v1' else ''}/{path}/{file}", text)

    def allocation(self, **environment: str) -> Allocation:
        return current(self._root, environment)


@pytest.fixture(params=["v1", "v2"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    return Machine(tmp_path, request.param)


MEMORY = {"v1": ("memory.limit_in_bytes", "1048576"), "v2": ("memory.max", "1048576")}
QUOTA = {"v1": ("cpu.cfs_quota_us", "50000"), "v2": ("cpu.max", "50000 100000")}
CPUS = {"v1": ("cpuset.cpus", "0-1"), "v2": ("cpuset.cpus", "0-1")}
UNLIMITED = {
    "v1": (
        ("memory.limit_in_bytes", "9223372036854771712"),
        ("cpu.cfs_quota_us", "-1"),
        ("cpuset.cpus", "0-3"),
    ),
    "v2": (("memory.max", "max"), ("cpu.max", "max 100000"), ("cpuset.cpus", "")),
}


def test_two_terminals_without_limits_have_all_of_the_machine_whatever_their_cgroups(
    machine: Machine,
) -> None:
    keys = set()
    for session in ("/", "/user.slice/session-1.scope", "/user.slice/session-2.scope"):
        machine.enter(session)
        for controller in ("memory", "cpu", "cpuset"):
            for file, text in UNLIMITED[machine._kind]:
                machine.limit(controller, session, file, text)
        keys.add(machine.allocation().key)
    assert keys == {""}


def test_an_affinity_is_one_whatever_its_order_and_two_that_overlap_are_two(
    machine: Machine,
) -> None:
    keys = []
    for cpus in ("0-1", "1,0", "0,1", "1-2", "0-3"):
        machine.allow("self", cpus)
        keys.append(machine.allocation().key)
    assert keys[0] == keys[1] == keys[2] != keys[3] != ""
    assert keys[4] == ""
    machine.allow("self", "0,2-3")
    assert str(machine.allocation()) == "CPUs 0,2-3"


def test_in_a_container_all_that_it_has_is_all_there_is(machine: Machine) -> None:
    for process in ("1", "self"):
        machine.allow(process, "2-3")
    for controller in ("memory", "cpu", "cpuset"):
        machine.limit(controller, "", *MEMORY[machine._kind])
    assert machine.allocation().key == ""


@pytest.mark.parametrize(
    ("controller", "files"), [("memory", MEMORY), ("cpu", QUOTA), ("cpuset", CPUS)]
)
def test_a_cgroup_with_a_limit_is_an_allocation_with_all_below_it(
    machine: Machine, controller: str, files: dict[str, tuple[str, str]]
) -> None:
    keys = []
    for job in ("job_1", "job_2"):
        machine.limit(controller, f"batch/{job}", *files[machine._kind])
        for step in ("", "/step_0", "/step_1/task"):
            machine.enter(f"/batch/{job}{step}")
            keys.append(machine.allocation().key)
    assert len(set(keys[:3])) == len(set(keys[3:])) == 1
    assert len({"", keys[0], keys[3]}) == 3  # two jobs, though of one size


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        (
            {"SLURM_CPUS_ON_NODE": "2", "SLURM_MEM_PER_CPU": "300"},
            "Slurm job 7: 2 CPUs, 600 MiB of memory on this node",
        ),
        (
            {"SLURM_JOB_CPUS_PER_NODE": "2(x2),4", "SLURM_NODEID": "2", "SLURM_MEM_PER_NODE": "0"},
            "Slurm job 7: 4 CPUs on this node",
        ),
        (
            {"SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_JOB_NODELIST": "a[1-3]"},
            (
                "Slurm job 7: 1 GPU on this node; of its 3 nodes (a[1-3]) Headgate uses this one: "
                "to use all, start a"
            ),
        ),
        (
            {"SLURM_JOB_NODELIST": "far1", "SLURMD_NODENAME": None},
            (
                "Slurm job 7; this shell is not on its nodes (far1): run headgate there, by sbatch "
                "or srun --pty"
            ),
        ),
    ],
)
def test_what_slurm_allotted_of_a_node(variables: dict[str, str | None], says: str) -> None:
    told = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "a3", **variables}
    share = slurm_share({name: value for name, value in told.items() if value is not None})
    assert share is not None
    assert in_words(share.reason()).startswith(says)
    assert (
        slurm_share({"SLURM_JOB_ID": "7", "HEADGATE_TASK": "r/a/worker-0"})
        is slurm_share({})
        is None
    )


def test_a_batch_job_is_an_allocation_where_nothing_enforces_it(machine: Machine) -> None:
    ids = [{}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "8"}, {"PBS_JOBID": "7.server"}]
    assert len({machine.allocation(**each).key for each in ids}) == 4
    assert str(machine.allocation(SLURM_JOB_ID="7")) == "SLURM_JOB_ID=7"


def test_what_a_task_s_box_narrows_is_not_for_a_hub_of_its_own(machine: Machine) -> None:
    machine.limit("memory", "headgate-0-1/r:a:worker-0", *MEMORY[machine._kind])
    machine.enter("/headgate-0-1/r:a:worker-0")
    machine.allow("self", "2")
    assert machine.allocation(HEADGATE_TASK="r/a/worker-0").key == ""
    assert machine.allocation().key != ""


def test_cpus_are_said_as_the_kernel_says_them() -> None:
    assert say_cpus(frozenset({0, 1, 2, 5, 7, 8})) == "0-2,5,7-8"
    assert say_cpus(frozenset()) == ""
