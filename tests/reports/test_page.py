"""The page in a real browser: the numbers on it are the store's, the plots are drawn, nothing is
fetched or run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.reports.browsing import faults_by_axe, opened, seen_as
from tests.reports.conftest import HOSTILE

from headgate.diagnosis.job_figures import figures
from headgate.recorded.reader import RunReader
from headgate.recorded.recording import read
from headgate.recorded.store import Recorder
from headgate.reports import html
from headgate.testing.wait import until


@pytest.fixture
def page(browser: Any, store: Path, tmp_path: Path) -> Any:
    """The browser with the report of `store` open, drawn."""
    return opened(browser, html.write(store, tmp_path / "report.html"))


def figure(page: Any, job: str, key: str) -> float:
    """The raw value behind a number of the summary table."""
    found = page.execute_script(
        "const [job, key] = arguments;return document.querySelector(`#summary [data-job='${job}'] "
        "[data-key='${key}']`).dataset.value",
        job,
        key,
    )
    return float(found)


def line(page: Any, plot: str, label: str) -> list[float | None]:
    """What uPlot itself was given to draw for the mean of a line."""
    found: list[float | None] = page.execute_script(
        "const {u, plot, ofLine} = headgate.drawn[arguments[0]];return "
        "Array.from(u.data[ofLine[plot.lines.findIndex((l) => l.label === arguments[1])].mean]);",
        plot,
        label,
    )
    return found


def test_the_summary_table_has_the_numbers_of_the_store(page: Any, store: Path) -> None:
    for job in map(figures, read(store).jobs):
        for key in (
            *(
                "started",
                "ended",
                "run_seconds",
                "attempts",
                "loss_final",
                "loss_best",
                "steps",
                "steps_per_second",
            ),
            *(
                "samples_per_second",
                "cpu_seconds",
                "cpu_mean_cores",
                "cpu_max_cores",
                "memory_peak_bytes",
            ),
            *("granted_cores", "used_of_granted", "input_fraction", "sampled_steps"),
        ):
            assert figure(page, job.name, key) == getattr(job, key), (job.name, key)
    with RunReader(store) as reader:
        cores = reader.query(
            "SELECT sum(cpu_cores) AS total, max(cpu_cores) AS most FROM usage WHERE target = "
            "'a/worker-0'"
        )
        loss = reader.query(
            "SELECT loss FROM progress WHERE task = 'b/worker-0' ORDER BY t DESC LIMIT 1"
        )
    assert (figure(page, "a", "cpu_seconds"), figure(page, "a", "cpu_max_cores")) == (
        cores[0]["total"],
        cores[0]["most"],
    )
    assert figure(page, "b", "loss_final") == loss[0]["loss"]


def test_the_plots_have_the_data_of_the_store(page: Any, store: Path) -> None:
    with RunReader(store) as reader:
        cores = [
            row["cpu_cores"]
            for row in reader.rows("usage", "target = 'node:nimbus' AND t > 0", order="t")
        ]
        memory = [
            row["memory_bytes"] for row in reader.rows("usage", "target = 'a/worker-0'", order="t")
        ]
        losses = [row["loss"] for row in reader.rows("progress", "task = 'a/worker-0'", order="t")]
    assert line(page, "node-0-cpu", "all cores") == pytest.approx(
        [used / 2 for used in cores], rel=1e-5
    )
    drawn = line(page, "job-memory", "a")
    assert drawn[:20] == pytest.approx(memory[1:], rel=1e-5)
    assert drawn[20:] == [None] * 20
    assert [v for v in line(page, "loss", "a") if v is not None] != []
    raw = page.execute_script(
        "return headgate.data.plots.find((p) => p.key === 'loss').lines[0].mean"
    )
    assert [v for v in raw if v is not None] == pytest.approx(losses, rel=1e-5)
    assert line(page, "share-0", "granted")[:20] == pytest.approx([2.0] * 10 + [1.0] * 10)
    assert sum(v for v in line(page, "share-0", "used") if v is not None) == pytest.approx(15.0)


def test_shares_with_their_reasons_stand_above_the_losses_on_one_axis_of_time(page: Any) -> None:
    titles = page.execute_script(
        "return [...document.querySelectorAll('h2')].map((title) => title.textContent)"
    )
    begin = titles.index("Timeline")
    assert titles[begin + 1 : begin + 4] == [
        "Shares and losses",
        "Decisions",
        "Share: granted against used",
    ]
    places = page.execute_script(
        "return ['shares', 'loss', 'loss-cpu'].map((key) => {  const area = "
        "headgate.drawn[key].u.over.getBoundingClientRect();  return [area.left, area.right, "
        "area.top, headgate.drawn[key].plot.to];})"
    )
    shares, losses, by_cpu = places
    assert (shares[0], shares[1], shares[3]) == (losses[0], losses[1], losses[3])
    assert shares[2] < losses[2] < by_cpu[2]
    drawn = line(page, "shares", "a")
    assert drawn[:300] == pytest.approx([2.0] * 150 + [1.0] * 150)
    assert drawn[300:] == [None] * 300
    rows = page.execute_script(
        "return [...document.querySelectorAll('#decisions tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert rows[0] == ["0 s", "a", "2", "first: nothing predicted yet"]
    assert rows[1:] == [
        ["10 s", "a", "2 → 1", "1 before it: 30 core-seconds left"],
        ["10 s", "b", "1", HOSTILE],
    ]


def test_the_reason_of_a_share_is_told_under_the_cursor(page: Any) -> None:
    def told(index: int) -> list[str]:
        page.execute_script(
            "const {u} = headgate.drawn.shares;"
            "u.setCursor({left: u.valToPos(u.data[0][arguments[0]], 'x'), top: 1}, true, true)",
            index,
        )
        found: list[str] = page.execute_script(
            "return [...document.querySelectorAll(\"figure[data-plot='shares'] "
            '.why")].map((why) => why.textContent)'
        )
        return found

    assert told(149) == ["first: nothing predicted yet", ""]
    assert told(150) == ["1 before it: 30 core-seconds left", HOSTILE]
    assert told(599) == ["", HOSTILE]


def test_every_plot_is_drawn(page: Any) -> None:
    blank = page.execute_script(
        "return Object.entries(headgate.drawn).filter(([, {u}]) => {  const area = u.bbox, image = "
        "u.ctx.getImageData(area.left, area.top, area.width, area.height).data;  const colours = "
        "new Set();  for (let i = 0; i < image.length; i += 4)    if (image[i + 3] > 60) "
        "colours.add(image[i] << 16 | image[i + 1] << 8 | image[i + 2]);  return colours.size < "
        "3;}).map(([key]) => key)"
    )
    assert blank == []
    keys = set(page.execute_script("return Object.keys(headgate.drawn)"))
    wanted = {
        "shares",
        "loss",
        "loss-cpu",
        "metric-0",
        "share-0",
        "share-1",
        "job-cpu",
        "job-memory",
        "job-written",
        "job-psi-cpu",
    }
    assert wanted | {"node-0-cpu", "node-0-memory", "node-0-net"} <= keys
    # Nobody ever read from a disk or touched a GPU.
    assert not {"job-read", "job-gpu", "node-0-gpu", "node-0-disk"} & keys


def test_what_users_wrote_stays_text_and_nothing_is_fetched(page: Any) -> None:
    assert page.execute_script("return window.stolen === undefined && document.images.length === 0")
    assert "<img src=x" in page.execute_script(
        "return document.getElementById('events').textContent"
    )
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file:", "data:", "chrome:"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == 1


def test_the_timeline_has_attempts_checkpoints_and_the_fault(page: Any) -> None:
    bars = page.execute_script(
        "return [...document.querySelectorAll('.gantt .row')].slice(0, 2)"
        ".map((row) => [...row.querySelectorAll('.bar')]"
        ".map((bar) => [bar.className, Number(bar.dataset.start), Number(bar.dataset.stop)]))"
    )
    assert bars == [
        [["bar running", 0, 20]],
        [
            ["bar waiting", 0, 10],
            ["bar running", 10, 20],
            ["bar waiting", 20, 22],
            ["bar running", 22, 40],
        ],
    ]
    assert (
        page.execute_script("return document.querySelectorAll('.gantt i.checkpoint').length") == 2
    )
    assert page.execute_script("return document.querySelectorAll('.gantt i.fault').length") == 1
    # Bars lie where their times say, within a pixel.
    off = page.execute_script(
        "return [...document.querySelectorAll('.gantt .bar')].map((bar) => {  const b = "
        "bar.getBoundingClientRect(), t = bar.parentElement.getBoundingClientRect();  return "
        "Math.abs((b.left - t.left) / t.width * 40 - Number(bar.dataset.start)) / 40 * t.width;})"
    )
    assert max(off) < 1


def test_a_cursor_moves_in_all_time_plots_and_by_keyboard(page: Any) -> None:
    canvas = page.find_element("css selector", "figure[data-plot='job-cpu'] .canvas")
    page.execute_script("arguments[0].focus()", canvas)
    for _ in range(5):
        canvas.send_keys("\ue014")  # arrow right
    at = page.execute_script(
        "return ['job-cpu', 'node-0-cpu'].map((key) => headgate.drawn[key].u.cursor.idx)"
    )
    assert at == [4, 4]
    told = page.execute_script(
        "return document.querySelector(\"figure[data-plot='node-0-cpu'] .legend .at\").textContent"
    )
    assert told == "90 %"
    assert "all cores 90 %" in page.execute_script(
        "return document.querySelector(\"figure[data-plot='node-0-cpu'] .canvas\").ariaValueText"
    )
    spans = []
    for key in ("+", "-"):
        canvas.send_keys(key)
        scale = "const {min, max} = headgate.drawn['job-cpu'].u.scales.x; return max - min"
        spans.append(page.execute_script(scale))
    assert spans[0] < spans[1] <= 40
    canvas.send_keys("\ue00c")  # escape
    assert page.execute_script("return document.querySelector('.gantt .now').hidden")


def test_lines_and_scales_are_switched(page: Any) -> None:
    button = page.find_element("css selector", "figure[data-plot='job-cpu'] .legend button")
    page.execute_script("arguments[0].click()", button)
    assert button.get_attribute("aria-pressed") == "false"
    assert (
        page.execute_script(
            "return headgate.drawn['job-cpu'].u.series.filter((s) => s.show === false).length"
        )
        >= 1
    )
    # The losses of the two jobs are far apart, so that the page opens with each from 1 to 0.
    relative = page.find_element(
        "css selector", "figure[data-plot='loss'] [data-option='relative']"
    )
    assert relative.is_selected()
    assert max(v for v in line(page, "loss", "b") if v is not None) == 1
    page.execute_script("arguments[0].click()", relative)
    assert max(v for v in line(page, "loss", "b") if v is not None) == pytest.approx(
        1000 / 11, rel=1e-4
    )


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_it_fits_narrow_and_dark(page: Any, width: int, scheme: str) -> None:
    with seen_as(page, width, scheme):
        until(
            lambda: page.execute_script("return headgate.drawn.loss.u.width") <= width,
            what="plots to fit",
        )
        assert page.execute_script("return document.documentElement.scrollWidth") <= width
        paper = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(20, 23, 26)") == (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_badge_of_a_job_that_failed_can_be_read(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    times = {"submitted": 0.0, "started": 0.0, "ended": 1.0}
    recorder.add(
        "jobs", name="a", position=0, state="failed", reason="exit code 1", attempt=1, **times
    )
    recorder.close()
    page = opened(browser, html.write(tmp_path / "run.sqlite", tmp_path / "report.html"))
    with seen_as(page, 400, scheme):
        badge = page.find_element("css selector", ".verdict .badge")
        style = [badge.value_of_css_property(name) for name in ("color", "background-color")]
    ink, paper = (
        [int(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        for colour in style
    )
    assert badge.text == "failed" and sum(abs(a - b) for a, b in zip(ink, paper, strict=True)) > 200


def cells(page: Any, table: str, column: int) -> list[str]:
    found: list[str] = page.execute_script(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]"
        ".map((row) => row.cells[arguments[1]].innerText.trim())",
        table,
        column,
    )
    return found


def test_a_verdict_is_a_line_a_job_and_opens_to_its_sentence(page: Any) -> None:
    lines = page.find_elements("css selector", "details.verdict")
    assert [line.get_attribute("data-job") for line in lines] == ["b", "a"]
    first = lines[0]
    assert [part.text for part in first.find_elements("css selector", ".state, .badge")] == [
        "done",
        "input",
    ]
    assert "lost 10.1 s (25 %)" in first.text and "waited for its input" not in first.text
    first.find_element("css selector", "summary").click()
    assert "b waited for its input for 10.1 s" in first.text
    advice = page.find_elements("css selector", ".advice")
    assert [line.text.partition(":")[0] for line in advice] == ["a and b"]


def test_a_click_on_a_heading_sorts_a_table_by_its_numbers_and_back(page: Any) -> None:
    headings = page.find_elements("css selector", "#summary thead th")
    ran = next(index for index, heading in enumerate(headings) if heading.text == "Ran")
    button = headings[ran].find_element("css selector", "button")
    button.click()
    assert (
        cells(page, "summary", 0) == ["a", "b"]
        and headings[ran].get_attribute("aria-sort") == "ascending"
    )
    button.click()
    assert (
        cells(page, "summary", 0) == ["b", "a"]
        and headings[ran].get_attribute("aria-sort") == "descending"
    )
    verdicts = next(index for index, heading in enumerate(headings) if heading.text == "Verdict")
    assert [cell.split()[0] for cell in cells(page, "summary", verdicts)] == ["input", "input"]


def test_contents_lead_to_each_section_and_bars_add_up(page: Any) -> None:
    links = page.execute_script(
        "return [...document.querySelectorAll('.contents a')].map((a) => a.getAttribute('href'))"
    )
    titles = page.execute_script(
        "return [...document.querySelectorAll('h2')].map((title) => title.textContent)"
    )
    assert len(links) == len(titles) > 8
    assert page.execute_script(
        "return arguments[0].every((link) => document.querySelector(link))", links
    )
    for job in ("a", "b"):
        grown = page.execute_script(
            "return [...document.querySelectorAll(`.shares [data-job='${arguments[0]}'] .span`)]"
            ".reduce((sum, span) => sum + Number(span.style.flexGrow), 0)",
            job,
        )
        assert grown == pytest.approx(1.0, abs=0.02)


def test_on_a_narrow_screen_a_wide_table_says_that_it_scrolls(page: Any) -> None:
    def told() -> list[str]:
        found: list[str] = page.execute_script(
            "return ['summary', 'events'].map((id) =>"
            " getComputedStyle(document.getElementById(id).parentElement, '::after').content)"
        )
        return found

    with seen_as(page, 400, "light"):
        until(lambda: told()[0] != "none", what="the summary to say that it scrolls")
    with seen_as(page, 1800, "light"):
        until(lambda: told() == ["none", "none"], what="nothing to scroll")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page: Any, scheme: str) -> None:
    with seen_as(page, 1280, scheme):
        assert faults_by_axe(page) == []
