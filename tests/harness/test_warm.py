"""Programs in forks of one interpreter are like those for which Python was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from tests.harness.warm import WarmProcess, WarmPython

from headgate.testing import wait


@pytest.fixture(scope="module")
def python() -> Iterator[WarmPython]:
    with WarmPython("wave") as python:
        yield python


class Start(Protocol):
    def __call__(
        self, body: str, *arguments: str, options: tuple[str, ...] = (), **more: str
    ) -> WarmProcess: ...


@pytest.fixture
def start(python: WarmPython, tmp_path: Path) -> Start:
    def starting(
        body: str, *arguments: str, options: tuple[str, ...] = (), **more: str
    ) -> WarmProcess:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(body))
        with open(tmp_path / "log", "wb") as log:
            env = {"PATH": os.environ["PATH"], **more}
            return python.start(
                [str(script), *arguments],
                env=env,
                cwd=tmp_path,
                output=log.fileno(),
                options=options,
            )

    return starting


def test_a_program_has_its_arguments_folder_variables_and_output(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/farther.py").write_text("name = 'farther'")
    body = """
    import atexit, os, sys
    import beside, farther
    import wave
    atexit.register(lambda: print("at exit", wave.__name__))
    kept = open("kept", "w")
    kept.write("whole")
    names = beside.name, farther.name
    print(__name__, sys.argv[1:], os.getcwd(), sorted(os.environ), *names, "wave" in sys.modules)
    print("headgate" in sys.modules, os.getppid() != os.getpid(), file=sys.stderr)
    """
    assert start(body, "a", "b", PYTHONPATH=str(tmp_path / "lib"), COLOR="1").wait(60) == 0
    names = ["COLOR", "PATH", "PYTHONPATH"]
    told = (tmp_path / "log").read_text().splitlines()
    assert sorted(told) == sorted(
        [
            f"__main__ ['a', 'b'] {tmp_path} {names} beside farther True",
            "False True",
            "at exit wave",
        ]
    )
    assert (tmp_path / "kept").read_text() == "whole"


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('why')", 1, "why"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(3)", 3, ""),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM, ""),
    ],
)
def test_it_ends_as_any_other(
    body: str, code: int, said: str, start: Start, tmp_path: Path
) -> None:
    assert start(body).wait(60) == code
    assert said in (tmp_path / "log").read_text()


def test_it_is_a_process_that_can_be_waited_for_and_killed(start: Start) -> None:
    process = start("import signal; signal.pause()")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(process.pid, 0)
    process.kill()
    assert process.wait(60) == process.poll() == -signal.SIGKILL
    process.kill()  # once it has ended: nothing


def test_what_is_read_when_python_starts_or_a_library_is_loaded_is_as_the_program_wants_it(
    start: Start, tmp_path: Path
) -> None:
    body = (
        "import os, sys; print(sys.warnoptions, sys.flags.utf8_mode, os.environ['OMP_NUM_THREADS'])"
    )
    for threads in ("1", "2"):
        process = start(
            body, options=("-W", "error::UserWarning"), PYTHONUTF8="1", OMP_NUM_THREADS=threads
        )
        assert process.wait(60) == 0
        assert (tmp_path / "log").read_text() == f"['error::UserWarning'] 1 {threads}\n"


def test_a_module_runs_as_with_m(python: WarmPython, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/__main__.py").write_text("import sys; print(__package__, sys.argv[1:])")
    with open(tmp_path / "log", "wb") as log:
        process = python.start(["-m", "package", "x"], env={}, cwd=tmp_path, output=log.fileno())
    assert process.wait(60) == 0
    assert (tmp_path / "log").read_text() == "package ['x']\n"


def test_what_still_runs_ends_with_the_interpreter(tmp_path: Path) -> None:
    with WarmPython() as python, open(tmp_path / "log", "wb") as log:
        (tmp_path / "script.py").write_text("import signal; signal.pause()")
        process = python.start(["script.py"], env={}, cwd=tmp_path, output=log.fileno())
    assert process.wait(60) == -signal.SIGKILL


def test_all_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(
        textwrap.dedent("""
        import os, sys
        from tests.harness.warm import WarmPython
        python = WarmPython()
        process = python.start(["waits.py"], env={}, cwd=".", output=1)
        print(process.pid, flush=True)
        os._exit(0)
        """)
    )
    (tmp_path / "waits.py").write_text("import signal; signal.pause()")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "asks.py"]
    asked = subprocess.run(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, check=True, text=True
    )
    stat = Path(f"/proc/{int(asked.stdout)}/stat")

    def has_ended() -> bool:
        try:
            return stat.read_text().split()[2] == "Z"
        except OSError:
            return True

    wait.until(has_ended, 60, "the program to end")


def test_an_interpreter_that_cannot_import_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with WarmPython("there_is_no_such_module") as python, open(tmp_path / "log", "wb") as log:
        with pytest.raises(RuntimeError, match=r"to run \['script.py'\] does not answer"):
            python.start(["script.py"], env={}, cwd=tmp_path, output=log.fileno())
        assert "there_is_no_such_module" in capfd.readouterr().err
