"""Runs the driver of a Spark application: `python -m headgate.task.spark COMMAND...`.

It has Spark write its event log into the job's folder of checkpoints. It reports each stage in the
log: how its time divides, and the bytes read and shuffled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from headgate.task.channel import Channel
from headgate.task.environment import TaskEnvironment

FOLDER = "spark-events"
"""A folder in the folder of checkpoints."""
_LOOK_SECONDS = 1.0
_FLUSH_SECONDS = 5.0
_METRIC = "internal.metrics."
_NANO, _MILLI = 1e-9, 1e-3


def stages(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """A `spans` message for each stage that has ended, from lines of an event log.

    A stage is a step, numbered by its id. Its time divides in the proportions of its tasks' summed
    times. `shuffle read` is their wait for blocks of other executors, `shuffle write` the writing
    of their own, `compute` the rest. Seconds of the spans add up to those of the stage. Bytes are
    those of all tasks. `bytes_in` of `input` were read from files, `bytes_in` of `shuffle read`
    came from earlier stages. `bytes_out` of `shuffle write` are for later stages.
    """
    for line in lines:
        if '"SparkListenerStageCompleted"' not in line:
            continue
        try:
            stage = json.loads(line)["Stage Info"]
            if stage.get("Failure Reason") is None:
                yield _spans(stage)
        except (KeyError, TypeError, ValueError):  # of a version of Spark that writes it otherwise
            continue


def _spans(stage: Mapping[str, Any]) -> dict[str, Any]:
    values = {
        str(value["Name"])[len(_METRIC) :]: float(value["Value"])
        for value in stage["Accumulables"]
        if str(value.get("Name", "")).startswith(_METRIC)
        and str(value.get("Value", "")).lstrip("-").isdecimal()
    }
    seconds = (stage["Completion Time"] - stage["Submission Time"]) * _MILLI
    waited = values.get("shuffle.read.fetchWaitTime", 0.0) * _MILLI
    wrote = values.get("shuffle.write.writeTime", 0.0) * _NANO
    total = max(values.get("executorRunTime", 0.0) * _MILLI, waited + wrote) or 1.0
    parts = {"shuffle read": waited / total, "shuffle write": wrote / total}
    parts["compute"] = 1.0 - sum(parts.values())
    read = values.get("shuffle.read.localBytesRead", 0.0) + values.get(
        "shuffle.read.remoteBytesRead", 0.0
    )
    spans: list[dict[str, Any]] = [
        {"name": name, "seconds": part * seconds} for name, part in parts.items()
    ]
    spans[0]["bytes_in"], spans[1]["bytes_out"] = (
        read,
        values.get("shuffle.write.bytesWritten", 0.0),
    )
    spans.append({"name": "input", "seconds": 0.0, "bytes_in": values.get("input.bytesRead", 0.0)})
    return {
        "type": "spans",
        "step": int(stage["Stage ID"]),
        "epoch": 0,
        "seconds": seconds,
        "spans": spans,
    }


class _Log:
    """The event log of an application, while Spark appends to it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = set(folder.iterdir())
        self._file: TextIO | None = None
        self._rest = ""

    def lines(self) -> list[str]:
        """The lines that were written since the last call."""
        if self._file is None:
            fresh = sorted(set(self._folder.iterdir()) - self._before)
            if not fresh:
                return []
            self._file = open(fresh[0], encoding="utf-8", errors="replace")  # noqa: SIM115  # until this process ends
        *lines_read, self._rest = (self._rest + self._file.read()).split("\n")
        return lines_read


def main(command: list[str]) -> int:
    """Run a driver until it ends. Returns its exit code."""
    environment = TaskEnvironment.claim()
    folder = Path(environment.checkpoints or os.curdir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    log, channel = _Log(folder), Channel.open(environment, "spark", "", None, observes=True)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.absolute().as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }
    submit, *arguments = command
    words = [
        submit,
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
        *arguments,
    ]
    driver = subprocess.Popen(words)
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        signal.signal(getattr(signal, name), lambda number, _: driver.send_signal(number))
    ended = threading.Event()
    teller = threading.Thread(target=_tell, args=(log, channel, driver, ended))
    teller.start()
    code = driver.wait()
    ended.set()
    teller.join()
    channel.flush(_FLUSH_SECONDS)
    return code if code >= 0 else 128 - code


def _tell(
    log: _Log, channel: Channel, driver: subprocess.Popen[bytes], ended: threading.Event
) -> None:
    """Report each stage as it is written, until the driver ends. Ask the driver to end when the
    engine says so.
    """
    last = asked = False
    while not last:
        last = ended.wait(_LOOK_SECONDS)
        if channel.stopping and not asked:
            driver.terminate()
            asked = True
        for message in stages(log.lines()):
            channel.send(message, can_be_missed=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
