"""The short form of a Spark application in a job file: it becomes the roles master, executor and
driver.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from headgate.config.fields import Bytes, Plain, Text
from headgate.config.userfile import Entry, Whole
from headgate.model.roles import Ready, Role

_DAEMONS = "-Dspark.port.maxRetries=0"
_REGISTERED = "Successfully registered with master"
_OVERHEAD_BYTES, _OVERHEAD_PART = 384 << 20, 0.4
"""JVM memory besides the heap: Spark's minimum (`spark.executor.memoryOverhead`) and its fraction
for Python.
"""
_DAEMON_BYTES = 256 << 20
"""Heap of a master, and of a worker without its executor."""


class SparkEntry(Entry):
    """A Spark application on its own cluster of tasks; needs Java, and pyspark or Spark, on its
    nodes.
    """

    application: Plain
    """The application, a Python script, relative to the job's `workdir`."""
    args: list[Text] = []
    """Arguments of the application."""
    executors: Annotated[Whole, Field(ge=1, le=1000)] = 1
    """Number of executors; each is a task."""
    executor_cores: Annotated[Whole, Field(ge=1)] = 1
    """Number of Spark tasks that an executor runs at once, each on a core."""
    executor_memory: Bytes = 1 << 30
    """The heap of each executor, in bytes or with a unit such as `2GB`."""
    driver_memory: Bytes = 1 << 30
    """The heap of the driver, in bytes or with a unit such as `2GB`."""
    conf: dict[Text, Text] = {}
    """Spark settings, such as `spark.sql.shuffle.partitions`."""

    def roles(self, tools: Path, python: str) -> tuple[Role, ...]:
        """Master, executors and driver.

        Args:
            tools: The folder of `spark-class` and `spark-submit`.
            python: The interpreter of the application.
        """
        env = {
            "SPARK_LOCAL_IP": "{host}",
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
        }
        daemon = {
            **env,
            "SPARK_DAEMON_JAVA_OPTS": _DAEMONS,
            "SPARK_DAEMON_MEMORY": f"{_DAEMON_BYTES >> 20}m",
        }
        deploy = (str(tools / "spark-class"), "org.apache.spark.deploy")
        where = ("--host", "{host}", "--port", "{port}", "--webui-port", "0")
        master = "spark://{master.address}"
        heap = self.executor_memory >> 20
        size = ("--cores", str(self.executor_cores), "--memory", f"{heap}m")
        worker = (deploy[0], f"{deploy[1]}.worker.Worker", *where, *size, master)
        conf = {
            "spark.driver.host": "{host}",
            "spark.driver.port": "{port}",
            "spark.executor.memory": f"{heap}m",
            "spark.executor.cores": str(self.executor_cores),
            "spark.ui.enabled": "false",
            **self.conf,
        }
        return (
            Role(
                name="master",
                run=(deploy[0], f"{deploy[1]}.master.Master", *where),
                env=daemon,
                memory_bytes=_DAEMON_BYTES + _OVERHEAD_BYTES,
                ready=Ready(port=True),
            ),
            Role(
                name="executor",
                run=(
                    'export SPARK_WORKER_DIR="$HEADGATE_CHECKPOINTS/spark-$HEADGATE_INDEX"; '
                    f"exec {shlex.join(worker)}"
                ),
                env=daemon,
                count=self.executors,
                memory_bytes=_DAEMON_BYTES + _with_overhead(self.executor_memory),
                ready=Ready(line=_REGISTERED),
                after=("master",),
            ),
            Role(
                name="driver",
                run=(
                    *(python, "-m", "headgate.task.spark", str(tools / "spark-submit")),
                    *("--master", master, "--driver-memory", f"{self.driver_memory >> 20}m"),
                    *(
                        word
                        for name, value in conf.items()
                        for word in ("--conf", f"{name}={value}")
                    ),
                    self.application,
                ),
                args=tuple(self.args),
                env=env,
                memory_bytes=_with_overhead(self.driver_memory),
                after=("executor",),
                ends=True,
            ),
        )


def _with_overhead(heap: int) -> int:
    return heap + max(_OVERHEAD_BYTES, int(_OVERHEAD_PART * heap))


def tools(python: str, env: Mapping[str, str]) -> Path | None:
    """The folder of `spark-submit`, from SPARK_HOME, beside the interpreter, or on the PATH; None:
    not found.
    """
    home = env.get("SPARK_HOME")
    beside = Path(shutil.which(python, path=env.get("PATH")) or python).parent
    on_path = shutil.which("spark-submit", path=env.get("PATH"))
    folders = [beside]
    if home:
        folders = [Path(home, "bin")]
    elif on_path:
        folders.append(Path(on_path).parent)
    return next((folder for folder in folders if os.access(folder / "spark-submit", os.X_OK)), None)


def against(python: str, env: Mapping[str, str]) -> tuple[str, str] | None:
    """A part of Spark that this machine lacks: what was found, and the cure; None: nothing."""
    if tools(python, env) is None:
        cure = (
            "pip install pyspark there, name another interpreter with `python:`, or set SPARK_HOME"
        )
        return f"found no spark-submit beside {python}, nor on the PATH", cure
    if not _has_java(env):
        return (
            "found no Java, which Spark runs on",
            "install one (Debian: apt install openjdk-17-jre-headless)",
        )
    return None


def _has_java(env: Mapping[str, str]) -> bool:
    home = env.get("JAVA_HOME")
    return (
        os.access(Path(home, "bin", "java"), os.X_OK)
        if home
        else shutil.which("java", path=env.get("PATH")) is not None
    )
