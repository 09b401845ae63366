"""Joins the workers of a job into one JAX program, by `jax.distributed` with Gloo or NCCL
collectives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any

import jax
from jax._src import distributed, xla_bridge

from headgate.task import Channel, end_failed, scaling
from headgate.task.membership import (
    START_SECONDS,
    first_endpoint,
    free_ports,
    listening_at,
    own_address,
)


class JoinError(RuntimeError):
    """The workers of a job cannot become one JAX program. The message says why and what to do."""


def begun() -> bool:
    """Whether JAX has made its devices, so that they can no longer be configured."""
    return bool(xla_bridge.backends_are_initialized())


def set_threads(threads: int) -> None:
    """Set the size of XLA's CPU thread pool, unless the user set it. It cannot change later.

    XLA reads `PJRT_NPROC` when it makes its CPU device. By default it uses every core of the
    machine.
    """
    if "NPROC" not in os.environ:
        os.environ.setdefault("PJRT_NPROC", str(threads))


def threads() -> int:
    """The number of compute threads of XLA's CPU pool."""
    for name in ("PJRT_NPROC", "NPROC"):
        if os.environ.get(name, "").isdigit():
            return max(int(os.environ[name]), 1)
    return len(os.sched_getaffinity(0))


def check(plan: Mapping[str, Any]) -> None:
    """Check that JAX can run a plan of several tasks.

    Raises:
        JoinError: It cannot, or the script joins its processes itself.
    """
    if plan["strategy"] != "allreduce":
        raise JoinError(
            f"JAX cannot train under strategy {plan['strategy']!r}: its compiled steps contain the "
            "exchange of gradients, and JAX has no parameter servers; run with --strategy "
            f"allreduce --workers {plan['workers']}"
        )
    if distributed.global_state.client is not None:
        raise JoinError(
            "jax.distributed was initialized before headgate.jax.init(); remove that call: "
            f"Headgate joins the {plan['workers']} workers of this job by itself"
        )
    check_early()


def check_early() -> None:
    """Check that JAX can still be configured.

    Raises:
        JoinError: JAX has made its devices already.
    """
    if begun():
        raise JoinError(
            "headgate.jax.init() was called after JAX had set up its devices; call it before "
            "anything that computes, and before jax.devices() and jax.device_put()"
        )


def join(channel: Channel, plan: Mapping[str, Any]) -> None:
    """Join the other workers in one program. Returns when all have joined.

    Worker 0 listens only on its node's address, on a free port. Gloo listens on each worker's own
    node address.

    Raises:
        JoinError: JAX cannot run this plan, or not all workers started in time.
        Stop: This worker was asked to stop while it waited.
    """
    check(plan)
    welcome = channel.welcome
    index, workers, address = int(welcome["index"]), int(plan["workers"]), own_address(channel)
    meeting = _offer(channel, address) if index == 0 else first_endpoint(channel, JoinError)
    try:
        jax.distributed.initialize(
            meeting,
            workers,
            index,
            coordinator_bind_address=meeting,
            cluster_detection_method="deactivate",
            initialization_timeout=START_SECONDS,
        )
    except jax.errors.JaxRuntimeError as error:
        first = str(error).partition("\n")[0]
        raise JoinError(
            f"not all {workers} workers of this job connected to {meeting}: {first}; see their "
            "logs: headgate logs JOB --all"
        ) from error
    _bind_gloo(address)
    if index == 0:
        scaling.warn(channel, workers)
    sys.excepthook = partial(_failed, channel, workers)


def _offer(channel: Channel, address: str) -> str:
    """Tell the other workers where worker 0 will listen. They retry until it does."""
    message = listening_at(address, free_ports(address, 1))
    channel.send(message)
    return str(message["endpoints"][0]).removeprefix("tcp://")


def _bind_gloo(address: str) -> None:
    """Make Gloo listen on the address of this node. By default it takes the address of the host
    name, on many machines a loopback address that no other node reaches.
    """
    jaxlib: Any = import_module("jax._src.lib")
    gloo = jaxlib._jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=address
    )
    xla_bridge.register_backend_factory(
        "cpu", partial(xla_bridge.make_cpu_client, gloo), priority=0, fail_quietly=False
    )


def _failed(
    channel: Channel,
    workers: int,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """End this worker after an exception."""
    end_failed(
        channel, workers, kind, error, trace, of_a_step=issubclass(kind, jax.errors.JaxRuntimeError)
    )
