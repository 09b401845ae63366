"""Checkpoints that plain scripts save by themselves, and what they are started again with."""

from __future__ import annotations

import pytest
from tests.hub import script_saves
from tests.hub.script_saves import loop
from tests.hub.user import SECONDS, User

from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.testing import wait

FROM = {
    "rotated": ["--resume", "rotated-20.pt"],
    "folders": ["--resume_from_checkpoint", "out/checkpoint-10"],
}
STEP = {"rotated": 20, "folders": 10}

ROTATED = script_saves.ROTATED
SCRIPTS = {
    "rotated": loop(ROTATED),
    "looks": loop(ROTATED.replace("rotated", "looks"), look=script_saves.LOOKS),
    "in-place": loop(script_saves.IN_PLACE),
    "loads": loop(ROTATED.replace("rotated", "loads"), "--load"),
}
RETRIED = {
    "rotated": 'script: rotated.py, retries: 1, env: {DIES: "1"}',
    "looks": 'script: looks.py, retries: 1, env: {DIES: "1"}, resumes: true',
    "in-place": "script: in-place.py, retries: 1",
    "loads": 'script: loads.py, retries: 1, env: {DIES: "1"}',
}
SAID = {
    "rotated": "it is started with --resume {}/rotated-20.pt, which its script saved at step 20",
    "looks": "its script looks for its checkpoint by itself; newest whole: {}/looks-20.pt, which "
    "its script saved at step 20",
    "in-place": "it starts from its beginning: none of its checkpoints is whole (damaged: "
    "{}/in-place.pt, which its script saved at step 10)",
    "loads": "it starts from its beginning: nothing tells how it resumes from {}/loads-20.pt, "
    "which its script saved at step 20; say so with `resume_with: --resume {{checkpoint}}`, or "
    "with `resumes: true` if it looks for it by itself",
}


def log(user: User, run: str, job: str) -> str:
    return (user.home / "runs" / run / "jobs" / job / "worker-0.log").read_text()


def ends(user: User, run: str) -> None:
    user.types("stop", "--kill", "--run", run)
    wait.until(lambda: not runs.alive(user.home / "runs" / run), SECONDS, "the run has ended")


@pytest.fixture
def ended(user: User) -> str:
    """A run whose scripts were killed, two of them in mid-save."""
    user.write("rotated.py", loop(script_saves.ROTATED))
    user.write("folders.py", loop(script_saves.FOLDERS, "--resume_from_checkpoint"))
    user.write("in-place.py", loop(script_saves.IN_PLACE, "--load"))
    run = user.detaches("rotated.py", "folders.py", "in-place.py")
    for name in ("folders", "in-place"):
        user.sees_state(name, "failed", run=run)
    rotated = user.sees_job("rotated", lambda job: (job["at_stake"] or {}).get("step") == 20, run)
    assert rotated["at_stake"]["known"] == "declared"
    stands = user.types("status", run).stdout
    assert "rotated: a stop now loses " in stands
    assert "since its script saved rotated-20.pt, step 20; it is started again with" in stands
    assert "a stop loses" in user.types("ps").stdout
    ends(user, run)
    return run


@pytest.mark.long  # a retry below goes on from what such scripts saved
def test_killed_scripts_go_on_from_their_newest_whole_checkpoint(user: User, ended: str) -> None:
    refused = user.types("resume", ended, "--dry-run", code=2).message
    assert "none of its checkpoints is whole" in refused
    assert "in-place.pt" in refused
    assert "was being written anew" in refused
    arguments = {
        start["job"]: start["argv"][-2:]
        for start in user.json("resume", ended, "--from-scratch", "--dry-run")
    }
    for name, (option, path) in FROM.items():
        assert arguments[name] == [option, str(user.folder / path)]
    user.touch("go")
    again = str(user.json("resume", ended, "--from-scratch", "--detach")["run"])
    for name, step in STEP.items():
        assert user.sees_state(name, "done", run=again)["step"] == 30
        assert f"resumed at {step}\n" in log(user, again, name)


def test_a_script_without_a_known_argument_is_asked_about(user: User) -> None:
    user.write("loads.py", loop(script_saves.ROTATED, "--load"))
    run = user.detaches("loads.py")
    user.sees_job("loads", lambda job: (job["at_stake"] or {}).get("step") == 20, run)
    assert "nothing tells how it resumes from that" in user.types("status", run).stdout
    stake = user.json("explain", run)["at_stake"]["loads"]
    assert stake["arguments"] is None
    ends(user, run)
    asked = user.types("resume", run, code=2).message
    assert "rotated-20.pt" in asked
    assert "--resume-with '--resume {checkpoint}'" in asked
    again = str(user.json("resume", run, "--resume-with", "--load {checkpoint}", "--detach")["run"])
    user.sees_state("loads", "done", run=again)
    assert "resumed at 20\n" in log(user, again, "loads")


@pytest.mark.parametrize(
    ("goes_on", "starts_over"),
    [
        ("rotated", "in-place"),
        pytest.param("looks", "loads", marks=pytest.mark.long),  # other words for the same
    ],
)
def test_a_retry_goes_on_from_the_newest_whole_checkpoint_and_says_so(
    goes_on: str, starts_over: str, user: User
) -> None:
    for name in (goes_on, starts_over):
        user.write(f"{name}.py", SCRIPTS[name])
    lines = [f"  - {{name: {name}, {RETRIED[name]}}}" for name in (goes_on, starts_over)]
    user.write("jobs.yaml", "\n".join(["jobs:", *lines]))
    run = user.detaches("jobs.yaml")
    assert user.sees_state(goes_on, "done", run=run)["step"] == 30
    user.sees_state(starts_over, "failed", run=run)
    with RunReader(user.home / "runs" / run / runs.STORE) as reader:
        events = {(row["job"], row["text"]) for row in reader.rows("events")}
        said = {(job, text.partition("; it had come to step ")[0]) for job, text in events}
        for name in (goes_on, starts_over):
            assert (name, SAID[name].format(user.folder)) in said
        assert (goes_on, "going on from step 20 (attempt 2)") in events
        steps = reader.query("SELECT step FROM progress WHERE task GLOB ?", [f"{goes_on}/*"])
        assert max(row["step"] for row in steps) == 30
        assert (starts_over, "started (attempt 2)") in events
