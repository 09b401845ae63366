"""The words by which scripts name losses, steps and what is neither."""

from __future__ import annotations

import re
from collections.abc import Iterable

VALIDATING = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev", "holdout"})
TRAINING = frozenset({"train", "training", "tr"})
PARTS = VALIDATING | TRAINING | {"evaluate", "set"}

PLAIN = TRAINING | {"loss", "losses", "step", "batch", "iter", "cur", "current", "lm"}
"""What a name may consist of and still be the loss of training as of now."""

SMOOTHED = frozenset({"total", "avg", "average", "mean", "running", "smoothed", "ema", "global", "sum"})

NO_LOSS = frozenset(
    {
        *("weight", "weights", "scale", "scaling", "scaler", "fn", "function", "func", "type", "name", "id"),
        *("coef", "coeff", "coefficient", "ratio", "reduction", "smoothing", "lambda", "alpha", "beta", "delta"),
        *("window", "every", "freq", "interval", "threshold", "tol", "patience", "count", "time", "stop"),
        *("best", "min", "minimum", "lowest", "max", "target", "goal", "prev", "previous", "packet"),
    }
)
"""With one of these in its name, or as one of the two words before, a number is not the loss as of now."""

NOT_LOSSES = frozenset({"floss", "gloss"})

STEPS = frozenset(
    {
        *("step", "steps", "global_step", "globalstep", "iter", "iters", "iteration", "iterations"),
        *("update", "updates", "num_updates", "batch", "minibatch"),
    }
)

ASIDES = frozenset({"per", "each", "every", "max", "total", "num", "best", "last", "until", "to"})
"""Before the word epoch: the number is not that of the epoch as of now."""

NOT_METRICS = frozenset({"epochs", "num_epochs", "max_epochs", "eta", "time", "v_num", "seed", "rank", "size"})
WITHOUT_SEPARATOR = frozenset({"acc", "accuracy", "lr", "ppl", "perplexity"})
"""Metrics that a script may print without a colon: «acc 0.93»."""

_OF_A_SIDE = r"(?:g|d|gen\w*|disc\w*|critic|adv\w*)"
_ADVERSARIAL = re.compile(rf"(?i)(?:.*[^a-z])?(?:(?:loss|err)[^a-z]?{_OF_A_SIDE}|{_OF_A_SIDE}[^a-z]?(?:loss|err))")


def is_adversarial(metric: str, others: Iterable[str]) -> bool:
    """Whether a loss is one of several that are trained against each other, as those of a GAN, by their names."""
    return metric == "loss" and any(_ADVERSARIAL.fullmatch(name) for name in others)


BOOSTING = frozenset({"rmse", "rmsle", "mae", "mape", "mse", "error", "merror", "logloss", "mlogloss", "l1", "l2"})
