"""Real tasks, which do what a test tells them to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

WORKER = """
import os, sys, time
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end: pass
def burn_until(path):  # is there
    while not os.path.exists(path): pass
def burn_in_child(seconds):
    child = os.fork()
    if child == 0: burn(seconds); os._exit(0)
    os.waitpid(child, 0)
def burn_in_helper(seconds):  # which lives as long as this process
    done, life = os.pipe(), os.pipe()
    if os.fork() == 0:
        burn(seconds); os.write(done[1], b"x"); os.close(life[1]); os.read(life[0], 1); os._exit(0)
    os.close(life[0]); os.read(done[0], 1)
def start_child():
    global child, order, done
    (read, order), (done, end) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(order)
        while seconds := os.read(read, 10): burn(float(seconds)); os.write(end, b"x")
        os._exit(0)
    os.close(read); os.close(end)
def burn_in_started(seconds): os.write(order, b"%f" % seconds); os.read(done, 1)
def end_child(): os.close(order); os.close(done); os.waitpid(child, 0)
def hold(count):
    global held; held = bytearray(b"x") * count
def write(path, count):
    with open(path, "wb") as file:
        file.write(bytes(count)); file.flush(); os.fsync(file.fileno())
def send(count, to="10.99.9.2"):
    import socket
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        for _ in range(count): out.sendto(bytes(1000), (to, 9))
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


class Task:
    """A process, in the groups of a box or in none, that does what it is told to."""

    def __init__(self, cgroups: Mapping[str, Path], prefix: tuple[str, ...] = ()) -> None:
        self.cgroups = cgroups
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for folder in set(cgroups.values()):
            (folder / "cgroup.procs").write_text(str(self._process.pid))
        self.do("pass")

    @property
    def pid(self) -> int:
        return self._process.pid

    def pids(self) -> list[int]:
        if self._process.poll() is not None:
            return []
        return [
            self.pid,
            *(child.pid for child in psutil.Process(self.pid).children(recursive=True)),
        ]

    def do(self, line: str) -> None:
        """Have it run a line, and wait until it has."""
        self.send(line)
        self.done()

    def send(self, line: str) -> None:
        """Have it run a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")

    def done(self) -> None:
        """Wait until it has run a line that was sent."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "done\n"

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process.wait(60)
