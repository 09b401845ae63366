"""Jobs that tell another metric than a loss: policies go by the metric of the job's own rule,
whichever way it runs.
"""

from __future__ import annotations

import pytest
from tests.controller.driver import A_0, A, Driver, Recording, job, running

from headgate.model.events import Predicted, Usage, Wake
from headgate.model.identifiers import JobId, TaskId
from headgate.model.progress import Progress
from headgate.model.progress_rule import ProgressRule
from headgate.policies import make
from headgate.policies.base import Reported

SERIES = {
    "accuracy": (0.1, 0.4, 0.6, 0.7, 0.76, 0.8),
    "reward": (-200.0, -110.0, -60.0, -30.0, -10.0, 5.0),
    "perplexity": (400.0, 220.0, 140.0, 100.0, 80.0, 70.0),
    "loss": (2.0, 1.2, 0.8, 0.6, 0.5, 0.45),
}
"""Of a job that learns."""


@pytest.mark.parametrize(
    ("metric", "handed_on"), [("accuracy", -0.7), ("reward", -0.7), ("perplexity", 0.7)]
)
def test_a_policy_is_told_the_metric_of_the_rule_with_its_sign_turned_where_more_is_better(
    metric: str, handed_on: float
) -> None:
    policy = Recording()
    driver = Driver(policy)
    running(driver, 0.0, job("a", progress=ProgressRule(metric)))
    driver.step(1.0, Progress(A_0, step=7, metrics={metric: 0.7}))
    driver.step(2.0, Progress(A_0, step=8, loss=3.0))  # what its user does not go by
    assert [change for _, _, changes in policy.calls[1:] for change in changes] == [
        Reported(A, handed_on, 7, None, None, 1)
    ]


def play(policy: str, metric: str, **series: tuple[float, ...]) -> Driver:
    """Jobs told by that metric alone every 10 s for a minute."""
    driver = Driver(make(policy))
    running(driver, 0.0, *(job(name, progress=ProgressRule(metric)) for name in series))
    for index in range(6):
        now = 10.0 * index + 5.0
        while driver.wake_at is not None and driver.wake_at < now:
            driver.step(driver.wake_at, Wake())
        for name, values in series.items():
            task = TaskId(f"r/{name}/worker-0")
            driver.step(now, Usage(task, 1.0, 1e6))
            driver.step(now, Progress(task, step=10 * (index + 1), metrics={metric: values[index]}))
    return driver


def weight(driver: Driver, name: str) -> float:
    found = driver.task(name).share.cpu_weight
    assert found is not None
    return found


@pytest.mark.parametrize("metric", SERIES)
def test_flowcon_serves_who_learns_by_any_metric(metric: str) -> None:
    series = SERIES[metric]
    driver = play("flowcon:alpha=0.001,itval=10", metric, learns=series, unlearns=series[::-1])
    assert weight(driver, "learns") > 2 * weight(driver, "unlearns")


@pytest.mark.parametrize("metric", SERIES)
def test_slaq_serves_who_is_to_learn_more_by_any_metric(metric: str) -> None:
    series = SERIES[metric]
    driver = play("slaq", metric, learns=series, rests=series)
    whole = abs(series[0] - series[-1])
    for name, drop in (("learns", 0.5 * whole), ("rests", 0.001 * whole)):
        driver.step(
            56.0,
            Predicted(JobId(f"r/{name}"), 100.0, 50.0, 200.0, None, ((20.0, drop), (1e6, drop))),
        )
    assert driver.wake_at is not None
    driver.step(driver.wake_at, Wake())
    assert weight(driver, "learns") > 2 * weight(driver, "rests")
