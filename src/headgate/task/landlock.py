"""Landlock: the kernel restricts a process and all its child processes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_CREATE, _ADD, _RESTRICT = 444, 445, 446
"""Numbers of the system calls, the same on every architecture."""
_NO_NEW_PRIVILEGES = 38
_VERSION = 1


def version() -> int:
    """The kernel's version of Landlock; 0: none."""
    try:
        return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)))
    except (OSError, AttributeError):
        return 0


def restrict(handled: ctypes.Structure, rules: Iterable[tuple[int, ctypes.Structure]]) -> None:
    """Refuse from now on the accesses that `handled` names, except those that a rule allows.

    Args:
        handled: A `landlock_ruleset_attr`, or the beginning of one.
        rules: Type and attributes of each rule.

    Raises:
        OSError: The kernel does not support it.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int, *given: object) -> int:
        result = int(libc.syscall(number, *given))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    ruleset = call(_CREATE, ctypes.byref(handled), ctypes.c_size_t(ctypes.sizeof(handled)), 0)
    try:
        for kind, rule in rules:
            call(_ADD, ruleset, kind, ctypes.byref(rule), 0)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "no_new_privs")
        call(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)
