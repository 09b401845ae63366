"""`fit` of a prepared model: what plain python comes to, told, saved and resumed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.keras.conftest import VARIABLES, Plain, Start

from headgate.keras.backends import ApartReads
from headgate.keras.fitting import Fitting

BACKENDS = list(VARIABLES)
STEPS_AN_EPOCH = 5
RESULTS = ("before", "losses", "accuracies", "epochs", "weights")


def results(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith(RESULTS)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "backend",
    [
        name if name == "tensorflow" else pytest.param(name, marks=pytest.mark.long)
        for name in BACKENDS
    ],
)
def test_what_plain_python_comes_to_is_trained_told_and_measured(
    backend: str, start: Start, plain: Plain
) -> None:
    script = start(backend, "4")
    assert results(script.finish()) == results(plain(backend))
    engine = script.listener
    assert engine.of("hello")[0]["framework"] == "keras" and engine.of("hello")[0]["seed"] == 3
    last = engine.of("progress")[-1]
    assert (last["step"], last["epoch"], last["epochs"], last["samples"]) == (20, 3, 4, 4 * 70)
    losses, accuracies = (
        [float(value) for value in line.split()[1:]] for line in results(plain(backend))[:2]
    )
    epochs = [message for message in engine.of("progress") if message.get("covers") == "epoch"]
    # Keras' own, not means of them
    assert [message["loss"] for message in epochs] == pytest.approx(losses, rel=1e-6)
    assert [message["metrics"]["accuracy"] for message in epochs] == pytest.approx(
        accuracies, rel=1e-6
    )
    assert all("loss" not in message or "covers" in message for message in engine.of("progress"))
    (stopping,) = engine.of("stopping")
    assert (stopping["patience"], stopping["min_delta"], stopping["monitor"]) == (9, 0.001, "loss")
    spans = engine.of("spans")
    assert spans and all(
        {"input", "compute"} <= {span["name"] for span in message["spans"]} for message in spans
    )
    profile = engine.of("profile")[0]["profile"]
    assert profile["alone"].startswith(
        "Keras over torch" if backend == "torch" else "its script does not call "
    )
    assert profile["parameters_dense"] == 5 * 12 + 12 + 24 + 12 * 3 + 3
    dropout = {} if backend == "tf_keras" else {"Dropout": 1}
    assert profile["layers"] == {"Dense": 2, "BatchNormalization": 1, **dropout}
    assert profile["flops_per_sample_forward"] >= 2 * (5 * 12 + 12 * 3), profile["notes"]
    assert profile["flops_per_sample"] > 1.5 * profile["flops_per_sample_forward"]
    assert profile["dataset"]["samples"] == 70 and profile["dataset"]["bytes_per_sample"] in (
        24,
        28,
    )
    assert profile["batch"] == 16 and profile["optimizer"] == "Adam"
    assert profile["optimizer_state_bytes"] >= 2 * 4 * profile["parameters_dense"]
    assert profile["step_times"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_of_steps_that_keras_does_at_once_each_counts_with_its_samples(start: Start) -> None:
    script = start("jax", "4", "several")
    script.finish()
    last = script.listener.of("progress")[-1]
    assert (last["step"], last["samples"]) == (4 * STEPS_AN_EPOCH, 4 * 70)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "step", "data"),
    [
        pytest.param("tensorflow", 12, (), marks=pytest.mark.long),
        *(
            pytest.param("tensorflow", 12, (data,), marks=pytest.mark.long)
            for data in ("unknown", "endless")
        ),
        pytest.param("tf_keras", 10, (), marks=pytest.mark.long),
        *(
            pytest.param("tf_keras", 12, data, marks=pytest.mark.long)
            for data in ((), ("pipeline",), ("endless",))
        ),
        pytest.param("jax", 12, ("pipeline",), marks=pytest.mark.long),
        # the next test has one, and more
        pytest.param("tensorflow", 12, ("pipeline",), marks=pytest.mark.long),
        pytest.param("jax", 12, (), marks=pytest.mark.long),
        pytest.param("jax", 10, (), marks=pytest.mark.long),
        pytest.param("torch", 12, (), marks=pytest.mark.long),
    ],
)
def test_a_stop_and_a_resume_change_nothing(
    backend: str, step: int, data: tuple[str, ...], start: Start, plain: Plain
) -> None:
    stopped = start(backend, f"4@{step}", *data)
    stopped.listener.wait_for("waiting", seconds=200)
    stopped.listener.send({"type": "stop"})
    assert results(stopped.finish()) == []
    saved = stopped.checkpoint()
    assert (saved["step"], saved["epoch"], saved["position"], saved["why"]) == (
        step,
        step // STEPS_AN_EPOCH,
        step % STEPS_AN_EPOCH,
        "stop",
    )
    resumed = start(backend, "4", *data, resume=saved["path"])
    assert results(resumed.finish()) == results(plain(backend, *data))
    assert resumed.listener.of("progress")[-1]["step"] == 20


@pytest.mark.long  # that a stop and a resume change nothing is seen in test_script
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resume_gives_back_the_history_of_each_fit(
    backend: str, start: Start, plain: Plain
) -> None:
    data = ("twice", "pipeline") if backend == "tensorflow" else ("twice",)
    stopped = start(backend, "4@7", *data)
    stopped.listener.wait_for("waiting", seconds=200)
    stopped.listener.send({"type": "stop"})
    (before,) = results(stopped.finish())
    saved = stopped.checkpoint()
    assert (saved["step"], saved["epoch"], saved["position"]) == (17, 3, 2)
    expected = results(plain(backend, *data))
    assert before == expected[0] and "[0, 1]" in before and "val_accuracy" in before
    assert results(start(backend, "4", *data, resume=saved["path"]).finish()) == expected


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_a_pipeline_takes_to_read_a_sample_is_in_the_profile(start: Start) -> None:
    script = start("tensorflow", "2", "pipeline", "slow")
    script.finish()
    dataset = script.listener.of("profile")[0]["profile"]["dataset"]
    assert dataset["samples"] == 5 * 16  # of five batches, of which the last is smaller
    # 0.01, without what is read while a step computes
    assert 0.003 < dataset["read_seconds_per_sample"] < 0.1


@pytest.mark.long  # what a profile tells stands in the first test
@pytest.mark.timeout(600)
def test_a_profile_times_parts_of_batches_and_ends_the_script(start: Start) -> None:
    script = start("tensorflow", "1000", mode="profile")
    assert results(script.finish()) == []
    profile = script.listener.of("profile")[0]["profile"]
    assert {time["batch"] for time in profile["step_times"]} >= {2, 4, 8, 16}
    assert profile["fits"][0]["alpha_seconds"] >= 0 and profile["source"] == "profile"
    assert script.listener.of("checkpoint") == []


@pytest.mark.timeout(600)
@pytest.mark.long
def test_what_was_saved_over_one_back_end_resumes_over_another(start: Start) -> None:
    stopped = start("tensorflow", "4@12")
    stopped.listener.wait_for("waiting", seconds=200)
    stopped.listener.send({"type": "stop"})
    stopped.finish()
    resumed = start("torch", "4", resume=stopped.checkpoint()["path"])
    assert (
        len(next(line for line in results(resumed.finish()) if line.startswith("losses")).split())
        == 5
    )


ODD = """
import concurrent.futures
import tensorflow as tf
import headgate.keras as hg

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
model = tf.Module()
model.weight = tf.Variable(1.0)
model = hg.prepare(model)

@tf.function
def inside(value):
    hg.report(loss=value)
    return value

for epoch in hg.epochs(5):
    inside(tf.constant(1.0))
    replica = lambda: tf.distribute.get_replica_context().replica_id_in_sync_group
    shares = strategy.run(lambda: tf.cast(replica(), "float32"))
    hg.report(loss=shares, later=concurrent.futures.Future(), both=tf.constant([1.0, 3.0]))
hg.report(loss=strategy.reduce("MEAN", shares, axis=None))
"""


@pytest.mark.long
def test_what_is_no_number_is_said_and_of_a_loop_no_more_is_told_than_was_measured(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "odd.py").write_text(ODD)
    script = start("tensorflow", script=tmp_path / "odd.py")
    script.finish()
    notes = sorted(
        message["text"] for message in script.listener.of("note") if message.get("warns")
    )
    messages = script.listener.of("progress")
    assert [note.partition(",")[0] for note in notes[:2]] == [
        "report(both=...): found 2 elements",
        "report(later=...): found a Future",
    ]
    assert (
        "found a PerReplica: it has a value for each replica; report strategy.reduce(" in notes[2]
    )
    assert "found a SymbolicTensor inside of a function that is compiled" in notes[3]
    assert messages[-1]["step"] == 6  # those inside of the function are none
    assert {message["loss"] for message in messages if "loss" in message} == {0.5}
    assert all(message["metrics"] == {"both": 2.0} for message in messages if "metrics" in message)
    spans = [span["name"] for message in script.listener.of("spans") for span in message["spans"]]
    assert spans and set(spans) == {"step"}


@pytest.mark.long
def test_patience_is_told_where_it_changes_and_taken_back_where_there_is_none(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "several.py"
    path.write_text(
        "import keras, numpy\n"
        "import headgate.keras as hg\n"
        "model = keras.Sequential([keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "model = hg.prepare(model)\n"
        "for patiences in ((), (7, 3), (3,), (), (), (5,)):\n"
        "    stopping = [keras.callbacks.EarlyStopping('loss', patience=each) for each in "
        "patiences]\n"
        "    model.fit(numpy.zeros((4, 2)), numpy.zeros((4, 1)), verbose=0, callbacks=stopping)\n"
        "for epoch in hg.epochs(1):\n"
        "    hg.report(loss=1.0)\n"
        "tell = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: "
        "hg.report(loss=2.0, own=3.0))\n"
        "model.fit(numpy.zeros((4, 2)), numpy.zeros((4, 1)), epochs=3, verbose=0, "
        "callbacks=[tell])\n"
    )
    script = start("tensorflow", script=path)
    script.finish()
    assert [message["patience"] for message in script.listener.of("stopping")] == [
        None,
        3,
        None,
        5,
        None,
    ]
    messages = script.listener.of("progress")
    assert messages[-1]["step"] == 6 + 1 + 3  # what is reported beside a fit is no step
    assert any(message.get("metrics") == {"own": 3.0} for message in messages)


def test_a_fit_that_steps_another_optimizer_than_was_prepared_is_refused() -> None:
    compiled, prepared = SimpleNamespace(), SimpleNamespace()
    model: Any = SimpleNamespace(optimizer=compiled, fit=lambda: "trained")
    with pytest.raises(
        ValueError,
        match=r"but fit steps the optimizer of the compiled model.*; call prepare\(model\)",
    ):
        Fitting(model, cast(Any, None), 0, prepared).fit()


def test_no_measured_read_of_a_pipeline_follows_another() -> None:
    apart = ApartReads()
    always = [True, True, *[False] * 6]
    measured = [True] * 6 + [False, True]
    assert [apart.takes(*step) for step in zip(measured, always)] == [
        *(True, True, False, True, False, True, False, True)
    ]
