"""The tasks of a job as TensorFlow's cluster: where each task listens, told through the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.task import Channel, PeerLost, Stop
from headgate.task.membership import START_SECONDS, endpoint_of, free_ports, own_address


class PlanError(RuntimeError):
    """The script cannot be run as its plan says; the message says why and what works."""


def ports_for(channel: Channel, count: int) -> list[int]:
    """Ports for this task. A task that was started again gets the ports of its former process,
    because TensorFlow's coordinator looks for it there. Any other gets `free_ports`.
    """
    listened = channel.welcome.get("listened") or ()
    if len(listened) == count:
        return [int(str(endpoint).rpartition(":")[2]) for endpoint in listened]
    return free_ports(own_address(channel), count)


def tell_open(channel: Channel) -> None:
    """Say where TensorFlow's servers listen: they have no setting that keeps them to one
    address.
    """
    text = (
        "TensorFlow's servers listen on all addresses of their node, without a key; use a "
        "private network or a firewall"
    )
    channel.send({"type": "note", "text": text})


def wait_for_all(channel: Channel, plan: Mapping[str, Any]) -> dict[str, list[str]]:
    """Wait until all tasks of the job listen, and return their addresses by TensorFlow's names of
    their jobs.

    In a plan with servers, worker 0 is there twice: as a worker, and as the `chief` that
    coordinates.

    Raises:
        Stop: This task was asked to end while it waited.
        PeerLost: Not all tasks started.
        PlanError: The servers are another library's.
    """
    workers, servers = range(int(plan["workers"])), range(int(plan["servers"]))

    def found() -> dict[str, list[str]]:
        cluster = {
            "worker": [endpoint_of(channel, "worker", index) for index in workers],
            "ps": [endpoint_of(channel, "server", index) for index in servers],
            "chief": [endpoint_of(channel, "worker", 0, 1)] if servers else [],
        }
        return {job: places for job, places in cluster.items() if places}

    if not channel.wait_for(lambda: all(all(places) for places in found().values()), START_SECONDS):
        if channel.stopping:
            raise Stop
        raise PeerLost(
            f"not all tasks of the job started within {START_SECONDS:g} s; their logs say why: "
            "headgate logs JOB --all"
        )
    _check_servers(channel.peers.get("members", ()))
    return found()


def _check_servers(members: Sequence[Mapping[str, Any]]) -> None:
    """Check that the job's servers are TensorFlow's.

    Raises:
        PlanError: They are not, because the engine takes the script for one of another library.
    """
    others = {m.get("framework") for m in members if m["role"] == "server"} - {"keras", "", None}
    if others:
        raise PlanError(
            "this script trains with headgate.keras, but its job's servers were started as those "
            f"of headgate.{', '.join(map(str, others))}: Headgate looks for the import in the file "
            "that `script:` names; import headgate.keras in that file, or run with --strategy "
            "allreduce"
        )


def describe(cluster: Mapping[str, Sequence[str]], job: str, index: int) -> None:
    """Tell TensorFlow, and the script if it looks, this task's place in the cluster."""
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": job, "index": index}}
    )


def allow_waiting(tasks: int) -> int:
    """Give TensorFlow a waiting thread for each task of the job, and some to do the work. An
    operation that waits for another task occupies a thread of the pool. The same pool runs the work
    that it waits for.

    Returns:
        The threads.
    """
    threads = tasks + 4
    os.environ["TF_NUM_INTEROP_THREADS"] = str(
        max(threads, int(os.environ.get("TF_NUM_INTEROP_THREADS") or 0))
    )
    return threads


def serve(cluster: Mapping[str, Sequence[str]], job: str, index: int) -> None:
    """Start one of TensorFlow's servers in this process. It runs in the background until the
    process ends.
    """
    import tensorflow as tf

    # Kept for ever, because TensorFlow's threads for a server do not end with it.
    threads = allow_waiting(sum(len(places) for places in cluster.values()))
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads)
    _serving.append(
        tf.distribute.Server(
            tf.train.ClusterSpec(dict(cluster)), job, index, protocol="grpc", config=config
        )
    )


def until_done(channel: Channel) -> None:
    """Wait until the engine ends this task, or the worker that coordinates is gone."""

    def over() -> bool:
        workers = [
            member for member in channel.peers.get("members", ()) if member["role"] == "worker"
        ]
        return bool(workers) and not any(member["index"] == 0 for member in workers)

    while channel.connected and not channel.stopping and not channel.wait_for(over, 3600.0):
        continue


_serving: list[Any] = []
