"""A person at a terminal: types `headgate`, looks at what comes of it, and leaves nothing
behind.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from tests.harness.warm import warm_python
from tests.hub.traces import Traces

from headgate.cli import VERBS
from headgate.hub.submission import packages
from headgate.machine.allocation import BATCH_JOBS
from headgate.model.errors import HeadgateError
from headgate.model.reasons import ReasonKind
from headgate.recorded import status
from headgate.recorded.reader import RunReader
from headgate.sampling import machine
from headgate.testing import wait

SOURCE = Path(__file__).parents[2] / "src"
COMMANDS = (
    *(f"headgate.cli.{verb}" for verb in VERBS),
    *("headgate.cli.live_view", "headgate.reports.explained"),
    "hub_forks",  # of this folder's neighbour `harness`
)
"""What commands import, which a warm interpreter has: most of the time of a short one."""
SECONDS = 120.0
"""Longest that anything is waited for; a busy machine takes its time."""


@dataclass(frozen=True)
class Done:
    """What a command that has ended said."""

    code: int
    stdout: str
    stderr: str

    @property
    def message(self) -> str:
        """The one message of a command that could not do what it was asked."""
        assert "Traceback" not in self.stderr, self.stderr
        assert self.stderr.startswith("headgate: "), self.stderr
        return self.stderr.removeprefix("headgate: ").strip()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def headgate(
    words: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    seconds: float = SECONDS,
    command: Sequence[str] = (),
) -> Done:
    """Run a command in a folder, with these variables and no others. `command` is its whole command
    line; by default a warm interpreter runs it.
    """
    if command:
        ended = subprocess.run(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return Done(ended.returncode, ended.stdout, ended.stderr)
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = warm_python(*COMMANDS).start(
            ["-m", "headgate", *words],
            cwd=folder,
            env=variables,
            output=output.fileno(),
            errors=errors.fileno(),
        )
        try:
            code = process.wait(seconds)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return Done(code, output.read(), errors.read())


def furnish(home: Path, speed: Path) -> None:
    """Make a `HEADGATE_HOME` whose hub knows this machine already."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (speed.name, "packages.json"):
        shutil.copy(speed.with_name(name), home)


class User:
    """Types commands in a folder of their own, under a `HEADGATE_HOME` of their own.

    `warm`: whether commands are forks of an interpreter that has imported Headgate.
    """

    warm = True

    def __init__(self, folder: Path, home: Path, speed: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        furnish(home, speed)
        self.folder = folder
        self.home = home
        self.traces = Traces(home)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HEADGATE_", *BATCH_JOBS))
        }
        self.variables = {
            **inherited,
            "HEADGATE_HOME": str(home),
            "HEADGATE_VERIFY": "off",
            "HEADGATE_REPORT": "off",
            "HEADGATE_ON_HUB_DEATH": "stop",
            "PYTHONPATH": str(SOURCE),
            "PATH": path,
        }
        self._started: list[subprocess.Popen[str]] = []
        self._terminals: list[Terminal] = []

    # --- what they have ---------------------------------------------------------------------------

    def write(self, name: str, text: str) -> Path:
        """Write a file, a script or a job file, into the folder."""
        path = self.folder / name
        path.write_text(textwrap.dedent(text))
        return path

    def touch(self, name: str) -> None:
        """Make an empty file: what a script under test waits for."""
        (self.folder / name).touch()

    def sees(self, name: str, seconds: float = SECONDS) -> str:
        """The text of a file that a script under test writes, once it is there and not empty."""
        path = self.folder / name
        return (
            wait.until(lambda: path.exists() and path.read_text(), seconds, f"{name} is written")
            or ""
        )

    # --- what they type ---------------------------------------------------------------------------

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "headgate", *words]

    def types(self, *words: str, code: int = 0, **variables: str) -> Done:
        """Type a command and wait until it ends, which it must with `code`."""
        command = () if self.warm else self.command(*words)
        done = headgate(words, self.folder, self.variables | variables, command=command)
        assert done.code == code, f"{words} gave {done.code}:\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        """What a command answers with --json."""
        return self.types(*words, "--json", code=code).json

    def starts(self, *words: str) -> subprocess.Popen[str]:
        """Type a command and go on while it runs; its output is piped."""
        process = subprocess.Popen(
            self.command(*words),
            cwd=self.folder,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def opens(self, *words: str) -> Terminal:
        """Type a command on a terminal."""
        self._terminals.append(Terminal(self, *words))
        return self._terminals[-1]

    def detaches(self, *words: str) -> str:
        """Start a run and leave it; its id."""
        return str(self.json("run", "--detach", *words)["run"])

    # --- what they look at ------------------------------------------------------------------------

    def jobs(self, run: str | None = None) -> dict[str, dict[str, Any]]:
        """How the jobs of a run stand, by name."""
        told = self.json("status", *([run] if run else []))
        return {job["name"]: job for job in told["jobs"]}

    def warnings(self, run: str | None = None) -> list[str]:
        """What a run warns of, but for what the kernel killed outside it: that may be a task of
        another test.
        """
        told = self.json("status", *([run] if run else []))["warnings"]
        return [each["text"] for each in told if each["why"]["kind"] != ReasonKind.KILLED_OUTSIDE]

    def sees_state(self, job: str, *states: str, run: str | None = None) -> dict[str, Any]:
        """How a job stands, once it is in one of these states."""
        return self.sees_job(
            job, lambda entry: entry["state"] in states, run, f"is {' or '.join(states)}"
        )

    def sees_job(
        self,
        job: str,
        fits: Callable[[dict[str, Any]], bool],
        run: str | None = None,
        what: str = "is as it should be",
    ) -> dict[str, Any]:
        """How a job stands, once `fits` is true of that; what `headgate status` tells, without a
        process each time.
        """

        def look() -> dict[str, Any] | None:
            entry = self.stands(job, run)
            return entry if entry is not None and fits(entry) else None

        found = wait.until(look, SECONDS, f"job {job} {what}")
        assert found is not None
        return found

    def stands(self, job: str, run: str | None = None) -> dict[str, Any] | None:
        """How a job stands now; None where that cannot be told yet."""
        folders = list((self.home / "runs").glob(f"{run or '*'}/jobs/{job}"))
        if not folders:
            return None
        try:
            folder = max(folders).parents[1]
            with RunReader(folder / "run.sqlite") as reader:
                rows = list(reader.rows("jobs", "name = ?", [job]))
            stands = status.read(
                folder, lambda jobs: [entry for entry in jobs if entry.name == job]
            )
            return {**asdict(stands.jobs[0]), **rows[0]} if rows else None
        except HeadgateError:  # it is being made
            return None

    def log(self, job: str) -> str:
        return self.types("logs", job).stdout

    # --- how they leave ---------------------------------------------------------------------------

    def kills(self, pid: int | None) -> None:
        """kill -9."""
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def leaves(self) -> None:
        """End the hub, as a logout does; what is left then is a fault."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for terminal in self._terminals:
            terminal.close()
        for hub in self.traces.hubs():
            with suppress(ProcessLookupError):
                os.kill(hub, signal.SIGTERM)
        self.finds_nothing_left()

    def finds_nothing_left(self) -> None:
        """No process, cgroup or socket of this home is there, at the latest after a while."""
        left: list[str] = []

        def nothing() -> bool:
            # who looked again might meet the cgroup of another home whose hub is just dying
            left[:] = self.traces.all()
            return not left

        with suppress(TimeoutError):
            wait.until(nothing, SECONDS, "nothing is left")
        for pid in self.traces.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, "\n".join(left)


class Terminal:
    """A terminal with a command in it, as its user sees it."""

    def __init__(self, user: User, *words: str) -> None:
        self._master, slave = os.openpty()
        self.process = subprocess.Popen(
            # What is started in the background ignores Ctrl-C; on a terminal nothing does.
            ["env", "--default-signal=INT,HUP", "setsid", "--ctty", *user.command(*words)],
            cwd=user.folder,
            env=user.variables | {"TERM": "xterm-256color", "COLUMNS": "150", "LINES": "40"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._seen = b""
        self._closing, self._close = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):  # the command has ended, and nobody else has the terminal open
            while self._closing not in select.select([self._master, self._closing], [], [])[0]:
                self._seen += os.read(self._master, 1 << 16)
        os.close(self._master)

    @property
    def text(self) -> str:
        """All that was ever shown, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._seen.decode(errors="replace")).replace(
            "\r", ""
        )

    def shows(self, pattern: str) -> str:
        """What fits a regular expression, once it was shown; a space in it may be the end of a
        line.
        """
        folded = re.sub(r" (?![+*?])", r"\\s+", pattern)
        with suppress(TimeoutError):
            wait.until(lambda: re.search(folded, self.text), SECONDS)
        found = re.search(folded, self.text)
        assert found is not None, f"no {pattern!r} in:\n{self.text[-3000:]}"
        return found[0]

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def ends(self) -> int:
        """The exit code, once the command has ended."""
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code

    def close(self) -> int:
        """Close the window, whereupon the command in it gets a hang-up; its exit code. May be
        called twice.
        """
        if self._close >= 0:
            os.close(self._close)
            self._reader.join(SECONDS)
            os.close(self._closing)
            self._close = -1
        return self.process.wait(SECONDS)


@pytest.fixture(scope="session")
def speed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The measured speed of a core, so that not every hub measures it again; beside it what is
    installed here.
    """
    path = tmp_path_factory.getbasetemp() / "speed" / "node.json"
    if path.exists():
        return path  # each folder that imports this fixture has one of its own
    path.parent.mkdir()
    machine.detect(path)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(SOURCE))
        packages(str(Path(sys.executable).with_name("python")), path.with_name("packages.json"))
    return path


@pytest.fixture
def user(tmp_path: Path, home: Path, speed: Path) -> Iterator[User]:
    """Somebody whose hub is gone when the test ends, with everything that it started."""
    somebody = User(tmp_path / "work", home, speed)
    yield somebody
    somebody.leaves()
