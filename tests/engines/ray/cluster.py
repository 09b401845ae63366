"""A real Ray on this machine, for tests."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness.cgroups import cgroups

from headgate.testing.wait import until

START_SECONDS = 300.0
"""Ray takes five seconds on a machine of its own, and minutes on one that is busy with other
tests.
"""


@contextmanager
def head(cores: int = 2, dashboard: int | None = None, docker: str = "") -> Iterator[str]:
    """Address of a Ray that has this machine as its only node, with so many cores and two GPUs, be
    they there or not, and resources called `fast` and `near`.

    Args:
        dashboard: Port of its dashboard; None: it has none.
        docker: Where agents look for a Docker Engine; empty: where everybody does.
    """
    # sockets go below it, whose paths must be short
    folder = tempfile.mkdtemp(prefix="hg-ray-", dir="/tmp")
    address = f"127.0.0.1:{free_port()}"
    shown = ("true", "--dashboard-port", str(dashboard)) if dashboard else ("false",)
    said = Path(folder, "said.log")
    output = said.open("wb")
    started = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("ray")),
            *(
                "start",
                "--head",
                "--block",
                "--node-ip-address",
                "127.0.0.1",
                "--port",
                address.split(":")[1],
            ),
            *(
                "--num-cpus",
                str(cores),
                "--num-gpus",
                "2",
                "--temp-dir",
                folder,
                "--include-dashboard",
                *shown,
            ),
            *(
                "--disable-usage-stats",
                "--object-store-memory",
                "80000000",
                "--resources",
                '{"near": 1, "fast": 4}',
            ),
            # Beside another head here, one at the port that Ray has for it would take no jobs.
            *("--dashboard-agent-listen-port", str(free_port())),
        ],
        env={
            **os.environ,
            "RAY_worker_niceness": "0",
            **({"DOCKER_HOST": docker} if docker else {}),
            # else it wants a token if somebody has started a Ray of his own here
            "RAY_AUTH_MODE": "disabled",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    output.close()

    def runs() -> bool:
        assert started.poll() is None, said.read_text()
        return "Ray runtime started" in said.read_text()  # its raylet too

    try:
        until(runs, START_SECONDS, f"a Ray at {address}")
        yield address
    finally:
        started.terminate()
        started.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def folders_left(hub: int | None = None) -> list[str]:
    """What the agents of a hub (None: of this process) left here: their folders, and the cgroups of
    their boxes.
    """
    name_of = f"ray-{hub or os.getpid()}-"
    return list(
        map(str, [*cgroups(f"headgate-{name_of}*"), *Path("/tmp").glob(f"headgate-{name_of}*")])
    )
