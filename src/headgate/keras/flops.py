"""Floating-point operations of a step, counted by its back end; a multiply-add is two."""

from __future__ import annotations

from typing import Any

from headgate.keras.backends import leaves


def of_tensorflow(model: Any, features: Any) -> tuple[float, float]:
    """FLOPs of the forward pass, and of forward and backward, of a batch: from the traced graphs.

    Raises:
        ValueError: A loop in the graph hides how often its operations run.
    """
    import tensorflow as tf

    specs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), features)

    def forward(x: Any) -> Any:
        return model(x, training=True)

    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.add_n(
                [tf.reduce_sum(tf.cast(leaf, tf.float32)) for leaf in tf.nest.flatten(forward(x))]
            )
        return tape.gradient(loss, model.trainable_variables)

    return _graph_flops(tf, forward, specs), _graph_flops(tf, both, specs)


def of_jax(model: Any, state: Any, features: Any) -> tuple[float, float]:
    """FLOPs of the forward pass, and of forward and backward, of a batch: XLA's own cost analysis.

    Args:
        model: The model.
        state: Its trainable variables and its others: the first two that a step of Keras takes over
            JAX.
        features: What the model is called with.
    """
    import jax

    def forward(trained: Any, others: Any, x: Any) -> Any:
        return model.stateless_call(trained, others, x, training=True)[0]

    def both(trained: Any, others: Any, x: Any) -> Any:
        return jax.value_and_grad(
            lambda t: sum(leaf.sum() for leaf in leaves(forward(t, others, x)))
        )(trained)

    def count(function: Any) -> float:
        analysis: Any = jax.jit(function).lower(state[0], state[1], features).cost_analysis()
        return float(analysis["flops"])

    return count(forward), count(both)


def of_torch_forward(model: Any, features: Any) -> float:
    """FLOPs of the forward pass of a batch; changes nothing that the model keeps."""
    import torch

    with torch.no_grad(), counter() as count:
        model(features, training=False)
    return float(count.get_total_flops())


def counter() -> Any:
    """A context manager that counts what torch computes in it."""
    from torch.utils.flop_counter import FlopCounterMode

    return FlopCounterMode(display=False)


def _graph_flops(tf: Any, function: Any, specs: Any) -> float:
    graph = tf.function(function).get_concrete_function(specs).graph
    definition = graph.as_graph_def()
    operations = {node.op for node in definition.node} | {
        node.op for inner in definition.library.function for node in inner.node_def
    }
    loops = operations & {"While", "StatelessWhile"}
    if loops:
        raise ValueError("loops in the graph hide how often their operations run")
    profiler = tf.compat.v1.profiler
    options = (
        profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
        .with_empty_output()
        .build()
    )
    return float(profiler.profile(graph, options=options).total_float_ops)
