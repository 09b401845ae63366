"""Joins the tasks of a job to one training, by what each framework brings for it."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from headgate.keras import cluster, environment
from headgate.keras.agreement import Agreement
from headgate.keras.cluster import PlanError
from headgate.task import Channel, end_failed, scaling
from headgate.task.membership import bound, endpoint_of, free_ports, listening_at, own_address

_PACK_BYTES = 4 << 20
"""Gradients are summed in packs of this size, so that the sum of one overlaps with the making of
the next.
"""


class Alone:
    """A stand-in for a strategy in a job of one task, over a back end that needs none."""

    def scope(self) -> contextlib.AbstractContextManager[None]:
        """A context to make models in; it does nothing."""
        return contextlib.nullcontext()


def alone() -> Any:
    """The strategy of a job of one task: TensorFlow's default one, which `ClusterCoordinator` then
    takes too. Over another back end, a stand-in.
    """
    if environment.backend() != "tensorflow":
        return Alone()
    import tensorflow as tf

    from headgate.keras.coordinator import coordinate_alone

    strategy = tf.distribute.get_strategy()
    coordinate_alone(strategy)
    return strategy


def join(channel: Channel, plan: Mapping[str, Any]) -> tuple[Any, Agreement | None]:
    """Join the other tasks of the job. Return the strategy, and the agreement of workers that step
    together.

    Raises:
        PlanError: The script's back end cannot follow the plan.
        PeerLost: Not all tasks started.
        Stop: This task was asked to end meanwhile.
    """
    backend = environment.backend()
    check(plan, backend)
    if plan["strategy"] == "ps":
        return _over_servers(channel, plan), None
    if backend == "jax":
        return _over_jax(channel, plan)
    return _over_collectives(channel, plan)


def check(plan: Mapping[str, Any], backend: str) -> None:
    """Check that a back end can follow a plan.

    Raises:
        PlanError: It cannot; the message says why, and what works.
    """
    workers = plan["workers"]
    if backend == "torch":
        raise PlanError(
            f"Keras over torch trains in one task, and this plan has {workers} workers; set "
            "KERAS_BACKEND=jax for "
            "--strategy allreduce, or write the loop in PyTorch with headgate.torch"
        )
    if plan["strategy"] == "ps" and backend == "jax":
        raise PlanError(
            f"JAX has no parameter servers; run with --strategy allreduce --workers {workers}, "
            "or over TensorFlow"
        )
    if plan["strategy"] == "ps" and plan["synchronous"]:
        raise PlanError(
            "workers of TensorFlow's parameter servers do not wait for each other, which "
            "changes the mathematics; "
            f"allow it with --async, or run with --strategy allreduce --workers {workers}"
        )
    if plan["strategy"] == "ps" and plan.get("staleness") is not None:
        raise PlanError(
            "TensorFlow's parameter servers do not bound staleness; leave --staleness out"
        )


def check_fit(plan: Mapping[str, Any], backend: str, legacy: bool) -> None:
    """Check that `fit` works under a plan of several tasks.

    Raises:
        PlanError: It does not.
    """
    if plan["strategy"] == "ps":
        raise PlanError(
            "with parameter servers, fit calls nothing after a batch, so Headgate can neither "
            "count steps nor save and stop between them; write the loop with "
            "tf.distribute.coordinator.ClusterCoordinator"
        )
    if backend == "tensorflow" and not legacy:
        raise PlanError(
            "fit of Keras 3 fails with several workers of TensorFlow: it takes their tensors for "
            "plain ones; use KERAS_BACKEND=jax with --strategy allreduce, or set "
            "TF_USE_LEGACY_KERAS=1 with tf_keras installed, or write the loop with strategy.run"
        )


# --- TensorFlow -----------------------------------------------------------------------------------


def _over_collectives(channel: Channel, plan: Mapping[str, Any]) -> tuple[Any, Agreement]:
    import tensorflow as tf

    index, address = int(channel.welcome["index"]), own_address(channel)
    ports = free_ports(address, 1)
    listener = _listener(address) if index == 0 else None
    if listener is not None:
        ports.append(listener.getsockname()[1])
    channel.send(listening_at(address, ports))
    if index == 0:
        cluster.tell_open(channel)
    cluster.describe(cluster.wait_for_all(channel, plan), "worker", index)
    options = tf.distribute.experimental.CommunicationOptions(
        bytes_per_pack=_PACK_BYTES,
        implementation=tf.distribute.experimental.CommunicationImplementation.RING,
    )
    if index == 0:
        scaling.warn(channel, int(plan["workers"]))
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    sys.excepthook = partial(_failed, channel, int(plan["workers"]))
    return strategy, Agreement(channel, listener)


def _over_servers(channel: Channel, plan: Mapping[str, Any]) -> Any:
    """Worker 0 coordinates, and has one of the job's worker servers in its own process; the others
    only serve.
    """
    import tensorflow as tf

    index, address = int(channel.welcome["index"]), own_address(channel)
    channel.send(listening_at(address, cluster.ports_for(channel, 1 if index else 2)))
    cluster_spec = cluster.wait_for_all(channel, plan)
    cluster.serve(cluster_spec, "worker", index)
    if index:
        cluster.until_done(channel)
        channel.flush(2.0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # TensorFlow's server has no end, and its threads would hold up that of the interpreter
        os._exit(0)
    cluster.tell_open(channel)
    cluster.describe(cluster_spec, "chief", 0)
    sys.excepthook = partial(_failed, channel, int(plan["workers"]))
    return tf.distribute.ParameterServerStrategy(
        tf.distribute.cluster_resolver.TFConfigClusterResolver()
    )


# --- JAX ------------------------------------------------------------------------------------------


def _over_jax(channel: Channel, plan: Mapping[str, Any]) -> tuple[Any, Agreement]:
    from headgate.jax import joining

    joining.join(channel, plan)
    import jax

    keras = importlib.import_module("keras")
    distribution_lib: Any = importlib.import_module("keras.src.backend.jax.distribution_lib")
    if not hasattr(distribution_lib, "distribute_data_input"):
        raise PlanError(
            f"Headgate does not know how Keras {keras.__version__} divides batches among "
            "workers; use 3.9 to 3.15"
        )
    distribution_lib.distribute_data_input = _divided
    distribution_lib.initialize_rng()
    strategy = keras.distribution.DataParallel(devices=jax.devices(), auto_shard_dataset=False)
    keras.distribution.set_distribution(strategy)
    address = own_address(channel)
    listener = _listener(address) if int(channel.welcome["index"]) == 0 else None
    if listener is not None:
        first = int(endpoint_of(channel, "worker", 0).rpartition(":")[2])
        channel.send(listening_at(address, [first, listener.getsockname()[1]]))
    return strategy, Agreement(channel, listener)


def _divided(batch: Any, layout: Any, batch_dim_name: str) -> Any:
    """A batch that every worker has read, divided among all devices. A batch that cannot be divided
    evenly, such as the last of an epoch, is computed whole by all of them. The result is the
    same.
    """
    import jax

    array = np.asarray(batch)
    sharding = getattr(layout, "backend_layout", layout)
    if array.shape and array.shape[0] % len(sharding.device_set):
        sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec())  # type: ignore[no-untyped-call]
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


# --- both -----------------------------------------------------------------------------------------


def _listener(address: str) -> socket.socket:
    listener = bound(address)
    listener.listen()
    return listener


def _failed(
    channel: Channel,
    workers: int,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """End this worker after an exception."""
    import tensorflow as tf

    # TensorFlow's errors when workers did not hear of each other for seconds, as on a busy machine.
    apart = (tf.errors.DeadlineExceededError, tf.errors.UnavailableError, tf.errors.AbortedError)
    of_a_step, of_peers = issubclass(kind, tf.errors.OpError), issubclass(kind, apart)
    end_failed(channel, workers, kind, error, trace, of_a_step=of_a_step, of_peers=of_peers)
