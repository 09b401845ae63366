"""Proof by pause: how often it errs, the smallest effect that it sees in a minute, and what it
costs the job held.

    python benchmarks/pauses.py [--only errors] [--trials 100] [--effects 0.05 0.1 0.2 0.4]
                                [--part 0.25] [--seconds 60] [--json PATH]

**Errors**: 21 jobs that sleep most of each step, for longer or shorter, and do not touch each
other. One after the other is held while the steps of the other twenty are looked at, so each proof
is twenty trials. An effect that is seen is an error. A hundred trials take about three minutes.
**Effects**: a job that computes on one core, beside one that uses a part of each 20 ms of that
core. The smallest part counts that is seen within `--seconds`. **Cost**: steps a second of a job
that computes alone on a core, while it is held for a part of its time against before. Needs two
cores that do nothing else; all of it takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _frame

from headgate.hub.connection import HubConnection, connect
from headgate.recorded.reader import RunReader
from headgate.testing import wait

TASK = """
import os, random, sys, time

core, part, stay = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})
step = 0
while os.path.exists(stay):
    begin, used = time.monotonic(), time.thread_time()
    while time.thread_time() - used < (0.005 if part >= 1 else 0.02 * part):
        pass
    if part < 1:
        lasts = 0.02 if part else 0.03 * random.uniform(0.9, 1.1)
        time.sleep(max(begin + lasts - time.monotonic(), 0.0))
    step += 1
    print(f"step {step} loss {1 / step:.6f}", flush=True)
"""
"""A job on a core. It computes for a part of each 20 ms; with 1 always, with 0 it sleeps for about
30 ms.
"""
UNTOUCHED = 21
"""Jobs that do not touch each other. Their steps vary, each by itself, so their trials hardly
depend on one another.
"""
SETTLE_SECONDS = 15.0
PROOF_SECONDS = 120.0
"""A proof that takes longer, since the machine is too noisy, is no trial."""
MOST_SECONDS = 480.0
"""After so long no more trials begin."""


@contextmanager
def running(jobs: dict[str, tuple[int, float]]) -> Iterator[str]:
    """The id of a run of these jobs, by name: their core and the part of it that they use."""
    folder = Path(tempfile.mkdtemp())
    stay, script, file = folder / "stay", folder / "task.py", folder / "jobs.yaml"
    stay.touch()
    script.write_text(TASK)
    entries = [
        {"name": name, "run": [sys.executable, str(script), str(core), str(part), str(stay)]}
        for name, (core, part) in jobs.items()
    ]
    file.write_text(json.dumps({"jobs": entries}))
    command = [
        sys.executable,
        "-m",
        "headgate",
        "run",
        "--detach",
        "--json",
        "--policy",
        "none",
        str(file),
    ]
    try:
        answer = subprocess.run(
            command, env=_frame.environment(), check=True, capture_output=True, text=True
        )
        run = str(json.loads(answer.stdout)["run"])
        time.sleep(SETTLE_SECONDS)
        yield run
    finally:
        stay.unlink()
        with hub() as connection:
            wait.until(lambda: not connection.ask("runs")["runs"], 60.0, "the jobs end")
        shutil.rmtree(folder)


@contextmanager
def hub() -> Iterator[HubConnection]:
    connection = connect()
    if connection is None:
        raise SystemExit("the hub is gone")
    with connection:
        yield connection


def prove(
    run: str, culprit: str, victims: Sequence[str], part: float, seconds: float
) -> tuple[dict[str, str], float]:
    """What a proof of at most so many seconds says of each victim, and how long it took."""
    began = time.monotonic()
    with hub() as connection:
        connection.ask("prove", run=run, jobs=list(victims), neighbours=[culprit], most=part)
        while (left := began + seconds - time.monotonic()) > 0:
            message = connection.receive(left)
            if message is not None and message.get("type") == "proved":
                return {
                    proof["victim"]: proof["outcome"] for proof in message["proofs"]
                }, time.monotonic() - began
    return {}, seconds


def errors(trials: int, part: float) -> dict[str, Any]:
    """How often an effect is seen between jobs that do not touch each other."""
    names = [f"job-{index}" for index in range(UNTOUCHED)]
    counts = {"seen": 0, "none": 0, "open": 0}
    began = time.monotonic()
    with running({name: (index % 2, 0.0) for index, name in enumerate(names)}) as run:
        for culprit in itertools.cycle(names):
            if sum(counts.values()) >= trials or time.monotonic() > began + MOST_SECONDS:
                break
            found, _ = prove(
                run, culprit, [name for name in names if name != culprit], part, PROOF_SECONDS
            )
            for outcome in found.values():
                counts[outcome] += 1
            print(f"  {sum(counts.values())} trials: {counts}", flush=True)
    return {"trials": sum(counts.values()), **counts, "seconds": time.monotonic() - began}


def effect(planted: float, part: float, seconds: float) -> dict[str, Any]:
    """Whether a neighbour that uses a part of the victim's core is seen to slow it."""
    with running({"victim": (0, 1.0), "culprit": (0, planted)}) as run:
        found, took = prove(run, "culprit", ["victim"], part, seconds)
    return {"planted": planted, "outcome": found.get("victim", "not told in time"), "seconds": took}


def cost(part: float, seconds: float) -> dict[str, Any]:
    """What a job loses of its steps while it is held for a part of its time."""
    with running({"held": (0, 1.0), "other": (1, 0.0)}) as run:
        folder = Path(_home()) / "runs" / run
        free = _rate(folder, seconds)
        with hub() as connection:
            connection.ask("prove", run=run, jobs=["other"], neighbours=["held"], most=part)
            connection.receive(60.0)  # its plan: from here on it holds
            while_held = _rate(folder, seconds)
    return {"part": part, "free": free, "held": while_held, "lost": 1.0 - while_held / free}


def _home() -> str:
    return _frame.environment()["HEADGATE_HOME"]


def _rate(folder: Path, seconds: float) -> float:
    """Steps a second of the job `held` from now on."""
    begin, first = _stands(folder)
    time.sleep(seconds)
    end, last = _stands(folder)
    return (last - first) / (end - begin)


def _stands(folder: Path) -> tuple[float, int]:
    with RunReader(folder / "run.sqlite") as reader:
        row = reader.query(
            "SELECT t, step FROM progress WHERE task = 'held/worker-0' ORDER BY t DESC LIMIT 1"
        )[0]
    return row["t"], row["step"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["errors", "effects", "cost"], help="this part alone")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--effects", type=float, nargs="*", default=[0.05, 0.1, 0.2, 0.4])
    parser.add_argument(
        "--part", type=float, default=0.25, help="of its time that a job is held (default: 0.25)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of a proof (default: 60)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    def wanted(part: str) -> bool:
        return options.only in (None, part)

    result: dict[str, Any] = {"machine": _frame.machine()}
    home = tempfile.mkdtemp()
    os.environ["HEADGATE_HOME"] = home
    try:
        result["errors"] = errors(options.trials, options.part) if wanted("errors") else None
        result["effects"] = []
        for planted in options.effects if wanted("effects") else ():
            result["effects"].append(effect(planted, options.part, options.seconds))
            print(f"  {result['effects'][-1]}", flush=True)
        result["costs"] = [
            cost(part, options.seconds) for part in (0.02, options.part) if wanted("cost")
        ]
    finally:
        connection = connect()
        if connection is not None:
            with connection:
                pid = int(connection.ask("hello")["pid"])
            os.kill(pid, signal.SIGTERM)
            wait.until(lambda: connect() is None, 60.0, "the hub ends")
        shutil.rmtree(home, ignore_errors=True)
    tell(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def tell(result: dict[str, Any]) -> None:
    print(result["machine"])
    if (found := result["errors"]) is not None:
        print(
            f"effects seen where there is none: {found['seen']} of {found['trials']} "
            f"({found['seconds']:.0f} s)"
        )
    for each in result["effects"]:
        print(
            f"a neighbour on {each['planted']:.0%} of its core: {each['outcome']} after "
            f"{each['seconds']:.0f} s"
        )
    if result["effects"]:
        seen = [each["planted"] for each in result["effects"] if each["outcome"] == "seen"]
        print(f"the smallest that was seen: {min(seen):.0%}" if seen else "none of them was seen")
    for each in result["costs"]:
        print(
            f"held for {each['part']:.0%} of its time at most, a job made {each['lost']:.1%} "
            "fewer steps"
        )


if __name__ == "__main__":
    main()
