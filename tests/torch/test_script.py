"""Scripts of the kinds that people write, in processes of their own or as tasks of this one."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg
from headgate.task import progress
from headgate.torch import request_timing

Step = Callable[[int], None]
Attempting = Callable[..., Any]
Start = Callable[..., Any]

USUAL = """
dataset = data()
readers = int(sys.argv[1]) if sys.argv[1:] else 0
loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=readers)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=36)
model, optimizer, loader = hg.prepare(model, optimizer, loader, scheduler=scheduler)
for epoch in hg.epochs(3):
    for number, (features, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
        scheduler.step()
        if sys.argv[2:] and epoch == 1 and number == 4:
            await_order()
fingerprint(model)
"""


@pytest.mark.long
def test_a_script_is_the_same_under_an_engine_stopped_and_resumed_as_under_plain_python(
    start: Start, plain: Callable[..., str]
) -> None:
    expected = plain(USUAL)
    assert start(USUAL).finish() == expected
    stopped = start(USUAL, "2", "wait")
    stopped.listener.wait_for("waiting", seconds=60)
    stopped.listener.send({"type": "stop"})
    assert stopped.finish() == ""
    (saved,) = stopped.listener.wait_for("checkpoint")
    assert (saved["why"], saved["epoch"], saved["position"], saved["step"]) == ("stop", 1, 5, 17)
    resumed = start(USUAL, "2", resume=saved["path"])
    assert resumed.finish() == expected
    assert resumed.listener.of("progress")[-1]["samples"] == 3 * 96


def test_a_script_whose_hub_dies_saves_and_ends(start: Start) -> None:
    script = start(USUAL, "0", "wait")
    script.listener.wait_for("waiting", seconds=60)
    script.listener.hang_up()
    assert script.finish() == ""
    assert [path.name for path in script.listener.checkpoints.iterdir()] == ["step-17.pt"]


def test_a_hub_that_is_not_there_changes_nothing(
    start: Start, plain: Callable[..., str], tmp_path: Path
) -> None:
    nobody = start(USUAL, HEADGATE_CHANNEL=f"unix:{tmp_path / 'nobody'}")
    nobody.listener.close()  # to which it does not connect
    assert nobody.finish() == plain(USUAL)


FULL_DISK = """
import resource
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = hg.prepare(model, optimizer, DataLoader(data(), batch_size=8))
for epoch in hg.epochs(2):
    for number, (features, labels) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        hg.report(loss=loss)
        loss.backward()
        optimizer.step()
        if epoch == 0 and number == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
            await_order()
        if epoch == 1 and number == 4:
            unlimited = resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
            await_order()
print("trained on")
"""


def test_a_checkpoint_that_cannot_be_written_is_told_and_training_goes_on(start: Start) -> None:
    script = start(FULL_DISK)
    script.listener.wait_for("waiting", seconds=60)
    script.listener.send({"type": "checkpoint"})
    (failed,) = script.listener.wait_for("checkpoint_failed")
    assert "step-5.pt could not be written: [Errno 27] File too large" in failed["error"]
    assert list(script.listener.checkpoints.iterdir()) == []
    script.listener.wait_for("waiting", 2)
    script.listener.send({"type": "checkpoint"})
    assert script.finish() == "trained on\n"
    assert script.listener.wait_for("checkpoint")[0]["step"] == 17


COMPILED = """
torch._dynamo.config.error_on_recompile = False
compiles = sys.argv[1] == "compiled"
model = network()
keys = list(model.state_dict())
trained = torch.compile(model) if compiles else model
optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
loader = DataLoader(data(), batch_size=8, shuffle=True)
trained, optimizer, loader = hg.prepare(trained, optimizer, loader)
for epoch in hg.epochs(5):
    for features, labels in loader:
        loss = nn.functional.cross_entropy(trained(features), labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        hg.report(loss=loss)
    if compiles and epoch == 2:
        await_order()
assert list(model.state_dict()) == keys
print("frames", torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.long
def test_a_compiled_model_is_measured_without_recompiling_and_resumes_uncompiled(
    start: Start,
) -> None:
    script = start(COMPILED, "compiled")
    script.listener.wait_for("waiting", seconds=100)
    script.listener.send({"type": "checkpoint"})
    assert script.finish(100) == "frames 1\n"
    names = [span["name"] for span in script.listener.of("spans")[0]["spans"]]
    assert names == ["input", "forward", "backward", "optimizer", "other"]
    profile = script.profile()
    assert profile["flops_per_sample"] is None
    assert "torch.compile hides the operators" in profile["notes"][0]
    (saved,) = [m for m in script.listener.of("checkpoint") if m["why"] == "request"]
    keys = torch.load(saved["path"], weights_only=True)["models"][0].keys()
    assert not any("_orig_mod" in key for key in keys)
    assert start(COMPILED, "plain", resume=saved["path"]).finish() == "frames 0\n"


def tiny(samples: int = 40) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    model = nn.Linear(4, 2)
    data = TensorDataset(torch.randn(samples, 4), torch.randint(0, 2, (samples,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=8)


def test_threads_follow_the_engine_at_a_step_boundary(attempt: Attempting) -> None:
    seen = []

    def training(at_step: Step) -> None:
        model, optimizer, loader = hg.prepare(*tiny())
        for _epoch in hg.epochs(1):
            for step, (features, labels) in enumerate(loader, 1):
                seen.append(torch.get_num_threads())
                loss = nn.functional.cross_entropy(model(features), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                hg.report(loss=loss)
                at_step(step)

    attempt(training, order={"type": "threads", "threads": 2}, order_at=3)
    assert seen == [1, 1, 1, 2, 2]


def test_without_a_prepared_loader_a_stop_is_obeyed_at_the_next_report(attempt: Attempting) -> None:
    steps = []

    def training(at_step: Step) -> None:
        model, optimizer, loader = tiny()
        model, optimizer = hg.prepare(model, optimizer)
        for _epoch in hg.epochs(2):
            for step, (features, labels) in enumerate(loader, 1):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                steps.append(step)
                at_step(step)
                hg.report()

    done = attempt(training, order_at=3)
    assert steps == [1, 2, 3]
    assert (done.checkpoint["step"], done.checkpoint["position"]) == (3, None)
    steps.clear()
    asked = attempt(training, order="checkpoint", order_at=3)
    first = asked.of("checkpoint")[0]
    assert (first["why"], first["epoch"], first["position"]) == ("request", 1, 0)
    assert "no loader was prepared" in asked.of("note")[0]["text"]


def test_a_stop_in_a_long_validation_does_not_wait_for_its_end(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_timing, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(request_timing, "NEAR_SECONDS", 0.0)
    validated = []

    def training(at_step: Step) -> None:
        model, optimizer, loader = tiny()
        validation = tiny(400)[2]
        model, optimizer, loader, validation = hg.prepare(model, optimizer, loader, validation)
        for _epoch in hg.epochs(2):
            for features, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for number, _ in enumerate(validation):
                validated.append(number)
                at_step(number)

    done = attempt(training, order_at=7)
    assert len(validated) == 8
    assert (done.checkpoint["step"], done.checkpoint["position"]) == (4, 4)


@pytest.mark.parametrize(("accumulates", "place"), [(False, (2, 1, 1)), (True, (2, 2, 0))])
def test_a_stop_in_the_only_step_of_an_epoch_waits_for_its_end(
    accumulates: bool,
    place: tuple[int, int, int],
    attempt: Attempting,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_timing, "PATIENCE_SECONDS", 0.0)

    def training(at_step: Step) -> None:
        model, optimizer, _ = tiny()
        data = TensorDataset(torch.randn(24, 4), torch.randint(0, 2, (24,)))
        loader = DataLoader(data, batch_size=8 if accumulates else 24)
        model, optimizer, loader = hg.prepare(model, optimizer, loader)
        for epoch in hg.epochs(4):
            optimizer.zero_grad()
            for features, labels in loader:
                nn.functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
                if epoch == 1:
                    at_step(1)
                if not accumulates:
                    optimizer.step()
                    hg.report(loss=1.0)
            if accumulates:
                optimizer.step()

    done = attempt(training, order_at=1)
    assert (done.checkpoint["step"], done.checkpoint["epoch"], done.checkpoint["position"]) == place


def test_reports_of_every_kind_are_taken_and_none_raises(
    attempt: Attempting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY_SECONDS", 1000.0)  # all but the first go at the end

    def training(at_step: Step) -> None:
        hg.report(loss=torch.tensor([1.0, 3.0], requires_grad=True), accuracy=torch.tensor(0.5))
        hg.report(accuracy=0.97)
        hg.report(loss=2, step=77)
        hg.report(loss="three", words="many")
        hg.report()

    ran = attempt(training)
    first, rest = ran.of("progress")
    assert first == {
        "type": "progress",
        "step": 1,
        "count": 1,
        "loss": 2.0,
        "metrics": {"accuracy": 0.5},
    }
    assert rest == {
        "type": "progress",
        "step": 5,
        "count": 1,
        "loss": 2.0,
        "metrics": {"accuracy": 0.97},
    }
    assert [message["text"] for message in ran.of("note")] == [
        "report(loss=...): found 2 elements, whose mean is taken; report one number",
        (
            "report(loss=...): found a str (could not convert string to float: 'three'); report "
            "a number; it is left out"
        ),
        (
            "report(words=...): found a str (could not convert string to float: 'many'); report "
            "a number; it is left out"
        ),
    ]


def test_a_nan_loss_reaches_the_engine(attempt: Attempting) -> None:
    def training(at_step: Step) -> None:
        for _ in range(5):
            hg.report(loss=torch.tensor(math.nan))

    assert {message["loss"] for message in attempt(training).of("progress")} == {"nan"}


def test_a_state_that_cannot_be_stored_safely_is_told(attempt: Attempting) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"clock": time.sleep}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def training(at_step: Step) -> str:
        model, optimizer, loader = hg.prepare(*tiny())
        hg.keep(odd=Odd())
        for _epoch in hg.epochs(1):
            for step, (features, labels) in enumerate(loader):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                at_step(step)
        return "done"

    done = attempt(training, order="checkpoint", order_at=2)
    assert done.result == "done"
    assert done.of("checkpoint_failed")[0]["error"].startswith(
        "kept['odd']['clock'] is a builtins.builtin_function"
    )


def test_the_users_own_objects_come_back(attempt: Attempting) -> None:
    class Loader(DataLoader[Any]):
        purpose = "training"

    def training(at_step: Step) -> None:
        model, optimizer, _ = tiny()
        loader = Loader(TensorDataset(torch.randn(40, 4)), batch_size=8, shuffle=True)
        generated = (batch for batch in range(3))
        back = hg.prepare(model, optimizer, loader, generated, [1, 2])
        assert back[:3] == (model, optimizer, loader)
        assert isinstance(back[2], Loader)
        assert (type(back[2]).__name__, back[2].purpose, back[2].batch_size, len(back[2])) == (
            "Loader",
            "training",
            8,
            5,
        )
        assert len(list(back[2])) == 5
        assert list(back[3]) == [0, 1, 2]
        assert (list(back[4]), len(back[4]), back[4][1]) == ([1, 2], 2, 2)
        assert hg.prepare(model) is model
        assert hg.prepare(model, None, loader)[2] is loader
        assert len(hg.epochs(4)) == 4

    attempt(training)


@pytest.mark.parametrize("engine", [True, False], ids=["under an engine", "under plain python"])
def test_arguments_in_the_wrong_place_are_named(engine: bool, attempt: Attempting) -> None:
    model, _, loader = tiny()
    wrong: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: hg.prepare([model]), TypeError, ("found a list; expected a torch.nn.Module")),  # type: ignore[arg-type]
        (
            lambda: hg.prepare(model, loader),
            TypeError,
            "expected an optimizer, or None before the loaders",
        ),
        (
            lambda: hg.prepare(model, None, 5),
            TypeError,
            "found a int, which cannot be iterated over",
        ),
        (lambda: hg.prepare(model, loss_reduction="max"), ValueError, "expected 'mean' or 'sum'"),
        (lambda: hg.keep(scaler=5), TypeError, "a int has no state_dict"),
    ]
    for call, kind, message in wrong:
        with pytest.raises(kind, match=message):
            attempt(lambda at_step, call=call: call()) if engine else call()


@pytest.mark.long
def test_importing_adds_little_to_importing_torch() -> None:
    script = (
        "import time; begun = time.process_time(); import torch; theirs = time.process_time() - "
        "begun; import headgate.torch; print((time.process_time() - begun - theirs) / theirs)"
    )
    source = str(Path(__file__).parents[2] / "src")
    runs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": source},
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(3)
    ]
    assert min(float(run.stdout) for run in runs) < 0.03
