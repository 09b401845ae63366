"""Training scripts as tasks: told, saved, resumed, in each way in which JAX scripts are written."""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.jax import trainings
from tests.jax.conftest import Attempting
from tests.jax.trainings import EPOCHS, SAMPLES, STEPS_PER_EPOCH, batches

import headgate.jax as hg
from headgate.jax import joining
from headgate.jax.checkpoints import ResumeError
from headgate.model.profiles import Profile
from headgate.model.records import parse
from headgate.task import saving


def same(one: Any, other: Any) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in leaves)


@pytest.fixture(params=["orbax", "numpy"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of checkpoint: with Orbax installed, and as if it were not."""
    if request.param == "numpy":
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "orbax" else find(name)
        )
    return str(request.param)


@pytest.mark.parametrize(
    ("training", "kind"),
    [
        (trainings.plain, "orbax"),
        (trainings.plain, "numpy"),
        # What is written is the leaves of a tree, whatever made it.
        pytest.param(trainings.train_state, "orbax", marks=pytest.mark.long),
        pytest.param(trainings.train_state, "numpy", marks=pytest.mark.long),
        pytest.param(trainings.in_place, "orbax", marks=pytest.mark.long),
        pytest.param(trainings.in_place, "numpy", marks=pytest.mark.long),
    ],
    indirect=["kind"],
)
def test_what_was_stopped_in_an_epoch_goes_on_as_if_it_had_not_been(
    training: Callable[..., Any], attempt: Attempting, kind: str
) -> None:
    alone = training()
    stopped = attempt(training, order_at=4)
    assert stopped.result is None
    checkpoint = stopped.checkpoint
    assert (checkpoint["why"], checkpoint["step"], checkpoint["epoch"], checkpoint["position"]) == (
        "stop",
        4,
        0,
        4,
    )
    assert checkpoint["path"].endswith(".orbax" if kind == "orbax" else ".npz")
    resumed = attempt(training, resume=checkpoint["path"])
    assert same(resumed.result, alone)
    last = resumed.of("progress")[-1]
    assert (last["step"], last["epoch"]) == (EPOCHS * STEPS_PER_EPOCH, EPOCHS - 1)
    assert last["samples"] == EPOCHS * SAMPLES


def test_a_stream_is_read_up_to_where_it_was(attempt: Attempting) -> None:
    def training(at_step: trainings.AtStep) -> Any:
        return trainings.plain(at_step, passes=lambda known: hg.batches(batch for batch in known))

    stopped = attempt(training, order_at=STEPS_PER_EPOCH + 2)
    assert (stopped.checkpoint["epoch"], stopped.checkpoint["position"]) == (1, 2)
    assert same(attempt(training, resume=stopped.checkpoint["path"]).result, trainings.plain())


def test_a_checkpoint_is_saved_on_request_and_between_epochs_when_it_takes_little_time(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "SHARE", 1.0)
    ran = attempt(trainings.plain, "checkpoint", order_at=STEPS_PER_EPOCH + 3)
    saved = [(c["why"], c["epoch"], c["position"]) for c in ran.of("checkpoint")]
    assert saved == [("epoch", 1, 0), ("request", 1, 3), ("epoch", 2, 0), ("epoch", 3, 0)]
    folder = Path(ran.checkpoint["path"]).parent
    assert sorted(path.name for path in folder.iterdir()) == ["step-14.orbax", "step-21.orbax"]
    resumed = attempt(trainings.plain, resume=str(folder / "step-14.orbax"))
    assert same(resumed.result, ran.result)
    assert [
        note
        for note in attempt(trainings.plain, resume=str(folder / "step-21.orbax")).notes
        if "nothing is" in note
    ]


def test_a_script_that_divides_batches_itself_is_saved_at_the_end_of_the_epoch(
    attempt: Attempting,
) -> None:
    def training(at_step: trainings.AtStep) -> Any:
        return trainings.plain(at_step, passes=lambda known: (hg.shard(batch) for batch in known))

    ran = attempt(training, "checkpoint", order_at=3)
    assert [(c["why"], c["epoch"], c["position"]) for c in ran.of("checkpoint")] == [
        ("request", 1, 0)
    ]
    assert any("headgate.jax.batches" in note for note in ran.notes)
    stopped = attempt(training, order_at=3)
    assert (stopped.checkpoint["epoch"], stopped.checkpoint["position"]) == (0, None)
    assert same(attempt(training, resume=ran.checkpoint["path"]).result, ran.result)


def test_an_engine_that_is_gone_ends_the_script_with_a_checkpoint(attempt: Attempting) -> None:
    stopped = attempt(trainings.plain, "hang up", order_at=2)
    assert stopped.result is None
    assert stopped.of("checkpoint") == []  # nobody is left to be told


def test_the_state_after_the_last_report_is_what_is_saved(attempt: Attempting) -> None:
    """Steps that come after the last report of an epoch are not taken for saved."""

    def training(at_step: trainings.AtStep) -> Any:
        hg.init()
        params = hg.prepare(trainings.initial())
        for epoch in hg.epochs(2):
            for number, (features, targets) in enumerate(hg.batches(batches(epoch)), 1):
                gradients = jax.grad(trainings.loss_of)(params, features, targets)
                params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
                if number % 3 == 0:
                    hg.report(loss=1.0, state=params)
            at_step(epoch)
        return params

    ran = attempt(training, "checkpoint", order_at=0)
    assert [(c["epoch"], c["position"]) for c in ran.of("checkpoint")] == [(0, 6)]
    assert same(attempt(training, resume=ran.checkpoint["path"]).result, ran.result)


@pytest.mark.parametrize(
    ("state", "expected"),
    [(False, "reports no state to save"), (True, "was given the memory of the state")],
)
def test_a_state_that_is_not_at_hand_is_said_not_to_be_saved(
    state: bool, expected: str, attempt: Attempting
) -> None:
    def training(at_step: trainings.AtStep) -> Any:
        hg.init()
        params = hg.prepare(trainings.initial())
        if state:
            hg.report(loss=1.0, state=params)
            jax.tree.map(lambda leaf: leaf.delete(), params)  # as a donation does
        at_step(1)
        hg.report(loss=2.0)

    stopped = attempt(training, order_at=1)
    assert expected in stopped.of("checkpoint_failed")[-1]["error"]


def test_losses_are_told_when_they_are_there_and_never_waited_for(attempt: Attempting) -> None:
    class Slow:
        ready = False
        waited = False

        def is_ready(self) -> bool:
            return self.ready

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            self.waited = self.waited or not self.ready
            return np.array(3.0, dtype)

    slow = Slow()

    def training(at_step: trainings.AtStep) -> None:
        hg.init()
        hg.report(loss=1.0)
        for _ in range(50):
            hg.report(loss=slow)
        hg.report(accuracy=0.5)
        assert not slow.waited
        slow.ready = True

    messages = attempt(training).of("progress")
    assert sum(message["count"] for message in messages) == 51
    assert (
        sum(message["count"] * message["loss"] for message in messages if message["count"])
        == 1 + 50 * 3
    )
    assert (messages[-1]["step"], messages[-1]["metrics"]) == (51, {"accuracy": 0.5})


def test_a_step_is_told_that_is_part_of_a_state_which_is_gone(attempt: Attempting) -> None:
    def training(at_step: trainings.AtStep) -> None:
        hg.init()
        for number in (10, 20):
            step = jnp.int32(number)
            hg.report(loss=1.0, step=step)
            step.delete()  # as a donation does

    assert attempt(training).of("progress")[-1]["step"] == 20


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("number", [int, jnp.int32])
def test_steps_are_measured_one_by_one_however_seldom_they_are_reported(
    attempt: Attempting, every: int, number: Callable[[int], Any]
) -> None:
    began: list[float] = []

    def training(at_step: trainings.AtStep) -> None:
        hg.init()
        for _ in hg.epochs(1):
            for step in range(1, 10 * every + 1):
                time.sleep(0.002)  # what is measured
                if step % every == 0:
                    began.append(time.perf_counter())
                    hg.report(loss=1.0, step=number(step))

    spans = attempt(training).of("spans")
    whole = (began[-1] - began[0]) / (9 * every)
    assert len(spans) == 5
    assert 0.002 <= sum(message["seconds"] for message in spans) / 5 < 2 * whole


def test_a_loss_that_is_not_a_number_is_told_as_such(attempt: Attempting) -> None:
    def training(at_step: trainings.AtStep) -> None:
        hg.init()
        hg.report(loss=jnp.float32(math.nan), step=7, top="x")

    ran = attempt(training)
    progress = ran.of("progress")[-1]
    assert (progress["loss"], progress["step"], "metrics" in progress) == ("nan", 7, False)
    assert [note for note in ran.notes if note.startswith("report(top=...): found a str")]


def test_what_is_reported_while_jax_compiles_is_said_and_is_no_step(attempt: Attempting) -> None:
    def training(at_step: trainings.AtStep) -> None:
        hg.init()

        @jax.jit
        def step(value: Any) -> Any:
            hg.report(loss=value)
            return value * 2

        for _ in range(3):
            value = step(jnp.ones(()))
        hg.report(loss=value)
        gone = jnp.ones(())
        hg.report(loss=1.0, seen=gone)
        gone.delete()  # as a donation does
        hg.report(loss=2.0)

    ran = attempt(training)
    assert ran.of("progress")[-1]["step"] == 3
    assert [note for note in ran.notes if "inside of a function that is compiled" in note]
    assert [
        note
        for note in ran.notes
        if note.startswith("report(seen=...): found an ArrayImpl (Array has been delet")
    ]
    assert all(span["name"] == "step" for message in ran.of("spans") for span in message["spans"])


def test_a_job_s_costs_are_measured_in_its_own_first_steps(attempt: Attempting) -> None:
    ran = attempt(trainings.plain)
    assert [hello["framework"] for hello in ran.of("hello")] == ["jax"]
    (message,) = ran.of("profile")
    profile = parse(Profile, message["profile"])
    assert (profile.framework, profile.parameters_dense, profile.dense_bytes) == (
        "jax",
        6 * 12 + 12 * 2,
        4 * 96,
    )
    assert profile.dataset is not None
    assert (profile.dataset.samples, profile.dataset.bytes_per_sample, profile.batch) == (
        SAMPLES,
        4 * 8,
        8,
    )
    by_hand = 2 * (6 * 12 * 2 + 12 * 2 * 3)  # forward, backward of weights, and of the hidden layer
    assert profile.flops_per_sample is not None
    assert by_hand <= profile.flops_per_sample <= 4 * by_hand  # noise, tanh and update on top
    times = {time.batch: time for time in profile.step_times}
    assert 3 <= times[8].steps <= 17  # of these, those that had a core at once
    assert times[8].seconds > 0
    spans = ran.of("spans")
    assert len(spans) == 5  # steps 3 to 7
    for message in spans:
        names = [span["name"] for span in message["spans"]]
        assert names == ["input", "compute", "other"]
        assert math.isclose(sum(span["seconds"] for span in message["spans"]), message["seconds"])


def test_layers_and_optimizer_of_flax_models_are_seen(attempt: Attempting) -> None:
    profile = parse(Profile, attempt(trainings.in_place).of("profile")[0]["profile"])
    assert profile.layers == {"Linear": 2, "BatchNorm": 1, "Dropout": 1}
    assert (profile.optimizer, profile.parameters_dense) == ("Adam", 6 * 12 + 12 + 24 + 12 * 2 + 2)
    assert profile.optimizer_state_bytes is not None
    assert profile.optimizer_state_bytes >= 2 * 4 * 134
    state = parse(Profile, attempt(trainings.train_state).of("profile")[0]["profile"])
    assert (state.optimizer, state.parameters_dense) == ("Adam", 96)


def test_a_profile_alone_ends_the_script_once_it_is_measured(attempt: Attempting) -> None:
    ran = attempt(trainings.plain, HEADGATE_MODE="profile")
    assert ran.result is None
    assert [message["profile"]["source"] for message in ran.of("profile")] == ["profile"]
    assert ran.of("checkpoint") == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda params: {**params, "more": jnp.ones(2)}, "the checkpoint lacks 0\\['more'\\]"),
        (lambda params: {"in": params["in"]}, "the script has no 0\\['out'\\]"),
        (
            lambda params: {**params, "out": jnp.ones((12, 3))},
            r"float32\[12, 2\] in the checkpoint and float32\[12, 3\]",
        ),
        (lambda params: {**params, "out": params["out"].astype("bfloat16")}, "bfloat16"),
    ],
)
def test_a_checkpoint_that_does_not_fit_the_script_is_refused(
    change: Callable[[Any], Any], expected: str, attempt: Attempting
) -> None:
    def training(
        at_step: trainings.AtStep, change: Callable[[Any], Any] = lambda params: params
    ) -> None:
        hg.init()
        params = hg.prepare(change(trainings.initial()))
        at_step(1)
        hg.report(loss=1.0, state=params)

    path = attempt(training, order_at=1).checkpoint["path"]
    with pytest.raises(ResumeError, match=expected):
        attempt(lambda at_step: training(at_step, change), resume=path)


def of_other_types(at_step: trainings.AtStep = lambda step: None) -> Any:
    """A training whose state begins as what JAX makes something else of."""
    hg.init()
    rng = np.random.default_rng(3)
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=optax.constant_schedule(0.01))
    params = {"w": rng.normal(size=(6, 2)), "half": jnp.ones(2, "bfloat16"), "bias": np.zeros(2)}
    state: Any = {
        "params": params,
        "optimizer": optimizer.init(params),
        "seen": np.zeros((), np.int64),
        "step": 0,
        "scale": jnp.asarray(2.0),  # of a weak type, as is the next
        "weights": jnp.full(2, 1.0),
        "rate": 0.5,
        "becomes": np.zeros((), np.int32),
        "raw": jax.random.PRNGKey(1),
        "key": jax.random.key(2),
        "flag": np.True_,
        "complex": np.complex128(1j),
    }
    state = hg.prepare(state)

    @jax.jit
    def step(state: Any, features: Any, targets: Any) -> Any:
        def loss_of(params: Any) -> Any:
            return jnp.mean(
                (features @ params["w"] * params["half"] + params["bias"] - targets) ** 2
            )

        loss, gradients = jax.value_and_grad(loss_of)(state["params"])
        updates, changed = optimizer.update(gradients, state["optimizer"], state["params"])
        key, noise = jax.random.split(state["key"])
        return loss, {
            "params": optax.apply_updates(state["params"], updates),
            "optimizer": changed,
            "seen": state["seen"] + len(features),
            "step": state["step"] + 1,
            "scale": state["scale"] * 0.9,
            "weights": state["weights"] * 1.1,
            "rate": state["rate"]
            + (state["weights"] * jnp.ones(2, "bfloat16")).sum() * jax.random.uniform(noise),
            "becomes": state["becomes"] + 0.5,
            "raw": jax.random.split(state["raw"])[0],
            "key": key,
            "flag": ~state["flag"],
            "complex": state["complex"] * 1j,
        }

    number = 0
    for epoch in hg.epochs(EPOCHS):
        for features, targets in hg.batches(batches(epoch)):
            number += 1
            loss, state = step(state, features, targets)
            at_step(number)
            hg.report(loss=loss, state=state)
    return {**state, "key": jax.random.key_data(state["key"])}


def test_a_state_that_jax_makes_other_types_of_goes_on(attempt: Attempting, kind: str) -> None:
    alone = of_other_types()
    stopped = attempt(of_other_types, order_at=4)
    resumed = attempt(of_other_types, resume=stopped.checkpoint["path"]).result
    assert same(resumed, alone)
    for one, other in zip(jax.tree.leaves(resumed), jax.tree.leaves(alone), strict=True):
        assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)


def test_every_kind_of_leaf_comes_back_as_it_was(attempt: Attempting, kind: str) -> None:
    parts: dict[str, Any] = {
        "half": jnp.arange(3, dtype="bfloat16"),
        "scalar": jnp.array(0.5, "bfloat16"),
        "numpy": np.arange(4, dtype=np.float64) / 3,
        "step": 5,
        "rate": 0.1,
        "flag": True,
        "key": jax.random.split(jax.random.key(3)),
        "empty": jnp.zeros((0, 2)),
        "name": "kept as it is",
    }

    def training(at_step: trainings.AtStep) -> Any:
        hg.init()
        changed = (
            {**parts, "step": 6, "numpy": np.zeros(4)}
            if hg._door.session and hg._door.session._resume
            else parts
        )
        state = hg.prepare(changed)
        at_step(1)
        hg.report(loss=1.0, state=state)
        return state

    stopped = attempt(training, order_at=1)
    state = attempt(training, resume=stopped.checkpoint["path"]).result
    assert {name: type(leaf) for name, leaf in state.items()} == {
        name: type(leaf) for name, leaf in parts.items()
    }
    assert same(jax.random.key_data(state.pop("key")), jax.random.key_data(parts["key"]))
    assert state.pop("name") == parts["name"]
    for name, leaf in state.items():
        assert np.array_equal(np.asarray(leaf), np.asarray(parts[name])), name
        assert np.asarray(leaf).dtype == np.asarray(parts[name]).dtype, name


def test_a_checkpoint_that_is_none_is_refused(attempt: Attempting, tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(b"no archive")
    for path in (tmp_path / "x.npz", tmp_path / "missing.npz", tmp_path):
        with pytest.raises(ResumeError, match=r"is cut short|is gone|cannot be read"):
            attempt(trainings.plain, resume=str(path))


def test_a_disk_that_is_full_costs_a_message_and_what_was_there_stays(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ran = attempt(trainings.plain, "checkpoint", order_at=3)
    assert ran.result is not None
    assert "No space left" in ran.of("checkpoint_failed")[0]["error"]


def test_under_plain_python_everything_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hg._door, "is_joined", False)
    assert list(hg.epochs(3)) == [0, 1, 2]
    assert len(hg.epochs(3)) == 3
    batch = object()
    assert hg.shard(batch) is batch
    assert list(hg.batches([batch])) == [batch]
    assert len(hg.batches([batch])) == 1
    state = {"w": 1}
    assert hg.prepare(state) is state
    assert hg.prepare(state, batch) == (state, batch)
    hg.report(loss=0.5, state=state, accuracy=1)


def test_what_is_called_wrongly_is_said_so(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match="expected what is trained"):
        hg.prepare()

    def early(at_step: trainings.AtStep) -> None:
        hg.prepare(trainings.initial())

    with pytest.raises(RuntimeError, match=r"prepare\(\) before headgate.jax.init\(\)"):
        attempt(early)

    def other_form(at_step: trainings.AtStep) -> None:
        hg.init()
        params, _ = hg.prepare(trainings.initial(), 3)
        hg.report(loss=1.0, state=params)

    with pytest.raises(TypeError, match="expected what prepare"):
        attempt(other_form)

    def unprepared(at_step: trainings.AtStep) -> None:
        hg.init()
        hg.report(loss=1.0, state={})

    with pytest.raises(RuntimeError, match="before prepare"):
        attempt(unprepared)

    monkeypatch.undo()
    jax.devices()
    assert joining.begun()


def test_init_that_comes_too_late_says_so(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "begun", lambda: True)
    with pytest.raises(joining.JoinError, match="before anything that computes"):
        attempt(trainings.plain)


def test_plans_that_jax_cannot_run_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "begun", lambda: False)
    with pytest.raises(joining.JoinError, match="--strategy allreduce --workers 3"):
        joining.check({"strategy": "ps", "workers": 3, "servers": 1})


def test_threads_are_those_of_the_share_unless_the_user_set_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    joining.set_threads(3)
    assert joining.threads() == 3
    joining.set_threads(5)
    assert joining.threads() == 3
    monkeypatch.delenv("PJRT_NPROC")
    monkeypatch.setenv("NPROC", "2")
    joining.set_threads(5)
    assert joining.threads() == 2
