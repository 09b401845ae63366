"""A Ray of the benchmarks' own: raylets on this machine, or on the nodes of a lab."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import _frame
import _job
import psutil

from headgate.lab import nodes


class Raylets:
    """Raylets that belong together, by name; the first is the head.

    Args:
        host: Address of the head.
        variables: Of the environment of all of them.
    """

    def __init__(self, host: str, variables: dict[str, str] | None = None) -> None:
        self.address = f"{host}:{free_port()}"
        self._folder = Path(tempfile.mkdtemp(prefix="hg-ray-", dir="/tmp"))  # sockets' paths must be short
        # Ray's workers are nicer than others unless they are told not to be, and it wants a token of whoever comes if
        # its user has one, which drivers by hand do not show.
        self._variables = _frame.environment(RAY_worker_niceness="0", RAY_AUTH_MODE="disabled", **(variables or {}))
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, cores: int, *, host: str = "", within: Sequence[str] = ()) -> None:
        """Start one, and wait until it has joined.

        Args:
            name: Of the node.
            cores: CPUs that Ray is told it has.
            host: Its address; empty: Ray finds one.
            within: A command that runs what follows it on the node.
        """
        joins = ("--address", self.address)
        head = ("--head", "--port", self.address.split(":")[1], "--ray-client-server-port", str(free_port()))
        words = [
            *(*within, sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *(joins if self._started else (*head, "--include-dashboard", "false")),
            *("--num-cpus", str(cores), "--temp-dir", str(self._folder / name), "--disable-usage-stats"),
            *("--object-store-memory", "80000000"),
            *(("--node-ip-address", host) if host else ()),
        ]
        said = self._folder / f"{name}.log"
        with said.open("wb") as output:
            self._started[name] = subprocess.Popen(
                words,
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _job.until(lambda: "Ray runtime started" in said.read_text(), f"a raylet on {name}")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; it said:\n{said.read_text()}") from None

    def start_in_lab(self, lab: str, name: str, cores: int) -> None:
        """Start one on a node of a lab that is up."""
        within = (sys.executable, "-m", "headgate", "lab", "exec", f"{lab}/{name}", "--")
        self.start(name, cores, host=nodes(lab).node(name).address, within=within)

    def running(self) -> frozenset[str]:
        """Names of those that were started and not killed."""
        return frozenset(self._started)

    def below(self, name: str) -> list[psutil.Process]:
        """All processes of Ray on a node, Headgate's agent among them."""
        top = psutil.Process(self._started[name].pid)
        return [top, *top.children(recursive=True)]

    def kill(self, name: str) -> None:
        """kill -9 of all that Ray itself runs on a node: its actors end by themselves."""
        for process in self.below(name):
            with suppress(psutil.NoSuchProcess):  # what lost its head ends by itself
                if not process.name().startswith("ray::"):
                    process.kill()
        self._started.pop(name).wait()

    def end(self) -> None:
        """End all of them."""
        for raylet in self._started.values():
            raylet.terminate()
        for raylet in self._started.values():
            raylet.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class OnHead(_job.Bench):
    """A bench whose hub is on the node of Ray's head: there it finds a raylet."""

    head = ""
    """LAB/NODE."""

    def headgate(self, *words: str) -> str:
        if words[0] not in ("run", "resume", "calibrate", "profile"):
            return super().headgate(*words)
        return super().headgate("lab", "exec", self.head, "--", sys.executable, "-m", "headgate", *words)


@contextmanager
def raylets(host: str = "", variables: dict[str, str] | None = None) -> Iterator[Raylets]:
    """Raylets that are gone afterwards; the head is to be at that address, or at this machine's."""
    made = Raylets(host or socket.gethostbyname(socket.gethostname()), variables)
    with _frame.leaving():
        try:
            yield made
        finally:
            made.end()


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
