"""A training script whose steps wait for what it is told to: its loader, the disk, the exchange of
its gradients.

Three calls of `headgate.torch`, so that its steps are sampled.
"""

from __future__ import annotations

import argparse
import os
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import headgate.torch as hg

FILE_BYTES = 64 << 20
PACKED = zlib.compress(
    np.random.default_rng(0).integers(0, 9, 10_000).astype(np.int16).tobytes(), 6
)


class Samples(Dataset[torch.Tensor]):
    """Samples that take time to read.

    Args:
        width: Numbers of a sample.
        sleep: Seconds that nothing else can use, as of a far store.
        decode: How often something is decompressed.
        read: Bytes from the disk, past the page cache.
    """

    def __init__(self, width: int, sleep: float, decode: int, read: int) -> None:
        self.width, self.sleep, self.decode, self.read = width, sleep, decode, read
        self.path = Path(f"limited-{os.getpid()}")
        if read:
            with self.path.open("wb") as file:
                file.write(os.urandom(FILE_BYTES))
                os.fsync(file.fileno())

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.sleep:
            time.sleep(self.sleep)
        for _ in range(self.decode):
            zlib.decompress(PACKED)
        if self.read:
            at = index * self.read % FILE_BYTES
            with self.path.open("rb") as file:
                os.posix_fadvise(file.fileno(), at, self.read, os.POSIX_FADV_DONTNEED)
                os.pread(file.fileno(), self.read, at)
        return torch.full((self.width,), float(index % 7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=0, help="0: until --seconds are over")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--width", type=int, default=512, help="of the network's layers")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0, help="of the loader")
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds a sample")
    parser.add_argument("--decode", type=int, default=0)
    parser.add_argument("--read", type=int, default=0, help="bytes a sample")
    args = parser.parse_args()
    torch.manual_seed(0)
    layers = (
        nn.Linear(args.width, args.width),
        nn.ReLU(),
        nn.Linear(args.width, args.width),
        nn.ReLU(),
    )
    model: nn.Module = nn.Sequential(*layers, nn.Linear(args.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    samples = Samples(args.width, args.sleep, args.decode, args.read)
    loader = DataLoader(samples, batch_size=args.batch, num_workers=args.workers)
    model, optimizer, loader = hg.prepare(model, optimizer, loader)
    end, done = time.monotonic() + args.seconds, 0
    for _ in hg.epochs(1):
        for rows in loader:
            loss = model(rows).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hg.report(loss=loss)
            done += 1
            if done >= args.steps if args.steps else time.monotonic() > end:
                samples.path.unlink(missing_ok=True)
                return


if __name__ == "__main__":
    main()
