"""Training jobs, each with one thing wrong with it, or with nothing.

    python caused.py KIND [--seconds 7] [--size 1.0] [--seed 0]

The script never hears of Headgate: it prints a line for each step, or for every few where they are
short. `caused_aware.py` makes the same trainings with Headgate's calls. The folder CAUSES_FOLDER
gets its data, and the files `started`, `begun` at the first step, and `effect` where it can tell
what its cause costs: the part of a step's time that would be saved without it.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate

_PRINTED_SECONDS = 0.02
"""A plain script prints its steps no oftener."""
_FEATURES = 256
_AGREES_EVERY = 8
"""Steps between two looks at the clock where several workers have to agree on it."""
_TRIED_SECONDS, _TRIED_TIMES = 0.25, 3
"""How long steps are tried with a cause, and without it, and how often."""


def note(name: str, text: str = "") -> None:
    """Tell the benchmark something, where it asks."""
    if "CAUSES_FOLDER" in os.environ:
        Path(os.environ["CAUSES_FOLDER"], name).write_text(text)


class Rows(Dataset[Any]):
    """Tensors in memory, of which the samples of a batch are taken at once."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitems__(self, indices: list[int]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[indices] for tensor in self.tensors)


def together(batch: Any) -> Any:
    """A batch that is one already; else one of its samples."""
    return batch if isinstance(batch[0], torch.Tensor) else default_collate(batch)


class Training:
    """A model, what trains it and what feeds it.

    Args:
        options: As given on the command line.
        width: Of its hidden layers.
        batch: Samples of a step.
    """

    def __init__(self, options: argparse.Namespace, width: int = 384, batch: int = 256) -> None:
        self.options = options
        torch.manual_seed(options.seed)
        wide = max(round(width * options.size), 8)
        layers = (
            nn.Linear(_FEATURES, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, 10),
        )
        self.model: Any = nn.Sequential(*layers)
        self.loss = nn.CrossEntropyLoss()
        self.batch = batch
        # Labels that a network of this size can learn, slowly.
        rows = torch.randn(8192, _FEATURES)
        labels = (rows @ torch.randn(_FEATURES, 10) + torch.randn(8192, 10)).argmax(dim=1)
        self.data: Any = Rows(rows, labels)
        self.workers = 0
        self.rate = 1e-3
        self.each_step: Callable[[int], None] = lambda _: None
        self.each_epoch: Callable[[], None] = lambda: None
        self.switch: Callable[[bool], None] | None = None  # turns its cause on and off
        self.every = _AGREES_EVERY if options.together else 1

    def run(self) -> None:
        """Train until its time is over."""
        if self.switch is not None:
            note("effect", f"{self._effect(self.switch):.3f}")
        optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=self.rate)
        loader: Any = DataLoader(
            self.data, self.batch, shuffle=True, num_workers=self.workers, collate_fn=together
        )
        epochs: Iterable[int] = range(1_000_000)
        report, calls = self._printed(), self.options.calls
        if calls is not None:
            self.model, optimizer, loader = calls.prepare(self.model, optimizer, loader)
            epochs, report = calls.epochs(1_000_000), lambda loss, _: calls.report(loss=loss)
        number, begun = 0, time.monotonic()
        for _ in epochs:
            for rows, labels in loader:
                optimizer.zero_grad()
                loss = self.loss(self.model(rows), labels)
                loss.backward()
                optimizer.step()
                number += 1
                self.each_step(number)
                report(loss, number)
                if number == 1:
                    note("begun")
                if number == self.options.steps or (
                    number % self.every == 0 and self._is_over(begun)
                ):
                    return
            self.each_epoch()

    def _effect(self, switch: Callable[[bool], None]) -> float:
        """The part of a step's time that is saved without its cause; the cause is on afterwards."""
        rows, labels = (tensor[: self.batch] for tensor in self.data.tensors)
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for on in (False, True) * _TRIED_TIMES:
            switch(on)
            self.loss(self.model(rows), labels).backward()
            begun, steps = time.monotonic(), 0
            while time.monotonic() - begun < _TRIED_SECONDS:
                self.loss(self.model(rows), labels).backward()
                steps += 1
            seconds[on].append((time.monotonic() - begun) / steps)
        self.model.zero_grad()
        return 1.0 - median(seconds[False]) / median(seconds[True])

    def _is_over(self, begun: float) -> bool:
        """Whether its time is over: workers agree on that."""
        over = not self.options.steps and time.monotonic() - begun > self.options.seconds
        calls = self.options.calls
        return over if calls is None else bool(calls.agree(over))

    def tell(self, loss: float) -> None:
        """Report the loss of a validation."""
        if self.options.calls is None:
            print(f"val_loss {loss:.4f}", flush=True)
        else:
            self.options.calls.report(val_loss=loss)

    def _printed(self) -> Callable[[Any, int], None]:
        last = 0.0

        def report(loss: Any, number: int) -> None:
            nonlocal last
            if time.monotonic() - last > _PRINTED_SECONDS:
                last = time.monotonic()
                print(f"step {number} loss {float(loss):.4f}", flush=True)

        return report


class Packed(Dataset[Any]):
    """Samples that take milliseconds to unpack."""

    def __init__(self, times: int) -> None:
        self._times = times
        noise = np.random.default_rng(0).integers(0, 9, 60_000).astype(np.int16)
        self._packed = zlib.compress(noise.tobytes(), 6)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        for _ in range(self._times):
            values = np.frombuffer(zlib.decompress(self._packed), dtype=np.int16)
        return torch.from_numpy(values[index : index + _FEATURES].astype(np.float32)), index % 10


def steady(options: argparse.Namespace) -> Training:
    """Nothing is wrong with it."""
    return Training(options, width=1024)


def loader(options: argparse.Namespace) -> Training:
    """One loader worker; more would bring more."""
    made = Training(options, batch=32)
    made.data, made.workers = Packed(max(round(2 * options.size), 1)), 1
    return made


def decoding(options: argparse.Namespace) -> Training:
    """As many loader workers as there are cores, and all are busy unpacking."""
    made = loader(options)
    made.workers = max(len(os.sched_getaffinity(0)), 2)
    return made


def threads(options: argparse.Namespace) -> Training:
    """Four times as many threads as cores."""
    cores = len(os.sched_getaffinity(0))
    made = Training(options, width=768)
    made.switch = lambda on: torch.set_num_threads(4 * cores if on else cores)
    return made


def small(options: argparse.Namespace) -> Training:
    """Steps of a few samples through a small network: Python takes longer than the arithmetic."""
    return Training(options, width=32, batch=4)


def saving(options: argparse.Namespace) -> Training:
    """Saves a large state every few steps."""
    made = Training(options)
    state = {"weights": torch.randn(round(12e6 * options.size))}
    place = tempfile.TemporaryDirectory()

    def save(number: int) -> None:
        if number % 2 == 0:
            torch.save(state, f"{place.name}/state.pt")

    made.each_step = save
    return made


def evaluating(options: argparse.Namespace) -> Training:
    """Goes through far more validation data than training data, between two epochs."""
    made = Training(options)
    made.data = torch.utils.data.Subset(made.data, range(2048))
    rows = torch.randn(round(60_000 * options.size), _FEATURES)

    def evaluate() -> None:
        made.model.eval()
        with torch.no_grad():
            losses = [
                float(made.model(part).logsumexp(dim=1).mean()) for part in torch.split(rows, 256)
            ]
        made.tell(sum(losses) / len(losses))
        made.model.train()

    made.each_epoch = evaluate
    return made


def validating(options: argparse.Namespace) -> Training:
    """Waits for a program that validates it."""
    made = Training(options)
    made.data = torch.utils.data.Subset(made.data, range(2048))
    code = f"import time; time.sleep({0.8 * options.size})"

    def validate() -> None:
        subprocess.run([sys.executable, "-c", code], check=True)
        made.tell(0.5)

    made.each_epoch = validate
    return made


def collecting(options: argparse.Namespace) -> Training:
    """Keeps many objects, and makes the collector of garbage go through them again and again."""
    made = Training(options)
    kept = [[index] for index in range(round(400_000 * options.size))]
    gc.set_threshold(200, 5, 5)

    def litter(_: int) -> None:
        for index in range(3000):
            ring: list[Any] = [index, kept]
            ring.append(ring)
        if len(kept) < 1_000_000:
            kept.append([0])
        gc.collect()

    made.each_step = litter
    return made


def floor(options: argparse.Namespace) -> Training:
    """A loss that is at its floor within a second or two: what is left of it is noise."""
    made = Training(options)
    wide = 4 * _FEATURES
    # Layers that do not learn make a step as long as that of a real model, and keep what it learns
    # simple.
    layers = [nn.Linear(wide, wide, bias=False).requires_grad_(False) for _ in range(2)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight)
    made.model = nn.Sequential(*layers, nn.Linear(wide, 1))
    rows = torch.randn(8192, wide)
    made.data = Rows(
        rows, rows @ torch.randn(wide, 1) / wide**0.5 + 0.2 * options.size * torch.randn(8192, 1)
    )
    made.loss, made.rate = nn.MSELoss(), 0.05  # type: ignore[assignment]
    return made


def small_network(options: argparse.Namespace) -> Training:
    """Nothing is wrong with it either; little to exchange."""
    return Training(options, width=384)


def straggling(options: argparse.Namespace) -> Training:
    """One worker dawdles in backward."""
    made = Training(options)
    if os.environ.get("HEADGATE_TASK", "").endswith("-1"):
        made.model[2].register_full_backward_hook(lambda *_: time.sleep(0.08 * options.size))
    return made


def table(options: argparse.Namespace) -> Training:
    """A large table of which a step touches few rows, with dense gradients."""
    made = Training(options, batch=64)
    entries = round(30_000 * options.size)
    made.model = nn.Sequential(nn.Embedding(entries, 32), nn.Flatten(), nn.Linear(32 * 4, 10))
    made.data = Rows(torch.randint(entries, (8192, 4)), torch.randint(10, (8192,)))
    return made


class OnDisk(Dataset[Any]):
    """Samples of so many bytes `each` in a file on the disk; `cold` ones are never in the page
    cache.
    """

    def __init__(self, megabytes: int, cold: bool, each: int = 1 << 18) -> None:
        made = self._file = tempfile.TemporaryFile(dir=os.environ.get("CAUSES_FOLDER"))  # noqa: SIM115 - as long as the data set
        self._cold, self._bytes, self._rows = cold, each, (megabytes << 20) // each
        for _ in range(megabytes):
            made.write(os.urandom(1 << 20))
        made.flush()
        os.fsync(made.fileno())
        if cold:
            os.posix_fadvise(made.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        handle = self._file.fileno()
        if self._cold:
            os.posix_fadvise(handle, index * self._bytes, self._bytes, os.POSIX_FADV_DONTNEED)
        content = np.frombuffer(os.pread(handle, self._bytes, index * self._bytes), dtype=np.uint8)
        return torch.from_numpy(content[:_FEATURES].astype(np.float32)), index % 10


def reading(options: argparse.Namespace) -> Training:
    """Reads each of its samples from the disk."""
    made = Training(options, batch=32)
    made.data = OnDisk(round(64 * options.size), cold=True)
    return made


def reading_little(options: argparse.Namespace) -> Training:
    """Reads its samples from the disk too, but computes several times as long."""
    made = Training(options, width=1024, batch=8)
    made.data = OnDisk(64, cold=True, each=1 << 16)
    return made


def rereading(options: argparse.Namespace) -> Training:
    """Reads more, again and again, than its memory limit lets the page cache hold."""
    made = Training(options, batch=32)
    made.data = OnDisk(round(500 * options.size), cold=False)
    return made


KINDS = {
    each.__name__: each
    for each in (
        *(steady, loader, decoding, threads, small, saving, evaluating, validating),
        *(collecting, floor, small_network, straggling, table, reading, reading_little, rereading),
    )
}


def main(calls: Any = None) -> None:
    """Train. `calls`: `headgate.torch`; None: a plain script."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=7.0)
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps instead")
    parser.add_argument("--size", type=float, default=1.0, help="of what is wrong, or of the model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--together", action="store_true", help="one of several workers")
    options = parser.parse_args()
    options.calls = calls
    note("started")
    KINDS[options.kind](options).run()


if __name__ == "__main__":
    main()
