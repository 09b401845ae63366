"""What all benchmarks share: the command line, what they were run on, the JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from headgate import __version__
from headgate.telemetry.machine import topology


def parser(description: str, repetitions: int) -> argparse.ArgumentParser:
    """A command line with `--repetitions` and `--json`."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "--repetitions", type=int, default=repetitions, help=f"of which the median is given (default: {repetitions})"
    )
    made.add_argument("--json", type=Path, help="write the result to this file")
    return made


def environment(**added: str) -> dict[str, str]:
    """This process's environment, in which `python` is the interpreter that runs the benchmark."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, **added}


def machine() -> str:
    """The machine in a line."""
    cpus = topology()
    return f"{cpus.model}, {cpus.allowed} CPUs, Linux {platform.release()}"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Headgate, Python and the packages that are installed."""
    found = {"headgate": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


@contextmanager
def leaving() -> Iterator[None]:
    """What is to be undone in a `finally` in this context is so, whole, when this process is asked to end as well."""
    before = {number: signal.signal(number, _leave) for number in _ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def lab(
    folder: Path, name: str, nodes: Mapping[str, str], rate: str, variables: dict[str, str], cores: float = 1
) -> Iterator[None]:
    """A lab of nodes that are alike, by name and address, with that NIC rate; up for as long as the context, which ends
    as well where this process is asked to."""
    lines = ["lab: true", f"name: {name}", "oversubscribe: true", "nodes:"]
    lines += [f"  - {{name: {n}, address: {at}, cores: {cores}, memory: 4GiB, nic: {rate}}}" for n, at in nodes.items()]
    file = folder / "lab.yaml"
    file.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "headgate", "lab"]
    with leaving():
        try:
            subprocess.run([*command, "up", file], env=variables, stdout=subprocess.DEVNULL, check=True)
            yield
        finally:
            _stay()
            subprocess.run([*command, "down", name], env=variables, stdout=subprocess.DEVNULL, check=False)


_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


def _leave(number: int, _: object) -> None:
    _stay()
    raise SystemExit(128 + number)


def _stay() -> None:
    """What is being undone is not to be left half done."""
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)


def end_hub(variables: dict[str, str]) -> None:
    """End the hub of a `HEADGATE_HOME`, which would wait for more runs."""
    code = (
        "import os, select, signal\n"
        "from headgate.hub import client\n"
        "hub = client.connect()\n"
        "if hub is not None:\n"
        "    pidfd = os.pidfd_open(hub.ask('hello')['pid'])\n"
        "    for wait in (5, 60):\n"
        "        signal.pidfd_send_signal(pidfd, signal.SIGTERM)\n"
        "        if select.select([pidfd], [], [], wait)[0]: break\n"
    )
    subprocess.run([sys.executable, "-c", code], env=variables, check=False)


def heading(repetitions: int, *packages: str) -> None:
    """Print what the figures below were measured on."""
    print(f"{machine()}; {', '.join(f'{name} {text}' for name, text in versions(*packages).items())}")
    print(f"medians of {repetitions} repetitions, taken in turn\n")


def spread(values: Sequence[float]) -> str:
    """Median, and the least and the most in brackets."""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def write(path: Path | None, benchmark: str, content: dict[str, object], *packages: str) -> None:
    """Write the JSON, where one is asked for."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        head = {"benchmark": benchmark, "machine": machine(), "versions": versions(*packages)}
        path.write_text(json.dumps({**head, **content}, indent=2) + "\n")
