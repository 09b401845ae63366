"""What a user's job keeps beside another user's hogs, and what `headgate explain` says of them."""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import _frame
import psutil
from _elastic import Job, epochs
from _users import SECONDS, UsersMachine, cpu_seconds
from tests.arbiter.users import UnixUser

from headgate.testing.wait import until

_SETTLE_SECONDS, _WINDOW_SECONDS = 2.0, 6.0
_KINDS = ("cnn", "vae")
PROCESSES = 300
"""Most processes and threads of the user with the hogs."""
HOGS = {
    "a usual job": "while True: pass",
    "50 processes": """
import os
for _ in range(49):
    if os.fork() == 0:
        break
while True:
    pass
""",
    "fork bomb": """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
    "memory hog": """
import subprocess, sys
eats = "held = []\\nwhile True: held.append(bytearray(b'x') * (8 << 20))"
while True:
    subprocess.run([sys.executable, "-c", eats])
""",
}
RULES = {"parts": [{"largest": {"memory": "2GiB"}, "processes": PROCESSES}]}


def hogs(machine: UsersMachine) -> dict[str, Any]:
    """Steps a second of a job that has half of the cores, beside the other user's hogs and
    without; prints them.
    """
    victim, other = machine.users[:2]
    (victim.home / "train.py").write_text(_frame.HEADGATE)
    rows: dict[str, Any] = {}
    with machine.shared(RULES):
        limits = {"cores": machine.cores / 2}
        job = {"name": "train", "script": "train.py", "args": ["0"], "limits": limits}
        machine.submit(victim, job)
        until(lambda: len(_frame.steps(victim.home)) > 100, SECONDS, "the training")
        heads = ("steps alone", "beside", "kept", "of its cores", "processes")
        print(f"\n{'beside':20}" + "".join(f"{head:>14}" for head in heads))
        for name, code in HOGS.items():
            before = _rate(victim)
            (other.home / "hog.py").write_text(code)
            machine.submit(other, {"name": "hog", "script": "hog.py", "observe": False})
            (steps, cores), count = _rate(victim), len(other.pids())
            machine.stop(other)
            usual, had = map(statistics.mean, zip(before, _rate(victim), strict=True))
            rows[name] = {
                "steps_alone": usual,
                "steps": steps,
                "cores_alone": had,
                "cores": cores,
                "processes": count,
            }
            cells = f"{usual:.1f}/s", f"{steps:.1f}/s", f"{steps / usual:.3f}", f"{cores / had:.3f}"
            print(f"{name:20}" + "".join(f"{cell:>14}" for cell in (*cells, count)), flush=True)
    return rows


def explained(machine: UsersMachine, scale: float) -> dict[str, Any]:
    """What a job loses to another user's, as `explain` says and as it is against the same job
    alone; prints both.
    """
    victim, other = machine.users[:2]
    cnn, vae = (Job(kind, kind, 0.0, epochs(kind, scale)).entry("process") for kind in _KINDS)
    with machine.shared({}):
        before = _ran(machine, victim, cnn)
        machine.submit(other, {**vae, "args": ["--epochs", "1000000"]})
        time.sleep(_SETTLE_SECONDS)
        beside = _ran(machine, victim, cnn)
        [job] = json.loads(machine.prints(victim, "explain", "--json"))["jobs"]
        text = machine.prints(victim, "explain")
        machine.stop(other)
        alone = statistics.mean((before, _ran(machine, victim, cnn)))
    print(f"\ncnn alone {alone:.1f} s, beside another user's vae {beside:.1f} s; explain says:")
    print(text)
    row = {"alone": alone, "beside": beside, "lost": beside - alone, "explain": job, "text": text}
    for loss in job["explain"]["lost"]:
        is_vae = loss["to"] == f"{other.name}:vae"
        who = "to vae" if is_vae else f"to {loss['to']}"
        band = f"{loss['low']:.1f} to {loss['high']:.1f}"
        print(f"lost {who} by {loss['resource']}: {loss['seconds']:.1f} s ({band})")
        if is_vae:
            row["is_within"] = loss["low"] <= beside - alone <= loss["high"]
    print(f"lost really: {beside - alone:.1f} s", flush=True)
    return row


def _ran(machine: UsersMachine, user: UnixUser, entry: dict[str, Any]) -> float:
    """Seconds from a job's start to its end."""
    [run] = machine.run({user: [entry]})
    [(_, start, end)] = run.jobs.values()
    return end - start


def _rate(user: UnixUser) -> tuple[float, float]:
    """Steps a second of a user's job in a window, and the cores that the user's processes had, once
    what has just changed has settled.
    """
    time.sleep(_SETTLE_SECONDS)
    processes = [psutil.Process(pid) for pid in user.pids()]
    begin, before = time.time(), sum(map(cpu_seconds, processes))
    time.sleep(_WINDOW_SECONDS)
    end, after = time.time(), sum(map(cpu_seconds, processes))
    steps = sum(begin <= step.at < end for step in _frame.steps(user.home))
    return steps / (end - begin), (after - before) / (end - begin)
