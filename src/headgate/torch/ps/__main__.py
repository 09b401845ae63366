"""A parameter server: one task of a job, started by its engine."""

from __future__ import annotations

import base64
import hashlib
import sys
from pathlib import Path

import torch

from headgate.task import Channel, TaskEnvironment
from headgate.task.membership import WELCOME_SECONDS
from headgate.torch.ps.services import services
from headgate.torch.ps.transport.server import Server

_NAME_LETTERS = len("channel")


def main() -> int:
    """Serve until the job has ended. Returns the exit code."""
    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "torch", torch.__version__, torch.initial_seed())
    if not channel.wait_for(lambda: bool(channel.welcome), WELCOME_SECONDS):
        print(
            (
                "Headgate did not answer this parameter server; only Headgate can start one, "
                "as a task of a job"
            ),
            file=sys.stderr,
        )
        return 1
    return Server(channel, services, _unix_socket_path(environment)).run()


def _unix_socket_path(environment: TaskEnvironment) -> Path | None:
    """The path of a Unix socket in the channel's folder, which only its user can enter.

    The name has to be as short as the channel's. A former life of the server, which may have left
    its socket, had the same name.
    """
    if environment.channel is None:
        return None
    name = base64.urlsafe_b64encode(hashlib.sha256(environment.task.encode()).digest())[
        :_NAME_LETTERS
    ].decode()
    return Path(environment.channel).with_name(f"{name}.sock")


if __name__ == "__main__":
    sys.exit(main())
