"""Make the README's pictures and the gallery from real runs of the demo: the terminal while it
runs, its report, and the pages of `headgate web`.

    make images            # or: python docs/images/record.py

It runs `headgate run examples/jobs.yaml` in a terminal of its own, keeps what the terminal shows,
and writes it as an animated picture, `run.svg`. Then it opens the run's `report.html` in a headless
Chromium and writes `report.png`. The jobs run once more under another policy, and `headgate web`
shows them: pages are written at the widths of a screen and of a phone, light and dark.
"""

from __future__ import annotations

import base64
import fcntl
import html
import json
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMAND = ["headgate", "run", "examples/jobs.yaml"]

COLUMNS, ROWS = 112, 30
PLAY_SECONDS, LAST_SECONDS = 20.0, 8.0  # that the picture takes for the run, and then stands still
FRAMES = 60  # most of them in the picture

FONT = 13
# of a character, in the monospaced fonts that the picture asks for
WIDTH, HEIGHT = FONT * 0.602, FONT * 1.4
MARGIN, BAR = 12, 28
COLORS = {
    "default": "#d6dae0",
    "black": "#6b7280",
    "red": "#f47067",
    "green": "#6bc46d",
    "brown": "#d9b44a",  # what pyte calls yellow
    "blue": "#6cb6ff",
    "magenta": "#dcbdfb",
    "cyan": "#76e3ea",
    "white": "#ffffff",
}

REPORT_SIZE = (1180, 1440)

PAGE_SIZES = {"screen": (1280, 1000), "phone": (400, 860)}
SCHEMES = ("light", "dark")
QUALITY = 80
WAIT_SECONDS = 600.0
SEEN_SECONDS = 40.0  # how long the jobs have run when they are shown
FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars"


@dataclass(frozen=True)
class Piece:
    """Characters of one line that look alike: where they begin, and how they look."""

    column: int
    text: str
    color: str
    bold: bool


Line = tuple[Piece, ...]
Frame = tuple[Line, ...]


def line_of(screen: pyte.Screen, row: int) -> Line:
    """One row of the terminal, without the blanks."""
    cells = [screen.buffer[row][column] for column in range(COLUMNS)]
    pieces: list[Piece] = []
    column = 0
    for (color, bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        text = "".join(cell.data for cell in run)
        if text.strip():
            lead = len(text) - len(text.lstrip())
            pieces.append(Piece(column + lead, text.strip(), COLORS.get(color, f"#{color}"), bold))
        column += len(text)
    return tuple(pieces)


def frame_of(screen: pyte.Screen) -> Frame:
    return tuple(line_of(screen, row) for row in range(ROWS))


def record(home: Path) -> list[tuple[float, Frame]]:
    """Run the demo in a terminal.

    Returns:
        What the terminal showed, each with the seconds since the start; the last is what it showed
        at the end.

    Raises:
        SystemExit: The run did not end well.
    """
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    stream.feed(f"$ {' '.join(COMMAND)}\r\n".encode())
    frames = [(0.0, frame_of(screen))]
    began = time.monotonic()
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(ROOT)
        environment = {**os.environ, "HEADGATE_HOME": str(home), "TERM": "xterm-256color"}
        os.execvpe(COMMAND[0], COMMAND, environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    while True:
        readable, _, _ = select.select([terminal], [], [], 0.1)
        if readable:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # Linux says so of a terminal that its last process has left
                break
            if not data:
                break
            stream.feed(data)
        at = time.monotonic() - began
        if not readable and at - frames[-1][0] >= 0.5:  # nothing is half drawn
            frames.append((at, frame_of(screen)))
    frames.append((time.monotonic() - began, frame_of(screen)))
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit("\n".join(screen.display))
    return frames


def drawn(frames: list[tuple[float, Frame]]) -> str:
    """The frames as an SVG that plays them; a viewer that plays nothing shows the last one."""
    took = frames[-1][0]
    shown = frames[:1]
    for at, frame in frames[1:-1]:
        if at - shown[-1][0] >= took / FRAMES and frame != shown[-1][1]:
            shown.append((at, frame))
    frames = [*shown, frames[-1]]
    speed = max(1, round(took / PLAY_SECONDS))
    rows = max(row for _, frame in frames for row, line in enumerate(frame, 1) if line)
    width, height = round(COLUMNS * WIDTH + 2 * MARGIN), round(rows * HEIGHT + 2 * MARGIN)
    seconds = took / speed + LAST_SECONDS
    lines: dict[Line, str] = {}
    strip, moves = [], []
    for number, (at, frame) in enumerate(frames):
        for row, line in enumerate(frame):
            if line:
                name = lines.setdefault(line, f"l{len(lines)}")
                strip.append(
                    f'<use href="#{name}" y="{number * height + MARGIN + row * HEIGHT:.1f}"/>'
                )
        moves.append(f"{at / speed / seconds:.3%}{{transform:translateY({-number * height}px)}}")
    end = f"transform:translateY({-(len(frames) - 1) * height}px)"
    title = html.escape(f"{' '.join(COMMAND)} in a terminal")
    buttons = enumerate(("#f47067", "#d9b44a", "#6bc46d"))
    return "\n".join(
        (
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + BAR}" '
                'role="img"'
            ),
            f'aria-label="{title}">',
            "<style>",
            (
                f'text{{font:{FONT}px "DejaVu Sans Mono",Menlo,Consolas,"Liberation '
                'Mono",monospace;white-space:pre}'
            ),
            f".b{{font-weight:bold}}#strip{{{end}}}",
            f"@keyframes play{{{''.join(moves)}100%{{{end}}}}}",
            "@media (prefers-reduced-motion:no-preference)",
            f"{{#strip{{animation:play {seconds:.1f}s step-end infinite}}}}",
            "</style>",
            f'<rect width="{width}" height="{height + BAR}" rx="8" fill="#1d2026"/>',
            *(
                f'<circle cx="{18 + 18 * place}" cy="14" r="5.5" fill="{color}"/>'
                for place, color in buttons
            ),
            (
                f'<text x="{width - MARGIN}" y="19" text-anchor="end" fill="#8b93a1">{speed} times '
                "as fast</text>"
            ),
            "<defs>",
            *(
                f'<g id="{name}">{"".join(map(piece_drawn, line))}</g>'
                for line, name in lines.items()
            ),
            "</defs>",
            (
                f'<svg y="{BAR}" width="{width}" height="{height}"><g '
                f'id="strip">{"".join(strip)}</g></svg>'
            ),
            "</svg>",
            "",
        )
    )


def piece_drawn(piece: Piece) -> str:
    """A piece of a line; its length is stated, so that every font puts it where the terminal
    did.
    """
    style = ' class="b"' if piece.bold else ""
    return (
        f'<text x="{MARGIN + piece.column * WIDTH:.1f}" y="{FONT}" '
        f'textLength="{len(piece.text) * WIDTH:.1f}" '
        f'fill="{piece.color}"{style}>{html.escape(piece.text)}</text>'
    )


def browser_program() -> str:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("needs chromium or google-chrome to show pages; install one of them")
    return browser


def photograph(page: Path, picture: Path) -> None:
    """Write what a browser shows of a page as a PNG."""
    width, height = REPORT_SIZE
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser_program(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


@contextmanager
def served(environment: dict[str, str]) -> Iterator[str]:
    """The address of a running `headgate web`."""
    words = ["headgate", "web", "--json", "--port", "0"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["act"]
        finally:
            server.send_signal(signal.SIGINT)


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = browser_program()
    for flag in FLAGS.split():
        options.add_argument(flag)
    driver = shutil.which("chromedriver")
    if driver is None:
        sys.exit("needs chromedriver to show the pages; install it")
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as browser:
        yield browser


def page_pictures(browser: webdriver.Chrome, name: str, address: str, ready: str) -> None:
    """Write a page in each width and scheme, once the expression `ready` is true in it."""
    for size, (width, height) in PAGE_SIZES.items():
        for scheme in SCHEMES:
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            browser.get(address)
            WebDriverWait(browser, WAIT_SECONDS).until(lambda page: page.execute_script(ready))
            shot: Any = {"format": "webp", "quality": QUALITY}
            picture = browser.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]
            (HERE / f"web-{name}-{size}-{scheme}.webp").write_bytes(base64.b64decode(picture))


def gallery(home: Path) -> None:
    """Write the pages of `headgate web`: of the demo as it runs, and compared with its last run."""
    environment = {**os.environ, "HEADGATE_HOME": str(home)}
    first = max(path.name for path in (home / "runs").iterdir())
    words = [*COMMAND, "--policy", "equal", "--detach", "--json"]
    answer = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
    run = json.loads(answer.stdout)["run"]
    with served(environment) as address, chromium() as browser:
        site = address.partition("/?")[0]
        browser.get(address)
        rows = "return document.querySelectorAll('#jobs .spark polyline[points*=\",\"]').length"
        three = WebDriverWait(browser, WAIT_SECONDS)
        three.until(lambda page: page.execute_script(rows) == 3)
        time.sleep(SEEN_SECONDS)
        sections = "return document.querySelectorAll('#sections .u-over').length > 0"
        page_pictures(browser, "first", f"{site}/", f"{rows} > 0")
        page_pictures(browser, "job", f"{site}/runs/{run}/jobs/vae", sections)
        page_pictures(browser, "run", f"{site}/runs/{run}", sections)
        subprocess.run(["headgate", "attach", run], env=environment, check=True)
        compared = f"{site}/compare?first={first}&second={run}"
        page_pictures(browser, "compare", compared, "return document.querySelector('table')")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="headgate-") as folder:
        home = Path(folder)
        frames = record(home)
        (HERE / "run.svg").write_text(drawn(frames))
        [report] = home.glob("runs/*/report.html")
        photograph(report, HERE / "report.png")
        gallery(home)


if __name__ == "__main__":
    main()
