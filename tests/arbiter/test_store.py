"""What the arbiter keeps across restarts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headgate.arbiter.records import (
    NOTHING_KEPT,
    ArbiterState,
    Booking,
    Hub,
    JobDemand,
    MachineJob,
    ResourceGrant,
    Span,
)
from headgate.arbiter.store import ArbiterStore
from headgate.arbiter.usage import DayUse
from headgate.controller.gpu_memory import WorkerSlot
from headgate.model.errors import StorageError

ADA, BOB = Hub("ada", "1"), Hub("bob")


def grant(hub: Hub, id: str) -> ResourceGrant:
    demand = JobDemand(id, 2.0, 1, 1 << 30, 1, left=Span(2.0, 1.0, 3.0))
    return ResourceGrant(MachineJob(hub, id), demand, (WorkerSlot("m", (0,)),), 1.0, 4.0, 4.0)


STATE = ArbiterState(
    (grant(ADA, "a"), grant(BOB, "b")),
    (Booking(1, "ada", JobDemand("", gpus=2), 10.0, 20.0),),
    {"ada": 0.25},
    frozenset({MachineJob(BOB, "c"), MachineJob(ADA, "d")}),
    drained=True,
)


def kept(path: Path, boot: str = "1") -> ArbiterState:
    """What an arbiter reads, whatever has become of the one before it."""
    store = ArbiterStore(path, boot)
    try:
        return store.state()
    finally:
        store.close()


def test_the_next_arbiter_reads_all_that_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "arbiter.db"
    store = ArbiterStore(path, "1")
    assert store.state() == ArbiterState()
    store.keep(STATE)
    assert kept(path) == STATE  # the first has not closed it
    store.keep(ArbiterState((STATE.grants[1],)))
    assert kept(path) == ArbiterState((STATE.grants[1],))
    assert path.stat().st_mode & 0o777 == 0o600


def test_grants_are_void_after_a_boot(tmp_path: Path) -> None:
    path = tmp_path / "arbiter.db"
    store = ArbiterStore(path, "1")
    store.keep(STATE)
    after = kept(path, boot="2")
    assert (after.grants, after.past) == ((), {"ada": 0.25})


def test_use_by_day_is_read_from_a_day_on(tmp_path: Path) -> None:
    path = tmp_path / "arbiter.db"
    store = ArbiterStore(path, "1")
    store.keep(STATE, {("ada", 1): DayUse(1.0), ("ada", 2): DayUse(2.0, 3.0, 1.0, 4.0)})
    store.keep(STATE, {("ada", 2): DayUse(5.0)})
    assert store.usage(2) == {("ada", 2): DayUse(5.0)}
    assert len(ArbiterStore(path, "1").usage(0)) == 2


def test_a_full_disk_is_told_and_what_was_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "arbiter.db"
    store = ArbiterStore(path, "1")
    store.keep(STATE)
    store._db.execute("PRAGMA max_page_count = 1")
    many = tuple(grant(ADA, str(i)) for i in range(1_000))
    with pytest.raises(StorageError, match="full; free some space"):
        store.keep(ArbiterState(many))
    assert kept(path) == STATE
    store._db.execute("PRAGMA max_page_count = 100000")
    store.keep(ArbiterState(many))
    assert len(kept(path).grants) == 1_000


@pytest.mark.parametrize("damage", ["bytes", "grant", "version"])
def test_a_file_that_cannot_be_read_is_told_with_a_cure(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "arbiter.db"
    if damage == "bytes":
        path.write_bytes(b"no database" * 1_000)
    else:
        store = ArbiterStore(path, "1")
        store.keep(STATE)
        store.close()
        with sqlite3.connect(path) as db:
            db.execute(
                "UPDATE grants SET grant = '{'" if damage == "grant" else "PRAGMA user_version = 9"
            )
    with pytest.raises(StorageError, match=r"move .*file away"):
        kept(path)


def test_ten_years_of_fifty_users_stay_small(tmp_path: Path) -> None:
    days, users = 3_652, [f"user{i}" for i in range(50)]
    with closing(ArbiterStore(tmp_path / "arbiter.sqlite", "boot")) as store:
        for day in range(0, days, 30):
            month = range(day, min(day + 30, days))
            use = DayUse(86_400.5 / 7, 3_600.25, 12.5, 1e15 / 3)
            store.keep(NOTHING_KEPT, {(user, at): use for user in users for at in month})
        assert len(store.usage(days - 30)) == 30 * len(users)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    print(f"{days} days of {len(users)} users: {size / 2**20:.1f} MiB")
    assert size < 16 * 2**20
