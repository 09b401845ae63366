"""`headgate.Executor`: function calls that run as jobs of the hub, like `concurrent.futures`."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, Self

from headgate.client import remote_call
from headgate.client.calls import Batch, CallFuture, PendingCall, T, await_call, handed_in, received
from headgate.engines.base import LOCAL
from headgate.hub.connection import HubGoneError
from headgate.machine import allocation
from headgate.model import units
from headgate.model.calls import CALL
from headgate.model.errors import MissingExtraError, UsageError
from headgate.model.identifiers import JobId
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow

P = ParamSpec("P")

CALLS = "calls"
"""Subfolder of Headgate's folder for submitted calls. A run with calls links to it."""
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_LETTERS = 48
_MAKING_SECONDS = 60.0


class Executor(futures.Executor):
    """Runs function calls as jobs, each in its own process, with limits and a log.

    cloudpickle sends functions, arguments and results. Submitted calls go on after the caller is
    gone: `attach` gives their results.

    Args:
        max_workers: Most calls that are submitted at a time; None: the number of CPUs.
        cores: CPU cores of each call; None: no limit.
        memory: Memory of each call, in bytes or as `2GiB`; None: no limit.
        gpus: GPUs of each call; None: not set.
        timeout: Most seconds that each call may run; None: no limit.
        retries: How often a call that raised or was killed is repeated.
        env: Variables added to the environment.
        cluster: A lab that is up, to run calls on its nodes; None: on this machine.
        engine: What starts them: `local`, or another of those that `headgate doctor` lists.
        address: Where the engine's cluster is reached; empty: where the environment says.
        shared_files: Whether its nodes see this machine's files.
        job: Further fields of each call's `headgate.Job`, such as `priority`.

    Raises:
        MissingExtraError: cloudpickle is not installed.
        UsageError: A limit is invalid.

    Example:
        >>> with headgate.Executor(cores=1, memory="2GiB") as executor:
        ...     print(list(executor.map(pow, [2, 3], [10, 10])))
        [1024, 59049]
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        cores: float | None = None,
        memory: int | str | None = None,
        gpus: int | None = None,
        timeout: float | None = None,
        retries: int = 0,
        env: Mapping[str, str] | None = None,
        cluster: str | None = None,
        engine: str = LOCAL.name,
        address: str = "",
        shared_files: bool = False,
        **job: Any,
    ) -> None:
        if find_spec("cloudpickle") is None:
            raise MissingExtraError("executor", "headgate.Executor")
        if max_workers is not None and max_workers < 1:
            raise UsageError(f"found max_workers={max_workers}; expected 1 or more, or None")
        self._most = max_workers or len(allocation.current().cpus)
        try:
            memory_bytes = units.memory(memory) if isinstance(memory, str) else memory
            self._job = Job(
                name="call",
                run=(sys.executable, "-m", remote_call.__name__),
                limits=Limits(cores, memory_bytes, gpus),
                timeout=timeout,
                retries=retries,
                **{"verify": "off", "moves": 0, **job},
            )
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None
        self._env = dict(env or {})
        self._place = (cluster, engine, address, shared_files)
        self._lock = threading.Lock()
        self._handing_in = threading.RLock()
        self._waiting: deque[PendingCall] = deque()
        self._batches: list[Batch] = []
        self._closed = False
        self._count = 0
        self._thread: threading.Thread | None = None
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._folder = runs.home() / CALLS / secrets.token_hex(8)
        self._folder.mkdir(mode=0o700, parents=True)
        self._held = runs.lock(self._folder)
        _sweep()
        atexit.register(self._at_exit)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> CallFuture[T]:
        """Schedule a call of a function and return at once.

        Raises:
            UsageError: The function or an argument cannot be pickled.
            RuntimeError: The executor is shut down.
        """
        name = _NOT_A_NAME.sub("", getattr(fn, "__name__", "")) or "call"
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot submit a call: the executor is shut down")
            self._count += 1
            job_name = f"{name[:_NAME_LETTERS].lstrip('._-') or 'call'}-{self._count}"
        file = self._folder / f"{job_name}.pkl"
        try:
            remote_call.write(file, sys.path, (fn, args, kwargs))
        except Exception as error:
            raise UsageError(
                f"{getattr(fn, '__qualname__', fn)!s} or an argument of it cannot be pickled: "
                f"{error}; pass what can be, and open files and connections in the function"
            ) from error
        future: CallFuture[T] = CallFuture()
        call = PendingCall(future, file, self._job_of(job_name, name, file))
        with self._lock:
            if self._closed:
                file.unlink()
                raise RuntimeError("cannot submit a call: the executor is shut down")
            self._waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="headgate-executor", daemon=True
                )
                self._thread.start()
            self._look()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls.

        Args:
            wait: Wait until all calls have ended.
            cancel_futures: Cancel calls that are not submitted yet.
        """
        with self._lock:
            self._closed = True
        if cancel_futures:
            self._cancel()
        with self._lock:
            self._look()
            if self._thread is None:
                self._let_go()
        if wait and self._thread is not None:
            self._thread.join()

    def stop(self, *, kill: bool = False) -> None:
        """Cancel waiting calls and stop submitted ones: with a checkpoint if they can save one, or
        at once (`kill`).
        """
        with self._handing_in:  # also stops calls that are being submitted
            self._cancel()
            with self._lock:
                for batch in self._batches:
                    with suppress(HubGoneError):  # its calls have failed
                        batch.watch.stop(kill=kill)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for all calls; after a Ctrl-C, stop them first."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.stop()
        self.shutdown(wait=True)

    @staticmethod
    def attach(id: str) -> CallFuture[Any]:
        """The future of a call by its id, `RUN/JOB`. The call may come from another process.

        Raises:
            NotFoundError: No such run or job exists.
            UsageError: The job is not a call.
        """
        folder, name = runs.find_job(id)
        with RunReader(folder / runs.STORE) as reader:
            [row] = reader.records(JobRow, "name = ?", [name])
        if CALL not in row.job().env:
            raise UsageError(f"job {id} is no call of an Executor; `headgate logs {id}` shows it")
        future: CallFuture[Any] = CallFuture()
        future.set_running_or_notify_cancel()
        future._is_at(JobId.of(folder.name, name))
        threading.Thread(
            target=await_call, args=(future, folder, name), name="headgate-call", daemon=True
        ).start()
        return future

    # --- the thread -------------------------------------------------------------------------------

    def _job_of(self, name: str, label: str, file: Path) -> Job:
        base = self._job
        mounts = (str(self._folder),) if base.isolation not in (None, "process") else ()
        return replace(
            base,
            name=name,
            args=(label,),
            workdir=os.getcwd(),
            env={**base.env, **self._env, CALL: str(file)},
            mounts=(*base.mounts, *mounts),
        )

    def _look(self) -> None:
        with suppress(OSError):  # the pipe is full, or the thread has ended
            os.write(self._wake, b"+")

    def _cancel(self) -> None:
        """Cancel waiting calls; without the lock, because callbacks may submit others."""
        with self._lock:
            calls = list(self._waiting)
            self._waiting.clear()
        for call in calls:
            call.future.cancel()
            call.file.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            self._hear()
            if self._hand_in(self._most - sum(len(batch.left) for batch in self._batches)):
                # With its answer the hub may have told all that there is to tell: nothing would
                # wake this thread for that.
                continue
            with self._lock:
                if not self._waiting and not self._batches and self._closed:
                    self._let_go()
                    return
            wakers = select.poll()
            wakers.register(self._woken, select.POLLIN)
            for batch in self._batches:
                wakers.register(batch.hub, select.POLLIN)
            wakers.poll()
            with suppress(BlockingIOError):
                os.read(self._woken, 1 << 16)

    def _hear(self) -> None:
        """Process the hub's messages about all batches."""
        for batch in list(self._batches):
            if not received(batch):
                batch.hub.close()
                with self._lock:
                    self._batches.remove(batch)

    def _hand_in(self, room: int) -> bool:
        """Submit waiting calls as one run, as many as there is room for; whether there were any."""
        with self._handing_in:
            calls: list[PendingCall] = []
            with self._lock:
                while self._waiting and (len(calls) < room or self._waiting[0].future.cancelled()):
                    call = self._waiting.popleft()
                    if call.future.set_running_or_notify_cancel():
                        calls.append(call)
                    else:
                        call.file.unlink(missing_ok=True)
            if not calls:
                return False
            try:
                batch = handed_in(calls, self._place)
            except Exception as error:  # noqa: BLE001  # each call's future raises it
                for call in calls:
                    call.file.unlink(missing_ok=True)
                    call.future._fail(error)
                return True
            with self._lock:
                self._batches.append(batch)
            return True

    def _at_exit(self) -> None:
        """Submit waiting calls, so that they run after their caller is gone."""
        with self._lock:
            count = len(self._waiting)
        self._hand_in(count)

    def _let_go(self) -> None:
        """Needs the lock."""
        if self._held >= 0:
            for descriptor in (self._held, self._woken, self._wake):
                os.close(descriptor)
            self._held = self._woken = self._wake = -1
            atexit.unregister(self._at_exit)


def _age(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:  # another process has removed it
        return 0.0


def _sweep() -> None:
    """Remove the calls of dead executors whose runs are gone."""
    for folder in (runs.home() / CALLS).iterdir():
        # a folder that is being made is not locked yet
        if _age(folder) < _MAKING_SECONDS or runs.is_locked(folder / runs.LOCK):
            continue
        for file in folder.glob("*.pkl"):
            with suppress(OSError):
                if file.stat().st_nlink == 1:
                    file.unlink()
        with suppress(OSError):  # it has calls of runs that are kept
            if not any(folder.glob("*.pkl")):
                (folder / runs.LOCK).unlink(missing_ok=True)
                folder.rmdir()
