"""Figures over OTLP, the protocol of OpenTelemetry."""

from __future__ import annotations

import logging
import math
import os
import time
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT,
    OTEL_EXPORTER_OTLP_METRICS_PROTOCOL,
    OTEL_EXPORTER_OTLP_PROTOCOL,
    OTEL_METRIC_EXPORT_INTERVAL,
)
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from headgate import __version__
from headgate.model.errors import StorageError, UsageError
from headgate.recorded import runs
from headgate.web.metrics import Figure, Readings, Sample
from headgate.web.sending import Receiver

_PATH = "v1/metrics"
_DEFAULT = "http://localhost:4318"
_PROTOCOL = "http/protobuf"
_MILLISECONDS = 60_000


class OtlpReceiver(Receiver):
    """A receiver of OTLP, such as an OpenTelemetry Collector.

    The standard variables hold: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_HEADERS`,
    `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_RESOURCE_ATTRIBUTES` and so on. Points are built here and
    not by instruments of the SDK: those would keep the series of each job that ever was.

    Args:
        endpoint: Its base address, such as `http://localhost:4318`; empty: from the environment.

    Raises:
        UsageError: The address, or a variable, cannot be.
    """

    def __init__(self, endpoint: str = "") -> None:
        super().__init__(_interval())
        _check_protocol()
        self.endpoint = _address(endpoint)
        self._exporter = OTLPMetricExporter(endpoint=self.endpoint)
        self._errors = _LastError()
        logging.getLogger("opentelemetry").addHandler(self._errors)
        own = {"service.name": "headgate", "service.version": __version__, "host.name": runs.host()}
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._began = time.time_ns()

    def send(self, readings: Readings) -> None:
        if self._exporter.export(self._data(readings)) is not export.MetricExportResult.SUCCESS:
            raise StorageError(
                f"cannot send figures to {self.endpoint}: {self._errors.text or 'no answer'}"
            )

    def close(self) -> None:
        self._exporter.shutdown()
        logging.getLogger("opentelemetry").removeHandler(self._errors)

    def _data(self, readings: Readings) -> export.MetricsData:
        now = time.time_ns()
        figures = [
            _metric(figure, [self._point(figure, sample, now) for sample in samples])
            for figure, samples in readings
            if samples
        ]
        scope = InstrumentationScope("headgate", __version__)
        of_scope = export.ScopeMetrics(scope, figures, "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [of_scope], "")])

    def _point(self, figure: Figure, sample: Sample, now: int) -> export.NumberDataPoint:
        values, value = sample
        names = (f"headgate.{label.replace('_', '.')}" for label in figure.labels)
        began = self._began if figure.is_counter else 0
        attributes = dict(zip(names, values, strict=True))
        return export.NumberDataPoint(attributes, began, now, float(value))


class _LastError(logging.Handler):
    """Keeps what the SDK last complained of, instead of printing it again and again."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


def _metric(figure: Figure, points: list[export.NumberDataPoint]) -> export.Metric:
    cumulative = export.AggregationTemporality.CUMULATIVE
    data = export.Sum(points, cumulative, True) if figure.is_counter else export.Gauge(points)
    return export.Metric(f"headgate.{figure.name}", figure.meaning, figure.unit, data)


def _interval() -> float:
    """Seconds between two exports."""
    text = os.environ.get(OTEL_METRIC_EXPORT_INTERVAL, str(_MILLISECONDS))
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not 0.0 < milliseconds < math.inf:
        raise UsageError(
            f"found {OTEL_METRIC_EXPORT_INTERVAL}={text}; expected milliseconds, such as 60000"
        )
    return milliseconds / 1000.0


def _check_protocol() -> None:
    for name in (OTEL_EXPORTER_OTLP_METRICS_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL):
        protocol = os.environ.get(name, _PROTOCOL)
        if protocol != _PROTOCOL:
            raise UsageError(
                f"found {name}={protocol}; expected {_PROTOCOL}, which every receiver of OTLP "
                "takes, by default at port 4318"
            )


def _address(endpoint: str) -> str:
    """The whole address that figures are sent to."""
    if not endpoint and (whole := os.environ.get(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT)):
        return whole
    base = endpoint or os.environ.get(OTEL_EXPORTER_OTLP_ENDPOINT) or _DEFAULT
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"found the OTLP endpoint {base}; expected one such as {_DEFAULT}")
    path = PurePosixPath(parts.path or "/")
    is_whole = path.parts[-2:] == PurePosixPath(_PATH).parts
    return parts._replace(path=str(path if is_whole else path / _PATH)).geturl()
