"""Closes device files to a cgroup: a small BPF program, which the kernel runs at each open.

See bpf(2), and Documentation/admin-guide/cgroup-v2.rst, «Device controller». Needs a mounted
cgroup2, also beside cgroup v1, and Linux 4.15.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Collection
from pathlib import Path

_CALL = {"x86_64": 321, "aarch64": 280}
_LOAD, _ATTACH = 5, 8
_OF_DEVICES, _AT_OPEN, _MAY_OVERRIDE = 15, 6, 1
"""The program's type, where it is attached, and that a cgroup below may have another one."""
_LOAD_MAJOR, _LOAD_MINOR = (0x61, 2 | 1 << 4, 4, 0), (0x61, 3 | 1 << 4, 8, 0)
_OPENS, _EXIT = (0xB7, 0, 0, 1), (0x95, 0, 0, 0)
_CLOSED = (0xB7, 0, 0, 0)


def close_devices(folder: Path, devices: Collection[tuple[int, int]]) -> None:
    """Let processes in a cgroup open no device of these numbers; those that were closed before
    are open again.

    Files that are open stay open. A cgroup below with a filter of its own has only that one.

    Args:
        folder: The cgroup, in a cgroup2 file system.
        devices: Major and minor numbers.

    Raises:
        OSError: The kernel has no such filter, or refused it.
    """
    code = b"".join(struct.pack("<BBhi", *step) for step in _program(devices))
    text, license_name = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    program = _bpf(
        _LOAD,
        struct.pack(
            "=IIQQIIQII",
            *(_OF_DEVICES, len(code) // 8, ctypes.addressof(text)),
            *(ctypes.addressof(license_name), 0, 0, 0, 0, 0),
        ),
    )
    try:
        cgroup = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_ATTACH, struct.pack("=IIII", cgroup, program, _AT_OPEN, _MAY_OVERRIDE))
        finally:
            os.close(cgroup)
    finally:
        os.close(program)


def _program(devices: Collection[tuple[int, int]]) -> list[tuple[int, int, int, int]]:
    """Instructions: code, registers, offset, number. Each device is compared with the one that is
    opened; the first pair that is equal closes it.
    """
    steps = [_LOAD_MAJOR, _LOAD_MINOR]
    for major, minor in sorted(devices):
        other = 0x55  # goes on behind the next steps if the register is not equal
        steps += [(other, 2, 3, major), (other, 3, 2, minor), _CLOSED, _EXIT]
    return [*steps, _OPENS, _EXIT]


def _bpf(command: int, attributes: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if platform.machine() not in _CALL:
        raise OSError(f"the call of bpf(2) is not known for {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result: int = libc.syscall(_CALL[platform.machine()], command, buffer, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"the kernel's filter of devices: {os.strerror(number)}")
    return result
