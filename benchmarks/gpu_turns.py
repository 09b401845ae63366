"""Two plain jobs on one GPU: parts of the time at 3 to 1, and side by side against turns.

    python benchmarks/gpu_turns.py [--pairs small+small,wide+wide] [--seconds 6] [--json PATH]

Four kinds of plain PyTorch scripts: `small` is bound by the launch of kernels, `wide` and `images`
by the GPU, `starved` waits for its data. Each kind runs alone. Then four pairs run three times:

- 3:1: by turns with `share: 3/4` and `share: 1/4`. Printed are the rates over those alone.
- side by side: under policy `none`, as the driver divides the time.
- chosen: under policy `equal`, which measures both and keeps the better. Printed are how, after how
  many seconds, and the rates after that.

Scripts count their own steps. Repetitions are no option. Takes 7 to 8 minutes on one GPU. Without a
GPU, all kinds sleep for 10 ms instead, which tries the benchmark and says nothing of a GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import _frame
import torch

from headgate.model.reasons import ReasonKind
from headgate.recorded.reader import RunReader
from headgate.testing import wait

PAIRS = "small+small,small+wide,wide+wide,starved+images"
WARM_STEPS, TURNS_SECONDS = 30, 2.0
"""Steps of each job before its rate counts, and the time that a change of how they run gets."""
DECIDED_SECONDS = 90.0
HAS_GPU = torch.cuda.is_available()
TASK = """
import sys, time
from types import SimpleNamespace
import torch
from torch import nn

kind, path = sys.argv[1:]
has_gpu = torch.cuda.is_available()
device = "cuda" if has_gpu else "cpu"

def layers(width, count):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count)))

if not has_gpu:
    model, batch = nn.Linear(8, 8), torch.randn(1, 8)
elif kind == "images":
    model = nn.Sequential(
        nn.Conv2d(3, 128, 3), nn.ReLU(), nn.Conv2d(128, 128, 3, 2), nn.ReLU(),
        nn.Conv2d(128, 256, 3, 2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10),
    )
    batch = torch.randn(256, 3, 64, 64)
else:
    width, count, samples = (8192, 4, 4096) if kind == "wide" else (256, 12, 64)
    model, batch = layers(width, count), torch.randn(samples, width)
model, batch = model.to(device), batch.to(device)
model(batch)  # a lazy layer learns its size
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
with open(path, "w", buffering=1) as steps:
    step = 0
    while True:
        if kind == "starved" or not has_gpu:
            time.sleep(0.01)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        if has_gpu and step % 8 == 0:
            torch.cuda.synchronize()  # or else it counts steps that are only queued
        print(time.time(), step, file=steps)
        if not has_gpu and step == 1 and "headgate.torch.observed_session" in sys.modules:
            observed = sys.modules["headgate.torch.observed_session"]
            weight = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=0))
            observed.cuda_in_use, observed._steps = lambda: True, lambda optimizer: [weight]
            torch.cuda.is_current_stream_capturing = lambda: False
            torch.cuda.synchronize = lambda gpu: None
"""


class Jobs:
    """Two jobs that run, or one.

    Args:
        home: The folder of their hub.
        kinds: The kind of each job, by name.
        shares: The slice of each job, by name.
    """

    def __init__(
        self, home: Path, kinds: Mapping[str, str], policy: str, shares: Mapping[str, str]
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=home))
        self._variables = _frame.environment(HEADGATE_HOME=str(home), HEADGATE_REPORT="off")
        script = self.folder / "task.py"
        script.write_text(TASK)
        limits = {"gpus": 1, "gpu_memory": "12GiB"} if HAS_GPU else {}
        jobs = [
            {"name": name, "run": [sys.executable, str(script), kind, str(self.folder / name)]}
            | {"limits": limits}
            | ({"share": shares[name]} if shares else {})
            for name, kind in kinds.items()
        ]
        file = self.folder / "jobs.yaml"
        file.write_text(json.dumps({"jobs": jobs}))
        self.names = list(kinds)
        answer = self._headgate("run", "--detach", "--json", "--policy", policy, str(file))
        self.run = str(json.loads(answer)["run"])
        self.store = home / "runs" / self.run / "run.sqlite"
        wait.until(self._are_warm, 120.0, f"{kinds} make steps")

    def _headgate(self, *words: str) -> str:
        command = [sys.executable, "-m", "headgate", *words]
        ended = subprocess.run(command, env=self._variables, check=True, stdout=subprocess.PIPE)
        return ended.stdout.decode()

    def _are_warm(self) -> bool:
        return all(self._step(name) >= WARM_STEPS for name in self.names)

    def _step(self, name: str) -> int:
        with suppress(OSError, IndexError):
            return int((self.folder / name).read_text().split("\n")[-2].split()[1])
        return 0

    def rates(self, seconds: float) -> list[float]:
        """Steps a second of each job during some seconds from now on."""
        begin = time.time()
        time.sleep(seconds)
        end = time.time()
        counts = []
        for name in self.names:
            lines = (self.folder / name).read_text().split("\n")[:-1]
            counts.append(sum(begin <= float(line.split()[0]) < end for line in lines))
        return [count / (end - begin) for count in counts]

    def decision(self) -> dict[str, Any]:
        """What was decided for the first job: facts, and `after` seconds of the run. Empty: nothing
        yet.
        """
        with RunReader(self.store) as reader:
            for row in reader.rows("events", "kind = 'note'"):
                reason = json.loads(row["why"] or "{}")
                if reason.get("kind") == ReasonKind.GPU_SHARED:
                    return {**reason["facts"], "after": row["t"]}
        return {}

    def stop(self) -> None:
        self._headgate("stop", *(f"{self.run}/{name}" for name in self.names))
        shutil.rmtree(self.folder)


@contextmanager
def running(
    home: Path, kinds: Mapping[str, str], policy: str, shares: Mapping[str, str] | None = None
) -> Iterator[Jobs]:
    jobs = Jobs(home, kinds, policy, shares or {})
    try:
        yield jobs
    finally:
        jobs.stop()


def measured(home: Path, kinds: Mapping[str, str], alone: list[float], seconds: float) -> Any:
    """The figures of a pair; rates are fractions of those alone."""

    def parts(jobs: Jobs, for_seconds: float) -> list[float]:
        rates = jobs.rates(for_seconds)
        return [rate / own for rate, own in zip(rates, alone, strict=True)]

    with running(home, kinds, "equal", {"a": "3/4", "b": "1/4"}) as jobs:
        time.sleep(TURNS_SECONDS)
        by_turns = parts(jobs, max(seconds, 10.0))
    with running(home, kinds, "none") as jobs:
        side_by_side = parts(jobs, seconds)
    with running(home, kinds, "equal") as jobs:
        began = time.monotonic()
        chosen = wait.until(jobs.decision, DECIDED_SECONDS, "one is chosen")
        took = time.monotonic() - began
        time.sleep(TURNS_SECONDS)
        after = parts(jobs, seconds)
    return {
        "three_to_one": by_turns,
        "side_by_side": side_by_side,
        "chosen": "side by side" if chosen["side_by_side"] else "turns",
        "chosen_facts": chosen,
        "chosen_after_seconds": took,
        "then": after,
    }


def say(parts: list[float]) -> str:
    return " + ".join(f"{part:.2f}" for part in parts) + f" = {sum(parts):.2f}"


def compared(
    home: Path, pairs: list[tuple[str, ...]], seconds: float
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Rates of the kinds alone, and the figures of the pairs, printed as they come."""
    alone: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(kind for pair in pairs for kind in pair):
        with running(home, {"a": kind}, "none") as jobs:
            [alone[kind]] = jobs.rates(seconds)
        print(f"{kind} alone: {alone[kind]:.1f} steps/s", flush=True)
    print(f"{'pair':16} {'turns, 3:1':22} {'side by side':22} {'chosen':22} then", flush=True)
    for pair in pairs:
        own = [alone[kind] for kind in pair]
        row = measured(home, dict(zip("ab", pair, strict=True)), own, seconds)
        rows.append({"pair": pair, **row})
        chosen = f"{row['chosen']} in {row['chosen_after_seconds']:.0f} s"
        print(
            f"{'+'.join(pair):16} {say(row['three_to_one']):22} {say(row['side_by_side']):22} "
            f"{chosen:22} {say(row['then'])}",
            flush=True,
        )
    return alone, rows


def main() -> None:
    parser = _frame.parser(__doc__ or "", repetitions=1)
    parser.add_argument("--pairs", default=PAIRS, help=f"kinds of jobs (default: {PAIRS})")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a measurement (default: 6)")
    options = parser.parse_args()
    gpu = torch.cuda.get_device_name() if HAS_GPU else "no GPU: jobs only sleep"
    print(f"{_frame.machine()}; {gpu}; torch {torch.__version__}", flush=True)
    pairs = [tuple(pair.split("+")) for pair in options.pairs.split(",")]
    home = Path(tempfile.mkdtemp())
    began = time.monotonic()
    with _frame.leaving():
        try:
            alone, rows = compared(home, pairs, options.seconds)
        finally:
            _frame.end_hubs(_frame.environment(HEADGATE_HOME=str(home)))
            shutil.rmtree(home, ignore_errors=True)
    print(f"{time.monotonic() - began:.0f} s in all")
    _frame.write(options.json, "gpu_turns", {"gpu": gpu, "alone": alone, "rows": rows}, "torch")


if __name__ == "__main__":
    main()
