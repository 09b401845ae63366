"""What Headgate costs: a job that is alone, a script's three calls, the node that it watches, and
whoever types.

    python benchmarks/overhead.py [--only alone,steps,calls,watching,commands] [--repetitions 5]
                                  [--json PATH]

- `alone`: wall time under `headgate run` over that under plain python, of `examples/cnn.py` with
  its three calls and of `examples/plain.py`, which never mentions Headgate. The two ways are taken
  in turn and compared pair by pair. Both are whole commands, from the prompt to the prompt; that
  the hub starts, and that a report is written at the end, is in the figure. Beside it stands the
  job alone, as the run recorded it.
- `steps`: the same of one step, for a job whose steps take 1.5, 2.5 and 10 ms: with the calls
  against the bare loop, and one that prints a line a step against the same under plain python. Both
  processes of a pair are up at the same time and train in turn, for an eighth of a second each; the
  other waits. A pair gives one ratio, and the interval is over pairs, for two processes of the same
  script differ too. It takes about four minutes on a machine that is idle.
- `calls`: import, report, and a step with a prepared model, optimizer and loader; of a model so
  small that little but the overhead is left of it. Under an engine (a bare listener) and under
  plain `python` it is compared with the same loop without Headgate, taking turns. Beside it stands
  what the hub takes to read a line of output, of a log in which every second tells of progress.
- `watching`: the part of one core that sampling ten tasks once a second takes. Ten real tasks, half
  busy and half idle, are watched by the samplers of a run, first through cgroups, then (in boxes
  without any) through psutil; beside them `dstat` watches the node alone, where it is installed.
  CPU time is that of the watching process by the kernel's own account, so that other load on the
  machine counts little.
- `commands`: how long commands take to answer, beside a bare `python -c pass`, and how large the
  core install is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import distribution, requires
from pathlib import Path
from typing import Any, Literal

import _frame
import torch
from tests.output.test_patterns import LINES
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg
from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.model.identifiers import TaskId
from headgate.model.progress_rule import ProgressRule
from headgate.model.shares import Share
from headgate.output.patterns import ProgressReader
from headgate.sampling.base import Target
from headgate.sampling.round import SamplingRound, samplers
from headgate.studies.statistics import Ratio, say_ratio
from headgate.testing.listener import ChannelListener

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
AIM_ALONE = 1.02

# --- a job that is alone --------------------------------------------------------------------------

JOBS = {
    "cnn.py, three calls": ("cnn.py", "--epochs", "120"),
    "plain.py": ("plain.py", "--epochs", "60"),
}


def plain(command: tuple[str, ...]) -> float:
    """Wall seconds under plain python."""
    began = time.monotonic()
    subprocess.run([sys.executable, *command], cwd=EXAMPLES, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began


def under_headgate(command: tuple[str, ...], home: str) -> tuple[float, float]:
    """Wall seconds of the whole command, and of the job alone as the run recorded it."""
    script, *rest = command
    began = time.monotonic()
    answer = subprocess.run(
        [sys.executable, "-m", "headgate", "run", script, "--json", "--", *rest],
        cwd=EXAMPLES,
        env=_frame.environment(HEADGATE_HOME=home),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    wall = time.monotonic() - began
    [job] = json.loads(answer.stdout)["jobs"]
    return wall, job["ended"] - job["started"]


def of_a_job_alone(options: argparse.Namespace) -> object:
    print(
        f"{'':24}{'plain python':>14}{'headgate run':>14}"
        f"{'ratio of whole commands':>32}{'ratio, job alone':>28}"
    )
    rows = []
    with tempfile.TemporaryDirectory() as home:
        for name, command in JOBS.items():
            plain(command)  # warms the page cache for both
            pairs = [
                (plain(command), *under_headgate(command, home)) for _ in range(options.repetitions)
            ]
            whole = _frame.ratio([(base, wall) for base, wall, _ in pairs])
            inside = _frame.ratio([(base, job) for base, _, job in pairs])
            base, wall = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
            print(
                f"{name:24}{base:>12.1f} s{wall:>12.1f} "
                f"s{say_ratio(whole):>32}{say_ratio(inside):>28}"
            )
            rows.append({"job": name, "pairs": pairs, "ratio": whole.value, "aim": AIM_ALONE})
        _frame.end_hubs(_frame.environment(HEADGATE_HOME=home))
    return rows


# --- one step -------------------------------------------------------------------------------------

STEP_MILLISECONDS = (1.5, 2.5, 10.0)
BLOCK_SECONDS = 0.125
BLOCKS = 18
"""Of each of the two processes of a pair, for each length of step."""
WARMING_SECONDS = 0.5
"""Of each process and length before its blocks count: the library weighs the model in the first
steps.
"""
COLD_STEPS = 2
"""At the begin of a block, untimed: caches hold what the other process needed."""
STEPPING = f"""
import socket, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
way, at, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(steps, 4), torch.randint(0, 2, (steps,)))
loader = DataLoader(data, batch_size=1)
if way == "calls":
    import headgate.torch as hg
    model, optimizer, loader = hg.prepare(model, optimizer, loader)
connection = socket.socket(socket.AF_UNIX)
connection.connect(at)
asked = connection.makefile("rw")
timed = left = 0
for step, (features, labels) in enumerate(loader):
    if not left:
        if timed:
            seconds = time.perf_counter() - wall, time.process_time() - cpu
            asked.write(f"{{seconds[0] / timed}} {{seconds[1] / timed}}\\n")
            asked.flush()
        if not (line := asked.readline()):
            break
        turns, timed = map(int, line.split())
        left = timed + {COLD_STEPS}
    if left == timed:
        wall, cpu = time.perf_counter(), time.process_time()
    loss = torch.nn.functional.cross_entropy(model(features), labels)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    for _ in range(turns): pass
    if way == "calls":
        hg.report(loss=loss)
    elif way == "prints":
        print(f"step {{step}} loss {{loss.item():.4f}}", flush=True)
    left -= 1
"""

Spent = tuple[float, float]
"""Wall and CPU seconds of a step."""


class Stepping:
    """A process that trains while it is asked to, and waits in between."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self._process = process
        self._connection = connection
        self._asked = connection.makefile("rw")

    def block(self, turns: int, steps: int) -> Spent:
        """Of a step, on average over so many with that many turns of an empty loop each.

        Raises:
            RuntimeError: The process has ended.
        """
        self._asked.write(f"{turns} {steps}\n")
        self._asked.flush()
        if not (line := self._asked.readline()):
            raise RuntimeError(f"the stepping script ended early, with {self._process.wait()}")
        wall, cpu = map(float, line.split())
        return wall, cpu

    def end(self) -> None:
        self._asked.close()
        self._connection.close()
        self._process.wait()


@contextmanager
def stepping(home: str, way: str, steps: int, *under: str) -> Iterator[Stepping]:
    """The script, ready for its first block, under a command or under plain python.

    Raises:
        RuntimeError: It ended before.
    """
    script, at = Path(home) / "stepping.py", Path(home) / f"asks-{way}-{len(under)}"
    script.write_text(STEPPING)
    at.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(at))
        listener.listen()
        listener.settimeout(1.0)
        process = subprocess.Popen(
            [
                sys.executable,
                *under,
                str(script),
                *(("--",) if under else ()),
                way,
                str(at),
                str(steps),
            ],
            env=_frame.environment(HEADGATE_HOME=home),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while True:
            try:
                connection, _ = listener.accept()
                break
            except TimeoutError:
                if process.poll() is not None:
                    raise RuntimeError(
                        f"the stepping script ended early, with {process.returncode}"
                    ) from None
    made = Stepping(process, connection)
    try:
        yield made
    finally:
        made.end()


def alternating(
    base: Stepping, under: Stepping, turns: int, steps: int, warming: int
) -> tuple[Spent, Spent]:
    """Of a step of each, on average over blocks that they train in turn, first the one first and
    then the other.
    """
    for each in (base, under):
        each.block(turns, warming)
    found: dict[Stepping, list[Spent]] = {base: [], under: []}
    for n in range(BLOCKS):
        for each in (base, under) if n % 2 == 0 else (under, base):
            found[each].append(each.block(turns, steps))
    return mean(found[base]), mean(found[under])


def mean(spent: list[Spent]) -> Spent:
    return statistics.fmean(wall for wall, _ in spent), statistics.fmean(cpu for _, cpu in spent)


def of_a_step(options: argparse.Namespace) -> object:
    counts = {
        milliseconds: tuple(
            max(int(seconds * 1e3 / milliseconds), 5)
            for seconds in (BLOCK_SECONDS, WARMING_SECONDS)
        )
        for milliseconds in STEP_MILLISECONDS
    }
    steps = (
        sum(
            BLOCKS * (block + COLD_STEPS) + warming + COLD_STEPS
            for block, warming in counts.values()
        )
        + 1
    )
    print(f"{'':24}{'without':>12}{'with':>12}{'ratio':>26}{'ratio of CPU time':>26}")
    rows = []
    with tempfile.TemporaryDirectory() as home:
        with stepping(home, "bare", 2000) as bare:
            bare.block(0, 500)
            (small, _), (large, _) = bare.block(0, 500), bare.block(100_000, 100)
        for way, without in (("calls", "bare"), ("prints", "prints")):
            pairs: dict[float, list[tuple[Spent, Spent]]] = {
                milliseconds: [] for milliseconds in counts
            }
            for _ in range(options.repetitions):
                with (
                    stepping(home, without, steps) as base,
                    stepping(home, way, steps, "-m", "headgate", "run") as under,
                ):
                    for milliseconds, (block, warming) in counts.items():
                        turns = max(
                            int((milliseconds / 1e3 - small) / (large - small) * 100_000), 0
                        )
                        pairs[milliseconds].append(alternating(base, under, turns, block, warming))
            for milliseconds, found in pairs.items():
                wall, cpu = (
                    _frame.ratio([(one[i], other[i]) for one, other in found]) for i in (0, 1)
                )
                before, after = (
                    statistics.median(pair[i][0] for pair in found) * 1e3 for i in (0, 1)
                )
                name = f"{milliseconds:g} ms, {way}"
                print(
                    f"{name:24}{before:>9.3f} ms{after:>9.3f} ms{close(wall):>26}{close(cpu):>26}",
                    flush=True,
                )
                ratios = {"ratio": asdict(wall), "ratio_of_cpu_time": asdict(cpu)}
                rows.append({"step": name, "pairs": found, **ratios, "aim": AIM_ALONE})
        _frame.end_hubs(_frame.environment(HEADGATE_HOME=home))
    return rows


def close(ratio: Ratio) -> str:
    """A ratio to a tenth of a percent."""
    return f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"


# --- the three calls ------------------------------------------------------------------------------

ROUNDS = 15
STEPS = 200
REPORTS = 20_000


def import_milliseconds(repetitions: int) -> float:
    """Median milliseconds that importing the library adds to having imported torch."""
    script = (
        "import torch, time; t = time.perf_counter(); import headgate.torch; "
        "print(time.perf_counter() - t)"
    )
    source = str(ROOT / "src")
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(repetitions)
    ]
    return statistics.median(float(run.stdout) for run in runs) * 1e3


def report_microseconds() -> float:
    """Mean microseconds of a report, the sending of what it folds included; median over rounds."""
    loss = torch.tensor(0.5, requires_grad=True) * 2
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(REPORTS):
            hg.report(loss=loss)
        rounds.append((time.perf_counter() - begun) / REPORTS)
    return statistics.median(rounds) * 1e6


def line_microseconds() -> float:
    """Mean microseconds of CPU that reading a line of output takes; median over rounds."""
    lines = [text for line, _ in LINES for text in (line, "Downloading, 42 of 100 files are done")]
    reader, rounds = ProgressReader(ProgressRule()), []
    for _ in range(20):
        began = time.process_time()
        reader.feed(lines)
        rounds.append((time.process_time() - began) / len(lines))
    return statistics.median(rounds) * 1e6


class Loop:
    """A training loop over a tiny model, timed a round at a time."""

    def __init__(self, report: Callable[..., None]) -> None:
        self.model: nn.Module = nn.Linear(4, 2)
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(STEPS, 4), torch.randint(0, 2, (STEPS,)))
        self.loader: Iterable[Any] = DataLoader(data, batch_size=1)
        self.report = report
        self.rounds: list[float] = []

    def prepare(self) -> Loop:
        self.model, self.optimizer, self.loader = hg.prepare(
            self.model, self.optimizer, self.loader
        )
        return self

    def run(self) -> None:
        begun = time.perf_counter()
        for features, labels in self.loader:
            loss = nn.functional.cross_entropy(self.model(features), labels)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.report(loss=loss)
        self.rounds.append((time.perf_counter() - begun) / STEPS)

    @property
    def microseconds(self) -> float:
        return statistics.median(self.rounds[1:]) * 1e6


def of_the_three_calls(options: argparse.Namespace) -> object:
    torch.set_num_threads(1)
    bare = Loop(lambda loss: None)
    plain = Loop(hg.report).prepare()
    for _ in range(ROUNDS):
        bare.run()
        plain.run()
    added_plain = plain.microseconds - bare.microseconds
    plain_report = report_microseconds()

    welcome = {"role": "worker", "index": 0, "plan": {}, "threads": None}
    with (
        tempfile.TemporaryDirectory() as folder,
        ChannelListener(Path(folder), welcome) as listener,
    ):
        os.environ.update(listener.environment())
        hg._door.is_joined = False  # join anew, with an engine this time
        bare, watched = Loop(lambda loss: None), Loop(hg.report).prepare()
        for _ in range(ROUNDS):
            bare.run()
            watched.run()
        report = report_microseconds()
        if hg._door.session is not None:
            hg._door.session.close()
            hg._door.session._channel.close()
        for name in listener.environment():
            os.environ.pop(name, None)  # joining took some out

    results = {
        "import over torch, ms": import_milliseconds(options.repetitions),
        "report under an engine, µs": report,
        "report under plain python, µs": plain_report,
        "step without Headgate, µs": bare.microseconds,
        "added to a step under an engine (report included), µs": watched.microseconds
        - bare.microseconds,
        "added to a step under plain python (report included), µs": added_plain,
        "a line of output read by the hub, µs": line_microseconds(),
    }
    print(f"medians of {ROUNDS} rounds of {STEPS} steps, and of 5 of {REPORTS:,} reports")
    for name, value in results.items():
        print(f"{name:<58}{value:>10.2f}")
    return results


# --- watching -------------------------------------------------------------------------------------

TASKS = 10
BUSY = "while True: pass"
IDLE = "import signal; signal.pause()"
AIMS = {"cgroups": 0.01, "psutil": 0.04}
DSTAT = ("dstat", "--cpu", "--mem", "--disk", "--net", "--noupdate", "--nocolor", "1")


@contextmanager
def tasks(mode: Literal["auto", "none"]) -> Iterator[list[Box]]:
    """Ten tasks in boxes of a kind; those that are busy get little CPU, so that the machine stays
    usable.
    """
    isolation = ProcessIsolation(f"watching-{os.getpid()}", mode=mode)
    boxes: list[Box] = []
    try:
        with open(os.devnull, "w") as nowhere:
            for n in range(TASKS):
                argv = (sys.executable, "-I", "-S", "-c", BUSY if n % 2 else IDLE)
                launch = Launch(
                    TaskId(f"watching/task{n}/worker-0"), argv, dict(os.environ), os.getcwd(), 1
                )
                boxes.append(isolation.start(launch, Share(cpu_weight=1), nowhere.fileno()))
        yield boxes
    finally:
        for box in boxes:
            box.close()


def watch(mode: Literal["auto", "none"], seconds: int) -> tuple[float, float]:
    """Share of one core, and milliseconds of CPU time of the median round."""
    with tasks(mode) as boxes:
        targets = [*(Target(box.task, box) for box in boxes), Target("node", None)]
        watching = SamplingRound(samplers(print), print)
        watching.read(time.monotonic(), targets)
        rounds = []
        start, used = time.monotonic(), time.process_time()
        for n in range(1, seconds + 1):
            time.sleep(max(0.0, start + n - time.monotonic()))
            before = time.process_time()
            readings = watching.read(time.monotonic(), targets)
            rounds.append(time.process_time() - before)
        share = (time.process_time() - used) / (time.monotonic() - start)
        if readings.keys() != {target.id for target in targets}:
            raise RuntimeError(f"not every task was read: {sorted(readings)}")
        watching.read(time.monotonic(), ())
        return share, statistics.median(rounds) * 1e3


def dstat(seconds: int) -> float | None:
    """Share of one core that dstat takes to watch the node once a second, its start not counted;
    None where it is missing.
    """
    if shutil.which(DSTAT[0]) is None:
        return None

    def cpu_seconds(count: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [*DSTAT, str(count)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return max(0.0, cpu_seconds(seconds) - cpu_seconds(1)) / (seconds - 1)


def of_watching(options: argparse.Namespace) -> object:
    through = ProcessIsolation("watching").mode
    rows: list[dict[str, object]] = []
    for name, mode in (("cgroups", "auto"), ("psutil", "none")):
        if name == "cgroups" and through == "none":
            print("no cgroup can be written here; that row is left out", file=sys.stderr)
            continue
        results = [
            watch("auto" if mode == "auto" else "none", options.seconds)
            for _ in range(options.repetitions)
        ]
        shares = [share for share, _ in results]
        rows.append(
            {
                "what": (
                    "headgate, ten tasks and the node, through "
                    f"{name if mode == 'none' else f'cgroup {through}'}"
                ),
                "share_of_one_core": statistics.median(shares),
                "all": shares,
                "milliseconds_a_round": statistics.median(ms for _, ms in results),
                "aim": AIMS[name],
            }
        )
    others = [
        share for _ in range(options.repetitions) if (share := dstat(options.seconds)) is not None
    ]
    if others:
        rows.append(
            {
                "what": "dstat, the node alone",
                "share_of_one_core": statistics.median(others),
                "all": others,
            }
        )
    print(f"{'':58}{'of a core':>10}{'aim':>7}{'a round':>12}")
    for row in rows:
        aim = f"{row['aim']:.0%}" if "aim" in row else ""
        each = f"{row['milliseconds_a_round']:.2f} ms" if "milliseconds_a_round" in row else ""
        print(f"{row['what']:58}{row['share_of_one_core']:>10.2%}{aim:>7}{each:>12}")
    return rows


# --- commands -------------------------------------------------------------------------------------

COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "headgate --help": (sys.executable, "-m", "headgate", "--help"),
    "headgate run --help": (sys.executable, "-m", "headgate", "run", "--help"),
    "headgate ps": (sys.executable, "-m", "headgate", "ps"),
}


def milliseconds(command: tuple[str, ...], home: str) -> float:
    """Wall milliseconds of a command."""
    environment = {**os.environ, "HEADGATE_HOME": home}
    began = time.monotonic()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic() - began) * 1e3


def core() -> dict[str, int]:
    """Bytes on disk of each package of the core install, and of Headgate itself."""
    found: dict[str, int] = {}
    waiting = ["headgate"]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        package = distribution(name)
        files = [Path(str(package.locate_file(file))) for file in package.files or ()]
        found[name] = sum(file.stat().st_size for file in files if file.is_file())
        needed = [
            text for text in requires(name) or () if "extra ==" not in text and ";" not in text
        ]
        waiting += [re.split(r"[^A-Za-z0-9._-]", text)[0] for text in needed]
    source = ROOT / "src" / "headgate"
    found["headgate"] = sum(
        file.stat().st_size
        for file in source.rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    )
    return found


def of_commands(options: argparse.Namespace) -> object:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as home:
        for _ in range(options.repetitions):
            for name, command in COMMANDS.items():
                times[name].append(milliseconds(command, home))
    for name, found in times.items():
        print(
            f"{name:24}{statistics.median(found):>8.0f} ms ({min(found):.0f} to {max(found):.0f})"
        )
    sizes = core()
    print(
        f"core install: {sum(sizes.values()) / 1e6:.1f} MB: "
        + ", ".join(
            f"{name} {size / 1e6:.1f}"
            for name, size in sorted(sizes.items(), key=lambda item: -item[1])
        )
    )
    return {"milliseconds": times, "core_bytes": sizes}


COSTS: dict[str, Callable[[argparse.Namespace], object]] = {
    "alone": of_a_job_alone,
    "steps": of_a_step,
    "calls": of_the_three_calls,
    "watching": of_watching,
    "commands": of_commands,
}


def main() -> None:
    parser = _frame.parser("What Headgate costs.", 5)
    only = (
        f"some of {', '.join(COSTS)}, by comma (default: all); steps takes about four "
        "minutes at 5 repetitions"
    )
    parser.add_argument("--only", default=",".join(COSTS), help=only)
    parser.add_argument(
        "--seconds", type=int, default=20, help="rounds of a repetition of watching (default: 20)"
    )
    options = parser.parse_args()
    if options.seconds < 2 or options.repetitions < 1:
        parser.error("expected at least 2 seconds and 1 repetition")
    if unknown := [name for name in options.only.split(",") if name not in COSTS]:
        parser.error(f"--only: found {', '.join(unknown)}; expected some of {', '.join(COSTS)}")
    packages = ("torch", "psutil", "click", "pydantic")
    _frame.heading(options.repetitions, *packages)
    content = {}
    for name in options.only.split(","):
        print(f"== {name}")
        content[name] = COSTS[name](options)
        print()
    _frame.write(options.json, "overhead", content, *packages)


if __name__ == "__main__":
    main()
