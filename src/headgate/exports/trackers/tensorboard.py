"""Event files of TensorBoard, a folder a job."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from headgate.exports.series import PREFIX
from headgate.exports.trackers.base import MetricPoint, TrackedEnd, TrackedJob, TrackerRun

_DEEPEST = 4
"""How many folders below its own a script's event files are looked for."""
_MOST_FOLDERS = 2000
_SUFFIX = ".headgate"


class TensorBoardRun(TrackerRun):
    def __init__(self, job: TrackedJob, output: str, id: str | None = None) -> None:
        self._folder = id or os.path.join(output or f"runs/headgate-{job.run}", job.name)
        os.makedirs(self._folder, exist_ok=True)
        # not by its EventFileWriter, which imports TensorFlow where that is installed
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}{_SUFFIX}"
        self._writer = RecordWriter(open(os.path.join(self._folder, name), "xb"))  # noqa: SIM115
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        self._step = 0
        if id is None:
            self._text(f"{PREFIX}parameters", job.parameters)

    @property
    def id(self) -> str:
        return os.path.abspath(self._folder)

    def add(self, points: list[MetricPoint]) -> None:
        for point in points:
            value = Summary.Value(tag=point.name, simple_value=point.value)
            summary = Summary(value=[value])
            self._write(Event(wall_time=point.at, step=point.step, summary=summary))
            self._step = max(self._step, point.step)
        self._writer.flush()

    def note(self, tags: Mapping[str, str]) -> None:
        self._text(f"{PREFIX}verdict", tags)
        self._writer.flush()

    def _text(self, tag: str, facts: Mapping[str, str]) -> None:
        rows = "\n".join(f"- {name}: {text}" for name, text in facts.items())
        plugin = SummaryMetadata.PluginData(plugin_name="text")
        tensor = TensorProto(dtype=DT_STRING, string_val=[rows.encode()])
        metadata = SummaryMetadata(plugin_data=plugin)
        value = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        summary = Summary(value=[value])
        self._write(Event(wall_time=time.time(), step=self._step, summary=summary))

    def _write(self, event: Event) -> None:
        self._writer.write(event.SerializeToString())

    def end(self, outcome: TrackedEnd | None) -> None:
        self._writer.close()

    @classmethod
    def of_script(
        cls, job: TrackedJob, output: str, since: float, pids: frozenset[int]
    ) -> str | None:
        """The folder below this one where a process of the job writes event files, which are named
        after it.
        """
        for file in () if output else _event_files("."):
            parts = Path(file).name.split(".")
            own = file.endswith(_SUFFIX) or not pids.isdisjoint(
                int(part) for part in parts if part.isdecimal()
            )
            if own and not file.endswith(_SUFFIX) and os.stat(file).st_mtime >= since:
                return os.path.dirname(file)
        return None


def _event_files(top: str) -> Iterator[str]:
    for count, (folder, folders, files) in enumerate(os.walk(top)):
        if count >= _MOST_FOLDERS:
            return
        if folder.count(os.sep) >= _DEEPEST:
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (os.path.join(folder, name) for name in files if "tfevents" in name)
