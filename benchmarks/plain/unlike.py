"""Jobs that want unlike things of a machine: cores, caches, memory bandwidth, a loader, the disk.

Plain scripts: they never heard of Headgate. A line of output for each step. Where CAUSES_FOLDER is
set, the file `begun` is there from the first step on.
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np


def conv() -> Callable[[], float]:
    """A convolutional network: as many threads as it is given."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    body = (
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    )
    model = nn.Sequential(*body, nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images, labels = torch.randn(64, 3, 40, 40), torch.randint(10, (64,))

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def matmul() -> Callable[[], float]:
    """A wide perceptron: large matrix products."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows, labels = torch.randn(512, 1024), torch.randint(10, (512,))

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), labels)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def recurrent() -> Callable[[], float]:
    """A recurrent network of small operations, which one thread does about as fast as many."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    cell, head = nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 4)
    optimizer = torch.optim.Adam([*cell.parameters(), *head.parameters()])
    rows, labels = torch.randn(16, 40, 16), torch.randint(4, (16,))

    def step() -> float:
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(head(cell(rows)[0][:, -1]), labels)
            loss.backward()
            optimizer.step()
        return float(loss.item())

    return step


def embedding() -> Callable[[], float]:
    """Lookups in a table that no cache holds."""
    import torch

    torch.manual_seed(0)
    table = torch.randn(1_000_000, 64)
    draw = np.random.default_rng(0)

    def step() -> float:
        rows = torch.from_numpy(draw.integers(0, len(table), 60_000))
        looked_up = table[rows]
        table.index_add_(0, rows, looked_up, alpha=-0.001)
        return float(looked_up.square().mean().item())

    return step


def stream() -> Callable[[], float]:
    """Sums over arrays that no cache holds: memory bandwidth, one thread."""
    a, b = np.ones(12_000_000), np.full(12_000_000, 0.5)

    def step() -> float:
        np.add(a, b, out=b)
        np.multiply(b, 0.5, out=b)
        return float(b[0])

    return step


def objects() -> Callable[[], float]:
    """A Python program without any library: one thread, many small objects."""

    def step() -> float:
        counts: dict[int, list[int]] = {}
        for number in range(60_000):
            counts.setdefault(number * 7919 % 5003, []).append(number)
        return float(sum(map(len, counts.values())))

    return step


def loader() -> Callable[[], float]:
    """A small network fed by two processes that decompress what they read."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, IterableDataset

    packed = zlib.compress(
        pickle.dumps(np.random.default_rng(0).integers(0, 9, 40_000).astype(np.int16)), 6
    )

    class Packed(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            while True:
                yield torch.from_numpy(
                    pickle.loads(zlib.decompress(packed))[:4096].astype(np.float32)
                )

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches = iter(DataLoader(Packed(), batch_size=64, num_workers=2))

    def step() -> float:
        optimizer.zero_grad()
        loss = model(next(batches)).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def disk() -> Callable[[], float]:
    """Reads past the page cache, then computes a little."""
    path = f"/tmp/causes-{os.getpid()}"
    with open(path, "wb") as file:
        file.write(os.urandom(64 << 20))
        os.fsync(file.fileno())
    handle = os.open(path, os.O_RDONLY)
    os.unlink(path)
    weights = np.ones(1 << 19)
    at = 0

    def step() -> float:
        nonlocal at
        os.posix_fadvise(handle, at, 4 << 20, os.POSIX_FADV_DONTNEED)
        rows = np.frombuffer(os.pread(handle, 4 << 20, at), dtype=np.uint8)[: 1 << 19]
        at = (at + (4 << 20)) % (64 << 20)
        return float(rows @ weights)

    return step


KINDS = {
    each.__name__: each
    for each in (conv, matmul, recurrent, embedding, stream, objects, loader, disk)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--steps", type=int, default=0, help="0: until --seconds are over")
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    step = KINDS[args.kind]()
    end = time.monotonic() + args.seconds
    number = 0
    while number < args.steps if args.steps else time.monotonic() < end:
        number += 1
        print(f"step {number} loss {step():.4f}", flush=True)
        if number == 1 and "CAUSES_FOLDER" in os.environ:
            Path(os.environ["CAUSES_FOLDER"], "begun").touch()


if __name__ == "__main__":
    main()
