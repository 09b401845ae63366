"""Goals: the direction of a metric, its scale (percent or fraction), and when its goal is reached.

Whole words of the metric's name give the direction, so `interrupted_reward` is not an error. If no
word is known, the user has to state the direction.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Literal

from headgate.model.reasons import Reason, ReasonKind

Better = Literal["lower", "higher"]

_LOSSES = frozenset({"loss", "losses"})
_LOWER = _LOSSES | {
    *(
        "err",
        "errs",
        "error",
        "errors",
        "mistakes",
        "incorrect",
        "wrong",
        "miss",
        "misses",
        "misclassification",
    ),
    *(
        "mae",
        "mse",
        "rmse",
        "nrmse",
        "nmae",
        "rmsle",
        "msle",
        "mape",
        "smape",
        "wmape",
        "sse",
        "rmsd",
        "mre",
        "medae",
    ),
    *(
        "absrel",
        "sqrel",
        "silog",
        "epe",
        "ade",
        "fde",
        "minade",
        "minfde",
        "mpjpe",
        "residual",
        "deviance",
        "huber",
    ),
    *(
        "nll",
        "bce",
        "ce",
        "xent",
        "crossentropy",
        "logloss",
        "mlogloss",
        "ppl",
        "perplexity",
        "bpc",
        "bpb",
        "bpd",
    ),
    *(
        "wer",
        "cer",
        "ter",
        "eer",
        "der",
        "mer",
        "aer",
        "merror",
        "fpr",
        "fnr",
        "fdr",
        "frr",
        "far",
        "hter",
        "hinge",
    ),
    *(
        "fid",
        "kid",
        "fvd",
        "lpips",
        "mcd",
        "distortion",
        "distance",
        "chamfer",
        "hausdorff",
        "emd",
        "wasserstein",
    ),
    *(
        "bits",
        "nats",
        "kl",
        "kld",
        "jsd",
        "divergence",
        "discrepancy",
        "brier",
        "ece",
        "regret",
        "cost",
        "penalty",
        "violation",
    ),
    *("violations", "gap", "latency", "delay", "seconds", "duration", "l1", "l2"),
}
_FRACTIONS = frozenset(
    {
        *(
            "acc",
            "accuracy",
            "precision",
            "prec",
            "recall",
            "rec",
            "f1",
            "f2",
            "fscore",
            "fmeasure",
            "fbeta",
        ),
        *(
            "auc",
            "auroc",
            "auprc",
            "aucpr",
            "rocauc",
            "prauc",
            "roc",
            "ap",
            "map",
            "mar",
            "ar",
            "iou",
            "miou",
            "dice",
        ),
        *(
            "jaccard",
            "ndcg",
            "mrr",
            "bleu",
            "sacrebleu",
            "rouge",
            "rougel",
            "meteor",
            "em",
            "exact",
            "sensitivity",
        ),
        *("specificity", "tpr", "tnr", "top", "winrate", "pck", "gauc"),
    }
)
_HIGHER = _FRACTIONS | {
    *(
        "hit",
        "hits",
        "success",
        "successes",
        "correct",
        "win",
        "wins",
        "solved",
        "passed",
        "match",
        "matches",
    ),
    *(
        "reward",
        "rewards",
        "rew",
        "return",
        "returns",
        "score",
        "scores",
        "fitness",
        "quality",
        "similarity",
        "agreement",
    ),
    *(
        "psnr",
        "ssim",
        "msssim",
        "snr",
        "sisnr",
        "sisdr",
        "sdr",
        "pesq",
        "stoi",
        "mos",
        "cider",
        "spice",
        "chrf",
    ),
    *(
        "comet",
        "bleurt",
        "bertscore",
        "pearson",
        "spearman",
        "pcc",
        "srcc",
        "plcc",
        "correlation",
        "corr",
        "kappa",
    ),
    *(
        "qwk",
        "mcc",
        "r2",
        "rsquared",
        "explained",
        "elo",
        "purity",
        "nmi",
        "ari",
        "ami",
        "silhouette",
        "gini",
        "ks",
    ),
    *("likelihood", "loglikelihood", "throughput", "fps", "speedup", "gain", "improvement"),
}
_GENERAL = frozenset({"score", "scores", "top", "explained"})
"""Words that count only without a more specific one: `fid_score` is an FID, `top1_err` an error."""
_RATES_OF_ERRORS = frozenset(
    {"wer", "cer", "ter", "eer", "der", "mer", "aer", "fpr", "fnr", "fdr", "frr", "far"}
)
_NO_LOSS = frozenset(
    {
        *(
            "scale",
            "scaling",
            "weight",
            "weights",
            "ratio",
            "reduction",
            "improvement",
            "gain",
            "decrease",
            "drop",
        ),
        *("delta", "coef", "coefficient"),
    }
)
"""Words that leave the direction of a loss open."""
_CHANGES = frozenset(
    {
        *("reduction", "decrease", "drop", "degradation", "delta", "change", "diff", "difference"),
        *("std", "stddev", "stdev", "stderr", "sd", "var", "variance"),
    }
)
"""Words for a change of a metric: they leave its direction open."""
_TURNS = frozenset({"neg", "negative", "minus", "negated"})
_SIGNS = frozenset({"positive", "positives", "negative", "negatives"})
_PART = re.compile(r"(train|valid|val|test|eval|dev)(?=[a-z])")
_AT = re.compile(r"(?<![a-z0-9])[pr]@\d", re.IGNORECASE)  # precision and recall at a rank
_DIGITS = re.compile(r"\d{1,6}k?$")
# word boundaries of valLoss and testWER
_DIVIDES = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z]{2})")

_MOST_OF_A_FRACTION = 1.001
_MOST_OF_A_RATE = 10.0
"""Largest error rate as a fraction; greater values are percent. Errors may outnumber words, but not
tenfold.
"""
_LEAPS_FROM = 0.5
"""Fraction of a goal. A rise from below it to the goal within one report is a leap."""


@lru_cache(maxsize=256)
def _words(metric: str) -> tuple[str, ...]:
    """Words of a metric's name in lower case, without data splits and digits if the word is then
    known: `valAcc5` gives val, acc.
    """
    words = []
    for word in re.split(r"[^a-z0-9]+", _DIVIDES.sub("_", metric[:1000]).lower()):
        bare = _PART.sub("", word, count=1)
        shapes = (word, _DIGITS.sub("", word), bare, _DIGITS.sub("", bare))
        words.append(next((shape for shape in shapes if shape in _LOWER or shape in _HIGHER), word))
    return tuple(words)


def direction(metric: str) -> Better | None:
    """Which way a metric improves, by its name; None: the name does not tell."""
    words = _words(metric)
    if not _SIGNS.isdisjoint(words) and not {"false", "true"}.isdisjoint(words):
        return "lower" if "false" in words else "higher"
    way: Better | None = None
    if not _CHANGES.isdisjoint(words) and "explained" not in words:
        return None
    if not _LOSSES.isdisjoint(words):
        way = "lower" if _NO_LOSS.isdisjoint(words) else None
    elif words[-1] == "per":  # phone error rate
        way = "lower"
    else:
        known = [word for word in words if word in _LOWER or word in _HIGHER]
        if known:  # the last word of an English name is its head
            way = (
                "lower"
                if ([word for word in known if word not in _GENERAL] or known)[-1] in _LOWER
                else "higher"
            )
        elif _AT.search(metric):
            way = "higher"
    if way is not None and not _TURNS.isdisjoint(words):
        return "higher" if way == "lower" else "lower"
    return way


def _is_fraction(metric: str, rising: bool) -> bool:
    """Whether a metric is a proportion, which scripts report as a fraction or in percent."""
    words = _words(metric)
    if rising:
        return not _FRACTIONS.isdisjoint(words) or "rate" in words
    return (
        not _RATES_OF_ERRORS.isdisjoint(words)
        or ("error" in words and "rate" in words)
        or words[-1] == "per"
    )


def against(metric: str, goal: float | None, better: Better | None) -> tuple[str, str] | None:
    """An objection to a goal before the start, and its cure; None: none."""
    if goal is None:
        return None
    way = better or direction(metric)
    if way is None:
        complaint = (
            f"the name {metric!r} does not tell whether less or more of it is better, so a "
            "goal has no side"
        )
        return complaint, "add `better: lower` or `better: higher`"
    if way == "higher" and goal > 100.0 and not _FRACTIONS.isdisjoint(_words(metric)):
        return (
            f"{metric} is never more than 100 %, and the goal is {goal:g}",
            "give it as a fraction or in percent",
        )
    return None


def scaled(value: float, metric: str, goal: float | None, rising: bool) -> float:
    """A metric's value on the scale of its goal: 93.4 becomes 0.934 for an accuracy goal of
    0.97.
    """
    goal_is_fraction = goal is not None and goal <= 1.0 and _is_fraction(metric, rising)
    return value / 100.0 if goal_is_fraction and rising and value > _MOST_OF_A_FRACTION else value


class GoalWatch:
    """Detects when a metric reaches its goal.

    A goal met by the very first report is usually a mistake of scale or direction. So the goal
    counts only after the metric has been worse.

    A goal of at most 1 for a proportion is a fraction. Values that never exceeded 1 count as
    fractions too: a script that reports percent soon exceeds 1. Until then 0.78 may mean 0.78 %,
    which a few correct answers in the first batches produce. So a leap from less than half of the
    goal counts only once the next report also meets the goal. Otherwise, an ambiguous value is read
    as the one further from the goal.

    Args:
        metric: Its name.
        goal: The value to reach.
        rising: Whether a greater value is better.

    Attributes:
        doubt: A question for the user since the last report; None: none.
    """

    def __init__(self, metric: str, goal: float, *, rising: bool) -> None:
        self.doubt: Reason | None = None
        self._metric = metric
        self._goal = goal
        self._rising = rising
        self._fraction = _is_fraction(metric, rising)
        self._most = -math.inf
        self._latest = math.nan
        self._heard = self._worse = self._asked = False

    def reached(self, value: float) -> bool:
        """Add a report. Returns whether the goal is reached; NaN and infinity never reach it."""
        self.doubt = None
        if not math.isfinite(value):
            return False
        self._most = max(self._most, value)
        latest, self._latest = self._latest, value
        first, self._heard = not self._heard, True
        likely = self._meets(self._on_scale(value))
        if first and likely:
            self.doubt = self._doubted(value, is_first=True)
        elif not likely and self._fraction and not self._asked and self._meets(self._other(value)):
            self._asked = True
            self.doubt = self._doubted(value, is_first=False)
        self._worse = self._worse or not likely
        return likely and self._worse and not self._leaps(latest)

    def _doubted(self, value: float, *, is_first: bool) -> Reason:
        facts = {"metric": self._metric, "value": value, "goal": self._goal, "is_first": is_first}
        return Reason(ReasonKind.GOAL_IN_DOUBT, facts)

    def _meets(self, value: float) -> bool:
        return value >= self._goal if self._rising else value <= self._goal

    def _on_scale(self, value: float) -> float:
        if not self._fraction:
            return value
        in_percent = self._most > (_MOST_OF_A_FRACTION if self._rising else _MOST_OF_A_RATE)
        if self._goal <= 1.0:
            return value / 100.0 if in_percent else value
        return value if self._rising or in_percent else value * 100.0

    def _leaps(self, latest: float) -> bool:
        """Whether a leap led to this value, which meets the goal and may still be percent."""
        may_be_percent = (
            self._fraction
            and self._rising
            and self._goal <= 1.0
            and self._most <= _MOST_OF_A_FRACTION
        )
        return may_be_percent and latest < _LEAPS_FROM * self._goal

    def _other(self, value: float) -> float:
        return value * 100.0 if self._rising and self._goal > 1.0 else value
