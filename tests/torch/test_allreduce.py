"""Several workers that add up gradients among themselves come to what one process comes to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch
from tests.harness.gang import Gang
from tests.torch import right_answers

from headgate.machine.files import content
from headgate.model.plans import Plan
from headgate.task import Channel
from headgate.task.environment import TaskEnvironment
from headgate.testing.listener import ChannelListener
from headgate.testing.wait import until
from headgate.torch.allreduce import AllReduce


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "batches"),
    [
        (1, None),
        pytest.param(2, (9, 3), marks=pytest.mark.long),
        pytest.param(4, None, marks=pytest.mark.long),
    ],
    ids=["one", "two unlike ones", "four"],
)
def test_comes_to_what_one_process_comes_to(
    workers: int, batches: tuple[int, ...] | None, wrong_answers: Callable[..., dict[str, float]]
) -> None:
    cases = right_answers.USUAL if workers == 4 else ()  # two come across all that is special
    assert (
        wrong_answers(Plan(strategy="allreduce", workers=workers, batch_per_worker=batches), *cases)
        == {}
    )


class _DoneLate:
    """A collective, and the group that runs it: it ends just as the first wait for it runs out."""

    def __init__(self) -> None:
        self.waits = 0

    def allreduce(self, tensors: list[torch.Tensor], options: object) -> _DoneLate:
        return self

    def wait(self, limit: object) -> None:
        self.waits += 1
        if self.waits == 1:
            raise RuntimeError("Operation timed out!")

    def is_completed(self) -> bool:
        return self.waits > 0


def test_a_collective_that_is_done_just_after_a_wait_ran_out_is_no_fault() -> None:
    link = object.__new__(AllReduce)
    link._gloo = link._group = _DoneLate()
    link._pending = []
    link._all, link.index, link.members = torch.distributed.AllreduceOptions(), 0, (0, 1)
    buffer = torch.ones(2)
    link.register([buffer])
    link.begin(1.0)
    link.launch(0)
    assert list(link.finish().sums) == [buffer]


UNLIKE = """
import os, time, torch
import headgate.torch as hg

model = torch.nn.Linear(6, 3)
if os.environ["HEADGATE_TASK"].endswith("worker-1"):
    model.register_forward_hook(lambda *given: time.sleep(0.2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.randn(40, 6), torch.randint(0, 3, (40,)))
loader = torch.utils.data.DataLoader(data, batch_size=8)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    hg.report(loss=loss)
"""


def test_the_wait_for_a_slower_worker_is_no_part_of_backward(tmp_path: Path) -> None:
    (tmp_path / "unlike.py").write_text(UNLIKE)
    plan = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
    with Gang(tmp_path, plan, [sys.executable, str(tmp_path / "unlike.py")]) as gang:
        gang.start()
        gang.finish()
        steps = gang.of("worker-0", "spans")
    spans = [{span["name"]: span["seconds"] for span in step["spans"]} for step in steps]
    # the median: on a busy machine the first worker may stand in a step, too
    assert median(its.get("wait", 0.0) + its["push"] - its["backward"] for its in spans) > 0.0


def _threads_of_gloo() -> set[str]:
    tasks = list(Path("/proc/self/task").iterdir())
    return {task.name for task in tasks if "gloo" in content(task / "comm")}


def test_threads_of_a_group_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    welcome = {
        "index": 0,
        "plan": {"workers": 1},
        "node": "here",
        "address": "127.0.0.1",
        "threads": None,
    }
    before = _threads_of_gloo()
    with ChannelListener(tmp_path, welcome) as listener:
        for name, value in listener.environment().items():
            monkeypatch.setenv(name, value)
        channel = Channel.open(TaskEnvironment.read(), "torch", torch.__version__, None)
        until(lambda: bool(channel.welcome), 60, "the welcome")
        link = AllReduce(channel, torch.device("cpu"))
        link.register([torch.ones(2)])
        link.begin(1.0)
        link.launch(0)
        link.finish()
        its = _threads_of_gloo() - before
        assert its
        link.close()
        # the kernel lists a thread for a moment after it was joined
        until(lambda: not its & _threads_of_gloo(), 60, "its threads to be gone")
        link.close()
        channel.close()
