"""What running under Ray costs: the time to the first step, the time of a step, and what an idle node pays.

    python benchmarks/ray_start.py [--tasks 1,2,4,8] [--repetitions 3] [--json PATH]

A Ray is started on this machine, whose cores all tasks share: what many of them take is mostly the imports of that many
scripts. From the command to the first step of all workers: a job under Headgate on that Ray; the same under Headgate on
this machine; and by hand with Ray's own API, a placement group and an actor for each process of PyTorch's
DistributedDataParallel. Then the steps of one task on Ray and on this machine, in turn. Last, memory and CPU of a node
of Ray where nothing runs, here the head's; of the same while a task of Headgate's sleeps there; and of what Headgate
has beside it: its agent and its warden on the node, its bridge to Ray beside the hub.
"""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import _frame
import _job
import _ray
import psutil

STEPS = 1500
"""Steps of which a median is taken; the first tenth is left out."""
IDLE_SECONDS = 10.0
CORES = 16
"""CPUs that Ray is told there are: eight tasks are to fit, whatever the machine has."""

BY_HAND = """
import os, runpy, sys
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

address, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
group = placement_group([{"CPU": 1}] * count)
ray.get(group.ready())

@ray.remote(num_cpus=1)
class Worker:
    def train(self, rank):
        os.chdir(sys_folder)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(count))
        sys.argv = ["ddp.py", "2"]
        try:
            runpy.run_path("ddp.py", run_name="__main__")
        except SystemExit:
            pass

sys_folder = os.getcwd()
strategy = PlacementGroupSchedulingStrategy(group)
workers = [Worker.options(scheduling_strategy=strategy).remote() for _ in range(count)]
ray.get([worker.train.remote(rank) for rank, worker in enumerate(workers)])
"""


HEAD = "head"
SINGLE = ("--strategy", "single")


def by_hand(bench: _job.Bench, address: str, count: int) -> float:
    """Seconds to the first step of all of so many actors."""
    for path in bench.folder.glob("steps-*"):
        path.unlink()
    (bench.folder / "by_hand.py").write_text(BY_HAND)
    began = time.time()
    command = [sys.executable, "by_hand.py", address, str(_ray.free_port()), str(count)]
    subprocess.run(command, cwd=bench.folder, env=bench.environment, check=True)
    return _first(bench) - began


def headgate(bench: _job.Bench, *words: str, steps: int = 2) -> float:
    """Seconds from the command to the first step of all workers."""
    began = time.time()
    bench.starts(*words, count=steps)
    try:
        _job.until(lambda: bench.job()["state"] in ("done", "failed"), "the job ends")
    except TimeoutError as error:
        raise TimeoutError(f"{error}; {bench.job()}\n{bench.headgate('logs', 'train', '--all')}") from None
    if bench.job()["state"] != "done":
        raise RuntimeError(bench.headgate("logs", "train", "--all"))
    return _first(bench) - began


def step(bench: _job.Bench, *words: str) -> float:
    """Median seconds of a step of one task."""
    headgate(bench, *words, steps=STEPS)
    times = [each.at for each in bench.steps()][STEPS // 10 :]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def idle(bench: _job.Bench, ray: _ray.Raylets, *words: str) -> dict[str, dict[str, float]]:
    """What each of Headgate's processes, and all of Ray's, use while a task sleeps."""
    (bench.folder / "train.py").rename(bench.folder / "trains.py")
    (bench.folder / "train.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(10_000)\n")
    bench.starts(*words)
    _job.until(lambda: bench.job()["state"] == "running", "the task runs")
    processes = _job.until(lambda: _of_headgate(bench, ray), "Headgate's processes")
    of_ray = [each for each in ray.below(HEAD) if each not in processes.values() and not _is_task(each)]
    found = used({"Ray, beside that task": of_ray, **{name: [process] for name, process in processes.items()}})
    bench.stops()
    return found


def used(groups: Mapping[str, Sequence[psutil.Process]]) -> dict[str, dict[str, float]]:
    """Memory (bytes that are their own, and their part of what is shared) and cores of groups of processes, over some
    seconds."""
    before = {name: _cpu_seconds(processes) for name, processes in groups.items()}
    time.sleep(IDLE_SECONDS)
    return {
        name: {
            "bytes": float(sum(process.memory_full_info().pss for process in processes if process.is_running())),
            "cores": (_cpu_seconds(processes) - before[name]) / IDLE_SECONDS,
        }
        for name, processes in groups.items()
    }


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes if process.is_running()))


def _is_task(process: psutil.Process) -> bool:
    return "train.py" in " ".join(process.cmdline())


def _of_headgate(bench: _job.Bench, ray: _ray.Raylets) -> dict[str, psutil.Process]:
    """Agent, warden and bridge of this hub, once all are there."""
    marks = {"agent": "ray::HeadgateAgent", "warden": "engines.ray.warden", "bridge": "engines.ray.bridge"}
    found: dict[str, psutil.Process] = {}
    raylets = {str(process.pid) for process in ray.below(HEAD)}
    for process in psutil.process_iter(["cmdline", "environ"]):
        line, variables = " ".join(process.info["cmdline"] or ()), process.info["environ"] or {}
        # Ray tells its workers of their raylet; the bridge is none of them.
        ours = variables.get("RAY_RAYLET_PID") in raylets or variables.get("HEADGATE_HOME") == str(bench.home)
        found |= {name: process for name, mark in marks.items() if ours and mark in line}
    return found if len(found) == len(marks) else {}


def _first(bench: _job.Bench) -> float:
    firsts: dict[int, float] = {}
    for each in bench.steps():
        firsts.setdefault(each.pid, each.at)
    return max(firsts.values())


def main() -> None:
    arguments = _frame.parser("Time to the first step, and of a step, on Ray.", 3)
    arguments.add_argument("--tasks", default="1,2,4,8", help="numbers of tasks (default: 1,2,4,8)")
    options = arguments.parse_args()
    counts = [int(count) for count in options.tasks.split(",")]
    _frame.heading(options.repetitions, "ray", "torch")
    firsts: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    with _ray.raylets() as ray, _job.bench() as bench:
        ray.start(HEAD, CORES)
        address = ray.address
        on_ray = ("--engine", "ray", "--address", address, "--shared-files")
        time.sleep(IDLE_SECONDS)  # Ray starts workers ahead of any work
        processes = used({"Ray, nothing runs": ray.below(HEAD)})
        headgate(bench, *SINGLE)  # the hub is up from here on, and has measured the machine
        for _ in range(options.repetitions):
            for count in counts:
                plan = ("--strategy", "allreduce", "--workers", str(count)) if count > 1 else SINGLE
                firsts.setdefault(f"{count}, by hand on Ray", []).append(by_hand(bench, address, count))
                firsts.setdefault(f"{count}, headgate on Ray", []).append(headgate(bench, *plan, *on_ray))
                firsts.setdefault(f"{count}, headgate here", []).append(headgate(bench, *plan))
            steps.setdefault("on Ray", []).append(step(bench, *SINGLE, *on_ray))
            steps.setdefault("here", []).append(step(bench, *SINGLE))
        processes |= idle(bench, ray, *on_ray)
    print("seconds from the command to the first step of all workers")
    for name, found in firsts.items():
        print(f"{name:28}{_frame.spread(found)}")
    print("\nmilliseconds of a step of one task")
    for name, found in steps.items():
        print(f"{name:28}{_frame.spread([1e3 * each for each in found])}")
    ratios = [ray / here for ray, here in zip(steps["on Ray"], steps["here"], strict=True)]
    print(f"{'on Ray, over here':28}{_frame.spread(ratios)}")
    print(f"\nidle, over {IDLE_SECONDS:g} s")
    for name, each in processes.items():
        print(f"{name:28}{each['bytes'] / 1e6:.0f} MB, {each['cores']:.4f} cores")
    rows = [{"what": name, "seconds": found} for name, found in firsts.items()]
    content: dict[str, object] = {
        "cpus": os.cpu_count(),
        "first_step": rows,
        "step": steps,
        "ratios": ratios,
        "idle": processes,
    }
    _frame.write(options.json, Path(__file__).stem, content, "ray", "torch")


if __name__ == "__main__":
    main()
