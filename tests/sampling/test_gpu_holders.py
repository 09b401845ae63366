"""Who holds what of each GPU, by real processes on a made-up machine; and why none is found where
there are some.
"""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sampling.made_up import pynvml

from headgate.sampling import gpu_holders
from headgate.sampling.gpu import gpus
from headgate.sampling.gpu_holders import missing_nvml, statuses

GIB = 1 << 30


def test_each_process_is_told_with_its_user_its_program_and_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MADE_UP_GPU_MEMORY", str(tmp_path))
    variables = {**os.environ, "HEADGATE_TASK": "20261128-1/train/worker-0"}
    words = [sys.executable, "-c", "print('runs', flush=True); input()"]
    with subprocess.Popen(
        words, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "runs\n"
        (tmp_path / f"1-{program.pid}").write_text(str(20 * GIB))
        (tmp_path / f"1-{os.getpid()}").write_text(str(3 * GIB))
        first, second, *_ = statuses(pynvml, gpus(pynvml))
        program.communicate("\n")
    assert (first.name, first.busy, first.used_bytes, first.holders) == ("H0", 0.9, 0, ())
    assert (second.used_bytes, second.untold_bytes) == (24 * GIB, GIB)
    told = {
        holder.pid: (holder.memory_bytes, holder.user, holder.task) for holder in second.holders
    }
    assert told == {
        program.pid: (20 * GIB, getpass.getuser(), "20261128-1/train/worker-0"),
        os.getpid(): (3 * GIB, getpass.getuser(), os.environ.get("HEADGATE_TASK", "")),
    }
    assert all(holder.name.startswith(("python", "pytest")) for holder in second.holders)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """The devices of a machine with two GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    return tmp_path


def test_a_missing_package_is_said(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    missing = missing_nvml(dev)
    assert missing is not None
    assert missing.kind == "package"
    assert missing.in_words().startswith(
        "/dev/nvidia0, /dev/nvidia1 are there, but Headgate sees no GPU: "
    )
    assert missing.in_words().endswith("pip install 'nvidia-ml-py>=12.535'")


def test_a_driver_without_its_library_is_said(dev: Path) -> None:
    missing = missing_nvml(dev)  # the real package, on a machine without a driver
    if missing is None:
        pytest.skip("this machine has a GPU")
    assert missing.kind in ("driver", "access")
    assert "Headgate sees no GPU: " in missing.in_words()


def test_gpus_that_may_not_be_used_are_said(dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 0)
    monkeypatch.setattr(gpu_holders, "import_module", lambda _name: pynvml)
    missing = missing_nvml(dev)
    assert missing is not None
    assert missing.kind == "access"


def test_where_there_is_none_or_one_is_found_nothing_is_said(
    tmp_path: Path, dev: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    assert missing_nvml(tmp_path / "empty") is None
    monkeypatch.setattr(gpu_holders, "import_module", lambda _name: pynvml)
    assert missing_nvml(dev) is None
