"""Of a task's processes, those that train are told from those that read for them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.sampling.base import Target
from headgate.sampling.training_process import trains_by_itself
from headgate.sampling.waiting import WaitingSampler
from headgate.testing import wait
from headgate.testing.memory_sampler import InMemoryBox

BURNS = """
import time

def burn(seconds=600.0):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
"""
STARTS = {
    "a launcher": (
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'from burns "
        "import burn; burn()'])"
    ),
    "spawn": """
        import torch.multiprocessing as mp
        from burns import burn
        from started import train
        if __name__ == "__main__":
            mp.spawn(train, nprocs=1)
    """,
    "fork": """
        import multiprocessing as mp, torch
        from started import train
        child = mp.get_context("fork").Process(target=train, args=(0,))
        child.start(); child.join()
    """,
    "workers of its own": """
        import multiprocessing as mp
        from burns import burn
        child = mp.get_context("fork").Process(target=burn)
        child.start(); child.join()
    """,
    "a queue": """
        import multiprocessing as mp
        from burns import burn
        if __name__ == "__main__":
            with mp.get_context("spawn").Pool(1) as pool:
                pool.apply(burn)
    """,
    "a loader": """
        import torch
        from torch.utils.data import DataLoader, Dataset
        from burns import burn
        class Slow(Dataset):
            def __len__(self):
                return 10**6
            def __getitem__(self, index):
                burn(0.2)
                return index
        for _ in DataLoader(Slow(), batch_size=8, num_workers=1):
            pass
    """,
}


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A program that starts another process, which burns a core: the numbers of both."""
    (tmp_path / "burns.py").write_text(BURNS)
    (tmp_path / "started.py").write_text(
        "import torch\nfrom burns import burn\ndef train(rank): burn()\n"
    )
    (tmp_path / "main.py").write_text(textwrap.dedent(STARTS[request.param]))
    main = subprocess.Popen([sys.executable, "main.py"], cwd=tmp_path, start_new_session=True)
    try:
        wait.until(lambda: _burning(main.pid) is not None, 60, "a process that it started works")
        yield main.pid, _burning(main.pid) or 0
    finally:
        os.killpg(main.pid, 9)
        main.wait()


def _burning(parent: int) -> int | None:
    """A child that has run for a while: what it imports is done."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    for child in children:
        if _cpu_seconds(int(child)) > 1.5:
            return int(child)
    return None


def _cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("started", "trains"),
    [
        ("a launcher", True),
        ("spawn", True),
        pytest.param("fork", True, marks=pytest.mark.long),  # as by spawn
        pytest.param("workers of its own", True, marks=pytest.mark.long),
        ("a queue", False),
        ("a loader", False),
    ],
    indirect=["started"],
)
def test_a_process_that_trains_is_no_worker_of_a_loader(
    started: tuple[int, int], trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = started
    assert trains_by_itself("/proc", child, parent) is trains
    box = InMemoryBox()
    monkeypatch.setattr(box, "pids", lambda: [parent, child])
    sampler, target = WaitingSampler(), Target("a", box)
    sampler.read(0.0, [target])
    before = Path(f"/proc/{child}/schedstat").read_text().split()[0]
    wait.until(
        lambda: int(Path(f"/proc/{child}/schedstat").read_text().split()[0]) > int(before) + 3e8,
        60,
        "it works",
    )
    values = sampler.read(0.3, [target])["a"]
    if trains:
        assert values["main_ready"] > 0.9 and values["helper_cores"] < 0.1
    elif _cpu_seconds(parent) > 1.0:  # else it only started the other, as a launcher does
        assert values["helper_cores"] > 0.9  # the main one may wait for a core of its own meanwhile


def test_a_process_that_is_gone_is_none_that_trains(tmp_path: Path) -> None:
    assert not trains_by_itself(str(tmp_path), 1, 2)
