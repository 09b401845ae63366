"""Plans for scripts of other launchers, which were only seen from outside."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.planning.jobs import GIB, GIGABIT, cluster, nodes, profile

from headgate.model.errors import UsageError
from headgate.model.identifiers import TaskName
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan, Prediction
from headgate.planning.candidates import candidates
from headgate.planning.choosing import JobToPlan, choose
from headgate.planning.cost import CostModel
from headgate.planning.memory import STORE
from headgate.planning.search import search
from headgate.profiling.history import samples_of
from headgate.testing import wait

FOUR = cluster(nodes("a", 4))
SEEN = profile(observed=True, optimizer_state_bytes=25_000_000)


def launched(**fields: Any) -> Job:
    return Job(name="job", run="true", **({"launch": "torchrun"} | fields))


def found(job: Job, of: Any = SEEN, where: Any = FOUR) -> dict[int, Prediction]:
    """What candidates bring, by their number of workers."""
    result = search(CostModel(job, where, of), runners_up=20)
    return {each.plan.workers: each for each in (result.best, *result.runners_up)}


def test_each_worker_keeps_the_script_s_batch_or_has_an_equal_part_of_it_as_its_user_says() -> None:
    grows, divided = found(launched(batch="per-worker")), found(launched(batch="global"))
    assert grows.keys() == divided.keys() == {1, 2, 3, 4}
    assert {each.plan.strategy for each in (*grows.values(), *divided.values())} == {
        "single",
        "allreduce",
    }
    assert {each.plan.batch_per_worker for each in grows.values()} == {256}
    assert {each.plan.batch_per_worker for each in divided.values()} == {None}
    assert [samples_of(grows[n].plan, SEEN) for n in grows] == [256 * n for n in grows]
    assert {samples_of(each.plan, SEEN) for each in divided.values()} == {256}
    # A step of one worker is the same, and with more the compute of each stays, or shrinks.
    assert grows[1].throughput == pytest.approx(divided[1].throughput)
    assert grows[4].seconds["compute"] == pytest.approx(0.522, rel=0.1)
    assert divided[4].seconds["compute"] == pytest.approx(0.01 + 0.002 * 64, rel=0.1)
    assert grows[4].seconds["network"] == pytest.approx(divided[4].seconds["network"])


def test_more_workers_than_a_batch_has_samples_are_for_a_batch_that_grows() -> None:
    of = replace(SEEN, batch=2)
    assert max(found(launched(batch="global"), of)) == 2
    assert max(found(launched(batch="per-worker"), of)) == 4


@pytest.mark.parametrize(
    ("job", "of", "why"),
    [
        (launched(), SEEN, "nobody said what its script does with its batch"),
        (
            launched(launch=None, batch="global"),
            SEEN,
            "nothing says how workers of its script would meet",
        ),
        (launched(batch="global"), replace(SEEN, batch=None), "does not tell the batch"),
    ],
)
def test_without_a_word_there_is_one_worker_and_the_reason_is_told(
    job: Job, of: Any, why: str
) -> None:
    assert found(job, of).keys() == {1}
    assert any(why in note for note in CostModel(job, FOUR, of).notes)
    with pytest.raises(UsageError, match=why):
        candidates(FOUR, replace(job, limits=Limits(workers=(2, None))), of)


def test_sharded_parameters_cross_the_network_three_times_where_an_all_reduce_has_two() -> None:
    plan = Plan(
        strategy="allreduce", workers=4, batch_per_worker=256, worker_nodes=("a0", "a1", "a2", "a3")
    )

    def ring(of: Any) -> float:
        terms = CostModel(launched(batch="per-worker"), FOUR, of).explain(plan)
        return next(term.seconds for term in terms if term.name == "ring")

    assert ring(SEEN) == pytest.approx(2 * 3 / 4 * 1.08 * 25e6 / GIGABIT)
    assert ring(replace(SEEN, sharded=True)) == pytest.approx(3 * 3 / 4 * 1.08 * 25e6 / GIGABIT)


def test_a_sharded_job_has_at_least_the_workers_among_which_its_memory_fits() -> None:
    model: dict[str, Any] = {
        "dense_bytes": 2 * GIB,
        "optimizer_state_bytes": 4 * GIB,
        "memory_peak_bytes": 9 * GIB,
    }
    small = cluster(nodes("a", 4, memory_bytes=4 * GIB))
    job = launched(batch="per-worker")
    assert min(found(job, replace(SEEN, sharded=True, **model), small)) == 3
    with pytest.raises(UsageError, match="a worker needs"):
        found(job, replace(SEEN, **model), small)


@pytest.mark.parametrize(
    ("launch", "workers", "more"),
    [
        ("torchrun", 2, STORE),
        ("deepspeed", 4, STORE),
        ("torchrun", 1, 0),
        ("jax", 2, 0),
        ("mpi", 2, 0),
    ],
)
def test_the_first_of_several_workers_that_meet_as_under_torchrun_holds_the_store_too(
    launch: str, workers: int, more: int
) -> None:
    names = tuple(node.name for node in FOUR.nodes[:workers])
    strategy = "allreduce" if workers > 1 else "single"
    plan = Plan(strategy=strategy, workers=workers, batch_per_worker=64, worker_nodes=names)  # type: ignore[arg-type]
    held = CostModel(launched(launch=launch, batch="global"), FOUR, SEEN).memory(plan)
    alone = CostModel(Job(name="job", run="true"), FOUR, SEEN).memory(plan)
    assert {name: held[name] - alone[name] for name in held if held[name] != alone[name]} == (
        {TaskName.of("worker", 0): more} if more else {}
    )


def anonymous(pid: int) -> int:
    """Bytes of a process that are of no file."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def test_the_store_holds_what_is_planned_for_it() -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    waits = "import time; print('up', flush=True); time.sleep(1000)"
    words = ("headgate.task.rendezvous", "127.0.0.1", str(port), "2", sys.executable, "-c", waits)
    above = psutil.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL)
    try:

        def listens() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                return True
            return False

        wait.until(listens, 120, "the store listens")
        own = [above, *(child for child in above.children() if "-c" not in child.cmdline())]
        held = sum(anonymous(process.pid) for process in own)
        assert len(own) == 2
        assert 0.5 * STORE < held < STORE
    finally:
        for process in above.children():
            process.kill()
        above.wait()


def test_what_is_told_of_parameters_counts_more_than_what_was_seen() -> None:
    many, few = (
        launched(batch="per-worker", parameters=250_000_000),
        launched(batch="per-worker", parameters=250_000),
    )
    assert found(few)[4].throughput > found(many)[4].throughput
    assert CostModel(many, FOUR, SEEN).profile.dense_bytes == 1_000_000_000


def test_the_choice_says_how_large_the_global_batch_becomes() -> None:
    [choice] = choose([JobToPlan(launched(batch="per-worker"), SEEN)], FOUR)
    assert not isinstance(choice, UsageError)
    assert choice.plan.workers == 4
    assert "; the global batch grows from 256 to 1,024 samples; next best: " in choice.why
    [unsaid] = choose([JobToPlan(launched(), SEEN)], FOUR)
    assert not isinstance(unsaid, UsageError)
    assert unsaid.plan.workers == 1
