"""The session of Keras scripts keeps to the contract of every framework."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = Path(__file__).with_name("session_suite.py")
OURS = (
    "PYTEST_ADDOPTS",
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
    "PYTEST_XDIST_TESTRUNUID",
)


@pytest.mark.long
def test_it_keeps_to_the_contract_with_fit_and_with_a_loop_of_the_script_s_own() -> None:
    """Over torch, whose number of threads can change."""
    variables = {name: value for name, value in os.environ.items() if name not in OURS}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(SUITE)]
    ended = subprocess.run(
        command,
        check=False,
        cwd=SUITE.parents[2],
        env={**variables, "KERAS_BACKEND": "torch"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
