"""Corrects steps of legacy Keras over several replicas: each metric counts once, and all samples
have equal weight.

Keras adds up what the steps of all replicas return. That is right for a loss: each replica has
scaled it by their number. It is wrong for a metric: its result is that of all replicas already.

Keras scales a mean loss by the number of replicas alone. That gives more weight to the samples of a
smaller part. If the last batch has three samples, and the second of two workers gets one, it counts
as much as the other two together. So does a mean over the entries that a mask leaves, and what a
layer adds to the loss. A loss that is a sum is reported as the mean of the parts' sums, weighed by
their samples. That is no sum of the batch.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


def as_one_process(model: Any, note: Callable[[str], None]) -> None:
    """Make the steps of this model return what those of one process would. Results of metrics come
    from one replica, so that their sum is right. A mean over a batch weighs all samples alike,
    however they are divided.

    Args:
        model: A model of legacy Keras.
        note: Called with a text about what the script's own step or loss computes by itself: this
            stays as it is.
    """
    for name in ("train_step", "test_step"):
        step = _counting_once(model, getattr(model, name), note)
        setattr(model, name, _weighing_parts(model, step, name == "train_step", note))
    model.train_function = model.test_function = None  # of a step before


def _counting_once(
    model: Any, step: Callable[[Any], Any], note: Callable[[str], None]
) -> Callable[[Any], Any]:
    import tensorflow as tf

    def counted(outputs: Any) -> Any:
        context = tf.distribute.get_replica_context()
        summed = model.distribute_reduction_method == "auto"
        if context is None or context.num_replicas_in_sync == 1 or not summed:
            return outputs
        flattens = [
            tf.nest.flatten(getattr(metric, "_call_result", None)) for metric in model.metrics
        ]
        results = {id(result) for flat in flattens for result in flat if result is not None}
        own = [
            name
            for name, value in outputs.items()
            if id(value) not in results and not isinstance(value, dict)
        ]
        if own:
            note(
                f"{', '.join(own)}: Keras adds up over the workers what train_step or test_step "
                "computes by itself; if you want the mean instead, return the result of a metric"
            )
        first = tf.equal(context.replica_id_in_sync_group, 0)

        def once(value: Any) -> Any:
            return tf.where(first, value, tf.zeros_like(value)) if id(value) in results else value

        return tf.nest.map_structure(once, outputs)

    def stepping(data: Any) -> Any:
        return counted(step(data))

    return stepping


def _weighing_parts(
    model: Any, step: Callable[[Any], Any], trains: bool, note: Callable[[str], None]
) -> Callable[[Any], Any]:
    """A step in which each replica weighs its compiled losses by its part of the batch's
    samples.
    """
    computed: list[Any] = []

    def weigh(container: Any) -> None:
        kind = type(container)
        _divide_masks(getattr(sys.modules[kind.__module__], "losses_utils", None))

        def call(
            self: Any,
            y_true: Any,
            y_pred: Any,
            sample_weight: Any = None,
            regularization_losses: Any = None,
        ) -> Any:
            computed.append(None)
            with _weighed_by_parts(self, y_pred, note) as factor:
                added = [_times(loss, factor) for loss in regularization_losses or ()]
                return kind.__call__(
                    self, y_true, y_pred, sample_weight, regularization_losses=added
                )

        container.__class__ = type(kind.__name__, (kind,), {"__call__": call, "weighed": True})

    def stepping(data: Any) -> Any:
        container = model.compiled_loss
        # anew after each `compile`
        if container is not None and not getattr(container, "weighed", False):
            weigh(container)
        computed.clear()
        outputs = step(data)
        if trains and not computed and _replicas() > 1:
            note(_OWN_LOSS)
        return outputs

    return stepping


_OWN_LOSS = (
    "the model's own step computes its loss without `self.compute_loss` and `self.compiled_loss`: "
    "TensorFlow adds up the gradients of all workers, so divide that loss by the samples of the "
    "whole batch, or call `self.compute_loss`"
)
_ONE_NUMBER = (
    "the loss {} gives one number for a whole batch: workers weigh it by their samples; if it is a "
    "mean over something else, or a sum, return a loss for each sample"
)


def _replicas() -> int:
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


def _times(loss: Any, factor: Any) -> Any:
    import tensorflow as tf

    return loss if factor is None else loss * tf.cast(factor, loss.dtype)


def _mean_over_replicas(value: Any) -> Any:
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, value) / context.num_replicas_in_sync


@contextlib.contextmanager
def _weighed_by_parts(container: Any, predicted: Any, note: Callable[[str], None]) -> Iterator[Any]:
    """While the compiled losses are computed in here, a mean over this replica's samples counts by
    their number, and a sum as it is; so they do in the metrics that tell the loss. Gives the factor
    by which a mean counts; None: there is one replica.
    """
    import tensorflow as tf

    if _replicas() == 1:
        yield None
        return
    if not container.built:
        container.build(predicted)
    part = tf.cast(tf.shape(tf.nest.flatten(predicted)[0])[0], tf.float32)
    mean_part = _mean_over_replicas(part)
    factor = tf.math.divide_no_nan(part, mean_part)
    names = ("_losses", "_per_output_metrics", "_total_loss_mean")
    kept = {name: getattr(container, name) for name in names}

    def standing_in(make: Callable[..., Any], value: Any, *more: Any) -> Any:
        return None if value is None else make(value, *more)

    container._losses = [standing_in(_PartLoss, loss, factor, note) for loss in kept["_losses"]]
    container._per_output_metrics = [
        standing_in(_PartMean, metric, mean_part) for metric in kept["_per_output_metrics"]
    ]
    container._total_loss_mean = _PartMean(kept["_total_loss_mean"], mean_part)
    try:
        yield factor
    finally:
        for name, value in kept.items():
            setattr(container, name, value)


class _PartLoss:
    """A compiled loss of one replica's part of a batch.

    Args:
        loss: The loss.
        factor: Samples of the part over the mean number of samples of a part.
        note: Called with a text about a loss that is one number.
    """

    def __init__(self, loss: Any, factor: Any, note: Callable[[str], None]) -> None:
        self._loss = loss
        self._factor = factor
        self._note = note
        self.reduction = loss.reduction
        self.is_masked = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.reduction not in ("auto", "sum_over_batch_size"):
            return self._loss(*args, **kwargs)
        _COMPUTED.loss = self
        try:
            value = self._loss(*args, **kwargs)
        finally:
            _COMPUTED.loss = None
        return value if self.is_masked else _times(value, self._factor)

    def look(self, losses: Any) -> None:
        """Tell of losses that are no loss for each sample."""
        if getattr(losses, "shape", None) is not None and losses.shape.rank == 0:
            self._note(
                _ONE_NUMBER.format(getattr(self._loss, "name", None) or type(self._loss).__name__)
            )


_COMPUTED = threading.local()
"""`loss`: the part of a loss that this thread computes; a replica has a thread of its own."""


def _divide_masks(utils: Any) -> None:
    """Have Keras divide a part's masked loss by the mean number of unmasked entries in a part, and
    not by the number in this one.

    Args:
        utils: Keras' module of what losses share. Before Keras 2.12 it counts what is masked, and
            is left as it is.
    """
    import tensorflow as tf

    usual = getattr(utils, "apply_valid_mask", None)
    if usual is None or getattr(usual, "divides_parts", False):
        return

    def apply_valid_mask(losses: Any, sample_weight: Any, mask: Any, reduction: Any) -> Any:
        loss: _PartLoss | None = getattr(_COMPUTED, "loss", None)
        if loss is not None:
            loss.look(losses)
        if loss is None or mask is None:
            return usual(losses, sample_weight, mask, reduction)
        loss.is_masked = True
        left = tf.cast(mask, losses.dtype)
        in_part = _mean_over_replicas(tf.reduce_sum(left))
        whole = tf.cast(tf.size(left), losses.dtype)
        return utils.apply_mask(losses, sample_weight, left * tf.math.divide_no_nan(whole, in_part))

    apply_valid_mask.divides_parts = True  # type: ignore[attr-defined]
    utils.apply_valid_mask = apply_valid_mask


class _PartMean:
    """A metric of a loss. It counts each replica's part of a batch alike, since each loss is
    weighed already.

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
