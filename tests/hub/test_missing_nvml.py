"""A machine that has GPUs of which Headgate sees none: who asks for one, or may use one, is told
what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.hub import checking, doubts
from headgate.hub.submission import Submission
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.reasons import ReasonKind
from headgate.sampling.gpu_holders import missing_nvml

NODE = Node("here", 2.0, 1 << 30)


@pytest.fixture
def with_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this machine had the devices of a GPU."""
    (tmp_path / "nvidia0").touch()
    for module in (checking, doubts):
        monkeypatch.setattr(module, "missing_nvml", lambda: missing_nvml(tmp_path))
    if missing_nvml(tmp_path) is None:
        pytest.skip("this machine has a GPU that NVML tells of")


def handed_in(tmp_path: Path, **limits: Any) -> Submission:
    (tmp_path / "train.py").write_text("")
    job = Job(
        name="a", script=str(tmp_path / "train.py"), workdir=str(tmp_path), limits=Limits(**limits)
    )
    return Submission(
        jobs=(job,), environment={"PATH": "/usr/bin:/bin"}, cwd=str(tmp_path), command=()
    )


@pytest.mark.parametrize(
    "limits", [{"gpus": 1}, {"exclusive": True}, {"gpu_memory_bytes": 1 << 30}]
)
def test_who_asks_for_a_gpu_is_refused_with_what_is_missing(
    with_devices: None, tmp_path: Path, limits: dict[str, Any]
) -> None:
    with pytest.raises(
        UsageError, match=r"has 0 GPUs, .*; /dev/nvidia0 is there, but Headgate sees no GPU: "
    ):
        checking.checked(handed_in(tmp_path, **limits), Cluster((NODE,)), NODE)


def test_who_may_use_one_is_warned_and_who_wants_none_is_not(
    with_devices: None, tmp_path: Path
) -> None:
    [doubt] = doubts.of(handed_in(tmp_path), ())
    assert doubt.kind is ReasonKind.GPUS_NOT_SEEN
    assert doubt.facts["text"].startswith("/dev/nvidia0 is there, but Headgate sees no GPU: ")
    assert doubts.of(handed_in(tmp_path, gpus=0), ()) == []
