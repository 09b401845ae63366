"""Scripts that know nothing of Headgate, observed while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.torch.plain_scripts import SCRIPTS

from headgate.engines.launch import inject, observation
from headgate.testing.listener import ChannelListener

KINDS = Path(__file__).with_name("plain_scripts.py")


def start(
    folder: Path, *command: str, channel: ChannelListener | None = None, **more: str
) -> subprocess.Popen[str]:
    """A script under Python, observed if a channel is given."""
    injected = inject(folder / "inject")
    path = [str(injected)] if channel is None else [str(observation(injected)), str(injected)]
    observed = {} if channel is None else channel.environment(HEADGATE_OBSERVE="steps,threads")
    return subprocess.Popen(
        [sys.executable, *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            **observed,
            **more,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each kind of script computes, under plain Python and observed."""
    folder = tmp_path_factory.mktemp("kinds")
    with ChannelListener(folder, welcome={"threads": 1}) as channel:
        plain = start(folder, str(KINDS))
        observed = json.loads(finish(start(folder, str(KINDS), channel=channel)))
        return {
            "plain": json.loads(finish(plain)),
            "observed": observed,
            "warnings": channel.of("note"),
        }


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_observed_script_computes_the_same_bits(name: str, results: dict[str, Any]) -> None:
    assert results["observed"][name][0] == results["plain"][name][0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_steps_of_a_script_are_those_it_takes(name: str, results: dict[str, Any]) -> None:
    assert results["observed"][name][1] == (SCRIPTS[name][1] or 0)


def test_nothing_warns_of_these_scripts(results: dict[str, Any]) -> None:
    assert results["warnings"] == []
