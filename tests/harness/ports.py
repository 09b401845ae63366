"""Ports for servers that are told theirs before they start, or come back to it."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 1024


def free_port() -> int:
    """A free port of loopback, none of those that the kernel gives to whoever asks for any."""
    first, last = map(int, _RANGE.read_text().split())
    others = [*range(_LEAST, first), *range(last + 1, 1 << 16)]
    while True:
        port: int = secrets.choice(others)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
