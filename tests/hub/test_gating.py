"""What steps are held to: told by a real hub to jobs on one device, and to whom of several
tasks.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.hub.messages import OPEN, PAUSED, gate, strictest
from headgate.hub.state.attempt import Attempt
from headgate.model.identifiers import JobId, TaskName
from headgate.model.plans import Plan
from headgate.model.progress_rule import ProgressRule
from headgate.model.shares import UNLIMITED, Lever, Share
from headgate.output.patterns import ProgressReader
from headgate.recorded import status
from headgate.recorded.reader import RunReader
from headgate.testing import wait

STEPS = """
    import time
    from headgate.task import Channel, Gate, ProgressReporter, TaskEnvironment

    channel = Channel.open(TaskEnvironment.claim(), "none", "", None)
    gate = Gate(channel, gpus=lambda: [0])  # so it says; what it does there is to sleep
    progress = ProgressReporter(channel.send, list)
    while not channel.stopping:
        time.sleep(0.01)
        progress.step += 1
        progress.report(1.0, {})
        gate.boundary()
"""


@pytest.mark.slow
def test_two_jobs_on_one_gpu_alternate_by_their_priorities_and_one_alone_has_all_of_it(
    user: User,
) -> None:
    user.write("a.py", STEPS)
    user.write("b.py", STEPS)
    user.write("jobs.yaml", "jobs: [{script: a.py, priority: 3}, {script: b.py}]")
    run = user.detaches("jobs.yaml", "--policy", "equal")

    def steps() -> tuple[int, int]:
        made = {job.name: job.step or 0 for job in status.read(user.home / "runs" / run).jobs}
        return made["a"], made["b"]

    turn = user.home / "turns" / socket.gethostname() / "gpu-0"
    wait.until(lambda: turn.exists() and all(steps()), SECONDS, "both step")
    before = steps()

    def alternate() -> bool:
        """As they are to, over rounds enough that the part of one that is seen matters little."""
        a, b = (now - then for now, then in zip(steps(), before, strict=True))
        return a + b > 400 and a / (a + b) == pytest.approx(0.75, abs=0.05)

    wait.until(alternate, SECONDS, "they step by their priorities")
    user.types("stop", "a")
    alone = steps()[1]
    user.sees_state("a", "stopped")
    wait.until(lambda: steps()[1] > alone + 100, SECONDS, "it goes on")
    user.types("stop", "b")
    user.sees_state("b", "stopped")
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        assert [row["gpus"] for row in reader.rows("tasks")] == ["[0]", "[0]"]


NO_CGROUP = (Lever.CPU_WEIGHT, Lever.CPU_CAP)


@pytest.mark.parametrize(
    ("share", "entitled", "boxless", "expected"),
    [
        (Share(cpu_weight=100.0), 1.5, True, {"cores": 1.5}),
        (Share(cpu_weight=100.0), 2.0, True, {}),
        (Share(cpu_weight=100.0), 1.5, False, {}),
        (Share(gpu_fraction=0.25), 1.5, False, {"fraction": 0.25, "turns": ["gpu-0"]}),
        (Share(gpu_fraction=0.25), 1.5, True, {"fraction": 0.25, "turns": ["gpu-0"]}),
        (Share(gpu_fraction=UNLIMITED), 2.0, True, {}),
    ],
)
def test_a_gate_stands_in_for_what_nothing_else_divides(
    share: Share, entitled: float, boxless: bool, expected: Mapping[str, Any]
) -> None:
    assert gate(share, entitled, 2.0, NO_CGROUP if boxless else (), ["gpu-0"]) == {
        "type": "gate",
        **expected,
    }


def test_who_is_held_for_all_takes_turns_on_the_gpus_of_all() -> None:
    gates = [
        {"type": "gate", "fraction": 0.5, "turns": ["gpu-1"]},
        {"type": "gate", "fraction": 0.3, "turns": []},
        OPEN,
    ]
    assert strictest([*gates, {**gates[0], "turns": ["gpu-0", "gpu-1"]}]) == {
        "type": "gate",
        "fraction": 0.3,
        "turns": ["gpu-0", "gpu-1"],
    }


@pytest.mark.parametrize(
    ("synchronous", "held"), [(True, ["worker-1"]), (False, ["worker-1", "worker-2"])]
)
def test_of_workers_that_wait_for_each_other_the_first_is_held_for_all(
    synchronous: bool, held: list[str]
) -> None:
    sent: list[tuple[str, object]] = []

    def send(task: str, message: Mapping[str, object]) -> None:
        if message["type"] == "gate":
            sent.append((task.rsplit("/", 1)[1], message.get("fraction")))

    plan = Plan(strategy="ps", workers=3, servers=1, batch_per_worker=None, synchronous=synchronous)
    attempt = Attempt(JobId("r/a"), 1, plan, True, send)
    for name in ("worker-0", "worker-1", "worker-2"):
        attempt.start(TaskName(name), "here", "", ProgressReader(ProgressRule()), False)
        attempt.connect(TaskName(name))
    assert sent == []
    for name, fraction in (("worker-0", 0.5), ("worker-1", 0.25), ("worker-2", 0.3)):
        attempt.tasks[TaskName(name)].gate = {"type": "gate", "fraction": fraction}
    attempt.send_gates()
    attempt.send_gates()
    told = (
        [("worker-0", 0.25)]
        if synchronous
        else [("worker-0", 0.5), ("worker-1", 0.25), ("worker-2", 0.3)]
    )
    assert sent == told
    sent.clear()
    attempt.remove(TaskName("worker-0"), well=False)
    assert [name for name, _ in sent] == (held if synchronous else [])
    attempt.tasks[TaskName("worker-1")].gate = attempt.tasks[TaskName("worker-2")].gate = OPEN
    sent.clear()
    attempt.send_gates()
    assert sent == [(name, None) for name in held]


def test_a_job_on_gpus_is_paused_between_two_steps_and_then_held_to_what_it_was() -> None:
    sent: list[tuple[str, Mapping[str, object]]] = []
    plan = Plan(strategy="allreduce", workers=2, servers=0, batch_per_worker=None)
    attempt = Attempt(
        JobId("r/a"), 1, plan, True, lambda task, message: sent.append((task.name, message))
    )
    for name in ("worker-0", "worker-1"):
        attempt.start(TaskName(name), "here", "", ProgressReader(ProgressRule()), False)
        assert not attempt.pauses_by_gate
        if name == "worker-0":
            attempt.connect(TaskName(name))
        else:
            attempt.observe(TaskName(name), "torch")
    assert not attempt.pauses_by_gate, "it uses no GPU"
    attempt.tasks[TaskName("worker-0")].gpus = (0,)
    assert attempt.pauses_by_gate
    attempt.tasks[TaskName("worker-0")].gate = {"type": "gate", "fraction": 0.5}
    attempt.send_gates()
    sent.clear()
    attempt.pause(True)
    assert sent == [("worker-0", PAUSED), ("worker-1", PAUSED)]
    sent.clear()
    attempt.pause(False)
    assert sent == [("worker-0", {"type": "gate", "fraction": 0.5}), ("worker-1", OPEN)]
