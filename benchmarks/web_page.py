"""What the live page costs, with few jobs and with very many.

    python benchmarks/web_page.py [--jobs 3,500] [--nodes 50] [--seconds 20] [--browsers 0,1,10]
                                  [--json PATH]

A real hub, with nodes and tasks that `_made_up_nodes.py` makes up; the real page server; a real
Chromium, headless. Told are:

- paint: from the navigation, with nothing cached, to the first paint, to the first rows of the
  table and to the first verdict; bytes of the document, of its assets and of the first event,
  as they cross the network;
- frames: the time between two frames of the page while figures change twice a second. Its own
  script scrolls in each frame, sorts by another column each second and types into the filter;
- CPU, in parts of a core, of the hub and of the page server. Of ten browsers one is real; the
  others are programs that read the same stream;
- growth: 36,000 events, those of an hour at ten times the usual rate of one a second, come through
  hub and page server as fast as `--hour` says. Then the page's own listener is handed an hour of
  changes to all figures, two a second, without the time between them. The page server's resident
  memory, and the page's heap after a garbage collection and its DOM nodes, before and after;
- history: a day of a run, a reading of each task a second: until the server has answered, and until
  it is drawn;
- scrape: `/metrics`, and its series.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import _frame
import psutil
from long_runs import make
from tests.installing import install
from tests.reports.browsing import chromium

HOUR_EVENTS = 36_000
HOUR_CHANGES = 7_200
PAINTED = """
new MutationObserver(() => {
  window.seen ||= {};
  if (!seen.rows && document.querySelector("#jobs tbody tr")) seen.rows = performance.now();
  if (!seen.verdict && document.querySelector("#slow li .badge")) seen.verdict = performance.now();
}).observe(document, {childList: true, subtree: true});
const Source = window.EventSource;
window.EventSource = class extends Source {
  constructor(...given) { super(...given); window.source = this; }
};
"""
"""Runs before the page's own script."""
TOLD = """
const entries = performance.getEntriesByType("resource").filter((e) => e.name.includes("/assets/"));
return {
  first_paint: performance.getEntriesByName("first-contentful-paint")[0].startTime / 1000,
  rows: seen.rows / 1000, verdict: seen.verdict / 1000,
  document_bytes: performance.getEntriesByType("navigation")[0].transferSize,
  assets_bytes: entries.reduce((sum, entry) => sum + entry.transferSize, 0),
};
"""
FRAMES = """
const [seconds, done] = arguments, times = [], began = performance.now();
const place = document.querySelector("#jobs").closest(".scroll"), field = at("filter");
const buttons = [...document.querySelectorAll("#jobs thead button")], words = "job1 cpu>0.7";
let last = 0, sorted = 0, typed = 0;
function at(id) { return document.getElementById(id); }
const frame = (now) => {
  if (last) times.push(now - last);
  last = now;
  const passed = (performance.now() - began) / 1000;
  place.scrollTop = (place.scrollTop + 40) % Math.max(place.scrollHeight - place.clientHeight, 1);
  scrollTo(0, (scrollY + 20) % Math.max(document.body.scrollHeight - innerHeight, 1));
  if (passed > sorted + 1) buttons[sorted++ % buttons.length].click();
  if (passed > typed * 0.25) {
    field.value = words.slice(0, typed++ % (words.length + 1));
    field.dispatchEvent(new Event("input", {bubbles: true}));
  }
  if (passed < seconds) requestAnimationFrame(frame); else {
    field.value = "";
    field.dispatchEvent(new Event("input", {bubbles: true}));
    done(times);
  }
};
requestAnimationFrame(frame);
"""
REPLAY = """
const [changes, done] = arguments;
const one = async () => {
  for (let change = 0; change < changes; change++) {
    const runs = Object.fromEntries(Object.entries(last.runs).map(([id, run]) => [id, {
      facts: {...run.facts, t: run.facts.t + change / 2},
      jobs: Object.fromEntries(Object.entries(run.jobs).map(([name, job]) => [name, {
        cpu: Math.random(), memory: 1e9 * Math.random(), loss: Math.random(), step: change,
      }])),
    }]));
    const data = JSON.stringify({runs, gone: [], events: []});
    source.dispatchEvent(new MessageEvent("change", {data}));
    if (change % 20 === 0) await new Promise(requestAnimationFrame);
  }
  done();
};
let last = null;
source.addEventListener("change", (event) => {
  const message = JSON.parse(event.data);
  if (last || Object.keys(message.runs).length === 0) return;
  last = message;
  one();
});
"""


class Site:
    """A hub with made-up nodes, and the page server, under a `HEADGATE_HOME` of their own."""

    def __init__(self, folder: Path, jobs: int, nodes: int, policy: str, every: float) -> None:
        self.home, self.events = folder / "home", folder / "events"
        self.home.mkdir(mode=0o700)
        self.events.write_text("1")
        engine = Path(__file__).with_name("_made_up_nodes.py").read_text()
        entry = "[headgate.engines]\nmade-up = made_up_nodes:MadeUpNodes\n"
        install(folder, {"made_up_nodes": engine}, entry)
        self.environment = _frame.environment(
            HEADGATE_HOME=str(self.home),
            HEADGATE_REPORT="off",
            HEADGATE_VERIFY="off",
            MADE_UP_EVENTS=str(self.events),
            MADE_UP_EVERY=str(every),
            PYTHONPATH=str(folder),
        )
        lines = [f"  - {{name: job{n:03}, run: 'train --lr {n / 1000}'}}" for n in range(jobs)]
        (folder / "jobs.yaml").write_text("\n".join(["jobs:", *lines, ""]))
        words = ("--engine", "made-up", "--address", str(nodes), "--policy", policy)
        command = [sys.executable, "-m", "headgate"]
        subprocess.run(
            [*command, "run", "--detach", "--json", *words, str(folder / "jobs.yaml")],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        about = json.loads((self.home / "hub" / "allocation.json").read_text())
        self.hub = psutil.Process(about["pid"])
        self._served = subprocess.Popen(
            [*command, "web", "--json", "--port", "0"],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.server = psutil.Process(self._served.pid)
        assert self._served.stdout is not None
        facts = json.loads(self._served.stdout.readline())
        self.address, self.port = facts["act"], facts["port"]
        self._token = parse_qs(urlsplit(self.address).query)["token"][0]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asks(self, path: str) -> HTTPResponse:
        """The answer to a request, its body unread."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_frame.SECONDS)
        headers = {"Authorization": f"Bearer {self._token}", "Accept-Encoding": "gzip"}
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    def ends(self) -> None:
        """End the page server and the hub."""
        self._served.terminate()
        self._served.wait()
        self.hub.kill()  # nothing runs under it that would be left
        self.hub.wait(_frame.SECONDS)


@contextmanager
def site(jobs: int, nodes: int, policy: str, every: float) -> Iterator[Site]:
    """A site that is gone afterwards."""
    with _frame.leaving(), tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        made = Site(Path(folder), jobs, nodes, policy, every)
        try:
            yield made
        finally:
            made.ends()


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser that is ready to be measured."""
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        browser.set_script_timeout(_frame.SECONDS * 3)
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PAINTED})
        yield browser


def opened(browser: Any, address: str) -> None:
    """Open the first page and wait until it shows jobs and a verdict."""
    browser.get("about:blank")
    browser.execute_cdp_cmd("Network.clearBrowserCache", {})
    browser.get(address)
    _frame.until(
        lambda: browser.execute_script("return Boolean(window.seen && seen.rows && seen.verdict)"),
        "the page shows jobs and a verdict",
    )


def paint(browser: Any, site: Site, repetitions: int) -> dict[str, float]:
    """Seconds until there is something to see, and bytes; medians."""
    told = []
    for _ in range(repetitions):
        opened(browser, f"{site.base}/")
        told.append(browser.execute_script(TOLD))
    medians = {name: statistics.median(times[name] for times in told) for name in told[0]}
    return {**medians, "first_event_bytes": float(first_event_bytes(site))}


def first_event_bytes(site: Site) -> int:
    """Bytes of the body of `/live` up to the end of its first event, as they are sent."""
    answer, body, gzip, text = site.asks("/live"), b"", zlib.decompressobj(wbits=31), b""
    while b"\n\n" not in text:
        body += (part := answer.read1(1 << 16))
        text += gzip.decompress(part)
    answer.close()
    return len(body)


def frames(browser: Any, seconds: float) -> dict[str, float]:
    """Milliseconds between frames."""
    times = sorted(browser.execute_async_script(FRAMES, seconds))
    return {
        "median": statistics.median(times),
        "95th": times[int(0.95 * len(times))],
        "worst": times[-1],
    }


def cores(site: Site, seconds: float) -> dict[str, float]:
    """Parts of a core that hub and page server use."""

    def used() -> list[float]:
        return [
            times.user + times.system
            for times in (process.cpu_times() for process in (site.hub, site.server))
        ]

    before, began = used(), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    hub, server = ((now - then) / took for now, then in zip(used(), before, strict=True))
    return {"hub": hub, "page server": server}


@contextmanager
def readers(site: Site, count: int) -> Iterator[None]:
    """So many programs that read the stream, as a browser does."""
    answers = [site.asks("/live") for _ in range(count)]

    def reads(answer: HTTPResponse) -> None:
        with suppress(HTTPException):  # its connection is shut down below
            while answer.read1(1 << 16):
                pass

    threads = [threading.Thread(target=reads, args=(each,), daemon=True) for each in answers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for answer in answers:
            answer.fp.raw._sock.shutdown(2)  # type: ignore[attr-defined]
        for thread in threads:
            thread.join()


def shares(browser: Any, site: Site, counts: Sequence[int], seconds: float) -> dict[str, Any]:
    """Parts of a core by the number of browsers."""
    told = {}
    for count in counts:
        if count:
            opened(browser, f"{site.base}/")
        else:
            browser.get("about:blank")
        with readers(site, max(count - 1, 0)):
            time.sleep(2.0)
            told[str(count)] = cores(site, seconds)
    return told


def sizes(browser: Any, site: Site) -> dict[str, float]:
    """Resident bytes of the page server, bytes of the page's heap, and its DOM nodes."""
    browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    heap = browser.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]
    nodes = browser.execute_cdp_cmd("Memory.getDOMCounters", {})["nodes"]
    return {"server": site.server.memory_info().rss, "heap": heap, "nodes": nodes}


def growth(browser: Any, site: Site, hour: float) -> dict[str, Any]:
    """Sizes before and after an hour's worth of events and changes."""
    opened(browser, f"{site.base}/")
    before = sizes(browser, site)
    site.events.write_text(str(HOUR_EVENTS / hour))
    time.sleep(hour)
    site.events.write_text("1")
    events = sizes(browser, site)
    browser.execute_async_script(REPLAY, HOUR_CHANGES)
    return {"before": before, "after events": events, "after changes": sizes(browser, site)}


def history(browser: Any, site: Site, jobs: int) -> dict[str, float]:
    """Seconds until a day of a run has been read, and until it is drawn."""
    store = site.home / "runs" / "20260314-090000-000" / "run.sqlite"
    for index in range(jobs):
        (store.parent / "jobs" / f"job{index}").mkdir(parents=True)
    make(store, 24.0, jobs)
    began = time.monotonic()
    answer = site.asks(f"/runs/{store.parent.name}/sections")
    size = len(answer.read())
    read = time.monotonic() - began
    began = time.monotonic()
    browser.get(f"{site.base}/runs/{store.parent.name}")
    _frame.until(
        lambda: browser.execute_script("return window.headgate !== undefined"), "a drawn run"
    )
    drawn = time.monotonic() - began
    return {"read": read, "bytes": size, "drawn once read": drawn, "store": store.stat().st_size}


def scrape(site: Site, repetitions: int) -> dict[str, float]:
    """Seconds of a scrape, its series and bytes."""
    took = []
    for _ in range(repetitions):
        began = time.monotonic()
        answer = site.asks("/metrics")
        body = answer.read()
        took.append(time.monotonic() - began)
    connection = HTTPConnection("127.0.0.1", site.port)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {site._token}"})
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    series = sum(not line.startswith("#") for line in lines)
    return {"seconds": statistics.median(took), "series": series, "bytes": len(body)}


def show(name: str, figures: Mapping[str, Any]) -> None:
    """Print figures, one a line."""
    for key, value in figures.items():
        if isinstance(value, Mapping):
            show(f"{name}, {key}", value)
        else:
            print(f"{name}, {key:<28} {value:>14,.3f}".rstrip("0").rstrip("."), flush=True)


def main() -> None:
    parser = _frame.parser(__doc__ or "", 3)
    parser.add_argument("--jobs", default="3,500", help="numbers of jobs; the last has all figures")
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--policy", default="headgate", help="of the hub (default: headgate)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between a task's reports")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each watch")
    parser.add_argument("--browsers", default="0,1,10", help="numbers of browsers")
    parser.add_argument("--hour", type=float, default=60.0, help="seconds for an hour's events")
    parser.add_argument("--history-jobs", type=int, default=3, help="jobs of the recorded day")
    options = parser.parse_args()
    _frame.heading(options.repetitions, "starlette", "uvicorn", "selenium")
    told: dict[str, Any] = {}
    numbers = [int(number) for number in options.jobs.split(",")]
    browsers = [int(number) for number in options.browsers.split(",")]

    def tell(name: str, figures: Mapping[str, Any]) -> None:
        told[name] = figures
        show(name, figures)

    for jobs in numbers:
        with (
            site(jobs, options.nodes, options.policy, options.every) as made,
            browsing() as browser,
        ):
            opened(browser, made.address)
            tell(f"paint, {jobs} jobs", paint(browser, made, options.repetitions))
            if jobs != numbers[-1]:
                continue
            tell("frames (ms)", frames(browser, options.seconds))
            tell("scrape", scrape(made, options.repetitions))
            tell("cores, by browsers", shares(browser, made, browsers, options.seconds))
            tell("growth", growth(browser, made, options.hour))
            tell("a day of history", history(browser, made, options.history_jobs))
    _frame.write(options.json, "web_page", {"figures": told}, "starlette", "uvicorn", "selenium")


if __name__ == "__main__":
    os.environ.pop("HEADGATE_HOME", None)
    main()
