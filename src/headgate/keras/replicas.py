"""Corrects steps of legacy Keras over several replicas: each metric counts once, each sample weighs alike.

Keras adds up what the steps of all replicas return. That is right for a loss: each replica has scaled it by their
number. It is wrong for a metric: its result is that of all replicas already.

Keras scales a mean loss by the number of replicas alone. That gives more weight to the samples of a smaller part. Say
the last batch has three samples, and the second of two workers gets one of them: it counts as much as the other two
together. A loss that is a sum is reported as the mean of the parts' sums, weighed by their samples. That is no sum of
the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def as_one_process(model: Any, note: Callable[[str], None]) -> None:
    """Make the steps of this model return what those of one process would. Results of metrics come from one replica, so
    that their sum is right. A mean over a batch weighs all samples alike, however they are divided.

    Args:
        model: A model of legacy Keras.
        note: Called with a text about values that the script's own step computed itself: these stay sums.
    """
    for name in ("train_step", "test_step"):
        setattr(model, name, _weighing_parts(model, _counting_once(model, getattr(model, name), note)))
    model.train_function = model.test_function = None  # of a step before


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
    """A step in which each replica weighs its compiled losses by its part of the batch's samples."""

    def weigh(container: Any) -> None:
        kind = type(container)

        def call(self: Any, y_true: Any, y_pred: Any, *args: Any, **kwargs: Any) -> Any:
            with _weighed_by_parts(self, y_pred):
                return kind.__call__(self, y_true, y_pred, *args, **kwargs)

        container.__class__ = type(kind.__name__, (kind,), {"__call__": call, "weighed": True})

    def stepping(data: Any) -> Any:
        container = model.compiled_loss
        if container is not None and not getattr(container, "weighed", False):  # anew after each `compile`
            weigh(container)
        return step(data)

    return stepping


@contextlib.contextmanager
def _weighed_by_parts(container: Any, predicted: Any) -> Iterator[None]:
    """While the compiled losses are computed in here, a mean over this replica's samples counts by their number, and a
    sum as it is; so they do in the metrics that tell the loss."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        yield
        return
    if not container.built:
        container.build(predicted)
    part = tf.cast(tf.shape(tf.nest.flatten(predicted)[0])[0], tf.float32)
    mean_part = context.all_reduce(tf.distribute.ReduceOp.SUM, part) / context.num_replicas_in_sync
    factor = tf.math.divide_no_nan(part, mean_part)
    names = ("_losses", "_per_output_metrics", "_total_loss_mean")
    kept = {name: getattr(container, name) for name in names}

    def standing_in(make: Any, value: Any, by: Any) -> Any:
        return None if value is None else make(value, by)

    container._losses = [standing_in(_PartLoss, loss, factor) for loss in kept["_losses"]]
    container._per_output_metrics = [standing_in(_PartMean, each, mean_part) for each in kept["_per_output_metrics"]]
    container._total_loss_mean = _PartMean(kept["_total_loss_mean"], mean_part)
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(container, name, value)


class _PartLoss:
    """A compiled loss of one replica's part of a batch.

    Args:
        loss: The loss.
        factor: Samples of the part over the mean number of samples of a part.
    """

    def __init__(self, loss: Any, factor: Any) -> None:
        self._loss = loss
        self._factor = factor
        self.reduction = loss.reduction

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        value = self._loss(*args, **kwargs)
        is_mean = self.reduction in ("auto", "sum_over_batch_size")
        return value * tf.cast(self._factor, value.dtype) if is_mean else value


class _PartMean:
    """A metric of a loss. It counts each replica's part of a batch alike, since each loss is weighed already.

    Args:
        metric: The metric.
        weight: Mean number of samples of a part.
    """

    def __init__(self, metric: Any, weight: Any) -> None:
        self._metric = metric
        self._weight = weight

    def update_state(self, value: Any, sample_weight: Any = None) -> Any:
        """Take a loss."""
        return self._metric.update_state(value, sample_weight=self._weight)
