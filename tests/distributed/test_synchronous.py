"""Faults of a synchronous training over parameter servers."""

from __future__ import annotations

import time

import pytest
from tests.distributed.training import BATCH, Training, uneven


@pytest.mark.long
def test_a_killed_worker_costs_its_part_of_a_step_and_a_killed_server_no_sample(
    training: Training,
) -> None:
    training.starts("--strategy", "ps", "--workers", "2", waits=("worker-1@10",))
    training.is_at("worker-1", 10)
    training.kills("worker-1")  # in the middle of a step: worker 0 waits for its gradients
    training.goes("worker-1@10")
    training.sees_fault("worker-1 was lost: killed by SIGKILL; the others go on")
    training.joins("worker-1", lives=2)
    training.goes_on("worker-1")
    training.kills("server-0")
    training.sees_fault("server-0 was lost: killed by SIGKILL; it is started again")
    training.goes_on("worker-1", 60)
    job = training.ends()
    assert (job["state"], job["attempt"]) == ("done", 1), training.story()
    assert len(training.ended()) == 2
    # the parameters of all are equal, to the last bit
    assert len({end.digest for end in training.ended()}) == 1
    assert len({end.step for end in training.ended()}) == 1

    left_out = uneven(training.steps())
    assert list(left_out) == [0]
    assert set(left_out[0].values()) == {0}
    assert len(left_out[0]) == BATCH // 2  # what worker 1 had of the step in which it was killed
    worker, server = training.costs("worker-1 lost"), training.costs("server-0 lost")
    assert [steps for _, steps in worker] == [1]
    assert len(server) == 2  # each worker says what it cost
    assert all(seconds > 0 for seconds, _ in worker + server)
    count, seconds = training.reported()
    assert count == 2
    assert seconds == pytest.approx(worker[0][0] + max(server)[0])


@pytest.mark.long
def test_a_node_may_be_cut_off_or_slow_and_workers_come_and_go(training: Training) -> None:
    training.starts("--strategy", "ps", "--workers", "2", script=("--work", "0.002"))
    training.goes_on("worker-1")

    training.changes("b", "nic=down")
    quiet = _Quiet(training)
    training.waits_for(lambda: quiet.seconds() > 5, "no step is taken for five seconds")
    training.changes("b", "nic=up")
    training.goes_on("worker-1")

    training.changes("b", "cores=0.1")
    training.goes_on("worker-0", 10)
    training.changes("b", "cores=2")

    training.user.types("resize", "digits", "--workers", "3")
    training.joins("worker-2")
    training.goes_on("worker-2", 60)
    training.user.types("resize", "digits", "--workers", "1")
    training.waits_for(lambda: len(training.ended()) == 2, "two workers leave")
    training.goes_on("worker-0", 60)
    job = training.ends()
    assert (job["state"], job["attempt"]) == ("done", 1), training.story()
    assert uneven(training.steps()) == {}
    [cut_off] = [text for text in training.said("fault") if "is cut off" in text]
    assert cut_off == "node b is cut off: its NIC has no link"
    assert max(seconds for seconds, _ in training.costs("waited for")) > 4
    assert training.reported()[1] > 4


@pytest.mark.long
def test_a_slow_node_is_named(training: Training) -> None:
    training.starts(
        "--strategy", "ps", "--workers", "2", waits=("worker-1@8",), script=("--work", "0.03")
    )
    training.is_at("worker-1", 8)
    training.changes("b", "cores=0.1")
    training.goes("worker-1@8")
    fault = training.sees_fault("node b is slow: its worker-1 takes ")
    assert "for its own part of a step, the others" in fault
    training.changes("b", "cores=2")
    training.waits_for(
        lambda: "node b is no longer slow" in training.said("note"), "it is as fast again"
    )
    assert training.ends()["state"] == "done"


class _Quiet:
    """For how long no worker has taken a step."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._seen = -1
        self._since = 0.0

    def seconds(self) -> float:
        if (seen := len(self._training.steps())) != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since
