"""Labs of real nodes, each test's own, and what may be left of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.cgroups import cgroups
from tests.harness.traffic import End

from headgate import lab
from headgate.lab.names import NAMESPACES, Names
from headgate.model.cluster import Node

SOURCE = Path(__file__).parents[2] / "src"


class Laboratory:
    """Where labs are made: writes cluster files, and looks at the machine.

    Args:
        folder: For the files.
        home: `HEADGATE_HOME`.
    """

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.home = home
        self._started: list[subprocess.Popen[str]] = []

    def write(self, *nodes: str, name: str = "bench", options: str = "") -> str:
        """Write the file of a lab: a line for each node, as `name: a, nic: 50Mbit`; cores and
        memory are added.
        """
        every = {"cores": "0.3", "memory": "512MiB"}
        lines = []
        for node in nodes:
            added = "".join(
                f", {key}: {value}" for key, value in every.items() if f"{key}:" not in node
            )
            lines.append(f"  - {{{node}{added}}}")
        path = self.folder / f"{name}.yaml"
        path.write_text("\n".join(["lab: true", options, "nodes:", *lines]) + "\n")
        return str(path)

    def up(self, *nodes: str, name: str = "bench", options: str = "") -> tuple[Node, ...]:
        """Have a lab; its nodes."""
        return lab.nodes(lab.up(self.write(*nodes, name=name, options=options)).lab).nodes

    def starts(self, node: str, *words: str) -> subprocess.Popen[str]:
        """Run a command in a node, as from a terminal."""
        process = subprocess.Popen(
            [sys.executable, "-m", "headgate", "lab", "exec", node, "--", *words],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def python(self, node: str, program: str, code: int = 0) -> str:
        """What a Python program prints in a node."""
        process = self.starts(node, sys.executable, "-c", program)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == code, errors
        return output.strip()

    def types(
        self, *words: str, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Type `headgate lab ...`."""
        return subprocess.run(
            [sys.executable, "-m", "headgate", "lab", *words],
            env={**os.environ, "PYTHONPATH": str(SOURCE), **(env or {})},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def left(self, name: str = "bench") -> list[str]:
        """What there is of a lab: namespaces, cgroups, files, processes."""
        names = Names(name, self.home)
        namespaces = (
            [str(path) for path in NAMESPACES.glob(f"{names.switch}*")]
            if NAMESPACES.exists()
            else []
        )
        return [
            *namespaces,
            *map(str, cgroups(names.group)),
            *map(str, (self.home / "labs").glob(f"{name}*")),
        ]

    def close(self) -> None:
        """Take every lab down, and wait for what was started."""
        for name in lab.names():
            lab.down(name)
        for process in self._started:
            process.kill()
            process.communicate()


def end(node: Node) -> End:
    """A node as one end of traffic."""
    assert node.place is not None
    return Path(node.place.namespace).name, node.address


@pytest.fixture
def laboratory(tmp_path: Path, home: Path) -> Iterator[Laboratory]:
    if os.geteuid() != 0:
        pytest.skip("a lab needs root")
    made = Laboratory(tmp_path, home)
    yield made
    made.close()
