"""Whether a job's program computes on a GPU, as far as its command tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.events import GpuUse
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.scripts.facts import facts_of
from headgate.scripts.gpu_use import gpu_use


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("import torch\nmodel.to('cuda')", "yes"),
        ("import torch\ndevice = pick()", "yes"),
        ("import torch\nprint(torch.ones(3))", "maybe"),
        ("import headgate.torch as hg", "yes"),
        ("from transformers import Trainer", "yes"),
        ("def late():\n    import jax", "yes"),
        ("import numpy as np, os, json", "no"),
        ("from sklearn.svm import SVC", "no"),
        ("import numpy, subprocess", "maybe"),
        ("import numpy, mine", "maybe"),  # it lies beside it
        ("import numpy, unheard_of", "maybe"),
        ("import os, time", "maybe"),
        ("this is no Python", "maybe"),
    ],
)
def test_imports_tell(tmp_path: Path, text: str, use: GpuUse) -> None:
    (tmp_path / "mine.py").write_text("import torch")
    (tmp_path / "train.py").write_text(text)
    job = Job(name="a", script=str(tmp_path / "train.py"), workdir=str(tmp_path))
    assert gpu_use(job, facts_of(job)) == use


@pytest.mark.parametrize(
    ("limits", "use"),
    [
        (Limits(), "maybe"),
        (Limits(gpus=0), "no"),
        (Limits(gpus=1), "yes"),
        (Limits(exclusive=True), "yes"),
        (Limits(gpu_memory_bytes=1 << 30), "yes"),
    ],
)
def test_what_its_user_says_counts_and_of_other_commands_nothing_is_known(
    limits: Limits, use: GpuUse
) -> None:
    job = Job(name="a", run="bash train.sh", limits=limits)
    assert gpu_use(job, facts_of(job)) == use
