"""`headgate resume` of a run whose checkpoints are damaged or gone, or whose script saves none."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.hub.learning import LEARNS, STEPS
from tests.hub.user import SECONDS, User

from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.testing import wait

PLAIN = "import sys\nprint('epoch 1/2 loss 0.5', flush=True)\nsys.exit('no data')"
Harm = Callable[[Path], object]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def saves(user: User, run: str) -> list[Path]:
    """The checkpoints of the job that learns, the oldest first."""
    with RunReader(user.home / "runs" / run / runs.STORE) as reader:
        recorded = [Path(row["path"]) for row in reader.rows("checkpoints")]
    return [path for path in recorded if path.parents[3].name == run and path.exists()]


def asks(user: User, run: str) -> None:
    """Ask for a checkpoint, and wait until it is recorded."""
    before = saves(user, run)[-1:]
    user.types("checkpoint", "learns")
    wait.until(lambda: saves(user, run)[-1:] != before, SECONDS, "a checkpoint is recorded")


def stops(user: User, run: str) -> tuple[Path, Path]:
    """Have a run save, then stop it; its two checkpoints."""
    user.sees_job("learns", lambda job: job["step"] is not None and job["state"] == "running", run)
    asks(user, run)
    step = user.jobs(run)["learns"]["step"]
    user.sees_job("learns", lambda job: job["step"] > step, run)
    user.types("stop", "--run", run)
    user.sees_state("learns", "stopped", run=run)
    wait.until(lambda: not runs.alive(user.home / "runs" / run), SECONDS, "the run has ended")
    *_, former, last = saves(user, run)  # one may be of the end of an epoch
    return former, last


@pytest.fixture(scope="module")
def stopped(
    tmp_path_factory: pytest.TempPathFactory, speed: Path
) -> Iterator[tuple[User, str, Path, Path]]:
    """Somebody with a run that was stopped, its id and its two checkpoints."""
    place = tmp_path_factory.mktemp("stopped")
    somebody = User(place / "work", place / "home", speed)
    somebody.write("learns.py", LEARNS)
    run = somebody.detaches("learns.py")
    former, last = stops(somebody, run)
    somebody.touch("go")
    yield somebody, run, former, last
    somebody.leaves()


@pytest.fixture(scope="module")
def learned(stopped: tuple[User, str, Path, Path]) -> str:
    """What the script learns under plain python."""
    user, *_ = stopped
    command = [sys.executable, str(user.folder / "learns.py")]
    return subprocess.run(
        command, cwd=user.folder, env=user.variables, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def kept(
    stopped: tuple[User, str, Path, Path], tmp_path: Path
) -> Iterator[tuple[User, str, Path, Path]]:
    """The same, with its checkpoints whole again for the next test."""
    folder = stopped[2].parent
    shutil.copytree(folder, tmp_path / "kept")
    yield stopped
    user, run, *_ = stopped
    for each in user.json("ps"):
        if each["id"] > run:
            user.types("rm", each["id"])  # what another one has done is not gone on with
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "kept", folder)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (truncate, "is cut short, or is no checkpoint"),
        # What is wrong with a file is told by `headgate.task.saving`, whose tests have all of it.
        pytest.param(lambda path: path.write_bytes(b""), "is empty", marks=pytest.mark.long),
        pytest.param(Path.unlink, "is gone", marks=pytest.mark.long),
        pytest.param(spoil, "is damaged", marks=pytest.mark.long),
    ],
    ids=["truncated", "empty", "removed", "wrong byte"],
)
def test_it_goes_on_from_the_newest_whole_checkpoint_and_says_so(
    harm: Harm, said: str, kept: tuple[User, str, Path, Path], learned: str
) -> None:
    user, run, former, last = kept
    harm(last)
    done = user.types("resume", run)
    folded = " ".join(done.stdout.split())
    former_one = f"goes on from {former.name} of run {run}, an earlier checkpoint than its last"
    text = f"{former_one}, because {last.name} of run {run}"
    assert f"{text} {said}" in folded
    assert f"learns: running, going on from step {former.stem.removeprefix('step-')}" in folded
    told = user.json("status")
    assert told["state"] == "done" and told["jobs"][0]["step"] == STEPS
    assert [
        warning["job"]
        for warning in told["warnings"]
        if warning["text"].startswith(f"{text} {said}")
    ] == ["learns"]
    assert text in Path(user.json("report")["report"]).read_text()
    assert user.log("learns") == learned


@pytest.mark.long  # test_a_plain_script_is_run_again_only_when_told is shorter
def test_without_a_whole_one_it_starts_over_only_when_told(
    kept: tuple[User, str, Path, Path], learned: str
) -> None:
    user, run, former, last = kept
    good = shutil.copy(last, user.folder / "kept.pt")
    truncate(last)
    former.unlink()
    before = user.json("ps")
    said = user.types("resume", run, code=2).message
    assert said.startswith("job learns had come to step ") and said.endswith(
        f"headgate resume {run} --from-scratch"
    )
    assert (
        f"none of its checkpoints is whole ({last.name} of run {run} is cut short, or is no "
        f"checkpoint; {former.name} of run" in said
    )
    assert user.json("ps") == before
    assert "is cut short" in user.types("resume", run, "--checkpoint", str(last), code=2).message
    assert (
        "is gone; name another one"
        in user.types("resume", run, "--checkpoint", "none.pt", code=2).message
    )
    assert (
        "learns: running, going on from kept.pt"
        in user.types("resume", run, "--checkpoint", str(good)).stdout
    )
    assert user.log("learns") == learned
    done = user.types("resume", run, "--from-scratch")
    assert "learns: running, started" in done.stdout
    assert "starts from the beginning, as was asked for; it had come to step" in " ".join(
        done.stdout.split()
    )
    assert user.log("learns") == learned


@pytest.mark.long  # within one run it does so in the first test
def test_it_falls_back_on_the_runs_before(kept: tuple[User, str, Path, Path], learned: str) -> None:
    user, run, _, last = kept
    (user.folder / "go").unlink()
    second = user.json("resume", run, "--detach")["run"]
    both = stops(user, second)
    user.touch("go")
    for path in both:
        spoil(path)
    done = user.types("resume", second)
    text = (
        f"goes on from {last.name} of run {run}, an earlier checkpoint than its last, "
        f"because {both[1].name} of run"
    )
    assert f"{text} {second}" in " ".join(done.stdout.split())
    assert user.log("learns") == learned


@pytest.mark.long
def test_what_a_run_was_to_start_over_from_is_not_gone_back_on(
    kept: tuple[User, str, Path, Path],
) -> None:
    user, run, *_ = kept
    (user.folder / "go").unlink()
    anew = user.json("resume", run, "--from-scratch", "--detach")["run"]
    both = stops(user, anew)
    user.touch("go")
    for path in both:
        spoil(path)
    assert "none of its checkpoints is whole" in user.types("resume", anew, code=2).message


def test_a_plain_script_is_run_again_only_when_told(stopped: tuple[User, str, Path, Path]) -> None:
    user, *_ = stopped
    user.write("plain.py", PLAIN)
    run = user.json("run", "plain.py", code=1)["id"]
    assert user.types("resume", code=2).message == (
        "job plain can only be run again from its beginning, because it has saved nothing through "
        "headgate.torch, headgate.keras or headgate.jax; to start it from the beginning: headgate "
        f"resume {run} --from-scratch"
    )
    assert user.json("resume", "--from-scratch", code=1)["jobs"][0]["reason"].startswith(
        "exit code 1"
    )


@pytest.mark.long
def test_a_damaged_checkpoint_is_passed_over_while_the_run_goes_on(user: User) -> None:
    user.write("learns.py", LEARNS)
    user.write("jobs.yaml", "jobs: [{script: learns.py, retries: 1}]")
    run = user.detaches("jobs.yaml")
    for _ in range(2):
        step = user.sees_job("learns", lambda job: job["step"] is not None)["step"]
        user.sees_job("learns", lambda job, step=step: job["step"] > step)  # type: ignore[misc]
        asks(user, run)
    former, last = saves(user, run)
    truncate(last)
    with RunReader(user.home / "runs" / run / runs.STORE) as reader:
        [task] = reader.rows("tasks")
    user.kills(task["pid"])
    user.touch("go")
    ended = user.sees_state("learns", "done", "failed")
    assert (ended["state"], ended["attempt"], ended["step"]) == ("done", 3, STEPS)
    with RunReader(user.home / "runs" / run / runs.STORE) as reader:
        said = [row["text"] for row in reader.rows("events", "job = 'learns'")]
    step = int(former.stem.removeprefix("step-"))
    text = f"checkpoint {last.name} is cut short, or is no checkpoint"
    assert f"{text}; it is started again from step {step}" in said
    assert f"going on from step {step} (attempt 3)" in said
