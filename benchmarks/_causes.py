"""Causes to inject, and the verdicts that are right: jobs, the programs beside them, and nodes of a
lab.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

PLAIN = Path(__file__).parent / "plain"
UNAWARE, AWARE = PLAIN / "caused.py", PLAIN / "caused_aware.py"
"""The same trainings, as plain scripts and with Headgate's calls."""
PLAIN_FORM = "--plain"
SECONDS = 7.0
ALONE_SECONDS, BESIDE_SECONDS = 6.5, 5.0
"""Of a job that a program comes beside later on."""
BURSTS = ("--on", "3", "--off", "2.5")
LAB, NODES = "causes", {"a": "10.93.0.1", "b": "10.93.0.2", "c": "10.93.0.3"}
NODE_CORES = 0.5
MEMORY = "2GiB"
"""Stated for jobs that run side by side, so that none waits until another's use is known."""


class Hog(NamedTuple):
    """A program outside Headgate; on a node of the lab where one is named."""

    words: Sequence[str]
    node: str = ""


@dataclass(frozen=True)
class Trial:
    """One draw of a cause.

    Args:
        jobs: As in a job file. The first is the one whose verdict counts; of a control all count.
        to: Whom a neighbour's verdict has to name; empty: not looked at.
        flags: Of `headgate run`.
        hogs: That run beside the jobs. Where the first comes later on, its effect is measured.
        changed: Settings of a node of the lab that change once the job has started, with the node
            before them.
    """

    jobs: Sequence[dict[str, Any]]
    to: str = ""
    flags: Sequence[str] = ()
    hogs: Sequence[Hog] = ()
    changed: Sequence[str] = ()


@dataclass(frozen=True)
class Cause:
    """A cause, and the verdicts that are right.

    Args:
        why: Why there is more than one.
        rate: Of the NICs of the lab that it needs; empty: it needs none.
        control: Whether nothing holds its jobs back.
        of: The cause whose draws it shares; empty: it has its own.
    """

    name: str
    right: Sequence[str]
    drawn: Callable[[random.Random], Trial]
    why: str = ""
    rate: str = ""
    control: bool = False
    of: str = ""


# --- jobs and programs ----------------------------------------------------------------------------


def job(
    kind: str, draw: random.Random, *more: str, name: str = "job", **spec: Any
) -> dict[str, Any]:
    """A job of `plain/caused_aware.py`, or with `PLAIN_FORM` of `plain/caused.py`, of a size and
    seed of this draw; its plan stays as it is.
    """
    size = spec.pop("size", draw.uniform(0.8, 1.25))
    seconds = spec.pop("seconds", SECONDS)
    words = [
        kind,
        "--size",
        f"{size:.2f}",
        "--seed",
        str(draw.randrange(1000)),
        "--seconds",
        f"{seconds:g}",
        *(word for word in more if word != PLAIN_FORM),
    ]
    script = UNAWARE if PLAIN_FORM in more else AWARE
    return {
        "name": name,
        "script": str(script),
        "python": sys.executable,
        "args": words,
        "moves": 0,
        **spec,
    }


def unlike(kind: str, seconds: float = SECONDS, name: str = "job", **spec: Any) -> dict[str, Any]:
    """A job of `plain/unlike.py`."""
    words = [kind, "--seconds", f"{seconds:g}"]
    return {
        "name": name,
        "script": str(PLAIN / "unlike.py"),
        "python": sys.executable,
        "args": words,
        **spec,
    }


def hog(kind: str, *more: str, node: str = "") -> Hog:
    return Hog((sys.executable, str(PLAIN / "hog.py"), kind, *more), node)


def either(draw: random.Random) -> tuple[str, ...]:
    """A plain script, or one that uses headgate.torch."""
    return (PLAIN_FORM,) if draw.random() < 0.5 else ()


def alone(kind: str, **spec: Any) -> Callable[[random.Random], Trial]:
    """One job of that kind, in a plain script or not."""
    return lambda draw: Trial([job(kind, draw, *either(draw), **spec)])


def aware(kind: str, **spec: Any) -> Callable[[random.Random], Trial]:
    """One job of that kind that uses headgate.torch: nothing tells this cause in a plain script."""
    return lambda draw: Trial([job(kind, draw, **spec)])


def cores_beside(draw: random.Random) -> Trial:
    if draw.random() < 0.5:
        return Trial(
            [job("steady", draw, *either(draw))], "others", hogs=[hog("cores", "--count", "2")]
        )
    memory = {"memory": MEMORY}
    beside = unlike("objects", SECONDS + 1, "beside", limits=memory)
    steady = job("steady", draw, *either(draw), limits=memory)
    return Trial([steady, beside], "beside", ("--policy", "none"))


def memory_beside(draw: random.Random) -> Trial:
    """One thread, so that the hog has a core for itself. It comes and goes: one that comes once may
    come just as the job changes by itself.
    """
    seconds = ALONE_SECONDS + 3 * BESIDE_SECONDS
    victim = unlike(draw.choice(["stream", "embedding"]), seconds, env={"OMP_NUM_THREADS": "1"})
    return Trial([victim], "others", hogs=[hog("memory", "--after", f"{ALONE_SECONDS}", *BURSTS)])


def disk_beside(draw: random.Random) -> Trial:
    """It reads alone first: nothing else tells what the disk does without the hog. It reads little,
    so that the hog and not its own reading costs it most.
    """
    made = job("reading_little", draw, *either(draw), seconds=ALONE_SECONDS + BESIDE_SECONDS)
    count = str(draw.choice([1, 2]))
    return Trial(
        [made], "others", hogs=[hog("disk", "--count", count, "--after", f"{ALONE_SECONDS}")]
    )


def disk_beside_compute(draw: random.Random) -> Trial:
    made = unlike("matmul", ALONE_SECONDS + BESIDE_SECONDS)
    count = str(draw.choice([1, 2]))
    return Trial(
        [made], "others", hogs=[hog("disk", "--count", count, "--after", f"{ALONE_SECONDS}")]
    )


SERVED = {"strategy": "ps", "workers": 2, "servers": 1}
REDUCED = {"strategy": "allreduce", "workers": 3}


def on_lab(kind: str, draw: random.Random, plan: Mapping[str, Any], **given: Any) -> Trial:
    """A job of several tasks on the lab."""
    return Trial(
        [job(kind, draw, "--together", plan=plan, encrypt=False)], flags=("--cluster", LAB), **given
    )


def network_beside(draw: random.Random) -> Trial:
    """The hog's other end is on the node of the server: its NIC is full as well."""
    ends = [hog("sink", "--to", NODES["c"], node="c"), hog("network", "--to", NODES["c"], node="a")]
    return on_lab("steady", draw, SERVED, to="others", hogs=ends)


def slowed_node(draw: random.Random) -> Trial:
    return on_lab(
        "small_network", draw, REDUCED, changed=("b", f"cores={draw.uniform(0.15, 0.2):.2f}")
    )


def own_cap(draw: random.Random) -> Trial:
    """At 0.9 cores it costs less than the second that a verdict asks for."""
    return Trial(
        [job("steady", draw, *either(draw), limits={"cores": round(draw.uniform(0.4, 0.8), 1)})]
    )


def spinning(draw: random.Random) -> Trial:
    made = job("small", draw, env={"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "2"})
    return Trial([made])


def thrashing(draw: random.Random) -> Trial:
    return Trial([job("rereading", draw, *either(draw), limits={"memory": "320MiB"})])


def side_by_side(draw: random.Random) -> Trial:
    """Two jobs of one thread each, with a core for each."""
    kinds = draw.sample(["objects", "stream"], 2)
    spec: dict[str, Any] = {"env": {"OMP_NUM_THREADS": "1"}, "limits": {"memory": MEMORY}}
    return Trial([unlike(kind, name=f"{kind}-{index}", **spec) for index, kind in enumerate(kinds)])


def in_both_forms(cause: Cause) -> tuple[Cause, Cause]:
    """A cause with Headgate's calls, and the same draws as plain scripts."""

    def formed(draw: random.Random, script: Path) -> Trial:
        trial = cause.drawn(draw)
        # headgate.torch sets back the threads that a script asks for
        jobs = [
            {**made, "script": str(script)}
            if made["script"] in (str(UNAWARE), str(AWARE)) and made["args"][0] != "threads"
            else made
            for made in trial.jobs
        ]
        return replace(trial, jobs=jobs)

    return (
        replace(cause, drawn=lambda draw: formed(draw, AWARE), of=cause.name),
        replace(
            cause,
            name=f"{cause.name} (plain)",
            drawn=lambda draw: formed(draw, UNAWARE),
            of=cause.name,
        ),
    )


SOUND = ("healthy", "starting")
SHORT = "a fifth of so short a run may go by before its first step"
CAUSES = (
    Cause("cpu hog", ("neighbour-cores",), cores_beside),
    Cause("memory hog", ("neighbour-memory",), memory_beside),
    Cause("disk hog", ("neighbour-disk",), disk_beside),
    Cause(
        *("disk hog beside compute", ("neighbour-cores",), disk_beside_compute),
        why=(
            "a hog's reads take CPU time too: where that slows the steps it has to be blamed, "
            "and where not, nobody"
        ),
    ),
    Cause(
        *("nic hog", ("neighbour-network", "network"), network_beside),
        why=(
            "the job's own traffic fills what the hog leaves of the NIC; the hog has to be "
            "blamed all the same"
        ),
        rate="200Mbit",
    ),
    Cause(
        *("nic limited", ("network", "servers"), lambda draw: on_lab("steady", draw, SERVED)),
        why="the NIC that is full is the one server's",
        rate="60Mbit",
    ),
    Cause(
        *(
            "one server too few",
            ("servers", "network"),
            lambda draw: on_lab("steady", draw, SERVED),
        ),
        why="a second server is a second NIC",
        rate="100Mbit",
    ),
    Cause("slow node", ("slow-node",), slowed_node, rate="1Gbit"),
    Cause(
        "straggler", ("straggler",), lambda draw: on_lab("straggling", draw, REDUCED), rate="1Gbit"
    ),
    Cause("too few loaders", ("loader",), alone("loader")),
    Cause("decoding", ("decoding",), alone("decoding")),
    Cause(
        *("cold cache", ("disk", "loader"), alone("reading")),
        why=(
            "it reads in its training process: a loader worker hides that, whether the disk or "
            "the copying takes long"
        ),
    ),
    Cause("own cap", ("own-cap",), own_cap),
    Cause(
        "threads over cores",
        ("own-threads",),
        lambda draw: Trial([job("threads", draw, PLAIN_FORM)]),
    ),
    Cause(
        *("spinning threads", ("own-threads", "small-steps"), spinning),
        why="threads spin because steps are too small for them",
    ),
    Cause(
        "dense pulls", ("dense-pulls",), lambda draw: on_lab("table", draw, SERVED), rate="200Mbit"
    ),
    Cause(
        *("small steps", ("small-steps", "own-threads"), aware("small")),
        why="threads spin between steps that are too small for them",
    ),
    Cause("saves too often", ("checkpoints",), aware("saving")),
    Cause("evaluation counted", ("evaluation",), alone("evaluating")),
    Cause("waits to validate", ("evaluation",), alone("validating")),
    Cause(
        "memory limit",
        ("own-memory", "disk"),
        thrashing,
        why="the limit is why it reads the disk again",
    ),
    Cause("garbage collection", ("garbage-collection",), aware("collecting")),
    Cause("loss at its floor", ("learned",), alone("floor", seconds=9.0)),
    Cause("two healthy", SOUND, side_by_side, SHORT, control=True),
    Cause("one alone", SOUND, alone("steady"), SHORT, control=True),
)
