"""Whom the signal reaches that asks a task to end: real trees of processes, as people start their
scripts.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headgate.isolation.base import Box, Launch
from headgate.isolation.process import ProcessIsolation
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
from headgate.testing.wait import until

SAVES = """
import multiprocessing, os, signal, sys

def work(queue):
    while True:
        queue.put(os.getpid())

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    queue, asked = context.Queue(1), []
    reader, writer = os.pipe()
    def ask(number, frame):
        asked.append(number)
        os.write(writer, b"!")
    workers = [context.Process(target=work, args=(queue,), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    if sys.argv[2] == "TERM":
        signal.signal(signal.SIGTERM, ask)
    if sys.argv[2] == "USR1":
        signal.signal(signal.SIGUSR1, ask)
    try:
        print("ready", flush=True)
        os.read(reader, 1)  # KeyboardInterrupt within queue.get would leave half a message behind
    except KeyboardInterrupt:
        asked.append(signal.SIGINT)
    seen = set()
    while len(seen) < 2:  # each of them still works for it
        seen.add(queue.get(timeout=120))
    with open("saved.part", "w") as file:
        file.write(str(asked))
    os.rename("saved.part", "saved")
"""
LAUNCHES = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "saves.py", *sys.argv[1:]]).returncode)
"""
CAPTURES = """
import subprocess, sys
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, text=True)
for line in process.stdout:  # it does not wait for its end, as the kernel sees it
    print(line, end="", flush=True)
sys.exit(process.wait())
"""
TRAPS = """
trap 'echo mine > trapped; kill -USR1 $child' TERM
python saves.py fork USR1 & child=$!
wait $child
wait $child
"""
Starts = Callable[..., Box]


@pytest.fixture(params=["auto", "none"])
def starts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Starts]:
    """Starts a command in a folder with the scripts, and waits until it is ready."""
    for name, text in (
        ("saves.py", SAVES),
        ("launches.py", LAUNCHES),
        ("conda", CAPTURES),
        ("traps.sh", TRAPS),
    ):
        (tmp_path / name).write_text(text)
    isolation = ProcessIsolation(f"asking-{os.getpid()}", mode=request.param)
    boxes: list[Box] = []

    def start(*argv: str) -> Box:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        launch = Launch(
            TaskId(f"asking-{os.getpid()}/job/worker-0"), argv, {"PATH": path}, str(tmp_path), 1
        )
        with (tmp_path / "output").open("w") as output:
            boxes.append(isolation.start(launch, Share(), output.fileno()))
        until(lambda: "ready" in (tmp_path / "output").read_text(), 60, "it is ready")
        return boxes[-1]

    yield start
    for box in boxes:
        box.close()


def ended(box: Box) -> int | None:
    assert select.select([box.exit_fd], [], [], 60)[0], "it goes on"
    return box.reap().code


WAYS = {
    "itself": ("python", "saves.py"),
    "sh": ("sh", "-c", "python saves.py {}; echo after"),
    "bash": ("bash", "-c", "true && python saves.py {} | cat; exit 0"),
    "a launcher that waits": ("python", "launches.py"),
    "a launcher that reads": ("python", "conda", "run", "python", "saves.py"),
    "what ends it in time": ("timeout", "600", "python", "saves.py"),
    "torchrun": ("python", "-m", "torch.distributed.run", "--master-port", "0", "saves.py"),
    "a subshell": ("bash", "-c", "(true; python saves.py {}; true); true"),
    "shells and launchers": (
        "sh",
        "-c",
        "bash -c 'python conda run python launches.py {}; true'; true",
    ),
}
MARKS = {("torchrun", "fork"): pytest.mark.slow, ("torchrun", "spawn"): pytest.mark.long}
"""PyTorch takes its time to be imported."""


@pytest.mark.parametrize(
    ("way", "number", "method"),
    [
        pytest.param(way, number, method, marks=MARKS.get((way, method), ()))
        for way in WAYS
        for number, method in ((signal.SIGTERM, "fork"), (signal.SIGINT, "spawn"))
    ],
)
def test_a_script_saves_while_its_workers_live(
    starts: Starts, tmp_path: Path, way: str, number: signal.Signals, method: str
) -> None:
    command = WAYS[way]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    words = f"{method} {number.name.removeprefix('SIG')}"
    whole = [word.replace("{}", words) for word in command]
    box = starts(*whole, *(words.split() if whole == list(command) else ()))
    box.ask(number)
    assert ended(box) == 0, (tmp_path / "output").read_text()
    assert (tmp_path / "saved").read_text() == f"[{int(number)}]" or number == signal.SIGINT
    assert (tmp_path / "saved").exists()


PASSES_ON = {
    "in the background": "trap 'kill -TERM $!; wait' TERM; python saves.py fork TERM & wait",
    "in the background, spawned": (
        "trap 'kill -TERM $!; wait' TERM; python saves.py spawn TERM & wait"
    ),
    "in front": "trap 'echo trapped' TERM; python saves.py fork TERM",
    "in a pipe": "trap 'echo trapped' TERM; python saves.py fork TERM | cat",
    "in front of another": (
        "trap 'echo trapped' TERM; sleep 30 & python saves.py fork TERM; kill $!"
    ),
}


WRAPPED = {
    "timeout": "timeout 600 python saves.py fork TERM",
    "a launcher that waits": "python launches.py fork TERM",
    "a launcher that reads": "python conda run python saves.py fork TERM",
    "a subshell": "(true; python saves.py fork TERM; true)",
    "a shell": "sh -c 'python saves.py fork TERM; true'",
}


@pytest.mark.parametrize("wrapper", WRAPPED)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_script_whose_wrapper_a_trap_would_signal_saves_while_its_workers_live(
    starts: Starts, tmp_path: Path, wrapper: str, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    box = starts(
        shell,
        "-c",
        f"trap 'kill -TERM $child; wait' TERM; {WRAPPED[wrapper]} & child=$!; wait $child",
    )
    box.ask(signal.SIGTERM)
    ended(box)
    assert (tmp_path / "saved").read_text() == f"[{int(signal.SIGTERM)}]", (
        tmp_path / "output"
    ).read_text()


@pytest.mark.parametrize("way", PASSES_ON)
def test_a_script_below_a_shell_that_traps_the_signal_saves_while_its_workers_live(
    starts: Starts, tmp_path: Path, way: str
) -> None:
    box = starts("sh", "-c", PASSES_ON[way])
    box.ask(signal.SIGTERM)
    ended(box)
    assert (tmp_path / "saved").read_text() == f"[{int(signal.SIGTERM)}]", (
        tmp_path / "output"
    ).read_text()
    assert ("trapped" in (tmp_path / "output").read_text()) == ("front" in way or "pipe" in way)


def test_a_shell_that_traps_the_signal_sees_to_it_itself(starts: Starts, tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    box = starts("bash", "traps.sh")
    box.ask(signal.SIGTERM)
    ended(box)
    assert (tmp_path / "trapped").read_text() == "mine\n"
    assert (tmp_path / "saved").read_text() == f"[{int(signal.SIGUSR1)}]"


def test_what_has_no_handler_ends_as_a_whole(starts: Starts, tmp_path: Path) -> None:
    box = starts("sh", "-c", "python saves.py fork none; echo after")
    box.ask(signal.SIGTERM)
    assert select.select([box.exit_fd], [], [], 60)[0]
    assert box.reap().signal == signal.SIGTERM
    assert "after" not in (tmp_path / "output").read_text()


def test_the_rest_is_asked_once_its_time_comes_and_who_was_asked_not_again(
    starts: Starts, tmp_path: Path
) -> None:
    counts = (
        "import signal, sys, time\n"
        "def note(number, frame):\n    print('asked', sys.argv[1], flush=True)\n"
        "signal.signal(signal.SIGTERM, note)\nprint('ready', sys.argv[1], flush=True)\n"
        "while True:\n    time.sleep(0.05)\n"
    )
    (tmp_path / "counts.py").write_text(counts)
    both = (
        "import os, sys\nimport subprocess\nsubprocess.Popen([sys.executable, 'counts.py', "
        "'helper'])\n"
        "sys.argv[1:] = ['main']\nexec(open('counts.py').read())\n"
    )
    (tmp_path / "both.py").write_text(both)
    box = starts("python", "both.py")
    output = tmp_path / "output"
    until(lambda: output.read_text().count("ready") == 2, 60, "both are ready")
    box.ask(signal.SIGTERM)
    until(lambda: "asked main" in output.read_text(), 60, "the first is asked")
    box.terminate()
    until(lambda: "asked helper" in output.read_text(), 60, "the rest is asked")
    assert output.read_text().count("asked main") == 1
    assert output.read_text().index("asked main") < output.read_text().index("asked helper")
