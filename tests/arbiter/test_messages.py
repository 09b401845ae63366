"""What hubs send is checked, whatever it is."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.arbiter import messages
from headgate.arbiter.records import Demand, Hub, JobDemand, MachineJob, ResourceGrant, Span
from headgate.controller.gpu_memory import WorkerSlot
from headgate.model import records

JOB = JobDemand("r/a#1", 2.0, 2, 1 << 30, 1, None, Span(2.0, 1.0, 3.0), "a")


def line(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_a_demand_is_read_as_it_was_sent() -> None:
    sent = line(hub="1", waiting=[records.plain(JOB)], running=[{"id": "b"}])
    assert messages.request(sent, "ada") == Demand(Hub("ada", "1"), (JOB,), (JobDemand("b"),))


def test_a_grant_is_kept_as_it_was_given() -> None:
    slots = (WorkerSlot("m", (0, 1)),)
    grant = ResourceGrant(MachineJob(Hub("ada"), JOB.id), JOB, slots, 1.0)
    assert records.read(ResourceGrant, records.text_of(grant)) == grant


@pytest.mark.parametrize("hub", [["root", "1"], {"user": "root"}, "1" * 201, 7])
def test_no_hub_speaks_for_another_user(hub: object) -> None:
    with pytest.raises(ValueError, match="as `hub`"):
        messages.request(line(hub=hub), "ada")
    sent = messages.request(line(hub="root", user="root"), "ada")
    assert sent == Demand(Hub("ada", "root"))


@pytest.mark.parametrize(
    "job",
    [
        {"id": "a", "cores": -1},
        {"id": "a", "cores": "nan"},
        {"id": "a", "memory_bytes": 1 << 61},
        {"id": "a", "memory_bytes": -1},
        {"id": "a", "memory_bytes": 1.5},
        {"id": "a", "gpus": 10**9},
        {"id": "a", "gpus": True},
        {"id": "a", "workers": 0},
        {"id": "a", "left": [1, 2, 3]},
        {"id": "a", "left": [1, 1, "inf"]},
        {"id": "a" * 201},
        {"id": 1},
        {},
        [],
        None,
    ],
)
def test_a_job_with_an_impossible_need_is_refused(job: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        messages.request(line(waiting=[job]), "ada")


@pytest.mark.parametrize(
    "sent",
    [b"", b"7", b"[]", b"{", b"\xff", b"[" * 100_000, b" " * (messages.MOST_BYTES + 1)],
)
def test_a_line_that_is_no_demand_is_refused(sent: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        messages.request(sent, "ada")


def test_a_reservation_is_read_and_one_of_nothing_or_forever_refused() -> None:
    book = {"type": "Book", "demand": {"id": "", "gpus": 2}, "seconds": 60}
    assert messages.request(line(**book), "ada") == messages.Book(JobDemand("", gpus=2), 60.0)
    for wrong in ({"demand": {"id": ""}}, {"seconds": 1e9}, {"seconds": "nan"}, {"type": "Rm"}):
        with pytest.raises(ValueError, match=r"expected"):
            messages.request(line(**{**book, **wrong}), "ada")


def test_too_many_jobs_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 2,000 jobs"):
        messages.request(line(waiting=[{"id": str(i)} for i in range(2_001)]), "ada")


NUMBERS = (0, -1, 1.5, 1e308, float("nan"), float("inf"), 2**64, 10**400)
NESTED: tuple[object, ...] = ([], [1, 1, 1], [[None]], {}, {"id": 1}, {"left": [{}]}, ["ada", "1"])
ANY = st.sampled_from((None, True, "", "nan", "é", *NUMBERS, *NESTED))
FIELDS = ("id", "cores", "workers", "memory_bytes", "gpus", "gpu_memory_bytes", "left", "private")


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), ANY), ANY)
def test_nothing_but_an_error_comes_of_anything(job: dict[str, object], hub: object) -> None:
    with suppress(ValueError):
        messages.request(line(hub=hub, waiting=[{"id": "a", **job}]), "ada")
