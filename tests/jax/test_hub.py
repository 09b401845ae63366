"""A real hub runs the JAX example: alone, and with two workers of which one is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hub.user import User, speed, user

from headgate.recorded.reader import RunReader
from headgate.testing import wait

__all__ = ["speed", "user"]  # fixtures

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "jax_digits.py")
SECONDS = 300.0
pytestmark = pytest.mark.timeout(800)


def events(user: User, kind: str) -> list[str]:
    [path] = (user.home / "runs").glob("*/run.sqlite")
    with RunReader(path) as reader:
        return [row["text"] for row in reader.rows("events", "kind = ?", [kind])]


def state(user: User, *states: str) -> dict[str, object]:
    def look() -> dict[str, object] | None:
        entry = user.stands("jax_digits", None)
        return entry if entry is not None and entry["state"] in states else None

    job = wait.until(look, SECONDS, f"the job is {' or '.join(states)}")
    assert job is not None
    return job


def test_the_example_is_told_measured_and_profiled(user: User) -> None:
    user.types("run", "--detach", EXAMPLE, "--", "--epochs", "4")
    ended = state(user, "done", "failed")
    log = user.log("jax_digits")
    assert ended["state"] == "done", log
    assert float(log.rpartition("test accuracy ")[2].rstrip("%\n")) > 85
    assert (ended["epoch"], ended["step"]) == (4, 4 * 23)
    [path] = (user.home / "runs").glob("*/run.sqlite")
    with RunReader(path) as reader:
        assert {span["name"] for span in reader.rows("spans")} == {"input", "compute", "other"}
    assert len(list((user.home / "profiles").rglob("*.json"))) == 1
    assert "compute" in user.types("metrics", "jax_digits", "--spans").stdout


@pytest.mark.long
def test_two_workers_go_on_from_the_last_checkpoint_when_one_is_killed(user: User) -> None:
    plan = ("--strategy", "allreduce", "--workers", "2")
    user.types("run", "--detach", *plan, EXAMPLE, "--", "--epochs", "1000000")
    wait.until(
        lambda: (user.stands("jax_digits", None) or {}).get("step"), SECONDS, "the first steps"
    )
    assert user.json("checkpoint", "jax_digits")
    [path] = (user.home / "runs").glob("*/run.sqlite")

    def saved() -> bool:
        with RunReader(path) as reader:
            return bool(list(reader.rows("checkpoints")))

    wait.until(saved, SECONDS, "a checkpoint")
    with RunReader(path) as reader:
        [worker] = reader.rows("tasks", "id = ?", ["jax_digits/worker-1"])
    user.kills(worker["pid"])
    wait.until(lambda: events(user, "fault"), SECONDS, "the fault is told")
    assert "all tasks are started again from step" in events(user, "fault")[0]

    wait.until(lambda: len(events(user, "fault")) > 1, SECONDS, "it is where it was before")
    user.types("stop", "jax_digits")
    stopped = state(user, "stopped", "failed", "killed")
    assert stopped["state"] == "stopped", user.log("jax_digits")
    assert [note for note in events(user, "note") if "gone in the middle" not in note] == []


@pytest.mark.long
def test_a_stopped_run_goes_on_where_it_was(user: User) -> None:
    user.types("run", "--detach", EXAMPLE, "--", "--epochs", "1000000")
    wait.until(
        lambda: (user.stands("jax_digits", None) or {}).get("step"), SECONDS, "the first steps"
    )
    user.types("stop", "jax_digits")
    assert state(user, "stopped", "failed", "killed")["state"] == "stopped", user.log("jax_digits")
    [first] = (user.home / "runs").iterdir()
    with RunReader(first / "run.sqlite") as reader:
        [saved] = reader.rows("checkpoints", "why = ?", ["stop"])
    user.types("resume", first.name, "--detach")
    [second] = (folder for folder in (user.home / "runs").iterdir() if folder.name != first.name)

    def steps() -> list[int]:
        with RunReader(second / "run.sqlite") as reader:
            return [row["step"] for row in reader.rows("progress", "step IS NOT NULL")]

    seen = wait.until(steps, SECONDS, "steps of the second run")
    assert seen is not None
    assert seen[0] >= saved["step"]  # it may have been stopped at the end of an epoch
    user.types("stop", "jax_digits")
    state(user, "stopped", "failed", "killed")
