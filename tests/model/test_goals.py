"""Goals: from which side, on which scale, and when they are reached."""

from __future__ import annotations

import math

import pytest

from headgate.model import goals
from headgate.model.jobs import Job
from headgate.model.progress_rule import ProgressRule
from headgate.model.reason_text import in_words

LOWER = """
    loss val_loss valLoss trainLoss eval/loss err test_err top1_err error_rate word_error_rate wer
    WER valWER testCER per fid FID fid_score fid50k kid lpips ppl val_perplexity RMSE val-mae mape
    nll negative_log_likelihood bce ce bpc bpb bits_per_byte dice_loss iou_loss reward_loss loss_iou
    policy_loss logloss merror fpr false_positive_rate EER l1 mean_absolute_error kl_div
    phone_error_rate
"""
HIGHER = """
    accuracy acc acc1 acc@1 Acc@5 top1 top5_acc val_acc valAcc valAccuracy mAP mAP50 map50-95 mIoU
    meanIoU AUC auroc f1 F1Score f1_macro bleu BLEU4 rouge-L rougeL ndcg@10 R@1 recall@5 hits@10
    precision psnr ssim reward interrupted_reward ep_rew_mean ferret_accuracy terrain_score
    overridden_score episode_return success_rate win_rate dice exact_match r2 explained_variance
    neg_mean_squared_error true_positive_rate inception_score cherry_score
"""
UNKNOWN = """
    foo loss_scale loss_weight lr learning_rate grad_norm epoch_time elbo lossless_ratio
    interference accuracy_drop word_error_rate_reduction ep_rew_std errDelta bleu-change
"""


@pytest.mark.parametrize(
    ("names", "way"),
    [(LOWER, "lower"), (HIGHER, "higher"), (UNKNOWN, None)],
    ids=["lower", "higher", "unknown"],
)
def test_whole_words_of_a_metrics_name_tell_which_way_is_better(
    names: str, way: str | None
) -> None:
    assert {name: goals.direction(name) for name in names.split()} == dict.fromkeys(
        names.split(), way
    )


@pytest.mark.parametrize("name", UNKNOWN.split())
def test_a_goal_whose_side_nobody_knows_is_refused_unless_its_user_says_it(name: str) -> None:
    with pytest.raises(ValueError, match="add `better: lower` or `better: higher`"):
        Job(name="a", run="true", progress=ProgressRule(name, goal=1.0))
    assert not Job(
        name="a", run="true", progress=ProgressRule(name, goal=1.0, better="lower")
    ).progress.rising
    assert Job(name="a", run="true", progress=ProgressRule(name)).progress.goal is None


@pytest.mark.parametrize(
    ("metric", "goal", "told", "reached"),
    [
        ("loss", 0.5, [2.0, 0.6, 0.4], 0.4),
        ("accuracy", 0.97, [0.5, 0.98], 0.98),
        ("accuracy", 0.97, [0.1, 0.98, 0.99], 0.99),  # a leap, which a percentage may be
        # a few of the first batches are right
        ("acc1", 0.75, [0.0, 0.78, 0.39, 1.17, 30.1, 74.0], None),
        ("acc1", 0.75, [0.0, 0.78, 0.39, 1.17, 30.1, 75.5], 75.5),
        ("accuracy", 0.005, [0.001, 0.004, 0.006], 0.006),  # half a percent is 0.005
        ("accuracy", 0.97, [10.0, 50.0, 96.0], None),  # percent
        ("accuracy", 0.97, [10.0, 50.0, 0.98, 98.0], 98.0),
        ("accuracy", 97.0, [0.1, 0.98, 1.0], None),
        ("accuracy", 97.0, [10.0, 97.5], 97.5),
        ("val_acc", 0.9, [math.nan, 0.5, math.inf, 0.95], 0.95),
        ("wer", 0.1, [1.3, 0.95, 0.09], 0.09),
        ("wer", 0.1, [95.0, 12.0, 9.5], 9.5),
        ("wer", 10.0, [0.95, 0.2], None),
        ("wer", 10.0, [0.95, 0.09], 0.09),
        ("wer", 10.0, [95.0, 12.0, 9.0], 9.0),
        ("fid", 15.0, [300.0, 40.0, 14.0], 14.0),
        ("bleu", 30.0, [0.1, 0.4], None),
        ("bleu", 0.3, [10.0, 28.0, 31.0], 31.0),
        ("psnr", 30.0, [12.0, 31.0], 31.0),
        ("reward", 1.0, [-5.0, 1.5], 1.5),
        ("accuracy", 0.5, [0.9, 0.9, 0.4, 0.6], 0.6),  # met at once: it has to be worse first
    ],
)
def test_a_goal_is_reached_on_its_own_scale_from_its_own_side(
    metric: str, goal: float, told: list[float], reached: float | None
) -> None:
    watch = ProgressRule(metric, goal=goal).watch()
    assert watch is not None
    assert next((value for value in told if watch.reached(value)), None) == reached


@pytest.mark.parametrize(
    ("metric", "goal", "told", "asked"),
    [
        ("accuracy", 0.5, [0.9], "in its first report"),
        ("error", 10.0, [0.95], "in its first report"),
        ("accuracy", 97.0, [0.1, 0.98], "one is a fraction and the other in percent"),
        ("wer", 10.0, [0.95], "one is a fraction and the other in percent"),
    ],
)
def test_what_looks_like_another_scale_or_side_is_asked_once(
    metric: str, goal: float, told: list[float], asked: str
) -> None:
    watch = ProgressRule(metric, goal=goal).watch()
    assert watch is not None
    for value in told:
        assert not watch.reached(value)
    assert watch.doubt is not None
    assert asked in in_words(watch.doubt)
    assert not watch.reached(told[-1])
    assert watch.doubt is None


def test_what_is_foretold_by_is_on_the_scale_of_the_goal() -> None:
    assert ProgressRule("accuracy", goal=0.97).value(None, {"accuracy": 93.4}) == pytest.approx(
        0.934
    )
    assert ProgressRule("accuracy", goal=97.0).value(None, {"accuracy": 93.4}) == 93.4
    assert ProgressRule("wer", goal=0.1).value(None, {"wer": 1.3}) == 1.3
    assert ProgressRule("loss", goal=0.1).value(2.3, {}) == 2.3
