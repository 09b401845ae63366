"""Steps of legacy Keras that several replicas do: each metric counted once, each sample weighed alike.

Its compiled step adds up over the replicas what their steps return. That is right for a loss that each scaled by their
number, and wrong for results of metrics, which are those of all replicas already.

A loss that is a mean is scaled by the number of replicas alone. That weighs a sample of a smaller part more: of a last
batch of three samples, the single one of the second of two workers counts as much as the other two together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def as_one_process(model: Any, note: Callable[[str], None]) -> None:
    """Let the steps of this model return results of its metrics from one replica, so that their sum is what they are,
    and let a mean over the samples of a batch be that, however they are divided.

    Args:
        model: Of legacy Keras.
        note: Told of what a step of the script's own computed itself: that stays the sum.
    """
    for name in ("train_step", "test_step"):
        setattr(model, name, _counting_once(model, getattr(model, name), note))
    model.train_step = _weighing_parts(model, model.train_step)
    model.train_function = model.test_function = None  # of a `fit` before


def _counting_once(model: Any, step: Callable[[Any], Any], note: Callable[[str], None]) -> Callable[[Any], Any]:
    import tensorflow as tf

    def counted(outputs: Any) -> Any:
        context = tf.distribute.get_replica_context()
        summed = model.distribute_reduction_method == "auto"
        if context is None or context.num_replicas_in_sync == 1 or not summed:
            return outputs
        found = [tf.nest.flatten(getattr(metric, "_call_result", None)) for metric in model.metrics]
        results = {id(result) for each in found for result in each if result is not None}
        own = [name for name, value in outputs.items() if id(value) not in results and not isinstance(value, dict)]
        if own:
            note(
                f"{', '.join(own)}: Keras adds up over the workers what train_step or test_step computes by itself; "
                "if you want the mean instead, return the result of a metric"
            )
        first = tf.equal(context.replica_id_in_sync_group, 0)

        def once(value: Any) -> Any:
            return tf.where(first, value, tf.zeros_like(value)) if id(value) in results else value

        return tf.nest.map_structure(once, outputs)

    def stepping(data: Any) -> Any:
        return counted(step(data))

    return stepping


def _weighing_parts(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A training step in which each replica weighs the compiled loss by its part of the batch's samples."""
    import tensorflow as tf

    training = False

    def weighed(container: Any, kind: type, *args: Any, **kwargs: Any) -> Any:
        loss = kind.__call__(container, *args, **kwargs)
        context = tf.distribute.get_replica_context()
        if not training or context is None or context.num_replicas_in_sync == 1 or not _is_mean(container):
            return loss
        part = tf.cast(tf.shape(tf.nest.flatten(args[1])[0])[0], loss.dtype)
        whole = context.all_reduce(tf.distribute.ReduceOp.SUM, part)
        return loss * tf.math.divide_no_nan(part * context.num_replicas_in_sync, whole)

    def weigh(container: Any) -> None:
        kind = type(container)

        def call(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            return weighed(self, kind, y_true, y_pred, *args, **kwargs)

        container.__class__ = type(kind.__name__, (kind,), {"__call__": call, "weighed": True})

    def stepping(data: Any) -> Any:
        nonlocal training
        container = model.compiled_loss
        if container is not None and not getattr(container, "weighed", False):  # anew after each `compile`
            weigh(container)
        training = True
        try:
            return step(data)
        finally:
            training = False

    return stepping


def _is_mean(container: Any) -> bool:
    """Whether compiled losses are means over the samples; a sum is the same however they are divided."""
    import tensorflow as tf

    losses = [loss for loss in tf.nest.flatten(container._losses) if loss is not None]
    return all(getattr(loss, "reduction", None) in ("auto", "sum_over_batch_size") for loss in losses)
