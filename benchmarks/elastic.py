"""Jobs that share this machine under several policies, run for real: when each ends, against the
system's own sharing.

    python benchmarks/elastic.py [--jobs three|plain|plain:N|gpu|distributed|N] [--seeds 1]
                                 [--first-seed 0] [--policies A,B] [--isolation container]
                                 [--stretch 0.25] [--scale 1] [--no-observe]
                                 [--repetitions 1] [--json PATH]

`three` is the published experiment (FlowCon, ICPP 2019): a VAE in PyTorch, 40 s later a CNN in
PyTorch, 80 s after the first a CNN in TensorFlow; a number is that many jobs of six kinds, of
lengths from half to twice the usual, that arrive at random within 60 s. `distributed` are four jobs
on four nodes of a lab that share their cores: all-reduce, parameter servers, these without waiting,
and a single task, 40 s apart; the lab needs root. `plain` are four of the kinds that people train
everywhere, of random lengths too: a graph network, a convolutional one, a small transformer whose
lines tell no end, and a GAN, as scripts that know nothing of Headgate. `gpu` are six jobs whose
steps each keep a large GPU busy. `plain:12` are twelve of the plain ones; with `--no-observe`
Headgate sees their output alone. `--stretch` multiplies the times of arrival, for jobs that are
shorter than the published ones, and `--scale` the epochs.

A policy whose name is followed by ` known`, as `headgate known`, remembers how long such jobs took
before: they were run by the policy before it. Under all others nothing is known of a job when it
arrives.

The first policy is the control, as a rule `none`: the same boxes without limits. It is run twice,
the second time as `none again`: what lies between the two is noise. Before all, each job is run
alone once. From these times the mean is computed that a clairvoyant policy would have, which gives
all of the machine to whoever has least left, and equal sharing, both without cost. All times are
told at the machine's usual speed, which others on its host change from moment to moment: by what a
small piece of work costs meanwhile that has nothing to do with the jobs (`_machine_speed.py`).
`passed` is the mean of the seconds that passed. `of gain` is what a policy gains over the control
as a part of what the clairvoyant one would.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import _frame
import _machine_speed
from _elastic import KINDS, ON_GPU, PLAIN, Job, Ran, Run, at_random, distributed, published, stage

POLICIES = "none,equal,flowcon:faithful,flowcon,slaq,srpt,headgate,headgate known"
AGAIN = " again"
KNOWN = " known"


def shared_without_cost(
    jobs: Sequence[Job], alone: Mapping[str, float], shortest_first: bool
) -> float:
    """Mean completion (s) where the machine is one resource: equally divided, or to whoever has
    least left.
    """
    left = {job.name: alone[job.name] for job in jobs}
    arrivals = sorted(jobs, key=lambda job: job.at)
    now, present, ends = 0.0, list[Job](), dict[str, float]()
    while arrivals or present:
        if not present:
            now = max(now, arrivals[0].at)
        while arrivals and arrivals[0].at <= now:
            present.append(arrivals.pop(0))
        served = [min(present, key=lambda job: left[job.name])] if shortest_first else present
        ahead = min(left[job.name] for job in served) * len(served)
        if arrivals:
            ahead = min(ahead, arrivals[0].at - now)
        now += ahead
        for job in served:
            left[job.name] -= ahead / len(served)
        for job in [job for job in present if left[job.name] <= 1e-9]:
            present.remove(job)
            ends[job.name] = now - job.at
    return statistics.mean(ends.values())


def highest_rho(ran: Mapping[str, Ran], alone: Mapping[str, float]) -> float:
    """Largest time shared over time alone on 1/n of the machine, n the mean number of jobs
    present.
    """
    worst = 0.0
    for name, each in ran.items():
        beside = (min(each.ended, other.ended) - max(each.at, other.at) for other in ran.values())
        present = sum(max(0.0, seconds) for seconds in beside) / each.seconds
        worst = max(worst, each.seconds / (alone[name] * present))
    return worst


def compare(
    jobs: Sequence[Job],
    policies: Sequence[str],
    repetitions: int,
    isolation: str,
    measured: dict[tuple[str, int, str], float],
) -> dict[str, object]:
    """Run them under each policy in turn, and print the table.

    Args:
        measured: What jobs take alone (s), by what they do; those that are not there are measured
            first.
    """
    done: dict[str, list[Run]] = {}
    works = {job.work: job for job in jobs if job.work not in measured}
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(isolation, on_lab=any(job.plan for job in jobs)) as there,
    ):
        with _machine_speed.probing(Path(folder, "pace")):
            single = {work: there.run([job.alone()], "none") for work, job in works.items()}
            for _ in range(repetitions):
                for policy in (*policies, f"{policies[0]}{AGAIN}"):
                    name = policy.removesuffix(AGAIN).removesuffix(KNOWN)
                    done.setdefault(policy, []).append(
                        there.run(jobs, name, policy.endswith(KNOWN))
                    )
        pace = _machine_speed.read(Path(folder, "pace"))
    measured |= {work: single[work].usual(pace)[job.name].seconds for work, job in works.items()}
    alone = {job.name: measured[job.work] for job in jobs}
    runs = {policy: [run.usual(pace) for run in each] for policy, each in done.items()}
    clairvoyant, equally = (
        shared_without_cost(jobs, alone, shortest) for shortest in (True, False)
    )
    load = sum(alone.values()) / max(job.at + alone[job.name] for job in jobs)
    print(
        f"{len(jobs)} jobs, load {load:.2f}; alone: "
        + ", ".join(f"{n} {s:.0f} s" for n, s in alone.items())
    )
    print(
        f"without cost, computed: clairvoyant shortest first {clairvoyant:.1f} s, equal "
        f"sharing {equally:.1f} s\n"
    )
    heads = ["mean", f"over {policies[0]}", "of gain", "p95", "best job", "worst job"]
    heads += ["makespan", "learnt", "max rho", "passed"]
    print(" " * 20 + "".join(f"{head:>11}" for head in heads))
    rows: list[dict[str, Any]] = []
    for policy, found in runs.items():
        seconds = {
            job.name: statistics.median(ran[job.name].seconds for ran in found) for job in jobs
        }
        control = {
            job.name: statistics.median(ran[job.name].seconds for ran in runs[policies[0]])
            for job in jobs
        }
        ratios = {name: seconds[name] / control[name] for name in seconds}
        makespan, least = (
            statistics.median(max(each.ended for each in ran.values()) for ran in repeated)
            for repeated in (found, runs[policies[0]])
        )
        mean, uncontrolled = statistics.mean(seconds.values()), statistics.mean(control.values())
        row: dict[str, Any] = {
            "policy": policy,
            "seconds": seconds,
            "mean": mean,
            "mean_over_control": mean / uncontrolled,
            "of_gain": (uncontrolled - mean) / (uncontrolled - clairvoyant),
            "p95": statistics.quantiles(seconds.values(), n=20, method="inclusive")[-1],
            "best": min(ratios.values()),
            "worst": max(ratios.values()),
            "makespan_over_control": makespan / least,
            "learnt": statistics.mean(
                statistics.median(ran[job.name].learnt for ran in found) for job in jobs
            ),
            "max_rho": statistics.median(highest_rho(ran, alone) for ran in found),
            "passed": {
                job.name: [run.ran[job.name].seconds for run in done[policy]] for job in jobs
            },
        }
        rows.append(row)
        cells = [
            f"{row['mean']:.1f} s",
            f"{row['mean_over_control']:.3f}",
            f"{row['of_gain']:.3f}",
            f"{row['p95']:.1f} s",
            f"{row['best']:.3f}",
            f"{row['worst']:.3f}",
            f"{row['makespan_over_control']:.3f}",
            f"{row['learnt']:.1f} s",
            f"{row['max_rho']:.2f}",
            f"{statistics.mean(statistics.median(each) for each in row['passed'].values()):.1f} s",
        ]
        print(f"{policy:20}" + "".join(f"{cell:>11}" for cell in cells))
    print("\nseconds of each job" + "".join(f"{job.name:>16}" for job in jobs))
    for row in rows:
        print(f"{row['policy']:19}" + "".join(f"{row['seconds'][job.name]:>16.1f}" for job in jobs))
    print(flush=True)
    computed = {"clairvoyant": clairvoyant, "equally": equally}
    return {
        "jobs": [vars(job) for job in jobs],
        "load": load,
        "alone": alone,
        **computed,
        "rows": rows,
    }


def main() -> None:
    made = _frame.parser("Jobs that share this machine under several policies.", 1)
    made.add_argument(
        "--jobs",
        default="three",
        help=(
            "`three`, `plain`, `plain:N`, `gpu`, `distributed`, or a number of random ones "
            "(default: three)"
        ),
    )
    made.add_argument("--seeds", type=int, default=1, help="draws of random jobs (default: 1)")
    made.add_argument("--first-seed", type=int, default=0, help="of these draws (default: 0)")
    made.add_argument(
        "--policies", default=POLICIES, help=f"the first is the control (default: {POLICIES})"
    )
    made.add_argument("--isolation", default="process", choices=("process", "container"))
    made.add_argument(
        "--stretch", type=float, default=0.25, help="of the times of arrival (default: 0.25)"
    )
    made.add_argument("--scale", type=float, default=1.0, help="of the epochs (default: 1)")
    made.add_argument(
        "--no-observe", action="store_true", help="plain scripts are seen through their output"
    )
    options = made.parse_args()
    _frame.heading(options.repetitions, "torch", "tensorflow-cpu", "jax")
    policies = list(dict.fromkeys(options.policies.split(",")))
    if options.jobs == "three":
        draws = [published(options.stretch, options.scale)]
    elif options.jobs == "distributed":
        draws = [distributed(options.stretch, options.scale)]
    else:
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        form, _, number = options.jobs.partition(":")
        count, kinds = {"plain": (len(PLAIN), PLAIN), "gpu": (2 * len(ON_GPU), ON_GPU)}.get(
            form, (int(form) if form.isdecimal() else 0, KINDS)
        )
        count = int(number) if number.isdecimal() else count
        if not count:
            made.error(f"there is no `--jobs {options.jobs}`; `--help` names the forms")
        draws = [at_random(count, seed, options.stretch, options.scale, kinds) for seed in seeds]
    if options.no_observe:
        draws = [[replace(job, observe=False) for job in jobs] for jobs in draws]
    found = []
    measured: dict[tuple[str, int, str], float] = {}
    for jobs in draws:
        found.append(compare(jobs, policies, options.repetitions, options.isolation, measured))
        content = {"stretch": options.stretch, "scale": options.scale, "draws": found}
        _frame.write(options.json, "elastic", content, "torch", "tensorflow-cpu", "jax")


if __name__ == "__main__":
    main()
