"""What steps of legacy Keras return where several replicas do them: each metric once, not once for each replica.

Its compiled step adds up over the replicas what their steps return. That is right for a loss that each scaled by their
number, and wrong for results of metrics, which are those of all replicas already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def count_metrics_once(model: Any, note: Callable[[str], None]) -> None:
    """Let the steps of this model return results of its metrics from one replica, so that their sum is what they are.

    Args:
        model: Of legacy Keras.
        note: Told of what a step of the script's own computed itself: that stays the sum.
    """
    for name in ("train_step", "test_step"):
        setattr(model, name, _counting_once(model, getattr(model, name), note))
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
