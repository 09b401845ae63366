"""What people type who know other programs, and what they are told on a machine that lacks
something.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tests.hub.user import SECONDS, User

from headgate.cli import headgate


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("list", "ps"),
        ("kill", "stop --kill"),
        ("queue", "status"),
        ("top", "attach"),
        ("stat", "status"),
    ],
)
def test_a_verb_of_another_program_is_hinted_at(typed: str, meant: str) -> None:
    told = CliRunner().invoke(headgate, [typed])
    assert told.exit_code == 2
    assert f"No such command {typed!r}. Did you mean {meant}?" in told.output


def test_exit_codes_are_those_of_the_page(user: User) -> None:
    user.write("train.py", "print('epoch 1/1 loss 0.5')")
    missing = (("ray", ["--engine", "ray"]), ("docker", ["--isolation", "container"]))
    for part, _ in missing:
        (user.folder / part / part).mkdir(parents=True)
        user.write(
            f"{part}/{part}/__init__.py", f"raise ModuleNotFoundError('none', name={part!r})"
        )
        user.variables["PYTHONPATH"] = (
            f"{user.folder / part}{os.pathsep}{user.variables['PYTHONPATH']}"
        )
    for part, words in missing:
        assert f"pip install '{part}>=" in user.types("run", "train.py", *words, code=3).message
    user.types("run", "train.py", "--cluster", "nowhere", code=5)
    user.types("lab", "exec", "a", "true", code=5)


WITHOUT_OVERRIDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third version of the call, of this process
data = (ctypes.c_uint32 * 6)()
assert libc.capget(header, data) == 0
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: root reads every file by them
    libc.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP; whoever has none may not, and need not
    data[0] &= ~(1 << capability)
    data[1] &= ~(1 << capability)
    data[2] &= ~(1 << capability)
assert libc.capset(header, data) == 0
os.execv(sys.executable, [sys.executable, "-m", "headgate", *sys.argv[1:]])
"""


def test_a_script_that_cannot_be_read_is_bad_input(user: User) -> None:
    user.write("train.py", "print(1)").chmod(0)
    for words in (["run", "train.py"], ["run", "python", "train.py"], ["profile", "train.py"]):
        ended = subprocess.run(
            [sys.executable, "-c", WITHOUT_OVERRIDE, *words],
            cwd=user.folder,
            env=user.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert ended.returncode == 2, ended.stderr
        assert "cannot read" in ended.stderr
