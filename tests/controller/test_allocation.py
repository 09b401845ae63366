"""What a job is granted is divided among its tasks."""

from __future__ import annotations

from tests.controller.driver import A_0, A_1, A, Recording, Team, allreduce, ps

from headgate.model.events import ResizeRequested, Usage
from headgate.model.identifiers import TaskId
from headgate.model.shares import UNLIMITED, Share
from headgate.policies.base import Decision


def granted(team: Team, policy: Recording, share: Share) -> dict[str, Share]:
    """What each task has once the policy grants its job that."""
    policy.answer = Decision({A: (share, "so much")})
    team.step(10.0, Usage(A_0, 1.0, *_uses(team, A_0)))
    return {task.name: task.share for task in team.controller._jobs.all[A].tasks.values()}


def _uses(team: Team, id: TaskId) -> tuple[float]:
    used = team.controller._jobs.all[A].tasks[id].used
    return (used.memory_bytes if used is not None else 0.0,)


def test_four_workers_have_a_quarter_each_of_memory_disk_and_cores() -> None:
    policy = Recording()
    team = Team(allreduce(4), policy)
    team.step(1.0, Usage(A_1, 1.0, 100.0))
    share = Share(cpu_cap_cores=2.0, memory_bytes=4_000, disk_bytes_per_second=100.0)
    assert set(granted(team, policy, share).values()) == {
        Share(cpu_cap_cores=0.5, memory_bytes=1_000, disk_bytes_per_second=25.0)
    }
    lifted = Share(memory_bytes=UNLIMITED, disk_bytes_per_second=UNLIMITED)
    assert {each.memory_bytes for each in granted(team, policy, lifted).values()} == {UNLIMITED}


def test_memory_is_limited_once_it_is_known_what_a_job_uses() -> None:
    policy = Recording()
    team = Team(allreduce(2), policy)
    assert {
        share.memory_bytes for share in granted(team, policy, Share(memory_bytes=1)).values()
    } == {None}
    policy.answer = Decision()
    team.step(11.0, Usage(A_0, 1.0, 4e9))
    tasks = team.controller._jobs.all[A].tasks.values()
    assert [task.share.memory_bytes for task in tasks] == [5_000_000_000, 5_000_000_000]


def test_memory_is_divided_as_it_is_used_and_who_has_just_started_has_what_its_kind_has() -> None:
    policy = Recording()
    team = Team(ps(workers=2, servers=1), policy)
    team.step(1.0, Usage(A_0, 1.0, 1e6))
    team.step(1.0, Usage(A_1, 1.0, 1e3))
    team.step(1.0, Usage(TaskId("r/a/server-0"), 1.0, 6e6))
    shares = granted(team, policy, Share(memory_bytes=10_000_000))
    memory = {name: share.memory_bytes for name, share in shares.items()}
    # Needs: 1e6; half of it, the mean of both workers; 6e6.
    total = 1e6 + 5.005e5 + 6e6
    assert memory == {
        "worker-0": int(1e7 * 1e6 / total),
        "worker-1": int(1e7 * 5.005e5 / total),
        "server-0": int(1e7 * 6e6 / total),
    }


def test_each_task_keeps_its_peak_memory_and_some_room_whatever_the_others_use() -> None:
    policy = Recording()
    team = Team(allreduce(2), policy)
    team.step(1.0, Usage(A_0, 1.0, 4e9))
    team.step(2.0, Usage(A_0, 1.0, 3e9))
    team.step(2.0, Usage(A_1, 1.0, 1e9))
    shares = granted(team, policy, Share(memory_bytes=5_000_000_000))
    # Needs: 4e9; 2.5e9, the mean of both.
    assert {name: share.memory_bytes for name, share in shares.items()} == {
        "worker-0": 5_000_000_000,
        "worker-1": 3_125_000_000,
    }


def test_who_joins_takes_no_memory_from_those_that_are_there() -> None:
    policy = Recording()
    team = Team(ps(workers=1), policy)
    team.step(1.0, Usage(A_0, 1.0, 4e9))
    team.step(1.0, Usage(TaskId("r/a/server-0"), 1.0, 1e9))
    granted(team, policy, Share(memory_bytes=6_250_000_000))
    policy.answer = Decision()
    team.step(2.0, ResizeRequested(A, 2))
    tasks = team.controller._jobs.all[A].tasks.values()
    assert {task.name: task.share.memory_bytes for task in tasks} == {
        "worker-0": 5_000_000_000,
        "server-0": 1_250_000_000,
        "worker-1": 5_000_000_000,
    }


def test_a_task_that_needs_more_than_its_part_has_more_before_it_gets_there() -> None:
    policy = Recording()
    team = Team(allreduce(2), policy)
    for name, bytes in (("worker-0", 4e9), ("worker-1", 1e9)):
        team.step(1.0, Usage(TaskId(f"r/a/{name}"), 1.0, bytes))
    granted(team, policy, Share(memory_bytes=6_250_000_000))
    policy.answer = Decision()
    tasks = team.controller._jobs.all[A].tasks
    assert tasks[A_0].share.memory_bytes == 5_000_000_000
    assert team.step(2.0, Usage(A_0, 1.0, 4.5e9)) == []
    team.step(3.0, Usage(A_0, 1.0, 4.9e9))
    assert tasks[A_0].share.memory_bytes == 6_125_000_000
