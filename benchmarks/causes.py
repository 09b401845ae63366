"""What `headgate explain` says of jobs with a known cause: a matrix of causes and verdicts.

    python benchmarks/causes.py [--draws 5] [--only NAME,...] [--json PATH]

Each draw injects a cause with real jobs, real programs beside them, or nodes of a lab, of other sizes and seeds than
the draw before; runs it; and reads the verdict. Half of the draws are of plain scripts where the cause allows. Needs a
machine of two cores or more that does nothing else, and root for the lab. A draw takes about twelve seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import _frame

PLAIN = Path(__file__).parent / "plain"
SECONDS, DRAW_SECONDS = 7.0, 12.0
LAB, NODES = "causes", {"a": "10.93.0.1", "b": "10.93.0.2", "c": "10.93.0.3"}
NODE_CORES = 0.5
LAB_SECONDS = 4.0
BLAMES = "neighbour-"
UNKNOWN = "not-known"


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
        hogs: That run beside the jobs.
        changed: Settings of a node of the lab that change once the jobs run, with the node before them.
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
    """

    name: str
    right: Sequence[str]
    drawn: Callable[[random.Random], Trial]
    why: str = ""
    rate: str = ""
    control: bool = False


class Given(NamedTuple):
    """A verdict that was given."""

    cause: str
    draw: int
    job: str
    name: str
    right: bool
    blames: bool
    why: str
    told: Mapping[str, Any]


# --- jobs and programs ------------------------------------------------------------------------------------------------


def job(kind: str, draw: random.Random, *more: str, name: str = "job", **spec: Any) -> dict[str, Any]:
    """A job of `plain/caused.py`, of a size and seed of this draw; its plan stays as it is."""
    size = spec.pop("size", draw.uniform(0.8, 1.25))
    seconds = spec.pop("seconds", SECONDS)
    words = [kind, "--size", f"{size:.2f}", "--seed", str(draw.randrange(1000)), "--seconds", f"{seconds:g}", *more]
    return {
        "name": name,
        "script": str(PLAIN / "caused.py"),
        "python": sys.executable,
        "args": words,
        "moves": 0,
        **spec,
    }


def unlike(kind: str, seconds: float = SECONDS, name: str = "job", **spec: Any) -> dict[str, Any]:
    """A job of `plain/unlike.py`."""
    words = [kind, "--seconds", f"{seconds:g}"]
    return {"name": name, "script": str(PLAIN / "unlike.py"), "python": sys.executable, "args": words, **spec}


def hog(kind: str, *more: str, node: str = "") -> Hog:
    return Hog((sys.executable, str(PLAIN / "hog.py"), kind, *more), node)


def either(draw: random.Random) -> tuple[str, ...]:
    """A plain script, or one that uses headgate.torch."""
    return ("--plain",) if draw.random() < 0.5 else ()


def alone(kind: str, **spec: Any) -> Callable[[random.Random], Trial]:
    """One job of that kind, in a plain script or not."""
    return lambda draw: Trial([job(kind, draw, *either(draw), **spec)])


def aware(kind: str, **spec: Any) -> Callable[[random.Random], Trial]:
    """One job of that kind that uses headgate.torch: nothing tells this cause in a plain script."""
    return lambda draw: Trial([job(kind, draw, **spec)])


def cores_beside(draw: random.Random) -> Trial:
    if draw.random() < 0.5:
        return Trial([job("steady", draw, *either(draw))], "others", hogs=[hog("cores", "--count", "2")])
    beside = unlike("objects", SECONDS + 1, "beside")
    return Trial([job("steady", draw, *either(draw)), beside], "beside", ("--policy", "none"))


def memory_beside(draw: random.Random) -> Trial:
    victim = unlike("stream", 12.0)
    after = f"{draw.uniform(7.0, 8.0):.1f}"
    return Trial([victim], "others", hogs=[hog("memory", "--after", after, "--seconds", "5")])


def disk_beside(kind: str) -> Callable[[random.Random], Trial]:
    def drawn(draw: random.Random) -> Trial:
        count = ("--count", str(draw.choice([1, 2])))
        if kind != "reading":
            return Trial([unlike(kind)], hogs=[hog("disk", *count)])
        # It reads alone first: nothing else tells what the disk does without the hog.
        made = job(kind, draw, *either(draw), seconds=10.0)
        after = f"{draw.uniform(8.0, 9.0):.1f}"
        return Trial([made], "others", hogs=[hog("disk", *count, "--after", after)])

    return drawn


SERVED = {"strategy": "ps", "workers": 2, "servers": 1}
REDUCED = {"strategy": "allreduce", "workers": 3}


def on_lab(kind: str, draw: random.Random, plan: Mapping[str, Any], **given: Any) -> Trial:
    """A job of several tasks on the lab."""
    return Trial([job(kind, draw, plan=plan, encrypt=False)], flags=("--cluster", LAB), **given)


def network_beside(draw: random.Random) -> Trial:
    """The hog's other end is on the node of the server: its NIC is full as well."""
    ends = [hog("sink", "--to", NODES["c"], node="c"), hog("network", "--to", NODES["c"], node="a")]
    return on_lab("steady", draw, SERVED, to="others", hogs=ends)


def slowed_node(draw: random.Random) -> Trial:
    return on_lab("small_network", draw, REDUCED, changed=("b", f"cores={draw.uniform(0.15, 0.2):.2f}"))


def own_cap(draw: random.Random) -> Trial:
    return Trial([job("steady", draw, *either(draw), limits={"cores": round(draw.uniform(0.5, 0.9), 1)})])


def spinning(draw: random.Random) -> Trial:
    made = job("small", draw, env={"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "2"})
    return Trial([made])


def thrashing(draw: random.Random) -> Trial:
    return Trial([job("rereading", draw, *either(draw), limits={"memory": "320MiB"})])


def side_by_side(draw: random.Random) -> Trial:
    """Two jobs of one thread each, with a core for each."""
    kinds = draw.sample(["objects", "stream"], 2)
    one = {"OMP_NUM_THREADS": "1"}
    return Trial([unlike(kind, name=f"{kind}-{index}", env=one) for index, kind in enumerate(kinds)])


SOUND = ("healthy", "starting")
SHORT = "a fifth of so short a run may go by before its first step"
CAUSES = (
    Cause("cpu hog", ("neighbour-cores",), cores_beside),
    Cause("memory hog", ("neighbour-memory",), memory_beside),
    Cause("disk hog", ("neighbour-disk",), disk_beside("reading")),
    Cause("disk hog beside compute", SOUND, disk_beside("matmul"), SHORT, control=True),
    Cause(
        *("nic hog", ("neighbour-network", "network"), network_beside),
        why="the job's own traffic fills what the hog leaves of the NIC; the hog has to be blamed all the same",
        rate="200Mbit",
    ),
    Cause(
        *("nic limited", ("network", "servers"), lambda draw: on_lab("steady", draw, SERVED)),
        why="the NIC that is full is the one server's",
        rate="60Mbit",
    ),
    Cause(
        *("one server too few", ("servers", "network"), lambda draw: on_lab("steady", draw, SERVED)),
        why="a second server is a second NIC",
        rate="100Mbit",
    ),
    Cause("slow node", ("slow-node",), slowed_node, rate="1Gbit"),
    Cause("straggler", ("straggler",), lambda draw: on_lab("straggling", draw, REDUCED), rate="1Gbit"),
    Cause("too few loaders", ("loader",), alone("loader")),
    Cause("decoding", ("decoding",), alone("decoding")),
    Cause(
        *("cold cache", ("disk", "loader"), alone("reading")),
        why="it reads in its training process: a loader worker hides that, whether the disk or the copying takes long",
    ),
    Cause("own cap", ("own-cap",), own_cap),
    Cause("threads over cores", ("own-threads",), alone("threads")),
    Cause(
        *("spinning threads", ("own-threads", "small-steps"), spinning),
        why="threads spin because steps are too small for them",
    ),
    Cause("dense pulls", ("dense-pulls",), lambda draw: on_lab("table", draw, SERVED), rate="200Mbit"),
    Cause(
        *("small steps", ("small-steps", "own-threads"), aware("small")),
        why="threads spin between steps that are too small for them",
    ),
    Cause("saves too often", ("checkpoints",), aware("saving")),
    Cause("evaluation counted", ("evaluation",), alone("evaluating")),
    Cause("waits to validate", ("evaluation",), alone("validating")),
    Cause("memory limit", ("own-memory", "disk"), thrashing, why="the limit is why it reads the disk again"),
    Cause("garbage collection", ("garbage-collection",), aware("collecting")),
    Cause("loss at its floor", ("learned",), alone("floor", seconds=9.0)),
    Cause("two healthy", SOUND, side_by_side, SHORT, control=True),
    Cause("one alone", SOUND, alone("steady"), SHORT, control=True),
)


# --- runs -------------------------------------------------------------------------------------------------------------

HEADGATE = [sys.executable, "-m", "headgate"]


def explained(trial: Trial, folder: Path, variables: dict[str, str]) -> list[dict[str, Any]]:
    """What `headgate explain --json` says of its jobs after they ran."""
    file = folder / "jobs.yaml"
    file.write_text(json.dumps({"jobs": trial.jobs}))
    with running(trial.hogs, variables):
        asked = [*HEADGATE, "run", str(file), *trial.flags]
        with subprocess.Popen(asked, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
            if trial.changed:
                time.sleep(SECONDS / 2)  # while it trains; the moment is part of the cause
                node, *settings = trial.changed
                subprocess.run([*HEADGATE, "lab", "set", f"{LAB}/{node}", *settings], env=variables, check=True)
            said, _ = run.communicate(timeout=120)
            if trial.changed:
                back = f"cores={NODE_CORES}"
                subprocess.run([*HEADGATE, "lab", "set", f"{LAB}/{trial.changed[0]}", back], env=variables, check=True)
    if run.returncode:
        raise SystemExit(f"headgate run ended with {run.returncode}: {said}")
    told = subprocess.run([*HEADGATE, "explain", "--json"], env=variables, check=True, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(told.stdout)["jobs"]
    return found


@contextmanager
def running(hogs: Sequence[Hog], variables: dict[str, str]) -> Iterator[None]:
    """These programs run, and are gone afterwards."""
    started = []
    try:
        for each in hogs:
            within = [*HEADGATE, "lab", "exec", f"{LAB}/{each.node}", "--"] if each.node else []
            command = [*within, *each.words]
            started.append(subprocess.Popen(command, env=variables, start_new_session=True, stdout=subprocess.DEVNULL))
        yield
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def blamed(job: Mapping[str, Any]) -> str:
    """To whom it lost most, itself and its node left out; empty: to nobody."""
    others = [loss for loss in job["lost"] if loss["to"] not in ("itself", "node")]
    return str(max(others, key=lambda loss: loss["seconds"])["to"]) if others else ""


def judged(cause: Cause, draw: int, trial: Trial, jobs: Sequence[Mapping[str, Any]]) -> Iterator[Given]:
    names = [each["name"] for each in trial.jobs]
    for told in jobs:
        if cause.control or told["job"] == names[0]:
            name = told["verdict"]["name"]
            right = name in cause.right and (not trial.to or blamed(told) == trial.to)
            blames = name.startswith(BLAMES)
            yield Given(cause.name, draw, told["job"], name, right, blames, told["verdict"]["why"], told)


# --- the matrix -------------------------------------------------------------------------------------------------------


def print_matrix(causes: Sequence[Cause], given: Sequence[Given]) -> None:
    print(f"\n{'cause':20}{'right':>7}{'none':>6}{'wrong':>7}  verdicts given")
    for cause in causes:
        mine = [each for each in given if each.cause == cause.name]
        right, none = sum(each.right for each in mine), sum(each.name == UNKNOWN for each in mine)
        counts = ", ".join(f"{name} {count}" for name, count in Counter(each.name for each in mine).most_common())
        print(f"{cause.name:20}{right:>7}{none:>6}{len(mine) - right - none:>7}  {counts}")
        if cause.why:
            print(f"{'':42}right is {' or '.join(cause.right)}: {cause.why}")


def summary(causes: Sequence[Cause], given: Sequence[Given]) -> dict[str, Any]:
    controls = {cause.name for cause in causes if cause.control}
    none = [each for each in given if each.name == UNKNOWN]
    told = len(given) - len(none)
    found = {
        "verdicts": len(given),
        "right_of_given": sum(each.right for each in given) / told if told else None,
        "none_given": len(none) / len(given),
        "neighbours_blamed_in_controls": sum(each.blames for each in given if each.cause in controls),
    }
    right = f"{found['right_of_given']:.1%}" if told else "none"
    print(f"\nright of those given: {right} (aim 95 %); none given: {found['none_given']:.1%} (aim 10 % at most)")
    print(f"neighbours blamed in the controls: {found['neighbours_blamed_in_controls']} (aim 0)")
    return found


def chosen(only: str) -> list[Cause]:
    names = [name.strip() for name in only.split(",") if name.strip()]
    known = {cause.name: cause for cause in CAUSES}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no cause {', '.join(unknown)}; there are: {', '.join(known)}")
    return [known[name] for name in names] or list(CAUSES)


def main() -> None:
    made = _frame.parser("Verdicts given for causes that are known.", 1)
    made.add_argument("--draws", type=int, default=5, help="of each cause (default: 5)")
    made.add_argument("--only", default="", metavar="NAME,...", help="these causes")
    made.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    options = made.parse_args()
    causes = chosen(options.only)
    print(f"{_frame.machine()}; {_frame.versions('torch', 'numpy')}")
    seconds = len(causes) * options.draws * DRAW_SECONDS + LAB_SECONDS * sum(bool(cause.rate) for cause in causes)
    print(f"{len(causes)} causes, {options.draws} draws each: about {seconds / 60:.0f} minutes\n", flush=True)
    given: list[Given] = []
    with tempfile.TemporaryDirectory() as place, _frame.leaving():
        folder = Path(place)
        variables = _frame.environment(HEADGATE_HOME=str(folder / "home"), CAUSES_DISK=place)
        try:
            for cause in causes:
                with ExitStack() as undo:
                    if cause.rate:
                        undo.enter_context(_frame.lab(folder, LAB, NODES, cause.rate, variables, NODE_CORES))
                    for index in range(options.draws):
                        trial = cause.drawn(random.Random(f"{options.seed} {cause.name} {index}"))
                        for each in judged(cause, index, trial, explained(trial, folder, variables)):
                            given.append(each)
                            mark = "right" if each.right else "none" if each.name == UNKNOWN else "WRONG"
                            print(
                                f"{cause.name:20}{index:>3}  {each.job:10}{mark:6} {each.name:20} {each.why}",
                                flush=True,
                            )
        finally:
            _frame.end_hubs(variables)
    print_matrix(causes, given)
    rows = [each._asdict() for each in given]
    _frame.write(options.json, "causes", {**summary(causes, given), "rows": rows}, "torch", "numpy")


if __name__ == "__main__":
    main()
