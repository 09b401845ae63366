"""The GPUs that an environment allows, on a made-up machine with two GPUs, a third, and one that is
divided.
"""

from __future__ import annotations

import pytest
from tests.sampling.made_up import pynvml as nvml

from headgate.machine.gpu_visibility import indices, missing, names, visible, within
from headgate.model.cluster import Node
from headgate.sampling.base import Target
from headgate.sampling.gpu import GpuSampler, gpus

FOUND = gpus(nvml)
ALL = (0, 1, 2, 400, 401)


@pytest.mark.parametrize(
    ("stated", "allowed"),
    [
        ("2,1", (2, 1)),
        (" 2 , 0", (2, 0)),
        ("0", (0,)),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("none", ()),
        ("1,-1,0", (1,)),
        ("0,9,1", (0,)),
        ("1,1", ()),
        ("2,GPU-22", ()),  # one twice
        ("GPU-22aa-2,GPU-0", (2, 0)),
        ("gpu-11AA", (1,)),
        ("GPU-", ()),  # begins more than one
        ("GPU-ffff", ()),
        ("MIG-31bb", (401,)),
        ("MIG-30bb,MIG-31bb", (400, 401)),
        ("3", (400,)),  # of one that is divided CUDA takes the first part
        ("1,MIG-30", (1, 400)),
    ],
)
def test_it_is_read_as_cuda_reads_it(stated: str, allowed: tuple[int, ...]) -> None:
    assert indices({"CUDA_VISIBLE_DEVICES": stated}, FOUND) == allowed


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        (
            "9",
            "GPU 9 is no GPU of this machine, so jobs have no GPU; its GPUs are 0, 1, 2, 400, 401",
        ),
        ("0,9,1", "GPU 9 is no GPU of this machine, so jobs have only the GPU before it"),
        ("1,0,GPU-ff", "GPU-ff is no GPU of this machine, so jobs have only the 2 GPUs before it"),
        ("GPU-", "GPU- begins more than one GPU"),
        ("1,1", "names GPU 1 twice"),
    ],
)
def test_what_it_names_that_is_not_there_is_said(stated: str, says: str) -> None:
    said = missing({"CUDA_VISIBLE_DEVICES": stated}, FOUND)
    assert said.startswith(f"CUDA_VISIBLE_DEVICES={stated}")
    assert says in said


@pytest.mark.parametrize(
    "stated", ["", "-1", "NoDevFiles", "none", "1,-1,9", "2,1", "MIG-31bb", None]
)
def test_nothing_is_said_where_all_is_there_or_none_is_meant(stated: str | None) -> None:
    assert missing({} if stated is None else {"CUDA_VISIBLE_DEVICES": stated}, FOUND) == ""


def test_on_a_machine_without_gpus_it_is_said_what_to_look_at() -> None:
    said = missing({"CUDA_VISIBLE_DEVICES": "7"}, ())
    assert "Headgate finds none here" in said
    assert "`nvidia-smi`" in said
    assert missing({"CUDA_VISIBLE_DEVICES": ""}, ()) == ""


def test_nothing_stated_allows_all_and_of_an_unknown_machine_nothing_is_known() -> None:
    assert tuple(gpu.index for gpu in FOUND) == ALL
    assert visible({}, FOUND) is None
    assert visible({"CUDA_VISIBLE_DEVICES": "2"}, ()) is None
    node = Node("here", 2.0, 1 << 30, gpus=FOUND)
    assert within(node, {}) is node
    assert [gpu.name for gpu in within(node, {"CUDA_VISIBLE_DEVICES": "2,0"}).gpus] == ["H0", "H2"]


def test_gpus_are_called_as_their_user_does_and_parts_by_their_uuid() -> None:
    assert names({}, FOUND) == {0: "0", 1: "1", 2: "2", 400: "MIG-30bb", 401: "MIG-31bb"}
    assert names({}, FOUND, by_uuid=True)[2] == FOUND[2].uuid
    assert names({"CUDA_VISIBLE_DEVICES": "GPU-22"}, FOUND)[2] == "GPU-22"


def test_of_the_machine_those_are_read_that_count() -> None:
    read = GpuSampler(nvml).read(0.0, [Target("all", None), Target("some", None, gpus=(1, 2))])
    assert read["some"] == {"gpu_busy": pytest.approx(0.45), "gpu_memory_bytes": 3 << 30}
    assert read["all"]["gpu_busy"] == pytest.approx(0.6)
