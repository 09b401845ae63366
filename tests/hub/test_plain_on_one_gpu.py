"""Plain PyTorch scripts on one GPU, which is made up: they sleep where they would compute on it."""

from __future__ import annotations

import json
import socket

import pytest
from tests.hub.user import SECONDS, User

from headgate.profiling.gpu_neighbours import STORED
from headgate.recorded.reader import RunReader
from headgate.testing import wait

pytestmark = pytest.mark.long  # windows of seconds; shorter tests cover the parts
SCRIPT = """
    import sys, time
    from types import SimpleNamespace
    import torch

    def train():
        time.sleep(0.01)
        optimizer.zero_grad()
        model(torch.ones(4)).sum().backward()
        optimizer.step()

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train()
    if "headgate.torch.observed_session" in sys.modules:  # from now on its weights are on a GPU
        observed = sys.modules["headgate.torch.observed_session"]
        weight = SimpleNamespace(is_cuda=True, device=SimpleNamespace(index=0))
        observed.cuda_in_use, observed._steps = lambda: True, lambda optimizer: [weight]
        torch.cuda.is_current_stream_capturing = lambda: False
        torch.cuda.synchronize = lambda gpu: None
    while True:
        train()
"""


def steps(user: User, job: str, run: str) -> int:
    return int((user.stands(job, run) or {}).get("step") or 0)


def starts(user: User, a: str = "", b: str = "") -> str:
    """A run of two jobs, once both make steps."""
    user.write("a.py", SCRIPT)
    user.write("b.py", SCRIPT)
    user.write("jobs.yaml", f"jobs: [{{script: a.py{a}}}, {{script: b.py{b}}}]")
    run = user.detaches("jobs.yaml", "--policy", "equal")
    wait.until(lambda: steps(user, "a", run) and steps(user, "b", run), SECONDS, "both step")
    return run


def rates(user: User, run: str, together: int) -> tuple[int, int]:
    """Steps of both while they make so many together."""
    before = steps(user, "a", run), steps(user, "b", run)
    target = sum(before) + together
    wait.until(
        lambda: steps(user, "a", run) + steps(user, "b", run) > target, SECONDS, "steps are done"
    )
    return steps(user, "a", run) - before[0], steps(user, "b", run) - before[1]


def test_they_take_turns_by_their_slices_and_a_pause_proves_what_one_costs(user: User) -> None:
    run = starts(user, ", share: 3/4", ", share: 1/4")
    turn = user.home / "turns" / socket.gethostname() / "gpu-0"
    wait.until(turn.exists, SECONDS, "they take turns")
    a, b = rates(user, run, 300)
    assert a / (a + b) == pytest.approx(0.75, abs=0.08)
    words = ("--prove", "b", "--neighbour", "a", "--pause-at-most", "25%", "--json")
    answer = user.starts("explain", *words).communicate(timeout=2 * SECONDS)[0]
    (proof,) = json.loads(answer)["proofs"]
    assert (proof["culprit"], proof["victim"], proof["outcome"]) == ("a", "b", "seen")
    assert proof["low"] > 1.0, "b has a quarter of the time beside it"
    user.types("stop", "a", "b")


def test_side_by_side_is_measured_kept_and_where_the_next_run_begins(user: User) -> None:
    first = starts(user)
    wait.until((user.home / STORED).exists, SECONDS, "both were measured")
    [[place, keys, kept]] = json.loads((user.home / STORED).read_text())
    assert (place, len(keys)) == (socket.gethostname(), 2)
    assert min(kept) > 0.7
    a, b = rates(user, first, 300)
    assert a / (a + b) == pytest.approx(0.5, abs=0.08)
    user.types("stop", "a", "b")
    for name in "ab":
        user.sees_state(name, "stopped", run=first)
    again = starts(user)

    def notes() -> list[str]:
        with RunReader(user.home / "runs" / again / "run.sqlite") as reader:
            return [row["text"] for row in reader.rows("events", "kind = 'note'")]

    wait.until(lambda: any("side by side with b" in note for note in notes()), SECONDS, "known")
    user.types("stop", "a", "b")
