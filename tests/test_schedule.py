"""How tests are shared among the processes that run them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests import conftest
from xdist.remote import Producer

MACHINE = [f"tests/hub/test_a.py::test_{number}" for number in range(5)]
OTHERS = [f"tests/cli/test_{name}.py::test_{number}" for name in "bcd" for number in range(4)]


class Worker:
    """A process that tests are handed to."""

    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.begun += [(MACHINE + OTHERS)[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def schedule(workers: list[Worker]) -> Any:
    option = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(option=option, getvalue=lambda _: ["popen"] * len(workers))
    scheduling = conftest.pytest_xdist_make_scheduler(config, Producer("test"))
    for worker in workers:
        join(scheduling, worker)
    scheduling.schedule()
    return scheduling


def join(scheduling: Any, worker: Worker) -> None:
    scheduling.add_node(worker)
    scheduling.add_node_collection(worker, MACHINE + OTHERS)


def test_what_a_worker_that_died_had_left_is_done_by_others_but_not_what_it_died_in() -> None:
    first, second, third, fourth = (Worker() for _ in range(4))
    scheduling = schedule([first, second])
    assert (first.begun, second.begun) == (MACHINE, OTHERS[:4])
    scheduling.mark_test_complete(first, 0)
    assert scheduling.remove_node(first) == MACHINE[1]
    scheduling.add_node(third)  # which has yet to collect
    assert scheduling.remove_node(second) == OTHERS[0]
    assert scheduling.remove_node(third) is None
    assert third.begun == []
    join(scheduling, fourth)
    scheduling.schedule()
    while scheduling.has_pending:
        following = next(test for test in fourth.begun if test in pending(scheduling, fourth))
        scheduling.mark_test_complete(fourth, (MACHINE + OTHERS).index(following))
    assert sorted(fourth.begun) == sorted(MACHINE[2:] + OTHERS[1:])
    assert fourth.shutting_down


def pending(scheduling: Any, worker: Worker) -> set[str]:
    units = scheduling.assigned_work[worker].values()
    return {test for unit in units for test, is_done in unit.items() if not is_done}
