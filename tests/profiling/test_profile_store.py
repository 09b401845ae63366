"""Profiles that were measured before are found again by what they depend on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.model.cluster import Gpu, Node
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.profiles import Dataset, Profile, StepTime, TimeFit
from headgate.model.records import parse, text_of
from headgate.profiling import store

NODE = Node("here", cores=2, memory_bytes=1 << 30, cpu_model="A fine CPU")
PROFILE = Profile(
    framework="torch",
    framework_version="2.9",
    source="profile",
    parameters_dense=1000,
    layers={"Linear": 2},
    flops_per_sample=6000.0,
    dataset=Dataset(1797, 256.0, None),
    step_times=(StepTime("cpu", 2, 32, 0.01, 20),),
    fits=(TimeFit("cpu", 2, 0.001, 0.0003, None),),
    notes=("something was not measured",),
)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    return Job(name="job", script=str(script), args=("--epochs", "5"), env={"A": "1", "B": "2"})


def test_what_a_profile_depends_on_changes_its_key(job: Job) -> None:
    keys = {
        store.key(job, NODE),
        store.key(replace(job, args=("--epochs", "6")), NODE),
        store.key(replace(job, args=("--epochs 5",)), NODE),
        store.key(replace(job, env={"A": "1"}), NODE),
        store.key(replace(job, python="python3.12"), NODE),
        store.key(job, replace(NODE, cpu_model="Another")),
        store.key(job, replace(NODE, cores=4)),
        store.key(job, replace(NODE, gpus=(Gpu(0, "gpu", 1 << 30),))),
        store.key(Job(name="job", run="python train.py"), NODE),
        store.key(Job(name="job", run=("python", "train.py")), NODE),
    }
    assert len(keys) == 10
    before = store.key(job, NODE)
    Path(job.script or "").write_text("print(2)\n")
    assert store.key(job, NODE) != before


def test_what_it_does_not_depend_on_does_not(job: Job, tmp_path: Path) -> None:
    moved = tmp_path / "moved.py"
    moved.write_bytes(Path(job.script or "").read_bytes())
    same = replace(
        job,
        name="other",
        script=str(moved),
        env={"B": "2", "A": "1"},
        priority=3.0,
        at=5.0,
        limits=Limits(cores=1),
        retries=2,
    )
    assert store.key(same, replace(NODE, name="there")) == store.key(job, NODE)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    store.save(folder, "key", PROFILE)
    assert store.load(folder, "key") == PROFILE
    assert [path.name for path in folder.iterdir()] == ["key.json"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_the_task_sent_is_parsed() -> None:
    sent = {
        "framework": "torch",
        "framework_version": "2.9",
        "source": "run",
        "parameters_dense": 5,
        "fits": [
            {
                "device": "cpu",
                "threads": 1,
                "alpha_seconds": 0.1,
                "beta_seconds_per_sample": 0.2,
                "relative_error": None,
            }
        ],
        "of a later version": 1,
    }
    profile = parse(Profile, sent)
    assert profile.parameters_dense == 5
    assert profile.fits == (TimeFit("cpu", 1, 0.1, 0.2, None),)


@pytest.mark.parametrize(
    "sent",
    [
        {},
        {"framework": "torch"},
        {"framework": "torch", "framework_version": "2", "source": "guess"},
        {"framework": "torch", "framework_version": "2", "source": "run", "fits": 5},
        {
            "framework": "torch",
            "framework_version": "2",
            "source": "run",
            "parameters_dense": "many",
        },
    ],
)
def test_what_is_none_is_refused(sent: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        parse(Profile, sent)


@pytest.mark.parametrize("content", [b"", b"{}", b"not JSON", b"\xff", b'{"framework": 1}'])
def test_one_that_cannot_be_read_counts_as_none(tmp_path: Path, content: bytes) -> None:
    assert store.load(tmp_path, "key") is None
    (tmp_path / "key.json").write_bytes(content)
    assert store.load(tmp_path, "key") is None


def test_first_steps_do_not_replace_what_was_measured_on_purpose(tmp_path: Path) -> None:
    run = replace(PROFILE, source="run")
    store.save(tmp_path, "key", PROFILE)
    store.save(tmp_path, "key", run)
    assert store.load(tmp_path, "key") == PROFILE
    newer = replace(run, framework_version="3.0")
    store.save(tmp_path, "key", newer)
    assert store.load(tmp_path, "key") == newer, "it is of another version of the framework"
    store.save(tmp_path, "key", replace(newer, parameters_dense=7))
    assert store.load(tmp_path, "key") == replace(newer, parameters_dense=7)
    store.save(tmp_path, "key", replace(PROFILE, framework_version="3.0"))
    assert store.load(tmp_path, "key") == replace(PROFILE, framework_version="3.0")


def taken(source: str, waited: float | None, seconds: float = 0.01) -> Profile:
    """A profile that was taken while threads waited for that part of the time."""
    times = (StepTime("cpu", 2, 32, seconds, 20, 0.02, waited),)
    return replace(PROFILE, source=source, step_times=times)  # type: ignore[arg-type]


def test_what_was_taken_on_a_busy_machine_makes_way_for_what_was_on_a_calmer_one(
    tmp_path: Path,
) -> None:
    busy, calmer, calm = taken("profile", 0.8), taken("profile", 0.3), taken("profile", 0.02)
    first_steps = taken("run", 0.04)
    for profile, kept in (
        *(
            (busy, busy),
            (calmer, calmer),
            (busy, calmer),
            (first_steps, first_steps),
            (busy, first_steps),
        ),
        *(
            (calm, calm),
            (first_steps, calm),
            (taken("profile", None), taken("profile", None)),
            (busy, calm),
        ),
    ):
        store.save(tmp_path, "key", profile)
        found = store.load(tmp_path, "key")
        if profile.step_times[0].waited is None:
            assert found == profile
            store.save(tmp_path, "key", calm)
        else:
            assert found == kept


def test_the_calmer_one_of_another_model_makes_way(tmp_path: Path) -> None:
    larger = replace(taken("run", 0.8), parameters_dense=10 * (PROFILE.parameters_dense or 1))
    store.save(tmp_path, "key", taken("profile", 0.02))
    store.save(tmp_path, "key", larger)
    assert store.load(tmp_path, "key") == larger


def test_what_was_taken_while_others_used_the_cores_makes_way_though_no_thread_waited(
    tmp_path: Path,
) -> None:
    beside, alone = (
        replace(taken("profile", 0.0), others=0.6),
        replace(taken("profile", 0.01), others=0.05),
    )
    for profile, kept in ((beside, beside), (alone, alone), (beside, alone)):
        store.save(tmp_path, "key", profile)
        assert store.load(tmp_path, "key") == kept


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "profiles").touch()
    with pytest.raises(OSError):
        store.save(tmp_path / "profiles", "key", PROFILE)


def test_one_of_before_speeds_and_rows_were_kept_is_still_read(tmp_path: Path) -> None:
    older = json.loads(text_of(replace(PROFILE, core_gflops=50.0)))
    for name in (
        "core_gflops",
        "core_convolution_gflops",
        "sparse_rows_per_sample",
        "sparse_bytes_per_sample",
    ):
        del older[name]
    (tmp_path / "key.json").write_text(json.dumps(older))
    assert store.load(tmp_path, "key") == PROFILE


def test_what_more_threads_bring_a_job_is_kept_with_its_profile_and_by_a_later_one_of_it(
    tmp_path: Path,
) -> None:
    store.keep_power(tmp_path, "key", 0.7)
    assert store.load(tmp_path, "key") is None, "there is no profile to keep it with"
    run = replace(PROFILE, source="run")
    store.save(tmp_path, "key", run)
    store.keep_power(tmp_path, "key", 0.7)
    store.save(tmp_path, "key", run)
    assert store.load(tmp_path, "key") == replace(run, thread_power=0.7)
    store.save(tmp_path, "key", replace(run, framework_version="3.0"))
    found = store.load(tmp_path, "key")
    assert found is not None
    assert found.thread_power is None
