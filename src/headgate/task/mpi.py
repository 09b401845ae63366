"""Runs a worker's command as an MPI rank: `python -m headgate.task.mpi COMMAND...`.

MPI processes find each other through daemons of `mpirun`, which usually starts them. Under Headgate
each worker is a separate task. The first worker runs `mpirun`; the first worker of each other node
runs that node's daemon. For each rank they start a proxy. It gives the rank's variables to the
worker, and ends with the worker.

    worker-0 ── mpirun ── proxy 0 ┄┄ worker-0
                  ├────── proxy 1 ┄┄ worker-1
                  └ agent ┄┄ worker-2 ── daemon ── proxy 2 ┄┄ worker-2

Dotted lines are connections, which need the key of the attempt. When one end of a line ends, so
does the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

VARIABLE = "HEADGATE_MPI"
"""The variable with a worker's `RankInfo`."""
START_SECONDS = 300
"""Longest wait of a job's workers for each other to start."""
_END_SECONDS = 1.0
"""Time for a rank to end by itself after `mpirun` has given it up, as after a call of MPI_Abort."""
_OF_MPI = re.compile(r"(OMPI|PMI|PMI2|PMIX|PRTE|ORTE|OPAL|MPI[A-Z]*|HYDI?|HYDRA|I_MPI)_.*")
"""Variables by which a rank finds its daemon."""
_OF_SCHEDULERS = re.compile(r"(SLURM|PBS|LSB|PMI|PMIX)_.*")
"""Variables that would have `mpirun` start its processes in another way."""
_HANDED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_OURS = "headgate-mpi-"
_SHARED = "/dev/shm"


@dataclass(frozen=True)
class RankInfo:
    """What a worker is told about the ranks of its job.

    Args:
        rank: Its own rank.
        addresses: Address of each worker's node.
        ports: A port of each worker.
        key: Secret of the attempt.
    """

    rank: int
    addresses: Sequence[str]
    ports: Sequence[int]
    key: str

    def endpoint(self, rank: int) -> Any:
        """Where a worker listens. The first worker's port is left to its script."""
        if rank == 0:
            return f"\0{_OURS}{hashlib.sha256(self.key.encode()).hexdigest()[:16]}"
        return self.addresses[rank], self.ports[rank]

    def connect(self, rank: int) -> Connection:
        """Connect to a worker, which may not have started yet."""
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                return Client(self.endpoint(rank), authkey=self.key.encode())
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)


def worker(info: RankInfo, command: Sequence[str]) -> int:
    """Run a command as a rank of `mpirun`.

    Returns:
        Its exit code; that of a signal is negative.

    Raises:
        SystemExit: The command cannot run, or this process was asked to end before it ran.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes its folders
    with _folder(tempfile.gettempdir()) as folder, _folder(_SHARED) as shared:
        daemon = MpiDaemon(folder)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(daemon.failed or 128 + signal.SIGTERM))
        variables, proxy = _rank_of(info, daemon, folder)
        code = _run(command, {**_defaults(shared), **os.environ, **variables}, proxy)
        if code == 0:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            proxy.send_bytes(b"0")
            daemon.wait()  # the others still need it
    return code


class MpiDaemon:
    """The `mpirun`, or the daemon of a node, if this worker runs one. If it ends before the
    worker's command begins, it has failed. Its output is then shown, and this process is asked to
    end.

    Args:
        folder: Folder of its output.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.needed = True
        """Whether the worker's command has not begun."""
        self.failed = False

    def start(self, command: Sequence[str]) -> None:
        env = {
            name: value for name, value in os.environ.items() if not _OF_SCHEDULERS.fullmatch(name)
        }
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**env, "TMPDIR": str(self._folder)},
            )
        threading.Thread(target=self._watch, daemon=True).start()

    def wait(self) -> None:
        if self._process is not None:
            self._process.wait()

    def _watch(self) -> None:
        self.wait()
        if self.needed:
            print(
                (self._folder / "output").read_text(errors="replace"), file=sys.stderr, flush=True
            )
            self.failed = True
            os.kill(os.getpid(), signal.SIGTERM)


def find_mpirun() -> tuple[str, str]:
    """The path of `mpirun` and its version text; without `mpirun`, an empty path and what to do."""
    program = shutil.which("mpirun") or shutil.which("mpiexec")
    if program is None:
        return (
            "",
            (
                "install Open MPI (Debian, Ubuntu: apt install openmpi-bin) or MPICH (pip install "
                "mpich), on each node"
            ),
        )
    asked = subprocess.run(
        [program, "--version"], check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    return program, asked.stdout.decode(errors="replace").strip()


def _rank_of(
    info: RankInfo, daemon: MpiDaemon, folder: Path
) -> tuple[Mapping[str, str], Connection]:
    """The variables of this worker's rank, once `mpirun` has started its proxy, and the connection
    to the proxy.
    """
    try:
        listening = Listener(info.endpoint(info.rank), backlog=8, authkey=info.key.encode())
    except OSError as error:
        sys.exit(
            f"Error: cannot listen at {info.addresses[info.rank]}:{info.ports[info.rank]}: "
            f"{error.strerror}"
        )
    with listening:
        if info.rank == 0:
            daemon.start(_mpirun(info, folder))
        while True:
            # a connection without the key
            with contextlib.suppress(AuthenticationError, EOFError, ConnectionError):
                connection = listening.accept()
                answer = json.loads(connection.recv_bytes())
                if "variables" in answer:
                    daemon.needed = False
                    return answer["variables"], connection
                daemon.start(["/bin/sh", "-c", answer["run"]])
                threading.Thread(target=_keep_open, args=(connection, daemon), daemon=True).start()


def _keep_open(agent: Connection, daemon: MpiDaemon) -> None:
    """Keep the connection to an agent open while the daemon that it requested runs."""
    daemon.wait()
    agent.close()


def _mpirun(info: RankInfo, folder: Path) -> Sequence[str]:
    """The `mpirun` command, for Open MPI or for MPICH and its descendants, such as Intel MPI.

    Raises:
        SystemExit: There is no `mpirun`.
    """
    program, says = find_mpirun()
    if not program:
        sys.exit(f"Error: found no mpirun on the PATH of this worker; {says}")
    us = (sys.executable, __file__)
    agent, hosts = folder / "agent", folder / "hosts"
    agent.write_text(f'#!/bin/sh\nexec {" ".join(map(shlex.quote, us))} --agent "$@"\n')
    agent.chmod(0o700)
    counts = {address: info.addresses.count(address) for address in info.addresses}
    starts = ("-n", str(len(info.addresses)), *us, "--proxy")
    if "HYDRA" in says:
        hosts.write_text("".join(f"{address}:{count}\n" for address, count in counts.items()))
        return [
            program,
            "-launcher",
            "rsh",
            "-launcher-exec",
            str(agent),
            "-pmi-port",
            "-f",
            str(hosts),
            *starts,
        ]
    hosts.write_text("".join(f"{address} slots={count}\n" for address, count in counts.items()))
    settings = {"plm_rsh_agent": f"/bin/sh {agent}", "plm_rsh_no_tree_spawn": "1"}
    ours = [word for name, value in settings.items() for word in ("--mca", name, value)]
    ours += [
        "--allow-run-as-root",
        "--map-by",
        "slot",
        "--bind-to",
        "none",
        "--leave-session-attached",
    ]
    return [program, *ours, "--hostfile", str(hosts), *starts]


def _defaults(shared: Path) -> Mapping[str, str]:
    """Default settings of Open MPI for a rank: workers share cores, and shared memory files are in
    `shared`.
    """
    return {
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_btl_vader_backing_directory": str(shared),
        "OMPI_MCA_btl_sm_backing_directory": str(shared),
    }


def _run(command: Sequence[str], env: Mapping[str, str], proxy: Connection) -> int:
    """Run a worker's command until it ends, and forward signals to it. Ask it to end when `mpirun`
    gives it up.
    """
    try:
        process = subprocess.Popen(
            command, env={name: value for name, value in env.items() if name != VARIABLE}
        )
    except OSError as error:
        sys.exit(f"Error: cannot run {command[0]}: {error.strerror}")
    for name in _HANDED_ON:
        signal.signal(getattr(signal, name), lambda number, _: process.send_signal(number))

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            proxy.recv_bytes()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        process.terminate()

    threading.Thread(target=watch, daemon=True).start()
    return process.wait()


@contextlib.contextmanager
def _folder(place: str) -> Iterator[Path]:
    """A temporary folder. It also removes those left by workers that were killed."""
    where = Path(place) if os.access(place, os.W_OK) else Path(tempfile.gettempdir())
    for old in where.glob(f"{_OURS}*"):
        with contextlib.suppress(OSError), (old / "lock").open() as lock:
            flock(lock, LOCK_EX | LOCK_NB)
            shutil.rmtree(str(old), ignore_errors=True)
    with (
        tempfile.TemporaryDirectory(prefix=_OURS, dir=str(where)) as folder,
        Path(folder, "new").open("w") as lock,
    ):
        flock(lock, LOCK_EX)
        Path(folder, "new").rename(Path(folder, "lock"))  # for others it is locked from the first
        yield Path(folder)


def agent(info: RankInfo, host: str, command: Sequence[str]) -> int:
    """Have the first worker of a node run a command. `mpirun` calls this in place of `ssh`."""
    connection = info.connect(info.addresses.index(host))
    connection.send_bytes(json.dumps({"run": " ".join(command)}).encode())
    with contextlib.suppress(EOFError, OSError):
        connection.recv_bytes()
    return 0


def proxy(info: RankInfo) -> int:
    """Give a worker the variables of its rank, and end with it."""
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_ID"])
    variables = {name: value for name, value in os.environ.items() if _OF_MPI.fullmatch(name)}
    connection = info.connect(rank)
    connection.send_bytes(json.dumps({"variables": variables}).encode())
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        return 1
    return 0


def main() -> int:
    info = RankInfo(**json.loads(os.environ[VARIABLE]))
    mode, *words = sys.argv[1:]
    if mode == "--agent":
        return agent(info, words[0], words[1:])
    if mode == "--proxy":
        return proxy(info)
    return worker(info, sys.argv[1:])


if __name__ == "__main__":
    code = main()
    if code < 0:  # as the rank ended
        with contextlib.suppress(OSError):  # SIGKILL has no handler to take away
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
