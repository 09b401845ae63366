"""Each process of Headgate that takes part in a start reads and parses a script once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.hub.user import SECONDS, SOURCE, User

WATCH = """
import json, os, sys

def note(event, args):
    if event == "open" and str(args[0]).endswith("/train.py"):
        kind = "read"
    elif event == "compile" and isinstance(args[0], (str, bytes)) and MARK in str(args[0]):
        kind = "parsed"
    else:
        return
    line = json.dumps([kind, os.getpid(), sys.orig_argv])
    os.write(notes, line.encode() + b"\\n")

MARK = "the mark of this script"
notes = os.open(os.environ["READS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
sys.addaudithook(note)
"""
SCRIPT = """
import argparse
import helper  # the mark of this script
import os

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
for epoch in range(parser.parse_args().epochs):
    print(f"epoch {epoch} loss {1 / (epoch + 1)}", flush=True)
"""


@pytest.fixture
def watched(user: User) -> User:
    folder = user.folder / "watch"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WATCH)
    user.variables["PYTHONPATH"] = f"{folder}:{SOURCE}"
    user.warm = False  # each process of Headgate is to read the file above
    user.variables["READS"] = str(user.folder / "reads")
    user.write("train.py", SCRIPT)
    user.write("helper.py", "")
    return user


def reads_by_headgate(user: User) -> Counter[tuple[str, int]]:
    """How often each of Headgate's own processes read the script, and parsed it."""
    lines = map(json.loads, Path(user.variables["READS"]).read_text().splitlines())
    return Counter((kind, pid) for kind, pid, words in lines if "headgate" in str(words[1:3]))


def runs(user: User, *words: str) -> None:
    """Run jobs by a command in an interpreter of its own, which watches itself from its start."""
    command = user.starts("run", *words)
    _, errors = command.communicate(timeout=SECONDS)
    assert command.returncode == 0, errors


@pytest.mark.parametrize(
    "command",
    [
        ("train.py",),
        pytest.param(
            ("--workers", "2", "--launch", "torchrun", "train.py"), marks=pytest.mark.long
        ),
        ("--", "torchrun", "--nproc-per-node", "2", "train.py", "--epochs", "3"),
    ],
)
def test_a_dry_run_reads_and_parses_a_script_once(watched: User, command: tuple[str, ...]) -> None:
    runs(watched, "--dry-run", *command)
    reads = reads_by_headgate(watched)
    assert sorted((kind, times) for (kind, _), times in reads.items()) == [
        ("parsed", 1),
        ("read", 1),
    ]


def test_a_command_and_its_hub_each_read_and_parse_a_script_once(watched: User) -> None:
    runs(watched, "train.py")
    reads = reads_by_headgate(watched)
    assert len({pid for _, pid in reads}) == 2
    assert sorted((kind, times) for (kind, _), times in reads.items()) == [
        ("parsed", 1),
        ("parsed", 1),
        ("read", 1),
        ("read", 1),
    ]


@pytest.mark.slow
def test_a_second_run_of_a_script_that_nobody_edited_has_the_hub_read_nothing(
    watched: User,
) -> None:
    runs(watched, "train.py")
    runs(watched, "train.py")
    reads = reads_by_headgate(watched)
    assert len({pid for _, pid in reads}) == 3
    assert set(reads.values()) == {1}
