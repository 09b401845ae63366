"""Commands of workloads: names that are not known list those that are."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from headgate import workloads
from headgate.model.jobs import Job
from headgate.scripts.facts import facts_of


def test_each_workload_has_a_command_in_each_of_its_frameworks() -> None:
    for name in workloads.WORKLOADS:
        for framework in workloads.frameworks_of(name):
            words = workloads.command(name, framework=framework, steps=5)
            assert words[0] == "python" and find_spec(words[2]) is not None
            assert words[3:] == (
                framework if name == "trace" else name,
                "--size",
                "small",
                "--steps",
                "5",
            )


@pytest.mark.parametrize(
    ("framework", "found"), [("torch", "torch"), ("tensorflow", "keras"), ("jax", "jax")]
)
def test_the_hub_sees_what_a_workload_trains_with(
    framework: str, found: str, tmp_path: Path
) -> None:
    command = workloads.command("mlp", framework=framework)
    facts = facts_of(Job(name="one", run=command, workdir=str(tmp_path)))
    assert facts.source.library == found


def test_the_hub_sees_that_workers_of_a_trace_meet_as_those_of_torchrun(tmp_path: Path) -> None:
    facts = facts_of(Job(name="one", run=workloads.command("trace"), workdir=str(tmp_path)))
    assert facts.source.library is None
    written = facts.source.launcher
    assert written is not None and (written.contract, written.needs) == ("torchrun", False)


@pytest.mark.parametrize(
    ("asked", "framework", "message"),
    [
        (
            "vgg",
            "torch",
            (
                "unknown workload 'vgg'; expected one of alexnet, resnet50, inception3, mlp, "
                "sparse, trace"
            ),
        ),
        (
            "mlp",
            "mxnet",
            "unknown framework 'mxnet'; expected one of torch, keras, tensorflow, jax, numpy",
        ),
        (
            "mlp",
            "numpy",
            "workload 'mlp' is not written in numpy; expected torch, keras, tensorflow, jax",
        ),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(
    asked: str, framework: str, message: str
) -> None:
    with pytest.raises(workloads.WorkloadError, match=message):
        workloads.command(asked, framework=framework)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["trace", "fortran"],
            "unknown framework 'fortran'; expected one of torch, tensorflow, jax, numpy",
        ),
        (
            ["trace", "numpy", "--steps", "0"],
            "argument --steps: found '0'; expected a whole number from 1",
        ),
        (["", "--make", "vgg"], "unknown workload 'vgg'; expected one of alexnet"),
        (["", "--make", "trace"], "workload 'trace' makes its blocks in memory and reads no data"),
        (["", "--check", "/nowhere"], "/nowhere has no data of a workload: No such file"),
    ],
)
def test_bad_input_is_one_message_and_status_2(words: list[str], message: str) -> None:
    module = ".".join(filter(None, ("headgate.workloads", words[0])))
    done = subprocess.run(
        [sys.executable, "-m", module, *words[1:]], check=False, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_workload_lists_those_that_there_are() -> None:
    pytest.importorskip("torch")
    words = [sys.executable, "-m", "headgate.workloads.torch", "vgg"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        "unknown workload 'vgg'; expected one of alexnet, resnet50, inception3, mlp, sparse\n"
        in done.stderr
    )
