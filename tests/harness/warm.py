"""Python programs in processes that need not import a framework first: each is forked from an
interpreter that has.

A test of a job of several tasks starts many processes of some seconds' work each, of which `import
torch` alone would take most. Here one interpreter imports what they need, runs nothing and starts
no thread, and forks one child for each program, in which that program then runs as if Python had
been started for it: its own process, environment, folder, arguments, output and exit code, and its
own import of Headgate. Three things differ from a fresh interpreter: the framework is already in
`sys.modules` and is not taken apart at the end, all children share one seed of string hashes, and
`ps` shows the command line of the interpreter they came from.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NamedTuple

import headgate

TORCH = ("torch", "torch._dynamo", "torch.distributed", "torch.utils.data")
"""What programs that use PyTorch import; the first optimizer imports torch._dynamo, which takes as
long as torch.
"""

_STARTED = ("LD_", "PYTHON")
_LOADED = (
    *(*_STARTED, "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH"),
    *("JAX_", "XLA_", "KERAS_", "CUDA_", "TF_CPP_", "TF_ENABLE_"),
)
"""Variables of these beginnings are read when an interpreter starts, the others when a library of a
framework is loaded; a fork is too late.
"""
_MESSAGE = 1 << 17  # bytes; an environment has to fit
_START_SECONDS = 300.0
_imported: dict[str, ModuleType] = {}  # before the first fork


class WarmProcess:
    """A program that was started; as much of `subprocess.Popen` as tests use."""

    def __init__(self, pid: int, pidfd: int, status: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._status = status

    def poll(self) -> int | None:
        """The exit code, negative where a signal ended it; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: It still runs after `timeout` seconds.
        """
        if self.returncode is None:
            readable = select.poll()
            readable.register(self._status, select.POLLIN)
            if not readable.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            code = self._status.recv(64)
            # without an answer, all went with the interpreter
            self.returncode = int(code) if code else -signal.SIGKILL
            self._status.close()
            os.close(self._pidfd)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """kill -9, unless it has ended."""
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """Starts Python programs in forks of one interpreter for each set of options and of variables
    that are read only when an interpreter starts; each is made when it is first needed, and ends
    with `close` or with this process.

    Args:
        *modules: What to import. Where it is something of Headgate, programs have that one, else
            the one on their own PYTHONPATH.

    Example:
        >>> with WarmPython("torch") as python, open("log", "wb") as log:
        ...     words = ["train.py", "--epochs", "5"]
        ...     python.start(words, env=os.environ, cwd=".", output=log.fileno()).wait()
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._early = _STARTED if _keeps_headgate(modules) else _LOADED
        self._servers: dict[object, tuple[subprocess.Popen[bytes], socket.socket]] = {}

    def __enter__(self) -> WarmPython:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | str,
        output: int,
        errors: int | None = None,
        options: Sequence[str] = (),
    ) -> WarmProcess:
        """Start a program.

        Args:
            arguments: A script and its arguments, or `-m` with a module and its.
            env: All variables of the process.
            cwd: Its folder.
            output: File descriptor of its stdout.
            errors: That of its stderr; None: the same.
            options: Of the interpreter, for example `-W error`.

        Raises:
            RuntimeError: The interpreter does not answer; it has told why on stderr.
        """
        request = json.dumps(
            {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd)}
        ).encode()
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            descriptors = [output, output if errors is None else errors, theirs.fileno()]
            socket.send_fds(self._server(env, options), [request], descriptors)
        # it may still be importing; one that dies is seen at once
        status.settimeout(_START_SECONDS)
        try:
            answer, fds, _, _ = socket.recv_fds(status, 64, 1)
        except TimeoutError:
            answer, fds = b"", []
        if not answer:
            status.close()
            raise RuntimeError(f"the interpreter that was to run {list(arguments)} does not answer")
        status.settimeout(None)
        return WarmProcess(int(answer), fds[0], status)

    def close(self) -> None:
        """End the interpreters, and what they still run."""
        for process, control in self._servers.values():
            control.close()
            process.wait()
        self._servers.clear()

    def _server(self, env: Mapping[str, str], options: Sequence[str]) -> socket.socket:
        early = {
            name: value
            for name, value in env.items()
            if name.startswith(self._early) and name != "PYTHONPATH"
        }
        key = (frozenset(early.items()), tuple(options))
        if key not in self._servers:
            control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            rest = {
                name: value
                for name, value in os.environ.items()
                if not name.startswith((*_LOADED, "HEADGATE_"))
            }
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, *options, __file__, str(theirs.fileno()), *self._modules],
                    env={**rest, **early, "PYTHONPATH": str(_root())},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            self._servers[key] = process, control
        return self._servers[key][1]


@functools.cache
def warm_python(*modules: str) -> WarmPython:
    """What runs programs that use these modules; one for this process, as long as it lasts."""
    python = WarmPython(*modules)
    atexit.register(python.close)
    return python


# --- in the interpreter ---------------------------------------------------------------------------


class _Child(NamedTuple):
    pid: int
    status: socket.socket


def _keeps_headgate(modules: Sequence[str]) -> bool:
    """Whether programs have the commands that were imported here: these load no framework."""
    return any(name.startswith("headgate.") for name in modules)


def _root() -> Path:
    """What `headgate` is imported from."""
    return Path(headgate.__file__).parents[1]


def _serve(control: socket.socket, keeps_headgate: bool) -> Callable[[], None] | None:
    """Fork a child for each request until there can be no more; returns what to run in a child, and
    None here.
    """
    children: dict[int, _Child] = {}  # by file descriptor of the process
    ready = select.poll()
    ready.register(control, select.POLLIN)
    while True:
        for fd, _ in ready.poll():
            if fd != control.fileno():
                ready.unregister(fd)
                child = children.pop(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
                with contextlib.suppress(OSError):  # nobody asks any more
                    child.status.send(str(code).encode())
                child.status.close()
                os.close(fd)
                continue
            request, fds, _, _ = socket.recv_fds(control, _MESSAGE, 3)
            if not request:
                for child in children.values():
                    os.kill(child.pid, signal.SIGKILL)
                return None
            streams, status = fds[:2], socket.socket(fileno=fds[2])
            pid = os.fork()
            if pid == 0:
                for left in (control, status, *(child.status for child in children.values())):
                    left.close()
                for pidfd in children:
                    os.close(pidfd)
                return lambda: _become(json.loads(request), streams, keeps_headgate)
            for stream in streams:
                os.close(stream)
            pidfd = os.pidfd_open(pid)
            children[pidfd] = _Child(pid, status)
            ready.register(pidfd, select.POLLIN)
            with contextlib.suppress(OSError):
                socket.send_fds(status, [str(pid).encode()], [pidfd])


def _become(request: Mapping[str, object], streams: Sequence[int], keeps_headgate: bool) -> None:
    """Be a process that was started for this program, and run it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, fd)
        os.close(stream)
    env, arguments = request["env"], request["arguments"]
    if not isinstance(env, dict) or not isinstance(arguments, list):
        raise TypeError(f"found a request {request!r}; expected variables and arguments")
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(env)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # `random` does so itself after a fork
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    if not keeps_headgate:
        for name in [name for name in sys.modules if name.partition(".")[0] == "headgate"]:
            del sys.modules[name]  # the program's own is on its PYTHONPATH
    module = arguments[1] if arguments[0] == "-m" else None
    script = os.path.abspath(arguments[0])
    # Its own two: the folder that it was started in, and its PYTHONPATH.
    sys.path[:2] = [os.getcwd() if module else os.path.dirname(script), *paths]
    sys.argv[:] = arguments[1:] if module else arguments
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")


def _leave_imported() -> None:
    """Leave what was imported before the fork to the kernel: to take it apart would copy it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_imported))
    for name in _imported.keys() - {"__main__", "builtins", "sys"}:
        if sys.modules.get(name) is _imported[name]:
            del sys.modules[name]


def main(control: str, *modules: str) -> None:
    """Import, then serve; a child goes on from here as if it had just been started."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for whoever started this
    # JAX's, whose threads do not run yet
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
    keeps_headgate = _keeps_headgate(modules)
    if keeps_headgate:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads do not outlive a fork
    atexit.register(_leave_imported)  # before all others, so that it is the last that is called
    for name in modules:
        importlib.import_module(name)
    _imported.update(sys.modules)
    gc.freeze()  # a collection in a child, as at its end, would look at all and so copy all
    with socket.socket(fileno=int(control)) as requests:
        run = _serve(requests, keeps_headgate)
    if run is not None:
        run()


if __name__ == "__main__":
    main(*sys.argv[1:])
