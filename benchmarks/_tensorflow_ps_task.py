"""One task of a TensorFlow job with a parameter server, for `tensorflow_ps.py`; TF_CONFIG says which.

    python _tensorflow_ps_task.py WIDTH BATCH STEPS

The chief prints, as JSON, how many steps a second the workers did together.
"""

from __future__ import annotations

import json
import os
import sys
import time

import tensorflow as tf

WARM_UP = 6


def main() -> None:
    width, batch, steps = map(int, sys.argv[1:])
    role = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    if role != "chief":
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=role, task_index=resolver.task_id, protocol="grpc", start=True
        )
        server.join()
        return
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weight = tf.Variable(tf.random.normal([width, width], stddev=0.01))
    features = tf.random.normal([batch, width])

    @tf.function  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(features, weight)))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))
        return loss

    for _ in range(WARM_UP):
        coordinator.schedule(step)
    coordinator.join()
    began = time.monotonic()
    for _ in range(steps):
        coordinator.schedule(step)
    coordinator.join()
    print(json.dumps({"steps_a_second": steps / (time.monotonic() - began)}), flush=True)


if __name__ == "__main__":
    main()
