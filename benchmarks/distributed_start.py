"""How long a job of several tasks takes from the command to the first step of all its workers.

    python benchmarks/distributed_start.py [--engine ray] [--tasks 2,4,8] [--repetitions 3] [--json
    PATH]

Beside it as many processes of PyTorch's own DistributedDataParallel, started as torchrun starts
them, and a plain `python`. All of them on this machine, whose cores they share: most of the time is
the import of PyTorch in each.

With `--engine ray` it is what running under Ray costs. A Ray is started on this machine. From the
command to the first step: a job under Headgate on that Ray; the same under Headgate on this
machine; and by hand with
    Ray's own API, a
placement group and an actor for each process of DistributedDataParallel. Then the steps of one task
on Ray and on this machine, in turn. Last, memory and CPU of a node of Ray where nothing runs, here
the head's; of the same while a task of Headgate's sleeps there; and of what Headgate has beside it:
its agent and its warden on the node, its bridge to Ray beside the hub.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import _frame
import psutil

STEPS = 1500
"""Steps whose median is taken; the first tenth is left out."""
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
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(count))
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


def plain(bench: _frame.Bench) -> float:
    """Seconds to the first step of the script under plain Python."""
    return _processes(bench, "plain.py", [{}])


def ddp(bench: _frame.Bench, processes: int) -> float:
    """Seconds to the first step of all of so many processes of PyTorch's own."""
    port = _frame.free_port()
    ranks = [
        {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(processes),
        }
        for rank in range(processes)
    ]
    return _processes(bench, "ddp.py", ranks)


def _processes(bench: _frame.Bench, script: str, variables: list[dict[str, str]]) -> float:
    for path in bench.folder.glob("steps-*"):
        path.unlink()
    began = time.time()
    processes = [
        subprocess.Popen(
            [sys.executable, script, "2"], cwd=bench.folder, env={**bench.environment, **each}
        )
        for each in variables
    ]
    codes = [process.wait(_frame.SECONDS) for process in processes]
    if any(codes):
        raise RuntimeError(f"{script} gave {codes}")
    return _first(bench) - began


def on_ray_by_hand(bench: _frame.Bench, address: str, count: int) -> float:
    """Seconds to the first step of all of so many actors."""
    for path in bench.folder.glob("steps-*"):
        path.unlink()
    (bench.folder / "by_hand.py").write_text(BY_HAND)
    began = time.time()
    command = [sys.executable, "by_hand.py", address, str(_frame.free_port()), str(count)]
    subprocess.run(command, cwd=bench.folder, env=bench.environment, check=True)
    return _first(bench) - began


def headgate(bench: _frame.Bench, *words: str, steps: int = 2) -> float:
    """Seconds from the command to the first step of all workers."""
    began = time.time()
    bench.starts(*words, count=steps)
    try:
        _frame.until(lambda: bench.job()["state"] in ("done", "failed"), "the job ends")
    except TimeoutError as error:
        raise TimeoutError(
            f"{error}; {bench.job()}\n{bench.headgate('logs', 'train', '--all')}"
        ) from None
    if bench.job()["state"] != "done":
        raise RuntimeError(bench.headgate("logs", "train", "--all"))
    return _first(bench) - began


def step(bench: _frame.Bench, *words: str) -> float:
    """Median seconds of a step of one task."""
    headgate(bench, *words, steps=STEPS)
    times = [each.at for each in bench.steps()][STEPS // 10 :]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(times))


def idle(bench: _frame.Bench, ray: _frame.Raylets, *words: str) -> dict[str, dict[str, float]]:
    """What each of Headgate's processes, and all of Ray's, use while a task sleeps."""
    (bench.folder / "train.py").rename(bench.folder / "trains.py")
    (bench.folder / "train.py").write_text(
        "import time\nprint('here', flush=True)\ntime.sleep(10_000)\n"
    )
    bench.starts(*words)
    _frame.until(lambda: bench.job()["state"] == "running", "the task runs")
    processes = _frame.until(lambda: _of_headgate(bench, ray), "Headgate's processes")
    of_ray = [
        each for each in ray.below(HEAD) if each not in processes.values() and not _is_task(each)
    ]
    found = used(
        {
            "Ray, beside that task": of_ray,
            **{name: [process] for name, process in processes.items()},
        }
    )
    bench.stops()
    return found


def used(groups: Mapping[str, Sequence[psutil.Process]]) -> dict[str, dict[str, float]]:
    """Memory (bytes that are their own, and their part of what is shared) and cores of groups of
    processes, over some seconds.
    """
    before = {name: _cpu_seconds(processes) for name, processes in groups.items()}
    time.sleep(IDLE_SECONDS)
    return {
        name: {
            "bytes": float(
                sum(process.memory_full_info().pss for process in processes if process.is_running())
            ),
            "cores": (_cpu_seconds(processes) - before[name]) / IDLE_SECONDS,
        }
        for name, processes in groups.items()
    }


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes if process.is_running()))


def _is_task(process: psutil.Process) -> bool:
    return "train.py" in " ".join(process.cmdline())


def _of_headgate(bench: _frame.Bench, ray: _frame.Raylets) -> dict[str, psutil.Process]:
    """Agent, warden and bridge of this hub, once all are there."""
    marks = {
        "agent": "ray::HeadgateAgent",
        "warden": "engines.remote.warden",
        "bridge": "engines.ray.bridge",
    }
    found: dict[str, psutil.Process] = {}
    raylets = {str(process.pid) for process in ray.below(HEAD)}
    for process in psutil.process_iter(["cmdline", "environ"]):
        line, variables = " ".join(process.info["cmdline"] or ()), process.info["environ"] or {}
        # Ray tells its workers of their raylet; the bridge is none of them.
        ours = variables.get("RAY_RAYLET_PID") in raylets or variables.get("HEADGATE_HOME") == str(
            bench.home
        )
        found |= {name: process for name, mark in marks.items() if ours and mark in line}
    return found if len(found) == len(marks) else {}


def _first(bench: _frame.Bench) -> float:
    firsts: dict[int, float] = {}
    for each in bench.steps():
        firsts.setdefault(each.pid, each.at)
    return max(firsts.values())


def here(
    bench: _frame.Bench, counts: Sequence[int], options: argparse.Namespace
) -> dict[str, object]:
    """Jobs on this machine."""
    times: dict[str, list[float]] = {}
    headgate(bench)  # the hub is up from here on, and has measured the machine
    for _ in range(options.repetitions):
        times.setdefault("1 process, plain python", []).append(plain(bench))
        times.setdefault("1 task, headgate", []).append(headgate(bench))
        for count in counts:
            times.setdefault(f"{count} processes, torch DDP by hand", []).append(ddp(bench, count))
            plans = {
                "all-reduce": ("--strategy", "allreduce", "--workers", str(count)),
                "1 of them a server": (
                    "--strategy",
                    "ps",
                    "--workers",
                    str(count - 1),
                    "--servers",
                    "1",
                ),
            }
            for name, plan in plans.items():
                times.setdefault(f"{count} tasks, headgate, {name}", []).append(
                    headgate(bench, *plan)
                )
    return {"first_step": shown(times)}


def on_ray(
    bench: _frame.Bench, counts: Sequence[int], options: argparse.Namespace
) -> dict[str, object]:
    """Jobs on a Ray of this machine."""
    firsts: dict[str, list[float]] = {}
    steps: dict[str, list[float]] = {}
    with _frame.raylets() as ray:
        ray.start(HEAD, CORES)
        there = ("--engine", "ray", "--address", ray.address, "--shared-files")
        time.sleep(IDLE_SECONDS)  # Ray starts workers ahead of any work
        processes = used({"Ray, nothing runs": ray.below(HEAD)})
        headgate(bench, *SINGLE)
        for _ in range(options.repetitions):
            for count in counts:
                plan = ("--strategy", "allreduce", "--workers", str(count)) if count > 1 else SINGLE
                firsts.setdefault(f"{count}, by hand on Ray", []).append(
                    on_ray_by_hand(bench, ray.address, count)
                )
                firsts.setdefault(f"{count}, headgate on Ray", []).append(
                    headgate(bench, *plan, *there)
                )
                firsts.setdefault(f"{count}, headgate here", []).append(headgate(bench, *plan))
            steps.setdefault("on Ray", []).append(step(bench, *SINGLE, *there))
            steps.setdefault("here", []).append(step(bench, *SINGLE))
        processes |= idle(bench, ray, *there)
    rows = shown(firsts)
    print("\nmilliseconds of a step of one task")
    for name, found in steps.items():
        print(f"{name:44}{_frame.spread([1e3 * each for each in found])}")
    ratios = [ray / here for ray, here in zip(steps["on Ray"], steps["here"], strict=True)]
    print(f"{'on Ray, over here':44}{_frame.spread(ratios)}")
    print(f"\nidle, over {IDLE_SECONDS:g} s")
    for name, each in processes.items():
        print(f"{name:44}{each['bytes'] / 1e6:.0f} MB, {each['cores']:.4f} cores")
    return {"first_step": rows, "step": steps, "ratios": ratios, "idle": processes}


def shown(times: Mapping[str, list[float]]) -> list[dict[str, object]]:
    """Print, and give, the seconds to the first step."""
    print("seconds from the command to the first step of all workers")
    for name, found in times.items():
        print(f"{name:44}{_frame.spread(found)}")
    return [{"what": name, "seconds": found} for name, found in times.items()]


ENGINES = {
    "local": (here, "2,4,8", ("torch", "pyzmq")),
    "ray": (on_ray, "1,2,4,8", ("ray", "torch")),
}


def main() -> None:
    arguments = _frame.parser("Time from the command to the first step.", 3)
    arguments.add_argument(
        "--engine", choices=ENGINES, default="local", help="ray: on a Ray of this machine"
    )
    arguments.add_argument(
        "--tasks", help="numbers of tasks, by comma (default: 2,4,8; on Ray also 1)"
    )
    options = arguments.parse_args()
    measure, usual, packages = ENGINES[options.engine]
    counts = [int(count) for count in (options.tasks or usual).split(",")]
    _frame.heading(options.repetitions, *packages)
    with _frame.bench() as bench:
        content = measure(bench, counts, options)
    _frame.write(options.json, Path(__file__).stem, {"cpus": os.cpu_count(), **content}, *packages)


if __name__ == "__main__":
    main()
