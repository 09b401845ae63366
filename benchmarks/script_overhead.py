"""What the three calls cost a script: import, report, and a step with a prepared model, optimizer and loader.

    python benchmarks/script_overhead.py [RESULT.json]

Medians. The step is one of a model so small that little but the overhead is left of it. Under an engine (a bare
listener) and under plain `python` it is compared with the same loop without Headgate, in one run, taking turns.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg
from headgate.testing.listener import ChannelListener

IMPORTS = 5
ROUNDS = 15
STEPS = 200
REPORTS = 20_000


def import_milliseconds() -> float:
    """Median milliseconds that importing the library adds to having imported torch."""
    script = "import torch, time; t = time.perf_counter(); import headgate.torch; print(time.perf_counter() - t)"
    source = str(Path(__file__).parents[1] / "src")
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(IMPORTS)
    ]
    return median(float(run.stdout) for run in runs) * 1e3


def report_microseconds() -> float:
    """Mean microseconds of a report, the sending of what it folds included; median over rounds."""
    loss = torch.tensor(0.5, requires_grad=True) * 2
    rounds = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(REPORTS):
            hg.report(loss=loss)
        rounds.append((time.perf_counter() - begun) / REPORTS)
    return median(rounds) * 1e6


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
        self.model, self.optimizer, self.loader = hg.prepare(self.model, self.optimizer, self.loader)
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
        return median(self.rounds[1:]) * 1e6


def main() -> None:
    torch.set_num_threads(1)
    bare = Loop(lambda loss: None)
    plain = Loop(hg.report).prepare()
    for _ in range(ROUNDS):
        bare.run()
        plain.run()
    added_plain = plain.microseconds - bare.microseconds
    plain_report = report_microseconds()

    with tempfile.TemporaryDirectory() as folder, ChannelListener(Path(folder)) as listener:
        os.environ.update(listener.environment())
        hg._joined = False  # join anew, with an engine this time
        bare, watched = Loop(lambda loss: None), Loop(hg.report).prepare()
        for _ in range(ROUNDS):
            bare.run()
            watched.run()
        report = report_microseconds()
        if hg._session is not None:
            hg._session.close()
            hg._session._channel.close()

    results = {
        "import over torch, ms": import_milliseconds(),
        "report under an engine, µs": report,
        "report under plain python, µs": plain_report,
        "step without Headgate, µs": bare.microseconds,
        "added to a step under an engine (report included), µs": watched.microseconds - bare.microseconds,
        "added to a step under plain python (report included), µs": added_plain,
    }
    machine = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "repetitions": {"imports": IMPORTS, "rounds": ROUNDS, "steps of a round": STEPS, "reports of a round": REPORTS},
    }
    print(" · ".join(str(value) for value in list(machine.values())[:3]))
    for name, value in results.items():
        print(f"{name:<58}{value:>10.2f}")
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps({**machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
