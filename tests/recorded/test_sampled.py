from __future__ import annotations

import pytest

from headgate.model.identifiers import TaskOfRun
from headgate.recorded.sampled import Bar, ReportedStep, StepTransfer, assemble, choose, lay_out


def told(t: float, task: str, step: int, seconds: float) -> ReportedStep:
    return ReportedStep(t, TaskOfRun(f"a/{task}"), step, seconds)


def test_a_step_of_synchronous_workers_takes_as_long_as_its_slowest() -> None:
    workers = [
        told(1.0, "worker-0", 1, 0.1),
        told(1.01, "worker-1", 1, 0.9),
        told(2.0, "worker-0", 2, 0.3),
        told(2.0, "worker-1", 2, 0.2),
        told(3.0, "worker-0", 3, 0.4),
        told(3.0, "worker-1", 3, 0.5),
    ]
    typical, slowest = choose(workers, [], synchronous=True)
    assert [
        (typical.kind, typical.step, typical.seconds),
        (slowest.kind, slowest.step, slowest.seconds),
    ] == [
        ("typical", 3, 0.5),
        ("slowest", 1, 0.9),
    ]
    assert [each.task for each in slowest.workers] == ["a/worker-0", "a/worker-1"]
    assert slowest.start == pytest.approx(0.11)


def test_a_step_that_was_done_again_is_another_one() -> None:
    workers = [told(1.0, "worker-0", 5, 0.1), told(1.0, "worker-1", 5, 0.1)]
    workers += [told(9.0, "worker-0", 5, 0.4), told(9.0, "worker-1", 5, 0.2)]
    typical, slowest = choose(workers, [], synchronous=True)
    assert (typical.seconds, slowest.seconds) == (0.1, 0.4)
    assert {each.t for each in slowest.workers} == {9.0}


def test_a_step_that_half_of_the_workers_told_of_is_not_typical() -> None:
    workers = [told(step, f"worker-{i}", step, 0.1 * step) for step in (1, 3, 4) for i in (0, 1)]
    workers.append(told(2.0, "worker-0", 2, 0.2))
    typical, slowest = choose(workers, [], synchronous=True)
    assert (typical.step, slowest.step) == (3, 4)


def test_one_step_is_shown_once_and_none_not_at_all() -> None:
    assert [
        each.kind for each in choose([told(1.0, "worker-0", 1, 0.1)], [], synchronous=True)
    ] == ["typical"]
    assert choose([], [told(1.0, "server-0", 1, 0.1)], synchronous=True) == ()


def test_steps_of_asynchronous_workers_stand_beside_those_that_overlap_with_them_most() -> None:
    workers = [
        told(10.0, "worker-0", 7, 1.0),
        told(9.2, "worker-1", 3, 1.0),
        told(9.9, "worker-1", 4, 0.7),
        told(8.0, "worker-2", 4, 1.0),
    ]
    (slowest,) = [
        each
        for each in choose(workers, [], synchronous=False)
        if 7 in (each.step, each.workers[0].step)
    ]
    assert [(each.task, each.step) for each in slowest.workers] == [
        ("a/worker-0", 7),
        ("a/worker-1", 4),
    ]


def test_a_step_has_the_rounds_of_its_number_or_those_told_of_meanwhile_or_the_closest() -> None:
    workers = [told(10.0, "worker-0", 7, 1.0)]
    servers = [
        told(9.9, "server-0", 6, 0.4),
        told(9.1, "server-0", 7, 0.4),  # told of early: worker-0 was slow to tell
        told(9.0, "server-1", 21, 1.0),  # the round before: it ended as this step began
        told(9.5, "server-1", 22, 0.4),
        told(10.01, "server-1", 23, 0.5),
        told(10.6, "server-2", 3, 1.0),
        told(10.9, "server-2", 4, 1.0),
        told(12.0, "server-3", 7, 1.0),
    ]
    (chosen,) = choose(workers, servers, synchronous=True)
    assert [(each.task, each.step) for each in chosen.servers] == [
        ("a/server-0", 7),
        ("a/server-1", 22),
        ("a/server-1", 23),
        ("a/server-2", 3),
    ]
    (chosen,) = choose(workers, servers[:2], synchronous=False)
    assert [each.step for each in chosen.servers] == [6]


def test_bars_do_not_cover_each_other() -> None:
    told_at = lay_out(
        [("backward", 0.3, 0.4, 0, 0), ("forward", 0.0, 0.5, 0, 0), ("push", 0.9, 0.1, 0, 9)]
    )
    assert [(bar.name, bar.begin, bar.end) for bar in told_at] == [
        ("forward", 0.0, 0.5),
        ("backward", 0.5, 0.9),
        ("push", 0.9, 1.0),
    ]
    assert told_at[-1].bytes_out == 9
    apart = lay_out(
        [("other", 0.0, 0.3, 0, 0), ("forward", 0.1, 0.2, 0, 0), ("backward", 0.4, 0.5, 0, 0)]
    )
    assert [(bar.name, round(bar.begin, 9), round(bar.end, 9)) for bar in apart] == [
        ("other", 0.0, 0.1),
        ("forward", 0.1, 0.3),
        ("other", 0.3, 0.4),
        ("backward", 0.4, 0.9),
        ("other", 0.9, 1.0),
    ]
    unknown = lay_out([("forward", None, 0.5, 0, 0), ("backward", None, 0.25, 0, 0)])
    assert [bar.begin for bar in unknown] == [0.0, 0.5]


def test_synchronous_exchanges_end_together_and_a_server_begins_with_the_first_push() -> None:
    workers = [told(1.00, "worker-0", 1, 0.5), told(1.03, "worker-1", 1, 0.5)]
    server = told(1.05, "server-0", 1, 0.4)
    (chosen,) = choose(workers, [server], synchronous=True)
    push = StepTransfer("server-0", "push", 0.2, 0.3, 100.0)
    later = StepTransfer("server-0", "push", 0.25, 0.3, 100.0)
    parts = [
        (server, [Bar("idle", 0.0, 0.1), Bar("receive", 0.1, 0.3)], []),
        (
            workers[1],
            [Bar("forward", 0.0, 0.3), Bar("pull", 0.3, 0.1), Bar("optimizer", 0.4, 0.1)],
            [later],
        ),
        (workers[0], [Bar("forward", 0.0, 0.3), Bar("wait", 0.3, 0.2)], [push]),
    ]
    step = assemble(chosen, parts, synchronous=True)
    assert [task.task for task in step.tasks] == ["a/worker-0", "a/worker-1", "a/server-0"]
    assert [bar.end for bar in step.tasks[0].bars] == pytest.approx([0.3, 0.5])
    assert [bar.end for bar in step.tasks[1].bars] == pytest.approx([0.4, 0.5, 0.6])
    assert step.tasks[1].transfers[0].begin == pytest.approx(0.35)
    assert [bar.begin for bar in step.tasks[2].bars] == pytest.approx([0.1, 0.2])


def test_workers_that_exchange_nothing_begin_together() -> None:
    workers = [told(1.00, "worker-0", 1, 0.5), told(1.03, "worker-1", 1, 0.4)]
    (chosen,) = choose(workers, [], synchronous=True)
    nothing: list[StepTransfer] = []
    parts = [(each, [Bar("forward", 0.0, each.seconds)], nothing) for each in workers]
    step = assemble(chosen, parts, synchronous=True)
    assert [task.bars[0].begin for task in step.tasks] == [0.0, 0.0]


def test_asynchronous_tasks_lie_where_the_clock_says() -> None:
    workers = [told(10.0, "worker-0", 7, 1.0), told(9.5, "worker-1", 4, 1.0)]
    server = told(9.9, "server-0", 1, 0.4)
    chosen = choose(workers, [server], synchronous=False)[0]
    first, second = chosen.workers
    nothing: list[StepTransfer] = []
    parts = [(each, [Bar("forward", 0.0, each.seconds)], nothing) for each in chosen.told]
    step = assemble(chosen, parts, synchronous=False)
    begins = {task.task: task.bars[0].begin for task in step.tasks}
    assert begins[first.task] == pytest.approx(0.0)
    assert begins[second.task] == pytest.approx(second.start - first.start)
    assert begins[TaskOfRun("a/server-0")] == pytest.approx(server.start - first.start)
