"""Several tasks of a job train as one process does, over what each framework brings for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.gang import Gang
from tests.keras.conftest import QUIET, VARIABLES, WARM, finish, run

from headgate.model.plans import Plan

SCRIPT = Path(__file__).with_name("together.py")
LOOPS = {"tensorflow": "loop", "tf_keras": "fit", "jax": "fit"}


def allreduce(workers: int) -> Plan:
    return Plan(strategy="allreduce", workers=workers, batch_per_worker=None)


def gang(folder: Path, plan: Plan, backend: str, loop: str, **more: str) -> Gang:
    command = [sys.executable, str(SCRIPT), str(folder / "result.json"), loop]
    return Gang(folder, plan, command, {**QUIET, **VARIABLES[backend], **more}, warm=WARM[backend])


def alone(folder: Path, backend: str, loop: str) -> dict[str, Any]:
    path = folder / "alone.json"
    finish(run(backend, [str(SCRIPT), str(path), loop], folder), folder)
    return dict(json.loads(path.read_text()))


def distance(actual: list[list[float]], expected: list[list[float]]) -> float:
    a, b = (np.concatenate([np.asarray(w) for w in weights]) for weights in (actual, expected))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("backend", "workers"),
    [
        ("tensorflow", 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [("jax", 2), ("jax", 4), ("tf_keras", 2), ("tensorflow", 4)]
        ),
    ],
)
def test_workers_come_to_what_one_process_comes_to(
    backend: str, workers: int, tmp_path: Path
) -> None:
    with gang(tmp_path, allreduce(workers), backend, LOOPS[backend]) as tasks:
        tasks.start()
        tasks.finish()
        assert tasks.of("worker-0", "progress")[-1]["step"] == 12
        profile = tasks.of("worker-0", "profile")[0]["profile"]
    if backend == "tf_keras":  # MultiWorkerMirroredStrategy reads where nobody sees it
        assert profile["dataset"]["read_seconds_per_sample"] is None
        assert [
            note for note in profile["notes"] if "the time to read them was not measured" in note
        ]
    results, expected = (
        json.loads((tmp_path / "result.json").read_text()),
        alone(tmp_path, backend, LOOPS[backend]),
    )
    assert distance(results["weights"], expected["weights"]) < 1e-5
    assert results["losses"] == pytest.approx(expected["losses"], rel=1e-4)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_workers_of_legacy_keras_tell_each_metric_once(tmp_path: Path) -> None:
    script = SCRIPT.with_name("metrics.py")
    finish(run("tf_keras", [str(script), str(tmp_path)], tmp_path), tmp_path)
    expected = json.loads((tmp_path / "alone.json").read_text())
    command = [sys.executable, str(script), str(tmp_path)]
    with Gang(
        tmp_path, allreduce(2), command, {**QUIET, **VARIABLES["tf_keras"]}, warm=WARM["tf_keras"]
    ) as tasks:
        tasks.start()
        tasks.finish()
        messages = [tasks.of(name, "progress")[-1] for name in tasks.names]
        notes = [note["text"] for note in tasks.of("worker-0", "note")]
    kinds = {
        "sign_accuracy",
        "sign_auc",
        "sign_positives",
        "size_mse",
        "sign_loss",
        "size_loss",
        "loss",
    }
    for name in tasks.names:
        results = json.loads((tmp_path / f"{name}.json").read_text())
        for of_worker, alone in zip(results, expected, strict=True):
            for one, other in zip(
                of_worker["batches"] + of_worker["epochs"],
                alone["batches"] + alone["epochs"],
                strict=True,
            ):
                assert one == pytest.approx(other, rel=1e-4) and kinds <= one.keys()
    last = expected[-1]["epochs"][-2]
    for message in messages:
        assert message["metrics"] == pytest.approx(
            {k: v for k, v in last.items() if k != "loss"}, rel=1e-4
        )
    assert [note for note in notes if note.startswith("share: Keras adds up over the workers")]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kinds",
    [
        ["left_out"],
        # the same, and two that are told of
        pytest.param(["masked_steps", "one_number", "own_step"], marks=pytest.mark.long),
    ],
)
def test_entries_of_a_loss_weigh_alike_whatever_a_mask_leaves_of_a_worker_s_part(
    kinds: list[str], tmp_path: Path
) -> None:
    arguments = [str(SCRIPT.with_name("weighing.py")), str(tmp_path), *kinds]
    finish(run("tf_keras", arguments, tmp_path), tmp_path)
    command = [sys.executable, *arguments]
    with Gang(
        tmp_path, allreduce(2), command, {**QUIET, **VARIABLES["tf_keras"]}, warm=WARM["tf_keras"]
    ) as tasks:
        tasks.start()
        tasks.finish()
        notes = [note["text"] for note in tasks.of("worker-0", "note")]
    together, alone = (
        json.loads((tmp_path / f"{name}.json").read_text()) for name in ("worker-0", "alone")
    )
    for kind, expected in zip(together, alone, strict=True):
        assert distance(kind, expected) < 1e-5
    for kind, words in {
        "one_number": "the loss mean_of_labels gives one number",
        "own_step": "the model's own step computes its loss without",
    }.items():
        assert len([note for note in notes if note.startswith(words)]) == (kind in kinds)


GROWING = """
import headgate.keras as hg
import tensorflow as tf
import settings

strategy = hg.strategy()
BATCH = 64 * strategy.num_replicas_in_sync
print("a batch of", BATCH, settings.rate(strategy))
"""


@pytest.mark.timeout(600)
def test_a_batch_that_grows_with_the_workers_is_warned_of(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GROWING)
    (tmp_path / "settings.py").write_text(
        "def rate(of):\n    return 0.1 * of.num_replicas_in_sync\n"
    )
    command = [sys.executable, str(tmp_path / "train.py")]
    with Gang(
        tmp_path,
        allreduce(2),
        command,
        {**QUIET, **VARIABLES["tensorflow"]},
        warm=WARM["tensorflow"],
    ) as tasks:
        tasks.start()
        tasks.finish()
        assert "a batch of 128" in tasks.output("worker-0")
        notes = [note["text"] for note in tasks.of("worker-0", "note") if note.get("warns")]
        assert not tasks.of("worker-1", "note")
    assert [note.partition(" is 2 times")[0] for note in notes] == [
        "train.py, line 7: 64 * strategy.num_replicas_in_sync",
        "settings.py, line 2: 0.1 * of.num_replicas_in_sync",
    ]


@pytest.mark.timeout(900)
def test_workers_that_are_to_stop_do_so_at_the_same_step(tmp_path: Path) -> None:
    with gang(tmp_path, allreduce(2), "tensorflow", "loop", EPOCHS="1000000") as tasks:
        tasks.start()
        tasks.wait_for("worker-0", "progress", 2)
        for name in tasks.names:
            tasks.send(name, {"type": "stop"})
        tasks.finish()
        saved = tasks.of("worker-0", "checkpoint")
        assert [message["why"] for message in saved][-1] == "stop"
        assert tasks.of("worker-1", "checkpoint") == []
        assert (
            tasks.of("worker-0", "progress")[-1]["step"]
            == tasks.of("worker-1", "progress")[-1]["step"]
        )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["jax", "tf_keras"])
def test_workers_that_stop_within_an_epoch_go_on_in_it(backend: str, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    with gang(tmp_path / "first", allreduce(2), backend, "fit", ORDER_AT="6") as tasks:
        tasks.start()
        tasks.wait_for("worker-0", "waiting")
        for name in tasks.names:
            tasks.send(name, {"type": "stop"})
        tasks.finish()
        saved = tasks.of("worker-0", "checkpoint")[-1]
    assert (saved["why"], saved["epoch"], saved["step"]) == ("stop", 1, 4 + saved["position"])
    # the other may have begun a step that it waits in for this one
    assert saved["position"] in (2, 3)
    with gang(tmp_path, allreduce(2), backend, "fit", HEADGATE_RESUME=saved["path"]) as tasks:
        tasks.start()
        tasks.finish()
        assert tasks.of("worker-0", "progress")[0]["step"] > saved["step"]
        assert tasks.of("worker-0", "progress")[-1]["step"] == 12
    results, expected = (
        json.loads((tmp_path / "result.json").read_text()),
        alone(tmp_path, backend, "fit"),
    )
    assert distance(results["weights"], expected["weights"]) < 1e-5
    assert results["losses"] == pytest.approx(expected["losses"], rel=1e-4)


@pytest.mark.timeout(900)
def test_a_job_of_tensorflow_s_parameter_servers_learns_and_its_servers_end(tmp_path: Path) -> None:
    plan = Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None, synchronous=False)
    with gang(tmp_path, plan, "tensorflow", "servers") as tasks:
        tasks.start()
        assert tasks.left("worker-0") == 0, tasks.output("worker-0")
        tasks.finish()
        assert tasks.of("worker-0", "progress")[-1]["step"] == 6
        (note,) = [note["text"] for note in tasks.of("worker-0", "note") if note.get("warns")]
    assert (
        note.startswith("report(scheduled=...): found a RemoteValue")
        and "report value.fetch()" in note
    )
    losses = json.loads((tmp_path / "result.json").read_text())["losses"]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.timeout(600)
def test_a_loop_of_the_coordinator_trains_in_one_task_as_well(tmp_path: Path) -> None:
    results = alone(tmp_path, "tensorflow", "servers")
    assert len(results["losses"]) == 6
    assert results["losses"][-1] < 0.8 * results["losses"][0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "plan", "loop", "more", "reason"),
    [
        (
            "tensorflow",
            allreduce(2),
            "fit",
            {},
            "fit of Keras 3 fails with several workers of TensorFlow",
        ),
        pytest.param(
            "torch",
            allreduce(2),
            "fit",
            {},
            "Keras over torch trains in one task",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "tf_keras",
            Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None, synchronous=False),
            "fit",
            {},
            "with parameter servers, fit calls nothing after a batch",
            marks=pytest.mark.long,
        ),
        (
            "tensorflow",
            allreduce(2),
            "loop",
            {"TF_CONFIG": "{}", "WORLD_SIZE": "2"},
            "found TF_CONFIG={}, WORLD_SIZE=2 in the environment",
        ),
        (
            "tensorflow",
            Plan(strategy="ps", workers=2, servers=1, batch_per_worker=None),
            "servers",
            {},
            "allow it with --async",
        ),
    ],
    ids=["fit", "torch", "tf_keras", "TF_CONFIG", "synchronous"],
)
def test_what_does_not_work_is_refused_with_the_reason(
    backend: str, plan: Plan, loop: str, more: dict[str, str], reason: str, tmp_path: Path
) -> None:
    with gang(tmp_path, plan, backend, loop, **more) as tasks:
        # `fit` comes after all have met.
        tasks.start(*(tasks.names if loop == "fit" else ["worker-0"]))
        assert tasks.left("worker-0") == 1
        assert reason in tasks.output("worker-0")
