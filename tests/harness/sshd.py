"""A real server of ssh on loopback, which lets in one user, and a client that reaches it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.ports import free_port

from headgate.testing.wait import until

SSHD = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))
HOST = "far"
"""What the client calls it."""
SECONDS = 60.0


def configure(folder: Path, **environment: str) -> int:
    """Write keys and settings of a server and of its client. Returns the server's port.

    Args:
        folder: An empty folder for them; the client reads `config` there.
        environment: Variables of every login.
    """
    port = free_port()
    for key in ("host", "id"):
        subprocess.run(["ssh-keygen", "-qt", "ed25519", "-N", "", "-f", folder / key], check=True)
    shutil.copy(folder / "id.pub", folder / "authorized_keys")
    (folder / "config").write_text(
        f"Host {HOST}\n HostName 127.0.0.1\n Port {port}\n IdentityFile {folder}/id\n"
        " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
    )
    variables = " ".join(f"{name}={value}" for name, value in environment.items())
    (folder / "sshd").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nUsePAM no\nStrictModes no\n"
        + (f"SetEnv {variables}\n" if variables else "")
    )
    return port


def start(folder: Path, port: int, starts: Callable[..., Any]) -> Any:
    """Start a server that was configured. Returns what `starts` does, once it answers."""
    assert SSHD is not None
    command = SSHD, "-D", "-f", str(folder / "sshd")
    process = starts(*command, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as asks:
            return asks.connect_ex(("127.0.0.1", port)) == 0

    until(answers, SECONDS, "the server of ssh")
    return process


@contextmanager
def serving(folder: Path, **environment: str) -> Iterator[Path]:
    """A server that lets in this user. Returns a folder for PATH, whose `ssh` reaches it."""
    port = configure(folder, **environment)
    client = folder / "bin" / "ssh"
    client.parent.mkdir()
    client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    client.chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    process = start(folder, port, lambda *argv, **options: subprocess.Popen(argv, **options))
    try:
        yield client.parent
    finally:
        process.terminate()
        process.wait()
