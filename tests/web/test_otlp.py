"""Figures over OTLP."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from tests.hub.user import SECONDS, User
from tests.web.test_board import job, snapshot
from tests.web.test_metrics import ACCOUNT, figures

from headgate.model.errors import StorageError, UsageError
from headgate.web import metrics
from headgate.web.board import Board, RunDetails
from headgate.web.metrics import FIGURES
from headgate.web.otlp import OtlpReceiver


@dataclass(frozen=True)
class Export:
    """A request that a receiver got."""

    path: str
    headers: dict[str, str]
    request: Any

    @property
    def resource(self) -> dict[str, str]:
        [of_resource] = self.request.resource_metrics
        return {item.key: item.value.string_value for item in of_resource.resource.attributes}

    def values(self) -> dict[tuple[str, ...], float]:
        """Values by name, and values of attributes by their names."""
        [of_resource] = self.request.resource_metrics
        [scope] = of_resource.scope_metrics
        return {
            (metric.name, *_attributes(point)): point.as_double or float(point.as_int)
            for metric in scope.metrics
            for point in (*metric.gauge.data_points, *metric.sum.data_points)
        }


def _attributes(point: Any) -> list[str]:
    return [item.value.string_value for item in sorted(point.attributes, key=lambda i: str(i.key))]


class Receiving:
    """A receiver of OTLP on this machine."""

    def __init__(self) -> None:
        self.exports: queue.Queue[Export] = queue.Queue()
        receiving = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                request = ExportMetricsServiceRequest.FromString(data)
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiving.exports.put(Export(self.path, headers, request))
                answer = ExportMetricsServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiving() -> Iterator[Receiving]:
    receiver = Receiving()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def test_live_jobs_reach_a_receiver_as_the_standard_variables_say(
    user: User, receiving: Receiving
) -> None:
    user.variables |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiving.endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": "x-key=secret",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=lab",
    }
    user.write("job.yaml", "jobs: [{name: a, run: 'echo epoch 1 loss 0.25; sleep 600'}]")
    run = user.detaches("job.yaml")
    sender = user.starts("web", "--no-page", "--otlp")
    loss = ("headgate.job.loss", "a", run)
    while loss not in (export := receiving.exports.get(timeout=SECONDS)).values():
        pass
    assert export.values()[loss] == 0.25
    assert export.path == "/v1/metrics"
    assert export.headers["x-key"] == "secret"
    assert export.resource["service.name"] == "headgate"
    assert export.resource["deployment.environment.name"] == "lab"
    user.types("stop", "--kill", "a")
    while loss in receiving.exports.get(timeout=SECONDS).values():
        pass
    sender.terminate()
    assert sender.wait(SECONDS) == 0


def test_otlp_and_prometheus_have_the_same_figures(receiving: Receiving) -> None:
    board = Board()
    board.take(snapshot(job("a")))
    board.set_details("r", RunDetails({"a": 0.0}, {"a": ACCOUNT}, {"SetShare": 2}))
    receiver = OtlpReceiver(receiving.endpoint)
    receiver.send(metrics.read(board))
    sent = receiving.exports.get(timeout=SECONDS).values()
    receiver.close()
    names = {f"headgate.{figure.name}": figure.prometheus_name for figure in FIGURES}
    of_prometheus = figures(board)
    of_prometheus.pop(("headgate_storage_free_bytes",))
    sent.pop(("headgate.storage.free",))
    assert {(names[name], *labels): value for (name, *labels), value in sent.items()} == (
        of_prometheus
    )


def test_a_receiver_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    receiver = OtlpReceiver("http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"to http://127\.0\.0\.1:9/v1/metrics: "):
        receiver.send(metrics.read(Board()))
    receiver.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
    ],
)
def test_variables_that_cannot_be_are_refused_by_name_or_value(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=value):
        OtlpReceiver()


@pytest.mark.parametrize("end", ["", "/", "/v1/metrics"])
def test_an_address_may_be_given_with_and_without_the_path(end: str) -> None:
    receiver = OtlpReceiver(f"http://collector{end}")
    assert receiver.endpoint == "http://collector/v1/metrics"
    receiver.close()
