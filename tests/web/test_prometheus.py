"""A real Prometheus scrapes a real page; its alerts, and the Grafana board over it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml
from tests.harness.ports import free_port
from tests.hub.user import SECONDS, User
from tests.web.conftest import Pages

from headgate.testing.wait import until
from headgate.web.metrics import FIGURES

EXAMPLES = Path(__file__).parents[2] / "examples" / "prometheus"
RULES = EXAMPLES / "alerts.yml"
BOARD = json.loads((EXAMPLES / "grafana.json").read_text())
BOARD_QUERIES = [
    target["expr"].replace("$run", ".*").replace("$__rate_interval", "10s")
    for panel in BOARD["panels"]
    for target in panel["targets"]
]
MAY_BE_EMPTY = ("gpu", "neighbour", "pressure")
"""What not every machine has, and not every job loses."""
SCRIPT = """
for number in range(10**9):
    if number % 10**5 == 0:
        print("step", number // 10**5, "loss", 1 / (number + 1), flush=True)
"""
JOBS = """
jobs:
- {name: a, script: a.py}
- {name: nan, run: "echo step 1 loss nan; sleep 600"}
- {name: later, run: "true", after: a}
"""
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus",
)


class Prometheus:
    """A running Prometheus with the example's configuration, asked over its API."""

    def __init__(self, folder: Path, target: int, token: Path) -> None:
        config = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text())
        config["global"] = dict.fromkeys(("scrape_interval", "evaluation_interval"), "1s")
        config["rule_files"] = [str(RULES)]
        [scrape] = config["scrape_configs"]
        scrape["authorization"]["credentials_file"] = str(token)
        scrape["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
        file = folder / "prometheus.yml"
        file.write_text(yaml.safe_dump(config))
        self.port = free_port()
        arguments = {
            "config.file": file,
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"127.0.0.1:{self.port}",
            "log.level": "error",
        }
        self.process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in arguments.items())]
        )

    def asks(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=SECONDS) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.asks("query", query=expression)["result"]
        return result

    def is_ready(self) -> bool:
        try:
            return bool(self.query("up"))
        except OSError:
            return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int, Path], Prometheus]]:
    started: list[Prometheus] = []

    def begin(target: int, token: Path) -> Prometheus:
        started.append(Prometheus(tmp_path, target, token))
        until(started[-1].is_ready, SECONDS, "a first scrape")
        return started[-1]

    yield begin
    for prometheus in started:
        prometheus.process.terminate()
        prometheus.process.wait(SECONDS)


@needs_prometheus
def test_prometheus_scrapes_jobs_and_evaluates_alerts_and_the_board(
    user: User, pages: Pages, start: Callable[[int, Path], Prometheus]
) -> None:
    user.write("a.py", SCRIPT)
    user.write("job.yaml", JOBS)
    run = user.detaches("job.yaml")
    prometheus = start(pages.port, user.home / "web-look.token")
    until(
        lambda: prometheus.query('headgate_job_time_seconds{job_name="a"}'), SECONDS, "an account"
    )
    [loss] = until(lambda: prometheus.query('headgate_job_loss{job_name="a"}'), SECONDS, "the loss")
    assert loss["metric"] == {
        "__name__": "headgate_job_loss",
        "instance": f"127.0.0.1:{pages.port}",
        "job": "headgate",
        "job_name": "a",
        "run": run,
    }
    waiting = 'headgate_job_state{state="waiting"}'
    until(
        lambda: [each["metric"]["job_name"] for each in prometheus.query(waiting)] == ["later"],
        SECONDS,
        "the one that waits for another",
    )

    def empty() -> list[str]:
        return [
            query
            for query in BOARD_QUERIES
            if not prometheus.query(query) and not any(word in query for word in MAY_BE_EMPTY)
        ]

    until(lambda: not empty(), SECONDS, "figures for each panel")
    until(
        lambda: prometheus.query('ALERTS{alertname="HeadgateLossIsNotFinite", job_name="nan"}'),
        SECONDS,
        "the alert of a loss that is NaN",
    )
    [group] = prometheus.asks("rules")["groups"]
    assert {rule["health"] for rule in group["rules"]} == {"ok"}
    hub = prometheus.query("headgate_hub_memory_bytes")
    assert len(hub) == 1
    user.types("stop", "--kill", "a")
    ended = 'headgate_jobs_ended_total{state="killed"} > 0'
    until(lambda: prometheus.query(ended), SECONDS, "the end that is counted")
    user.types("stop", "--kill", "nan")
    until(lambda: not prometheus.query("headgate_job_step"), SECONDS, "the end of its series")


@needs_prometheus
@pytest.mark.parametrize(
    "words",
    [("check", "rules", str(RULES)), ("test", "rules", str(Path(__file__).parent / "alerts.yml"))],
    ids=["check", "test"],
)
def test_each_alert_fires_in_its_case_and_not_before(words: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case() -> None:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    cases = yaml.safe_load((Path(__file__).parent / "alerts.yml").read_text())["tests"]
    fired = {
        case["alertname"]
        for test in cases
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in group["rules"]}


def test_the_board_shows_figures_that_there_are_in_panels_that_do_not_overlap() -> None:
    assert BOARD["uid"] == "headgate"
    names = {figure.prometheus_name for figure in FIGURES}
    for query in BOARD_QUERIES:
        used = set(re.findall(r"\bheadgate_\w+", query))
        assert used <= names
        assert used or "process_" in query
    places = [
        (x, y)
        for panel in BOARD["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
