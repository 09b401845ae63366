"""A parameter server: one task of a job, started by its engine."""

from __future__ import annotations

import sys

import torch

from headgate.task import Channel, TaskEnvironment
from headgate.task.part import WELCOME_SECONDS
from headgate.torch.ps.services import services
from headgate.torch.ps.transport.server import Server


def main() -> int:
    """Serve until the job has ended; the exit code."""
    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "torch", torch.__version__, torch.initial_seed())
    if not channel.wait_for(lambda: bool(channel.welcome), WELCOME_SECONDS):
        print(
            "a parameter server is started by Headgate, as a task of a job; nobody welcomed this one", file=sys.stderr
        )
        return 1
    return Server(channel, services).run()


if __name__ == "__main__":
    sys.exit(main())
