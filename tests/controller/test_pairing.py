"""Of several jobs that wait, the one that goes best beside those that run is next, and none is let
by for ever.
"""

from __future__ import annotations

from itertools import count

import pytest
from tests.controller.driver import PLAN, job
from tests.controller.test_queueing import GIB, Queueing, started, states

from headgate.controller.core import Controller
from headgate.controller.pairing import MOST_PASSED, Pairing
from headgate.controller.queue_orders import FifoOrder
from headgate.controller.queueing import Queue
from headgate.model.cluster import Gpu, Node
from headgate.model.events import NodeJoined
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.planning.interference import Interference
from headgate.policies import NoPolicy

CLOSE, APART = 0.6, 0.95
HEAVY = {"cnn": CLOSE, "mlp": CLOSE, "vae": APART}
PAIRS = {"cnn": HEAVY, "mlp": HEAVY, "vae": dict.fromkeys(HEAVY, APART)}


class Paired(Queueing):
    """A hub's queue, and one node with room for two jobs by their memory; jobs are known by their
    names up to a `-`.
    """

    def __init__(self, pairs: Interference, by_turns: bool = False) -> None:
        super().__init__()
        pairing = Pairing(lambda: pairs, lambda job: job.spec.name.partition("-")[0], by_turns)
        self.controller = Controller(
            NoPolicy(), Queue(FifoOrder(), gpus_are_shared=True, pairing=pairing)
        )
        node = Node("here", cores=4.0, memory_bytes=8 * GIB, gpus=(Gpu(0, "V100", 8 * GIB),))
        self.step(0.0, NodeJoined(node))

    def come(self, *names: str, **fields: object) -> list[str]:
        """Jobs come one after the other; those that start."""
        return [
            task
            for name in names
            for task, *_ in started(self.submit(0.0, asks(name, **fields), PLAN))
        ]

    def starts_after(self, name: str) -> list[str]:
        return [task.split("/")[1] for task, *_ in started(self.end(1.0, f"{name}/worker-0"))]


def asks(name: str, **fields: object) -> Job:
    return job(name, **{"limits": Limits(memory_bytes=4 * GIB, gpus=0)} | fields)


def test_the_best_neighbour_of_running_jobs_starts_before_earlier_jobs_and_says_why() -> None:
    queue = Paired(Interference({"": PAIRS}))
    assert queue.come("cnn", "any", "mlp", "vae") == ["r/cnn/worker-0", "r/any/worker-0"]
    actions = queue.end(1.0, "any/worker-0")
    assert [task for task, *_ in started(actions)] == ["r/vae/worker-0"]
    why = (
        "started before mlp, for it goes better beside cnn: each keeps 0.95 of its rate on "
        "average, not 0.60"
    )
    assert ("r/vae", "running", why) in states(actions)
    assert ("r/mlp", "running", "started") in states(queue.end(2.0, "vae/worker-0"))


@pytest.mark.parametrize(
    "pairs",
    [
        {},
        # nothing is known of the one that came first
        {"": {"cnn": PAIRS["cnn"], "vae": PAIRS["vae"]}},
        {
            "": PAIRS
            | {"vae": dict.fromkeys(HEAVY, CLOSE + 0.01)}
            | {"cnn": dict.fromkeys(HEAVY, CLOSE)}
        },
        {"other": PAIRS},
    ],
    ids=["nothing known", "not of the first", "hardly better", "of another kind of node"],
)
def test_without_a_gain_that_is_known_jobs_start_in_the_order_of_arrival(
    pairs: dict[str, dict[str, dict[str, float]]],
) -> None:
    queue = Paired(Interference(pairs))
    queue.come("cnn", "any", "mlp", "vae")
    assert queue.starts_after("any") == ["mlp"]


def test_a_job_is_passed_over_so_many_times_and_then_is_next() -> None:
    queue = Paired(Interference({"": PAIRS}))
    queue.come("cnn", "vae-0", "mlp")
    for i in count(1):
        queue.come(f"vae-{i}")
        found = queue.starts_after(f"vae-{i - 1}")
        if found == ["mlp"]:
            break
        assert found == [f"vae-{i}"]
    assert i == MOST_PASSED + 1


def test_no_job_is_passed_over_for_one_of_lower_priority() -> None:
    queue = Paired(Interference({"": PAIRS}))
    queue.come("cnn", "any")
    queue.come("mlp", priority=2.0)
    queue.come("vae")
    assert queue.starts_after("any") == ["mlp"]


def test_a_prediction_counts_only_as_far_as_its_band_lets_it() -> None:
    class Predicted(Interference):
        band = 0.0

        def between(self, device: str, model: str, other: str) -> tuple[float, float, float] | None:
            part = super().between(device, model, other)
            return (part[0], part[0] - self.band, part[0] + self.band) if part is not None else None

    for band, first in ((0.1, "vae"), (0.2, "mlp")):
        pairs = Predicted({"": PAIRS})
        pairs.band = band
        queue = Paired(pairs)
        queue.come("cnn", "any", "mlp", "vae")
        assert queue.starts_after("any") == [first]


@pytest.mark.parametrize(("by_turns", "first"), [(False, "vae"), (True, "mlp")])
def test_on_a_gpu_pairs_of_the_gpu_count_unless_jobs_take_turns_on_it(
    by_turns: bool, first: str
) -> None:
    queue = Paired(Interference({"v100": PAIRS}), by_turns)
    queue.come("cnn", "any", "mlp", "vae", limits=Limits(gpus=1, gpu_memory_bytes=4 * GIB))
    assert queue.starts_after("any") == [first]


def test_a_job_that_waits_for_gpu_memory_is_not_overtaken_by_another_that_does() -> None:
    queue = Paired(Interference({"v100": PAIRS, "": PAIRS}))
    queue.come("cnn", limits=Limits(gpus=1, gpu_memory_bytes=4 * GIB))
    queue.come("any", limits=Limits(memory_bytes=6 * GIB, gpus=0))
    queue.come("mlp-large", limits=Limits(gpus=1, gpu_memory_bytes=6 * GIB))
    # may start before it, and nothing else on the GPU
    queue.come("mlp", limits=Limits(memory_bytes=3 * GIB, gpus=0))
    queue.come("vae", limits=Limits(memory_bytes=3 * GIB, gpus=1, gpu_memory_bytes=2 * GIB))
    assert queue.starts_after("any") == ["mlp"]
