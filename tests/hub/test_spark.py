"""A Spark application on a standalone cluster of tasks."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.config import sparkfile
from headgate.model.job_states import ENDED
from headgate.recorded.reader import RunReader
from headgate.testing import wait

PYTHON = os.environ.get("HEADGATE_TEST_SPARK_PYTHON", sys.executable)
"""An interpreter beside which pyspark is installed; it has 456 MB."""
APPLICATION = """
    import sys
    from pyspark.sql import SparkSession

    context = SparkSession.builder.appName("sums").getOrCreate().sparkContext
    pairs = context.parallelize(range(1000), 4).map(lambda number: (number % 3, number))
    sums = pairs.reduceByKey(lambda one, other: one + other, 2).collect()
    print("sums", sys.argv[1], sorted(sums), flush=True)
    print("executors", context._jsc.sc().getExecutorMemoryStatus().size() - 1, flush=True)
"""
JOB = """
    jobs:
      - name: sums
        python: {python}
        spark: {{application: app.py, args: [now], executors: 2,
                 executor_memory: 512MB, driver_memory: 512MB}}
"""


def ended(user: User, run: str) -> str | None:
    """The state of the job once it has ended."""
    job = user.stands("sums", run)
    return job["state"] if job is not None and job["state"] in ENDED else None


@pytest.mark.long
@pytest.mark.hardware  # nor is Spark installed where all other optional parts are
@pytest.mark.skipif(
    sparkfile.against(PYTHON, os.environ) is not None,
    reason=f"Spark: {sparkfile.against(PYTHON, os.environ)}",
)
def test_an_application_shuffles_between_its_executors_and_its_stages_are_spans(user: User) -> None:
    user.write("app.py", APPLICATION)
    user.write("jobs.yaml", JOB.format(python=PYTHON))
    run = user.detaches("jobs.yaml")
    over = wait.until(lambda: ended(user, run), 4 * SECONDS, "the application has ended")
    assert over == "done", user.types("logs", "sums", "--all").stdout
    said = user.log("sums")
    assert "sums now [(0, 166833), (1, 166167), (2, 166500)]" in said
    assert "executors 2" in said
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        assert {row["id"] for row in reader.rows("tasks")} == {
            *("sums/master-0", "sums/executor-0", "sums/executor-1", "sums/driver-0")
        }
        spans: dict[int, dict[str, Any]] = defaultdict(dict)
        for row in reader.rows("spans", "task = 'sums/driver-0'"):
            spans[row["step"]][row["name"]] = row
    first, second = (spans[stage] for stage in sorted(spans))
    assert first["shuffle write"]["bytes_out"] == second["shuffle read"]["bytes_in"] > 0
    assert all(span["seconds"] >= 0 for stage in (first, second) for span in stage.values())


def test_what_spark_needs_is_asked_for_before_the_start(user: User, tmp_path: Path) -> None:
    user.write("app.py", APPLICATION)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "python").symlink_to(sys.executable)
    user.write("jobs.yaml", JOB.format(python=bare / "python").replace("app.py", "no.py"))
    said = user.types("run", "jobs.yaml", code=2).stderr
    assert "found 'no.py', which is not a file" in said
    assert (
        f"found no spark-submit beside {bare / 'python'}, nor on the PATH; pip install "
        "pyspark there"
    ) in said
