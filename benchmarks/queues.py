"""Headgate in the place of a queue: the same jobs through task-spooler with one and with two slots,
through pueue where there is one, all at once, and by Headgate as it comes, in turn.

    python benchmarks/queues.py [--repetitions 3] [--minutes 45] [--longest 5] [--pueue PATH]
                                [--jobs 10] [--sweep 60] [--scale 0.3] [--counts 1000,10000]
                                [--ways WAYS] [--json PATH]

Two slots are measured twice: with jobs that take all cores each, as scripts do by themselves, and
with `OMP=1`, where somebody has told each job to compute with one thread (`ONE_THREAD`).

Each draw is ten jobs as in `elastic.py`, and a sweep of one script with 60 seeds that is handed in
whole. All at once, which is no queue, runs in the first draw only, and without the sweep: 60 such
processes take 24 GB, and after 9 minutes none had ended. `mean` is the mean time from a
job's arrival to its end, `makespan` that to the last end. `overhead` is the makespan of 60 jobs
that do nothing, over 60. `hand in` is the time until all of so many jobs that may not begin yet are
in the queue; `memory` is what the queue's processes take then (PSS). A full queue has no such
figures. Jobs of a queue that have not ended after `--longest` are ended; such figures have a `>`,
and are what they would be had these jobs ended just then. The last column compares Headgate with
the better queue.

Hosts slow their guests down by turns, a tenth and more within minutes. So each of these figures is
also given as it would be at the machine's usual speed (`_machine_speed.py`); that row tells ways
apart.

Headgate's hub tells when a job has ended; of the others a shell around each job tells it, before
the queue knows. After `--minutes` all is ended, and what is whole by then is printed. With the
defaults, a quiet machine of two cores takes about 40 minutes. Jobs of a draw then take some 5 s
each on both cores, which is far more than what any of the ways adds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _frame
import _machine_speed
import psutil
from _elastic import KINDS, Job, at_random, stage
from _machine_speed import Seconds

TRIVIAL = 60
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
HEADGATE = "headgate"
_RECORDED = 'end=$1; shift; "$@" >/dev/null 2>&1; date +%s.%N > "$end"'
_MARK = "HEADGATE_BENCH_QUEUE"


class OutOfTime(Exception):
    """The minutes that were given are over."""


class Full(Exception):
    """The queue takes no more jobs."""


@dataclass(frozen=True)
class Went:
    """How the jobs of a draw went by one way.

    Args:
        began: s since the epoch.
        jobs: When each arrived and ended (s since then).
        is_whole: Whether all ended; else those that did not count as if they had ended just then.
    """

    began: float
    jobs: Sequence[tuple[float, float]]
    is_whole: bool = True

    @property
    def makespan(self) -> float:
        return max(end for _, end in self.jobs)

    def figures(self, what: str, pace: Seconds) -> dict[str, float]:
        """Mean completion and makespan (s), by name."""
        began = self.began
        return {
            f"{what} mean": statistics.mean(pace(began + at, began + end) for at, end in self.jobs),
            f"{what} makespan": pace(began, began + self.makespan),
        }


class Queue:
    """A queue of its own in a folder, of that many slots. This one starts all jobs at once."""

    name = "all at once"
    can_hold = False

    def __init__(self, folder: Path, slots: int = 0) -> None:
        self.folder, self.slots = folder, slots
        self.environment = _frame.environment(**{_MARK: str(folder)})

    def add(self, words: Sequence[str]) -> None:
        """Hand in a command."""
        subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL)

    def hold(self) -> None:
        """Let no job begin from now on."""

    def processes(self) -> Iterator[psutil.Process]:
        """All processes of the queue, and of its jobs."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(_MARK) == str(self.folder):
                    yield process

    def close(self) -> None:
        """End it, and its jobs."""
        while left := [process for process in self.processes() if process.status() != "zombie"]:
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=5)

    def _says(self, *words: str) -> None:
        ended = subprocess.run(
            words,
            check=False,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise RuntimeError(f"{shlex.join(words)}: {ended.stderr or ended.stdout}")


class Spooler(Queue):
    """task-spooler."""

    can_hold = True

    def __init__(self, folder: Path, slots: int) -> None:
        super().__init__(folder, slots)
        self.name = f"tsp -S {slots}"
        self.environment |= {
            "TS_SOCKET": str(folder / "socket"),
            "TS_MAXCONN": "100000",
            "TMPDIR": str(folder),
        }
        self._says("tsp", "-S", str(slots))

    def add(self, words: Sequence[str]) -> None:
        added = subprocess.run(
            ["tsp", "-n", "-B", *words],
            check=False,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )
        if added.returncode:
            raise Full(added.stderr.decode().strip())

    def hold(self) -> None:
        for _ in range(self.slots):
            self.add(["sleep", "1000000"])


class OneThread(Spooler):
    """task-spooler, whose jobs are told to compute with one thread each."""

    def __init__(self, folder: Path, slots: int) -> None:
        super().__init__(folder, slots)
        self.name += " OMP=1"
        self.environment |= ONE_THREAD


class Pueue(Queue):
    """pueue, whose `pueued` lies beside it."""

    can_hold = True

    def __init__(self, folder: Path, slots: int, program: Path) -> None:
        super().__init__(folder, slots)
        self.name = f"pueue -p {slots}"
        config = folder / "pueue.yml"
        shared = {
            "pueue_directory": str(folder),
            "runtime_directory": str(folder),
            "use_unix_socket": True,
            "unix_socket_path": str(folder / "socket"),
        }
        config.write_text(json.dumps({"shared": shared}))
        self._words = [str(program), "-c", str(config)]
        daemon = [str(program.with_name("pueued")), "-c", str(config)]
        subprocess.Popen(daemon, env=self.environment, stdout=subprocess.DEVNULL)
        _frame.until((folder / "socket").exists, "pueued listens")
        self._says(*self._words, "parallel", str(slots))

    def add(self, words: Sequence[str]) -> None:
        self._says(*self._words, "add", "--escape", "--", *words)

    def hold(self) -> None:
        self._says(*self._words, "pause")


def words_of(job: Job) -> list[str]:
    """A job's command line."""
    entry: Mapping[str, Any] = job.entry("process")
    return [sys.executable, entry["script"], *entry["args"]]


def through(
    queue: Queue, jobs: Sequence[tuple[float, Sequence[str]]], longest: float = math.inf
) -> Went:
    """Hand in commands at their times (s), and wait for them for at most `longest` (s)."""
    ends = [queue.folder / f"end-{number}" for number in range(len(jobs))]
    began = time.time()
    for end, (at, words) in zip(ends, jobs, strict=True):
        time.sleep(max(0.0, began + at - time.time()))
        queue.add(["sh", "-c", _RECORDED, "sh", str(end), *words])
    while left := [end for end in ends if not (end.exists() and end.stat().st_size)]:
        if time.time() - began >= longest:
            break
        time.sleep(0.05)
    ended = [longest if end in left else float(end.read_text()) - began for end in ends]
    arrived = [at for at, _ in jobs]
    return Went(began, list(zip(arrived, ended, strict=True)), not left)


def memory(processes: Iterator[psutil.Process]) -> float:
    """What processes take (MiB): shared pages count in parts."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 2**20


def handed_in(queue: Queue, count: int) -> tuple[float, float]:
    """Seconds until so many jobs are in the queue, and MiB that it takes then.

    Raises:
        Full: It takes no more.
    """
    queue.hold()
    began = time.monotonic()
    for number in range(count):
        try:
            queue.add(["true"])
        except Full as error:
            raise Full(f"{error} with {number}") from None
    return time.monotonic() - began, memory(queue.processes())


class Figures:
    """What was measured, by figure and way."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.at_least: set[tuple[str, str]] = set()

    def add(self, way: str, figures: Mapping[str, float], is_whole: bool = True) -> None:
        """Add figures of one repetition; those that are not whole are at least so large."""
        for name, value in figures.items():
            self.values[name][way].append(value)
            if not is_whole:
                self.at_least.add((name, way))
            mark = "" if is_whole else ">"
            print(f"  {way}: {name} {mark}{value:.3f}", file=sys.stderr, flush=True)

    def medians(self) -> dict[str, dict[str, float]]:
        """The median of each figure."""
        return {
            name: {way: statistics.median(values) for way, values in ways.items()}
            for name, ways in self.values.items()
        }

    def show(self) -> None:
        """Print the table, and Headgate over the better queue."""
        medians = self.medians()
        ways = list(dict.fromkeys(way for row in medians.values() for way in row))
        print(" " * 24 + "".join(f"{way:>16}" for way in ways) + f"{'over better':>16}")
        for name, row in medians.items():
            cells = [self._cell(name, way, row.get(way)) for way in ways]
            queues = [row[way] for way in row if way not in (HEADGATE, Queue.name)]
            over = "-"
            if queues and HEADGATE in row:
                over = f"{row[HEADGATE] / min(queues):.3f}"
            print(f"{name:24}" + "".join(f"{cell:>16}" for cell in (*cells, over)))

    def _cell(self, name: str, way: str, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{'>' if (name, way) in self.at_least else ''}{value:.3f}"


class Bench:
    """All ways that jobs are run.

    Args:
        pueue: The program; None: there is none.
        figures: Gets what is measured.
        longest: A queue's jobs of a draw are ended after this time (s).
        ways: The only ones that are wanted; none: all.
    """

    def __init__(
        self, pueue: Path | None, figures: Figures, longest: float, ways: frozenset[str]
    ) -> None:
        self._pueue, self._figures, self._longest, self._ways = pueue, figures, longest, ways
        self._went: list[tuple[str, str, Went]] = []

    def _is_wanted(self, way: str) -> bool:
        return not self._ways or way in self._ways

    def measures(self, options: argparse.Namespace) -> None:
        """All that was asked for."""
        for count in filter(None, options.counts.split(",")):
            self.hands_in(int(count))
        for seed in range(options.repetitions):
            print(f"draw {seed + 1} of {options.repetitions}", file=sys.stderr, flush=True)
            self.trivial()
            if options.sweep:
                self.jobs("sweep", sweep(options.sweep, options.scale, seed), False)
            if options.jobs:
                jobs = at_random(options.jobs, seed, options.stretch, options.scale)
                self.jobs("jobs", jobs, seed == 0)

    @contextmanager
    def queues(self, only_held: bool = False, at_once: bool = True) -> Iterator[Iterator[Queue]]:
        """Each queue in turn, new and empty; with `at_once`, one that starts all jobs, too."""
        kinds: list[tuple[type[Queue], tuple[Any, ...]]] = [(Queue, ())] if at_once else []
        if shutil.which("tsp"):
            kinds += [(Spooler, (1,)), (Spooler, (2,)), (OneThread, (2,))]
        if self._pueue is not None:
            kinds += [(Pueue, (slots, self._pueue)) for slots in (1, 2)]

        def opened() -> Iterator[Queue]:
            for kind, arguments in kinds:
                if only_held and not (kind.can_hold and arguments[0] == 1):
                    continue
                with tempfile.TemporaryDirectory(prefix="hg-queue-") as folder:
                    try:
                        queue = kind(Path(folder), *arguments)
                        if self._is_wanted(queue.name):
                            yield queue
                    finally:
                        Queue(Path(folder)).close()

        given = opened()
        try:
            yield given
        finally:
            given.close()  # type: ignore[attr-defined]  # a generator

    def jobs(self, what: str, jobs: Sequence[Job], at_once: bool) -> None:
        """Run jobs by every way, with `at_once` also all at once."""
        with self.queues(at_once=at_once) as queues:
            for queue in queues:
                _began(queue.name, what)
                commands = [(job.at, words_of(job)) for job in jobs]
                self._add(queue.name, what, through(queue, commands, self._longest))
        if not self._is_wanted(HEADGATE):
            return
        _began(HEADGATE, what)
        with stage("process", on_lab=False) as there:
            run = there.run(jobs, "headgate")
            ends = [(ran.at, ran.ended) for ran in run.ran.values()]
            self._add(HEADGATE, what, Went(run.began, ends))

    def _add(self, way: str, what: str, went: Went) -> None:
        self._went.append((way, what, went))
        figures = went.figures(what, lambda start, end: end - start)
        self._figures.add(way, figures, went.is_whole)

    def at_usual_speed(self, pace: Seconds) -> None:
        """Add the figures of all draws again, as they would be at the machine's usual speed."""
        for way, what, went in self._went:
            figures = went.figures(what, pace).items()
            usual = {f"{name}, usual": value for name, value in figures}
            self._figures.add(way, usual, went.is_whole)

    def trivial(self) -> None:
        """Run jobs that do nothing by every way."""
        _began("every way", "jobs that do nothing")
        with self.queues() as queues:
            for queue in queues:
                went = through(queue, [(0.0, ["true"])] * TRIVIAL)
                self._figures.add(queue.name, {"overhead": went.makespan / TRIVIAL})
        if not self._is_wanted(HEADGATE):
            return
        with stage("process", on_lab=False) as there:
            jobs = [{"name": f"j{number}", "run": "true"} for number in range(TRIVIAL)]
            _headgate(there.variables, there.home, jobs[:1])
            began = time.monotonic()
            _headgate(there.variables, there.home, jobs)
            self._figures.add(HEADGATE, {"overhead": (time.monotonic() - began) / TRIVIAL})

    def hands_in(self, count: int) -> None:
        """Hand in so many jobs that wait by every way that has a queue."""
        _began("every queue", f"hand in {count}")
        with self.queues(only_held=True) as queues:
            for queue in queues:
                try:
                    seconds, size = handed_in(queue, count)
                except Full as error:
                    print(f"{queue.name} takes no {count} jobs: {error}\n", flush=True)
                    continue
                figures = {f"hand in {count}": seconds, f"memory of {count}": size}
                self._figures.add(queue.name, figures)
        if not self._is_wanted(HEADGATE):
            return
        with stage("process", on_lab=False) as there:
            hold = {"name": "hold", "run": "sleep 1000000"}
            jobs = [{"name": f"j{i}", "run": "true", "after": "hold"} for i in range(count)]
            _headgate(there.variables, there.home, [hold | {"run": "true"}])
            began = time.monotonic()
            _headgate(there.variables, there.home, [hold, *jobs], "--detach")
            seconds = time.monotonic() - began
            hubs = (
                process
                for process in _of_home(there.home)
                if any("headgate" in word for word in process.cmdline())
            )
            figures = {f"hand in {count}": seconds, f"memory of {count}": memory(hubs)}
            self._figures.add(HEADGATE, figures)
            words = [sys.executable, "-m", "headgate", "stop", "--kill"]
            subprocess.run(words, env=there.variables, capture_output=True, check=True)


def _began(way: str, what: str) -> None:
    clock = time.strftime("%H:%M:%S")
    print(f"  {clock} {way}: {what} ...", file=sys.stderr, flush=True)


def _headgate(
    variables: dict[str, str], folder: Path, jobs: Sequence[Mapping[str, str]], *options: str
) -> None:
    file = folder / "queue.yaml"
    file.write_text(json.dumps({"jobs": jobs}))
    words = [sys.executable, "-m", "headgate", "run", str(file), *options]
    subprocess.run(words, cwd=folder, env=variables, stdout=subprocess.DEVNULL, check=True)


def _of_home(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HEADGATE_HOME") == str(home):
                yield process


def sweep(count: int, scale: float, seed: int) -> list[Job]:
    """Short jobs of one kind, of different lengths, that all arrive at once."""
    drawn = at_random(count, seed, 0.0, 0.1 * scale, {"plain": KINDS["plain"]})
    return [Job(f"sweep-{number}", job.kind, 0.0, job.epochs) for number, job in enumerate(drawn)]


def _over(*_: object) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    raise OutOfTime


def main() -> None:
    made = _frame.parser("Headgate in the place of a queue.", 3)
    made.add_argument("--minutes", type=float, default=45, help="the most (default: 45)")
    made.add_argument("--longest", type=float, default=5, help="minutes of a draw (default: 5)")
    made.add_argument("--pueue", type=Path, help="the program, with pueued beside it")
    made.add_argument("--jobs", type=int, default=10, help="random jobs of a draw (default: 10)")
    made.add_argument("--sweep", type=int, default=60, help="jobs of the sweep (default: 60)")
    made.add_argument("--scale", type=float, default=0.3, help="of the epochs (default: 0.3)")
    made.add_argument("--stretch", type=float, default=0.25, help="of the arrivals (default: 0.25)")
    made.add_argument("--ways", default="", help="the only ones to run, with commas")
    made.add_argument("--counts", default="1000,10000", help="jobs handed in")
    options = made.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else Headgate alone is compiled each time
    _frame.heading(options.repetitions, "torch", "tensorflow-cpu", "jax")
    if not shutil.which("tsp"):
        print("no rows of task-spooler: found no tsp (apt-get install task-spooler)\n")
    pueue = options.pueue or shutil.which("pueue")
    if pueue is None:
        print("no rows of pueue: found none; name it by --pueue\n")
    figures = Figures()
    path = None if pueue is None else Path(pueue).absolute()
    ways = frozenset(filter(None, options.ways.split(",")))
    bench = Bench(path, figures, 60 * options.longest, ways)
    signal.signal(signal.SIGALRM, _over)
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    with tempfile.TemporaryDirectory(prefix="hg-pace-") as folder:
        speed = Path(folder, "speed")
        try:
            with _machine_speed.probing(speed), _frame.leaving():
                bench.measures(options)
        except OutOfTime:
            print(f"ended after {options.minutes:g} minutes\n")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            bench.at_usual_speed(_machine_speed.read(speed))
            figures.show()
            content = {
                "medians": figures.medians(),
                "values": figures.values,
                "at least": sorted(figures.at_least),
            }
            _frame.write(options.json, "queues", content, "torch", "tensorflow-cpu", "jax")


if __name__ == "__main__":
    main()
