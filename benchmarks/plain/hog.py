"""Programs that take something from a machine: all of its cores, memory bandwidth, disk or network.

    python hog.py cores|memory|disk|network [--after 0] [--seconds 0] [--count 1] [--to ADDRESS]

`network` sends to ADDRESS:9, whether or not anybody listens there. With `--seconds 0` it goes on until it is ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np


def cores(_: argparse.Namespace) -> Iterator[None]:
    """Arithmetic in registers."""
    while True:
        sum(number * number for number in range(20_000))
        yield


def memory(_: argparse.Namespace) -> Iterator[None]:
    """Streams through more than caches hold."""
    rows, other = np.ones(16_000_000), np.ones(16_000_000)
    while True:
        np.add(rows, other, out=rows)
        yield


def disk(options: argparse.Namespace) -> Iterator[None]:
    """Writes and reads past the page cache."""
    with tempfile.TemporaryFile(dir=os.environ.get("CAUSES_DISK") or tempfile.gettempdir()) as file:
        handle, block = file.fileno(), os.urandom(4 << 20)
        at = 0
        while True:
            os.pwrite(handle, block, at)
            os.fdatasync(handle)
            os.posix_fadvise(handle, at, len(block), os.POSIX_FADV_DONTNEED)
            os.pread(handle, len(block), at)
            at = (at + len(block)) % (256 << 20)
            yield


def network(options: argparse.Namespace) -> Iterator[None]:
    """Datagrams as fast as the NIC takes them."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        content = bytes(60_000)
        while True:
            for _ in range(8):
                try:
                    sender.sendto(content, (options.to, 9))
                except OSError:  # nobody listens, or the queue is full
                    time.sleep(0.001)
            yield


KINDS: dict[str, Callable[[argparse.Namespace], Iterator[None]]] = {
    each.__name__: each for each in (cores, memory, disk, network)
}


def take(options: argparse.Namespace) -> None:
    time.sleep(options.after)
    until = time.monotonic() + options.seconds if options.seconds else float("inf")
    for _ in KINDS[options.kind](options):
        if time.monotonic() > until:
            return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--after", type=float, default=0.0, help="seconds to wait before")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--count", type=int, default=1, help="processes")
    parser.add_argument("--to", default="127.0.0.1", help="address that is sent to")
    options = parser.parse_args()
    others = [multiprocessing.Process(target=take, args=(options,), daemon=True) for _ in range(options.count - 1)]
    for each in others:
        each.start()
    take(options)


if __name__ == "__main__":
    main()
