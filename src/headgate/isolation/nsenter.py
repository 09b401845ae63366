"""Enters the place of a task, in the process that the launcher runs in.

The file is loaded alone, without the package around it.
"""

from __future__ import annotations

import ctypes
import os

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000  # linux/sched.h
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8  # linux/mount.h
_MS_BIND, _MS_REC, _MS_SLAVE = 4096, 16384, 1 << 19
_CGROUPS = b"/sys/fs/cgroup"


def enter(namespace: bytes, hostname: bytes, hosts: bytes) -> None:
    """Enter a network namespace, under a host name and with a hosts file of its own.

    Args:
        namespace: Path of the network namespace.
        hostname: The host name.
        hosts: Path of the file to mount at `/etc/hosts`.

    Raises:
        OSError: It cannot; `filename` says what was tried.
    """
    network = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    _call(f"enter network namespace {os.fsdecode(namespace)}", "setns", network, _CLONE_NEWNET)
    os.close(network)
    _call("unshare mounts and host name", "unshare", _CLONE_NEWNS | _CLONE_NEWUTS)
    _call(
        f"set host name {os.fsdecode(hostname)}",
        "sethostname",
        hostname,
        ctypes.c_size_t(len(hostname)),
    )
    # Mounts here do not propagate, and do not keep alive what the machine unmounts later.
    _mount("keep mounts to itself", b"none", b"/", None, _MS_REC | _MS_SLAVE)
    _mount(f"mount {os.fsdecode(hosts)}", hosts, b"/etc/hosts", None, _MS_BIND)
    # A sysfs shows the network of the process that mounted it. The cgroups are mounted again where
    # they were.
    cgroups = os.open(_CGROUPS, os.O_PATH | os.O_CLOEXEC)
    _mount(
        "mount a sysfs of its network",
        b"sysfs",
        b"/sys",
        b"sysfs",
        _MS_NOSUID | _MS_NODEV | _MS_NOEXEC,
    )
    _mount(
        "mount its cgroups again", b"/proc/self/fd/%d" % cgroups, _CGROUPS, None, _MS_BIND | _MS_REC
    )
    os.close(cgroups)


def _mount(what: str, source: bytes, target: bytes, kind: bytes | None, flags: int) -> None:
    _call(what, "mount", source, target, kind, ctypes.c_ulong(flags), None)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(what: str, function: str, *arguments: object) -> None:
    if getattr(_LIBC, function)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
