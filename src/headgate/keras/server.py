"""`python -m headgate.keras.server`: a parameter server of TensorFlow, one task of a job, started
by its engine.
"""

from __future__ import annotations

import os
import sys

import tensorflow as tf

from headgate.keras import cluster
from headgate.task import Channel, TaskEnvironment, plan_of
from headgate.task.membership import free_ports, listening_at, own_address


def main() -> int:
    """Serve until the job has ended; return the exit code."""
    channel = Channel.open(TaskEnvironment.claim(), "keras", tf.__version__, None)
    plan = plan_of(channel)
    if not plan:
        print(
            (
                "headgate.keras.server is a parameter server, which Headgate starts as a task of a "
                "job; no engine answered"
            ),
            file=sys.stderr,
        )
        return 1
    address = own_address(channel)
    channel.send(listening_at(address, free_ports(address, 1)))
    cluster.serve(cluster.wait_for_all(channel, plan), "ps", int(channel.welcome["index"]))
    cluster.until_done(channel)
    channel.flush(2.0)
    return 0


if __name__ == "__main__":
    status = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # TensorFlow's server has no end, and its threads would hold up that of the interpreter
    os._exit(status)
