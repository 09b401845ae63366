"""Programs that take something from a machine: all of its cores, memory bandwidth, disk or network.

    python hog.py cores|processes|memory|disk|network|sink [--after 0] [--on 0 --off 0]
                  [--count 1] [--to ADDRESS]

`network` sends to ADDRESS, where `sink` receives. With `--seconds 0` it goes on until it, or who
started it, has ended. With `--after` it waits for so many seconds after the file `begun` is in
CAUSES_FOLDER, then prints the seconds since 1970. With `--on` and `--off` it comes and goes: so
many seconds each.
"""

from __future__ import annotations

import argparse
import mmap
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

_DISK_BYTES, _BLOCK, _READERS = 256 << 20, 4 << 20, 8
_PORT = 5209


def cores(_: argparse.Namespace) -> Iterator[None]:
    """Arithmetic in registers."""
    while True:
        sum(number * number for number in range(20_000))
        yield


def processes(_: argparse.Namespace) -> Iterator[None]:
    """Short processes, one after the other, as a build starts them."""
    while True:
        subprocess.run([sys.executable, "-c", "sum(i * i for i in range(300_000))"], check=False)
        yield


def memory(_: argparse.Namespace) -> Iterator[None]:
    """Streams through more than caches hold."""
    rows, other = np.ones(16_000_000), np.ones(16_000_000)
    while True:
        np.add(rows, other, out=rows)
        yield


def disk(_: argparse.Namespace) -> Iterator[None]:
    """Reads past the page cache, with as many requests at once as fill a fast disk."""
    with tempfile.TemporaryFile(dir=os.environ.get("CAUSES_FOLDER")) as file:
        file.write(os.urandom(_DISK_BYTES))
        file.flush()
        os.fsync(file.fileno())
        handle = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT)
        readers = [
            threading.Thread(target=_read, args=(handle, index), daemon=True)
            for index in range(_READERS)
        ]
        for reader in readers:
            reader.start()
        while True:
            readers[0].join(0.1)
            yield


def _read(handle: int, index: int) -> None:
    block = mmap.mmap(-1, _BLOCK)  # O_DIRECT wants its memory aligned
    while True:
        os.preadv(handle, [block], index * _BLOCK % _DISK_BYTES)
        index += _READERS - 1


def network(options: argparse.Namespace) -> Iterator[None]:
    """A connection that takes as much of the NIC as it can get."""
    while True:
        try:
            with socket.create_connection((options.to, _PORT)) as there:
                while True:
                    there.sendall(bytes(1 << 18))
                    yield
        except OSError:  # nobody listens yet
            time.sleep(0.1)
            yield


def sink(options: argparse.Namespace) -> Iterator[None]:
    """Receives what `network` sends to this address."""
    with socket.create_server((options.to, _PORT)) as listening:
        there, _ = listening.accept()
        with there:
            while there.recv(1 << 18):
                yield


KINDS: dict[str, Callable[[argparse.Namespace], Iterator[None]]] = {
    each.__name__: each for each in (cores, processes, memory, disk, network, sink)
}


def take(options: argparse.Namespace) -> None:
    starter = os.getppid()
    if options.after:
        begun = os.path.join(os.environ["CAUSES_FOLDER"], "begun")
        while not os.path.exists(begun):
            time.sleep(0.05)
        time.sleep(options.after)
        sys.stdout.write(f"{time.time()}\n")  # in one piece: others of its kind write there too
        sys.stdout.flush()
    began = time.monotonic()
    until = began + options.seconds if options.seconds else float("inf")
    for _ in KINDS[options.kind](options):
        if time.monotonic() > until or os.getppid() != starter:
            return
        if options.off and time.monotonic() - began > options.on:
            time.sleep(options.off)
            began = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--after", type=float, default=0.0, help="seconds to wait before")
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument(
        "--on", type=float, default=0.0, help="seconds that it is there at a time, with --off"
    )
    parser.add_argument(
        "--off", type=float, default=0.0, help="seconds that it is away in between (default: never)"
    )
    parser.add_argument("--count", type=int, default=1, help="processes")
    parser.add_argument("--to", default="127.0.0.1", help="address of the sink")
    options = parser.parse_args()
    others = [
        multiprocessing.Process(target=take, args=(options,), daemon=True)
        for _ in range(options.count - 1)
    ]
    for each in others:
        each.start()
    take(options)


if __name__ == "__main__":
    main()
