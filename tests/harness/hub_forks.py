"""Hubs that are forks of the command that starts them, where that is one of a warm interpreter.

To import what a hub needs takes longer than most hubs of tests run. In the interpreter that imports
this module, a command that would start a hub forks one instead: a process and session of its own,
with its own environment, folder, output and descriptors, and with the command line and environment
that `ps` and `/proc` show of a hub. Where the kernel does not let these be set, the command has
threads, or a hub is to import modules of a test's own, Python is started as ever.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import mmap
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import headgate.hub.server as hub
from headgate.client import starting
from headgate.model.errors import HeadgateError

_SET_MM, _MAP, _NO_FILE = 35, 14, 2**32 - 1
_libc = ctypes.CDLL(None)
_libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_libc.sbrk.argtypes, _libc.sbrk.restype = [ctypes.c_long], ctypes.c_void_p
_SOURCE = str(Path(hub.__file__).parents[2])
_shown: list[mmap.mmap] = []


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map`."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack", "arg_start")),
        *((name, ctypes.c_uint64) for name in ("arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


class ForkedHub:
    """A hub; as much of `subprocess.Popen` as its start uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self) -> int | None:
        return self._waited(0)

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class Processes:
    """In place of the module `subprocess`, for who starts hubs."""

    DEVNULL = subprocess.DEVNULL

    @staticmethod
    def Popen(  # noqa: N802 - as it is called there
        words: Sequence[str], *, env: Mapping[str, str], stdout: Any, cwd: str, **more: Any
    ) -> ForkedHub | subprocess.Popen[bytes]:
        plugged_in = env.get("PYTHONPATH") != _SOURCE
        if plugged_in or threading.active_count() > 1 or not _MAY_SHOW:
            return subprocess.Popen(words, env=env, stdout=stdout, cwd=cwd, **more)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            try:
                _become(words, env, stdout.fileno(), cwd)
            finally:
                os._exit(1)
        return ForkedHub(pid)


def _become(words: Sequence[str], env: Mapping[str, str], output: int, cwd: str) -> None:
    """Be a process that was started for a hub, and run it."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = [hub.__file__]
    sys.path[0] = cwd
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio._set_running_loop(None)
    logging.getLogger("headgate").handlers.clear()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    gc.collect()  # what is closed later closes no descriptor of the hub's
    gc.freeze()
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _show(words, env)
    code = 1
    try:
        code = hub.main()
    except HeadgateError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except BaseException:  # noqa: BLE001 - as an interpreter ends
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _show(words: Sequence[str], env: Mapping[str, str]) -> bool:
    """Let `/proc` show this command line and environment. Returns whether the kernel allows it."""
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    pairs = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    memory = mmap.mmap(-1, len(line) + len(pairs), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = line + pairs
    _shown.append(memory)  # for good
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle, end = start + len(line), start + len(line) + len(pairs)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    code, end_code, stack = map(int, fields[23:26])
    data, end_data, brk = map(int, fields[42:45])
    shown = _MemoryMap(
        *(code, end_code, data, end_data, brk, _libc.sbrk(0), stack),
        *(start, middle, middle, end, 0, 0, _NO_FILE),
    )
    size = ctypes.sizeof(shown)
    return bool(_libc.prctl(_SET_MM, _MAP, ctypes.addressof(shown), size, 0) == 0)


_MAY_SHOW = _show(sys.orig_argv, os.environ)
setattr(starting, "subprocess", Processes)  # noqa: B010 - it is no name of its own to mypy
