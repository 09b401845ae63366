"""What a script tells of its own early stopping becomes the rule that its job is predicted by."""

from __future__ import annotations

import pytest

from headgate.hub.job import LiveJob
from headgate.jobs import Job, ProgressRule


@pytest.mark.parametrize(("monitor", "least"), [("loss", 0.1), ("val_loss", 0.1), ("val_accuracy", 0.0)])
def test_its_least_gain_counts_where_it_is_of_the_scale_of_the_job_s_metric(monitor: str, least: float) -> None:
    job = LiveJob(Job(name="a", script="a.py", progress=ProgressRule(goal=0.5, patience=9)), 0, 0.0)
    job.stops_after(3, 0.1, monitor)
    assert job.spec.progress == ProgressRule(goal=0.5, patience=3, min_delta=least)
    assert job.spec.progress.stopping == (3, least)
