"""Three users of this machine, each with a hub of their own: their jobs with an arbiter, without
one, and with a third of the machine each.

    sudo python benchmarks/users.py [--jobs 10] [--first-seed 7] [--stretch 0.5] [--scale 0.1]
                                    [--ways "no arbiter,arbiter,fixed thirds"]
                                    [--parts waiting,load,hogs,explain] [--repetitions 1]
                                    [--json PATH]

The users are made for it, and removed at the end. Each hands in a job file with jobs of the kinds
of `elastic.py`, of random lengths at random times; each user's are another draw. The ways are taken
in turns. «Fixed thirds» are an arbiter's rules: of the cores, by quota, and of the memory each user
has at most a third. Nothing is known of a job when it arrives.

Times are told at the machine's usual speed, as `elastic.py` has it. `worst user` is the mean of the
user whose jobs take longest against the same user's under the way it is compared with. `next start`
is what passes from the end of a job to the start of the one that starts next, of those that wait.
`CPU` is what the same jobs cost.

`waiting`: jobs that only wait, and whose memory leaves room for three at a time, show how the
starts that `headgate status --all` expects come true: at first nothing is known of their length,
the second time it is. `in order` is how many of two jobs next to each other in its order started
in that order. `hogs`: steps a second of a job with half of the cores, beside another user's job
that is usual, has 50 processes, forks without end, or takes all memory that it gets.
`explain`: what a job loses to another user's, as it says and against the same job alone.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import _frame
import _machine_speed
import psutil
from _elastic import at_random
from _users import Seen, UserRun, UsersMachine, users_machine
from _users_harm import explained, hogs

from headgate.sampling.machine import topology

USERS = 3
PARTS = ("waiting", "load", "hogs", "explain")
NO_ARBITER, ARBITER, THIRDS = "no arbiter", "arbiter", "fixed thirds"
WAITS = """
import sys, time
for epoch in range(int(sys.argv[1])):
    time.sleep(0.5)
    print(f"epoch {epoch + 1}/{sys.argv[1]} loss {1 / (epoch + 1)}", flush=True)
"""
HALVES = ((4, 12, 6, 16), (10, 4, 8, 12), (6, 8, 14, 4))
"""Half seconds of the jobs of each user that only wait."""

RULES: Mapping[str, Mapping[str, object] | None] = {
    NO_ARBITER: None,
    ARBITER: {},
    THIRDS: {
        "parts": [
            {
                "largest": {
                    "cores": topology().allowed / USERS,
                    "memory": psutil.virtual_memory().total // USERS,
                }
            }
        ]
    },
}


def entries(jobs: int, seed: int, stretch: float, scale: float) -> list[dict[str, object]]:
    """Jobs of a user, as a job file has them."""
    return [job.entry("process") for job in at_random(jobs, seed, stretch, scale)]


def next_starts(runs: Sequence[UserRun]) -> list[float]:
    """Seconds from the last end before a start to that start, of jobs that came before that end."""
    times = [times for run in runs for times in run.jobs.values()]
    found = []
    for arrival, start, _ in times:
        before = [end for _, _, end in times if arrival < end <= start]
        if before:
            found.append(start - max(before))
    return found


def waiting(machine: UsersMachine) -> dict[str, object]:
    """How expected starts come true, and how soon the next job starts; prints it."""
    memory = int(psutil.virtual_memory().total * 0.3)
    (machine.folder / "waits.py").write_text(WAITS)
    rows: dict[str, object] = {}
    print(f"{'jobs that wait for memory':28}{'next start':>12}{'start off':>12}", end="")
    print(f"{'looked before':>16}{'known':>8}{'by the latest':>16}{'in order':>10}")
    with machine.shared({}) as seen:
        for name in ("nothing known of lengths", "lengths known"):
            seen.looks.clear()
            seen.orders.clear()
            runs = machine.run(
                {
                    user: [
                        {
                            "name": f"w{i}",
                            "script": str(machine.folder / "waits.py"),
                            "args": [str(count)],
                            "limits": {"memory": memory},
                        }
                        for i, count in enumerate(counts)
                    ]
                    for user, counts in zip(machine.users, HALVES, strict=True)
                }
            )
            gaps, errors = next_starts(runs), seen.errors()
            rows[name] = {"next_starts": gaps, **errors}
            cells = [
                _seconds(statistics.median(gaps) if gaps else None),
                _seconds(errors["seconds_off"]),
                _seconds(errors["seconds_waited"]),
                f"{errors['known']}/{errors['looks']}",
                _part(errors["by_the_latest"]),
                _part(errors["in_order"]),
            ]
            print(
                f"{name:28}"
                + "".join(
                    f"{cell:>{width}}"
                    for cell, width in zip(cells, (12, 12, 16, 8, 16, 10), strict=True)
                ),
                flush=True,
            )
    return rows


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} s"


def _part(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def load(machine: UsersMachine, ways: Sequence[str], options: Any) -> dict[str, object]:
    """The same jobs under each way in turn; prints the table."""
    jobs = [
        entries(options.jobs, options.first_seed + i, options.stretch, options.scale)
        for i in range(USERS)
    ]
    done: dict[str, list[tuple[list[UserRun], Seen]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        with _machine_speed.probing(Path(folder, "pace")):
            for _ in range(options.repetitions):
                for way in ways:
                    with machine.shared(RULES[way]) as seen:
                        runs = machine.run(dict(zip(machine.users, jobs, strict=True)))
                    done[way].append((runs, seen))
        pace = _machine_speed.read(Path(folder, "pace"))
    rows = {way: _row(repeated, pace) for way, repeated in done.items()}
    heads = [
        "mean",
        "worst user",
        "makespan",
        "next start",
        "waited",
        "CPU",
        "hubs' CPU",
        "arbiter's",
    ]
    print("\n" + " " * 16 + "".join(f"{head:>12}" for head in heads))
    for way, row in rows.items():
        cells = [
            f"{row['mean']:.1f} s",
            f"{max(row['users']):.1f} s",
            f"{row['makespan']:.1f} s",
            _seconds(row["next_start"]),
            str(row["waited"]),
            f"{row['cpu_seconds']:.0f} s",
            f"{row['hubs_seconds']:.1f} s",
            f"{row['arbiter_seconds']:.2f} s",
        ]
        print(f"{way:16}" + "".join(f"{cell:>12}" for cell in cells))
    print("\nover" + " " * 28 + "".join(f"{head:>12}" for head in heads[:3]))
    compared = {}
    for way, row in rows.items():
        for other in (NO_ARBITER, THIRDS):
            if other not in rows or other == way or way == NO_ARBITER:
                continue
            worst = max(a / b for a, b in zip(row["users"], rows[other]["users"], strict=True))
            ratios = {
                "mean": row["mean"] / rows[other]["mean"],
                "worst_user": worst,
                "makespan": row["makespan"] / rows[other]["makespan"],
            }
            compared[f"{way} over {other}"] = ratios
            cells = [f"{ratio:.3f}" for ratio in ratios.values()]
            print(f"{way + ' over ' + other:32}" + "".join(f"{cell:>12}" for cell in cells))
    print(flush=True)
    return {"jobs": jobs, "rows": rows, "compared": compared}


def _row(repeated: Sequence[tuple[list[UserRun], Seen]], pace: _machine_speed.Seconds) -> Any:
    """Figures of a way: medians of its repetitions."""

    def median(values: Sequence[float]) -> float:
        return statistics.median(values)

    means = [
        [
            statistics.mean(pace(arrival, end) for arrival, _, end in run.jobs.values())
            for run in runs
        ]
        for runs, _ in repeated
    ]
    gaps = [gap for runs, _ in repeated for gap in next_starts(runs)]
    times = [[times for run in runs for times in run.jobs.values()] for runs, _ in repeated]
    return {
        "mean": median([statistics.mean(users) for users in means]),
        "users": [median(of_user) for of_user in zip(*means, strict=True)],
        "makespan": median(
            [
                pace(min(arrival for arrival, _, _ in every), max(end for _, _, end in every))
                for every in times
            ]
        ),
        "next_start": median(gaps) if gaps else None,
        "waited": len(gaps),
        "cpu_seconds": median([sum(run.cpu_seconds for run in runs) for runs, _ in repeated]),
        "hubs_seconds": median([sum(run.hub_seconds for run in runs) for runs, _ in repeated]),
        "arbiter_seconds": median([seen.cpu_seconds for _, seen in repeated]),
        "arbiter_bytes": max(seen.memory_bytes for _, seen in repeated),
        "expected": [seen.errors() for _, seen in repeated],
        "passed": [[dict(run.jobs) for run in runs] for runs, _ in repeated],
    }


def main() -> None:
    made = _frame.parser("Jobs of three users of this machine, with an arbiter and without.", 1)
    made.add_argument("--jobs", type=int, default=10, help="jobs of each user (default: 10)")
    made.add_argument("--first-seed", type=int, default=7, help="of the draws (default: 7)")
    made.add_argument(
        "--stretch", type=float, default=0.5, help="of the times of arrival (default: 0.5)"
    )
    made.add_argument("--scale", type=float, default=0.1, help="of the epochs (default: 0.1)")
    made.add_argument("--ways", default=",".join(RULES), help=f"default: {','.join(RULES)}")
    made.add_argument("--parts", default=",".join(PARTS), help=f"default: {','.join(PARTS)}")
    options = made.parse_args()
    ways, parts = options.ways.split(","), options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        made.error(f"there is no part {unknown.pop()!r}; expected some of {', '.join(PARTS)}")
    if unknown := set(ways) - RULES.keys():
        made.error(f"there is no way {unknown.pop()!r}; expected some of {', '.join(RULES)}")
    _frame.heading(options.repetitions, "torch", "tensorflow-cpu", "jax")
    content: dict[str, object] = {"stretch": options.stretch, "scale": options.scale}
    with ExitStack() as undo:
        machine = undo.enter_context(users_machine(USERS))
        if "waiting" in parts:
            content["waiting"] = waiting(machine)
        if "load" in parts:
            content["load"] = load(machine, ways, options)
        if "hogs" in parts:
            content["hogs"] = hogs(machine)
        if "explain" in parts:
            content["explain"] = explained(machine, 8 * options.scale)
    _frame.write(options.json, "users", content, "torch", "tensorflow-cpu", "jax")


if __name__ == "__main__":
    main()
