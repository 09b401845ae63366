"""Runs of MLflow, on a tracking server or in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from headgate.exports.trackers.base import (
    PROJECT,
    MetricPoint,
    TrackedEnd,
    TrackedJob,
    TrackerRun,
)
from headgate.model.identifiers import JobId
from headgate.model.trackers import JOB_TAG

_MOST_OF_A_BATCH = 500
"""MLflow takes at most 1,000 metrics at a time."""
_MOST_PARAMETER = 6000
"""Longest value of a parameter, in characters."""


class MlflowRun(TrackerRun):
    def __init__(self, job: TrackedJob, output: str, id: str | None = None) -> None:
        self._client = MlflowClient(output or None)
        if id is None:
            experiment = os.environ.get("MLFLOW_EXPERIMENT_ID") or _experiment(self._client)
            name = f"{job.run}/{job.name}"
            created = self._client.create_run(experiment, round(job.began * 1000), run_name=name)
            id = created.info.run_id
            params = [
                Param(name, value[:_MOST_PARAMETER]) for name, value in job.parameters.items()
            ]
            self._client.log_batch(id, params=params)
        elif JOB_TAG not in self._client.get_run(id).data.tags:  # else its script tells its state
            self._client.update_run(id, status="RUNNING")
        self._id: str = id

    @property
    def id(self) -> str:
        return self._id

    def add(self, points: list[MetricPoint]) -> None:
        metrics = [
            Metric(_name(point.name), point.value, round(point.at * 1000), point.step)
            for point in points
        ]
        for start in range(0, len(metrics), _MOST_OF_A_BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + _MOST_OF_A_BATCH])

    def note(self, tags: Mapping[str, str]) -> None:
        self._client.log_batch(self._id, tags=[RunTag(name, text) for name, text in tags.items()])

    def end(self, outcome: TrackedEnd | None) -> None:
        if outcome is not None:
            self._client.set_terminated(self._id, outcome.name)

    @classmethod
    def of_script(
        cls, job: TrackedJob, output: str, since: float, pids: frozenset[int]
    ) -> str | None:
        """The first run since then with the tag that Headgate has MLflow give the script's runs."""
        client = MlflowClient(output or None)
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        runs = client.search_runs(
            experiments,
            f"tags.`{JOB_TAG}` = '{JobId.of(job.run, job.name)}'"
            f" and attributes.start_time >= {round(since * 1000)}",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        return runs[0].info.run_id if runs else None


def _experiment(client: MlflowClient) -> str:
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
    known = client.get_experiment_by_name(name)
    id: str = known.experiment_id if known else client.create_experiment(name)
    return id


def _name(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)
