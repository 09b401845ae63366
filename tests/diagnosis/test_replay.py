"""Steps replayed with faster parts, by numbers that can be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from headgate.diagnosis.replay import CoresUsed, Faster, Path, Surroundings, mean, step_seconds

CALM = Surroundings(cores=CoresUsed(ran=1.0, waited=0.0, threads=1.0))
EXCHANGE = Path(compute=1.0, exposed=0.2, exchange=1.0, server_nic=1.0, worker_nic=0.5)
"""0.8 of 1.0 seconds of exchange are hidden behind computing, and the NIC of the server is full all
the time.
"""


def replayed(path: Path, beside: Surroundings = CALM, **faster: float) -> float:
    """Seconds of a step."""
    return mean([path], step_seconds([path], beside, Faster(**faster)))


@pytest.mark.parametrize(
    ("path", "beside"),
    [
        (Path(compute=0.3, reading=0.1, blocked=0.05), CALM),
        (
            Path(compute=0.3, waiting=0.1),
            replace(CALM, readers=2, loading=0.4, loading_blocked=0.3),
        ),
        (Path(compute=0.3, gpu=0.4, waiting=0.1), replace(CALM, readers=None)),
        (EXCHANGE, CALM),
        (
            Path(
                compute=1.0, exposed=0.2, exchange=1.0, server_nic=0.3, worker_nic=0.1, serving=0.1
            ),
            CALM,
        ),
        (
            Path(
                compute=0.1, exposed=0.9, exchange=0.5, server_nic=2.0, worker_nic=0.1, serving=0.4
            ),
            CALM,
        ),
        (
            Path(
                compute=0.1,
                exposed=0.9,
                exchange=0.8,
                server_nic=0.1,
                serving=0.2,
                server_cores=0.4,
            ),
            CALM,
        ),
        (
            Path(compute=0.5, exposed=0.1),
            Surroundings(cores=CoresUsed(0.5, 0.7, 2.0, 0.9, capped=True), most_cores=0.5),
        ),
        (Path(compute=0.5), Surroundings(cores=CoresUsed(1.0, 1.0, 2.0), most_cores=1.0)),
    ],
)
def test_at_unchanged_rates_a_replay_gives_the_measured_step(
    path: Path, beside: Surroundings
) -> None:
    assert replayed(path, beside) == pytest.approx(path.seconds)


def test_one_thread_alone_gains_nothing_by_more_cores() -> None:
    assert CoresUsed(ran=1.0, waited=0.0, threads=1.0).speed(2.0) == 1.0
    assert CoresUsed(ran=0.0, waited=0.0, threads=1.0, ready=0.0).speed(2.0) == 1.0


def test_a_job_without_a_core_or_a_thread_in_its_records_gains_nothing_by_more_of_them() -> None:
    assert CoresUsed(ran=1.0, waited=0.0, threads=0.0).speed(2.0) == 1.0
    none_left = replace(CALM, cores=CoresUsed(0.0, 0.0, 1.0), most_cores=0.0)
    assert replayed(Path(compute=0.5), none_left, cores=math.inf) == pytest.approx(0.5)


def test_more_threads_speed_up_only_what_all_of_them_do() -> None:
    # Half of the time one thread computes, half of the time two: 1.5 on average (Amdahl).
    used = CoresUsed(ran=1.5, waited=0.0, threads=2.0, grows=True)
    assert used.speed(2.0) == pytest.approx(1.0 / (0.5 + 0.25))
    assert used.speed(math.inf) == pytest.approx(2.0)
    assert replace(used, grows=False).speed(2.0) == pytest.approx(1.0)


def test_half_a_core_for_one_thread_that_a_neighbour_or_a_cap_holds_back_doubles_its_time() -> None:
    for capped in (False, True):
        used = CoresUsed(ran=0.5, waited=0.5, threads=1.0, capped=capped)
        assert used.speed(1.25) == pytest.approx(1.25)
        assert used.speed(2.0) == pytest.approx(2.0)
        assert used.speed(math.inf) == pytest.approx(2.0)


def test_a_cap_of_one_core_under_two_threads_costs_what_they_do_at_once() -> None:
    # Free, half of its time one thread runs and half two: 1.5 CPU seconds a second. Under a cap of
    # one core that takes 1.5 seconds; for the third of them it is held, which hits two threads in
    # two of three cases and one in the third.
    used = CoresUsed(ran=1.0, waited=(1 / 3) * (5 / 3), threads=2.0, capped=True)
    assert used.speed(math.inf) == pytest.approx(1.5, rel=1e-3)
    assert used.speed(1.25) == pytest.approx(1.25, rel=1e-3)


def test_twice_the_readers_halve_what_a_loader_takes() -> None:
    path, beside = Path(compute=0.1, waiting=0.3), replace(CALM, readers=2, loading=0.4)
    assert replayed(path, beside, loader=2.0) == pytest.approx(0.2)
    assert replayed(path, beside, loader=math.inf) == pytest.approx(0.1)


def test_the_first_reader_beside_the_training_process_reads_while_it_computes() -> None:
    path = Path(compute=0.1, reading=0.3)
    assert replayed(path, loader=2.0) == pytest.approx(0.3)
    assert replayed(path, loader=4.0) == pytest.approx(0.1)


def test_readers_that_decompress_gain_no_more_than_there_are_cores() -> None:
    path = Path(compute=0.1, waiting=0.3)
    beside = Surroundings(cores=CoresUsed(1.25, 0.0, 2.0), most_cores=2.0, readers=1, loading=0.4)
    assert replayed(path, beside, loader=math.inf) == pytest.approx(0.4 * 1.25 / 2.0)
    assert replayed(path, beside, loader=math.inf, cores=2.0) == pytest.approx(0.4 * 1.25 / 4.0)


def test_more_cores_do_not_shorten_what_a_loader_only_waits_for() -> None:
    held = CoresUsed(ran=0.5, waited=0.5, threads=1.0)
    path, beside = Path(compute=0.1, reading=0.3), Surroundings(cores=held, reading_computes=0.0)
    assert replayed(path, beside, cores=2.0) == pytest.approx(0.05 + 0.3)
    assert replayed(path, replace(beside, reading_computes=1.0), cores=2.0) == pytest.approx(0.2)


def test_a_faster_disk_saves_what_was_blocked_on_it() -> None:
    assert replayed(Path(compute=0.1, reading=0.3, blocked=0.2), disk=2.0) == pytest.approx(0.3)
    beside = replace(CALM, readers=2, loading=0.4, loading_blocked=0.5)
    assert replayed(Path(compute=0.1, waiting=0.3), beside, disk=2.0) == pytest.approx(0.3)


def test_a_faster_gpu_saves_what_it_computes() -> None:
    assert replayed(Path(compute=0.1, gpu=0.3), gpu=2.0) == pytest.approx(0.25)


def test_two_equal_bottlenecks_hide_each_other() -> None:
    on_gpu = replace(EXCHANGE, exposed=0.0, compute=0.0, gpu=1.0)
    assert replayed(on_gpu, gpu=2.0) == pytest.approx(1.0)
    assert replayed(on_gpu, network=2.0) == pytest.approx(1.0)
    assert replayed(on_gpu, gpu=2.0, network=2.0) == pytest.approx(0.5)


def test_a_faster_network_shortens_what_computing_did_not_hide_and_never_the_computing() -> None:
    assert replayed(EXCHANGE, network=1.25) == pytest.approx(1.0 + 0.05 * 0.8)
    assert replayed(EXCHANGE, network=math.inf) == pytest.approx(1.0)


def test_more_servers_help_as_far_as_the_nics_of_the_workers_go() -> None:
    path = replace(EXCHANGE, compute=0.1, exposed=0.9)
    assert replayed(path, servers=2.0) == pytest.approx(0.1 + 0.4)
    assert replayed(path, servers=math.inf) == pytest.approx(0.1 + 0.4)
    assert replayed(path, servers=math.inf, network=2.0) == pytest.approx(0.1 + 0.15)


def test_a_server_that_computes_is_no_faster_for_its_network() -> None:
    path = Path(compute=0.1, exposed=0.9, exchange=0.9, server_nic=0.1, worker_nic=0.1, serving=0.8)
    assert replayed(path, network=math.inf) == pytest.approx(0.9)
    assert replayed(path, servers=2.0) == pytest.approx(0.1 + 0.1 + 0.4)


def test_a_server_whose_cores_are_full_is_no_faster_for_its_network_but_by_more_of_it() -> None:
    path = Path(
        compute=0.1,
        exposed=0.9,
        exchange=0.9,
        server_nic=0.2,
        worker_nic=0.2,
        serving=0.1,
        server_cores=0.9,
    )
    assert replayed(path, network=math.inf) == pytest.approx(1.0)
    assert replayed(path, servers=2.0) == pytest.approx(0.1 + 0.45)
    assert replayed(path, servers=math.inf) == pytest.approx(0.1 + 0.2)  # the workers' NICs
    assert replayed(path, cores=2.0) == pytest.approx(0.1 + 0.45)


def test_steps_count_by_how_many_they_stand_for() -> None:
    paths = [Path(compute=1.0), Path(compute=0.1, weight=9.0)]
    assert mean(paths, step_seconds(paths, CALM, Faster())) == pytest.approx(0.19)
