"""The words by which scripts name losses, steps and other values."""

from __future__ import annotations

import re
from collections.abc import Iterable

VALIDATING = frozenset(
    {
        *(
            "val",
            "valid",
            "validation",
            "validate",
            "eval",
            "evaluation",
            "test",
            "testing",
            "dev",
            "holdout",
        ),
        *("validating", "evaluating", "cv"),
    }
)
TRAINING = frozenset({"train", "training", "tr", "learn"})
PARTS = VALIDATING | TRAINING | {"evaluate", "set"}

PLAIN = TRAINING | {"loss", "losses", "step", "batch", "iter", "cur", "current"}
"""Words that a name of the current training loss may consist of."""

SMOOTHED = frozenset(
    {
        *(
            "total",
            "avg",
            "avr",
            "average",
            "mean",
            "running",
            "smoothed",
            "ema",
            "global",
            "sum",
            "reduced",
            "cum",
        ),
        "cumulative",
    }
)

LANGUAGE_MODEL = frozenset({"lm"})
"""The loss of a language model. With others in the same line, it is the whole loss."""

STANDS_IN = frozenset(
    {"xent", "nll", "cost", "cross_entropy", "crossentropy", "ce", "bce", "mse", "rmse", "learn"}
)
"""Names of losses without the word loss. They count if the line has a step or an epoch, and no line
has another loss.
"""

SAYS_NOTHING = frozenset(
    {"the", "a", "and", "with", "its", "has", "got", "new", "this", "of", "model", "s", "set"}
) | {
    *("for", "at", "in", "on", "is", "current", "final", "achieved", "reached", "got"),
}
"""Words before «loss» that do not make it a part of one."""

NO_LOSS = frozenset(
    {
        *(
            "weight",
            "weights",
            "scale",
            "scaling",
            "scaler",
            "fn",
            "function",
            "func",
            "type",
            "name",
            "id",
        ),
        *(
            "coef",
            "coeff",
            "coefficient",
            "ratio",
            "reduction",
            "smoothing",
            "lambda",
            "alpha",
            "beta",
            "delta",
        ),
        *(
            "window",
            "every",
            "freq",
            "interval",
            "threshold",
            "tol",
            "patience",
            "count",
            "time",
            "stop",
        ),
        *(
            "best",
            "min",
            "minimum",
            "lowest",
            "max",
            "target",
            "goal",
            "prev",
            "previous",
            "packet",
        ),
        *("init", "initial", "starting", "old"),
    }
)
"""Words that mark a number as other than the current loss, in its name or as one of the two words
before it.
"""

SPREADS = frozenset({"std", "stddev", "stdev", "stderr", "sd", "var", "variance"})
"""Words before the name of a metric for a number that is its spread."""

NOT_LOSSES = frozenset({"floss", "gloss"})

EPOCHS = frozenset({"epoch", "pass", "epch"})
STEPS = frozenset(
    {
        *(
            "step",
            "steps",
            "global_step",
            "globalstep",
            "iter",
            "iters",
            "iteration",
            "iterations",
            "current_steps",
        ),
        *(
            "update",
            "updates",
            "num_updates",
            "batch",
            "minibatch",
            "current_step",
            "total_timesteps",
            "timesteps",
        ),
        "num_timesteps",
        *("timestep", "episode", "it", "itr"),
    }
)
COUNTED = frozenset(
    {"step", "steps", "iter", "iteration", "update", "updates", "batch", "minibatch", "epoch"}
)
BESIDE_COUNTED = frozenset(
    {
        *(
            "i",
            "idx",
            "index",
            "num",
            "number",
            "no",
            "id",
            "cur",
            "current",
            "global",
            "train",
            "training",
            "trainer",
        ),
        *("optim", "optimizer", "opt", "env"),
    }
)
"""Words that may accompany such a word in the name of a count: `batch_idx`, `trainer/epoch`,
`env_step`.
"""

TOTALS = frozenset(
    {"total_steps", "max_steps", "num_steps", "max_iters", "total_iters", "num_training_steps"}
)
"""Names of the total number of steps."""

ASIDES = frozenset({"per", "each", "every", "max", "total", "num", "best", "last", "until", "to"})
"""Words before «epoch» for a number that is not the current epoch."""

NOT_METRICS = (
    frozenset(
        {
            "epochs",
            "num_epochs",
            "max_epochs",
            "eta",
            "time",
            "v_num",
            "seed",
            "rank",
            "size",
            "cuda",
        }
    )
    | {"set", "train_set", "val_set", "test_set"}  # «accuracy on the test set: 0.9»
    | TOTALS
)
WITHOUT_SEPARATOR = frozenset({"acc", "accuracy", "lr", "ppl", "perplexity"})
"""Metrics that a script may print without a colon: «acc 0.93»."""

_OF_A_SIDE = r"(?:g|d|gen\w*|disc\w*|critic|adv\w*)"
_ADVERSARIAL = re.compile(
    rf"(?i)(?:.*[^a-z])?(?:(?:loss|err)[^a-z]?{_OF_A_SIDE}|{_OF_A_SIDE}[^a-z]?(?:loss|err))"
)


def is_adversarial(metric: str, others: Iterable[str]) -> bool:
    """Whether a loss is, by the names, one of several that are trained against each other, as in a
    GAN.
    """
    return metric == "loss" and any(_ADVERSARIAL.fullmatch(name) for name in others)


BOOSTING = frozenset(
    {"rmse", "rmsle", "mae", "mape", "mse", "error", "merror", "logloss", "mlogloss", "l1", "l2"}
)
