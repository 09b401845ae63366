"""`headgate verify`: real scripts, run alone and by workers, and what is said of them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.hub.user import User, speed, user

from headgate.client.verification_trial import Asked
from headgate.client.verifying import verify
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.verification.verdict import LeftOut, Sameness, Why

__all__ = ["speed", "user"]

TWO = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
SCRIPT = """
import sys, torch
import headgate.torch as hg
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
MODE = sys.argv[1]
x, y = torch.randn(96, 6), torch.randint(0, 3, (96,))
y[::3] = -1
model = torch.nn.Sequential(
    torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 3)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model, optimizer, loader = hg.prepare(model, optimizer, loader)
scale = torch.nn.Linear(6, 1)  # draws after prepare
if MODE == "hook":
    model[3].weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
if MODE == "outside":
    open(sys.argv[2], "w").write("overwritten")
average, steps = torch.zeros(()), 0
for epoch in hg.epochs(8):
    for features, classes in loader:
        scores = model(features)
        if MODE == "unlike":
            scores = scores / scores.std(0).detach()  # of a worker's own part
        loss = torch.nn.functional.cross_entropy(scores, classes, ignore_index=-1)
        if MODE == "hidden":
            average = 0.9 * average + loss.detach()
            loss = loss * (1 + average)
        loss.backward()
        steps += 1
        if MODE != "hidden" or steps % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        hg.report(loss=loss)
    with torch.no_grad():
        model.eval()
        model(x)
        model.train()
    torch.save(model.state_dict(), "model.pt")
"""


def verified(user: User, *words: str, code: int = 0) -> dict[str, Any]:
    """What it says of a script: more than one framework has to start for it, on whatever else this
    machine does.
    """
    words = ("verify", "--json", "train.py", *words)
    ended = subprocess.run(
        user.command(*words),
        cwd=user.folder,
        env=user.variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.long  # docs/verify.md has one
def test_a_right_script_is_the_same_and_its_files_stay_as_they_are(user: User) -> None:
    user.write("train.py", SCRIPT)
    user.write("model.pt", "trained for weeks")
    found = verified(user, "--workers", "2", "--steps", "14", "--", "right")
    assert found["answer"] == "same", found
    assert found["double"]
    assert found["steps"] == 14
    assert found["largest"] < 1e-12
    assert found["left_out"] == ["dropout"]
    assert (user.folder / "model.pt").read_text() == "trained for weeks"
    assert user.json("ps") == []
    assert not list((user.home / "verifying").iterdir())


@pytest.mark.slow
def test_a_wrong_one_differs_and_the_tensor_is_named(user: User) -> None:
    user.write("train.py", SCRIPT)
    found = verified(user, "--workers", "2", "--", "unlike", code=8)
    assert (found["answer"], found["cause"]) == ("differs", "loss")
    assert (found["difference"]["step"], found["difference"]["kind"]) == (1, "gradient")
    assert found["difference"]["tensors"]


@pytest.mark.long
def test_a_hook_that_is_not_linear_is_applied_to_the_gradient_of_all_workers(user: User) -> None:
    user.write("train.py", SCRIPT)
    assert verified(user, "--workers", "2", "--", "hook")["answer"] == "same"


@pytest.mark.long
def test_what_is_written_elsewhere_is_refused_and_named(user: User) -> None:
    user.write("train.py", SCRIPT)
    elsewhere = user.home.parent / "elsewhere.txt"
    elsewhere.write_text("kept")
    found = verified(user, "--workers", "2", "--", "outside", str(elsewhere), code=9)
    assert (found["answer"], found["cause"]) == ("unknown", "outside")
    assert found["detail"] == [str(elsewhere)]
    assert elsewhere.read_text() == "kept"


@pytest.mark.long
def test_one_that_needs_the_network_is_kept_from_it_and_told_so(user: User) -> None:
    reaching = "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{}'); scale ="
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as service:
        user.write("train.py", SCRIPT.replace("scale =", reaching.format(service.server_port)))
        found = verified(user, "--workers", "2", "--", "right", code=9)
        service.socket.settimeout(0.0)
        with pytest.raises(BlockingIOError):  # nobody has connected
            service.socket.accept()
    assert (found["answer"], found["cause"]) == ("unknown", "network")
    assert found["network"] == [f"127.0.0.1:{service.server_port}"]


OF_TORCHRUN = """
import sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 6), torch.randint(0, 3, (96,)))
model = torch.nn.Linear(6, 3)
if sys.argv[1] != "apart":
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = 16 // dist.get_world_size() if sys.argv[1] == "divides" else 16
loader = DataLoader(data, batch_size=batch, sampler=DistributedSampler(data))
for epoch in range(8):
    for features, classes in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(features), classes).backward()
        optimizer.step()
"""


@pytest.mark.long
def test_workers_of_torchrun_are_compared_with_each_other_or_with_one_alone(user: User) -> None:
    user.write("train.py", OF_TORCHRUN)
    found = verified(user, "--workers", "2", "--steps", "3", "--", "whole", code=9)
    assert (found["answer"], found["cause"], found["double"]) == ("unknown", "own-batch", True)
    found = verified(user, "--workers", "2", "--steps", "3", "--", "apart", code=8)
    assert (found["answer"], found["cause"]) == ("differs", "apart")
    found = verified(user, "--workers", "2", "--steps", "3", "--batch", "global", "--", "divides")
    assert (found["answer"], found["double"]) == ("same", True)


def test_one_for_a_launcher_of_another_framework_is_told_at_once(user: User) -> None:
    user.write("train.py", "import jax\njax.distributed.initialize()\n")
    found = verified(user, "--workers", "2", code=9)
    assert (found["answer"], found["cause"]) == ("unknown", "unseen")


@pytest.mark.long
def test_one_that_fails_without_the_gpus_of_its_job_is_told_so(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    user.write("train.py", SCRIPT.replace("scale =", "x = x.cuda(); scale ="))
    for name, value in user.variables.items():
        monkeypatch.setenv(name, value)
    job = Job(
        name="train",
        script=str(user.folder / "train.py"),
        args=("right",),
        workdir=str(user.folder),
    )
    asked = Asked(replace(job, plan=TWO), aside=True, without_gpus=True)
    found = verify(asked)
    assert (found.answer, found.cause) == (Sameness.UNKNOWN, Why.GPU)
    user.write("train.py", SCRIPT)
    found = verify(asked)
    assert (found.answer, found.left_out) == (Sameness.SAME, (LeftOut.DROPOUT, LeftOut.GPUS))


@pytest.mark.long
def test_a_resume_is_compared_with_a_run_that_was_not_stopped(user: User) -> None:
    user.write("train.py", SCRIPT)
    found = verified(user, "--resume", "--seed", "3", "--", "hidden", code=8)
    assert (found["answer"], found["cause"]) == ("differs", "resume")
    assert found["stopped_in"] in ("training", "accumulation", "validation", "epoch-end")
    assert found["left_out"] == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_script_that_keeps_all_resumes_the_same_wherever_it_is_stopped(
    user: User, seed: int
) -> None:
    user.write("train.py", SCRIPT)
    found = verified(user, "--resume", "--seed", str(seed), "--", "right")
    assert (found["answer"], found["largest"]) == ("same", 0.0)


@pytest.mark.long
def test_a_script_that_differs_from_itself_is_told_so(user: User) -> None:
    user.write(
        "train.py", SCRIPT.replace("scale =", "x *= 1 + __import__('time').time() % 1; scale =")
    )
    found = verified(user, "--workers", "2", "--", "right", code=9)
    assert (found["answer"], found["cause"]) == ("unknown", "varies")


JAX = """
import sys
import headgate.jax as hg
hg.init()
import jax, jax.numpy as jnp, numpy as np
draw = np.random.default_rng(0)
x, y = draw.normal(size=(64, 6)).astype("float32"), draw.integers(0, 3, 64)
params = {"w": jnp.asarray(draw.normal(size=(6, 3))), "b": jnp.zeros(3)}


def loss_of(params, features, classes):
    scores = jax.nn.log_softmax(features @ params["w"] + params["b"])
    return -jnp.take_along_axis(scores, classes[:, None], 1).mean()


params = hg.prepare(params)
for epoch in hg.epochs(3):
    for features, classes in hg.batches([(x[i : i + 8], y[i : i + 8]) for i in range(0, 64, 8)]):
        loss, gradients = jax.value_and_grad(loss_of)(params, features, classes)
        params = jax.tree.map(lambda value, gradient: value - 0.1 * gradient, params, gradients)
        if sys.argv[1] == "apart":
            params["b"] = params["b"] + 0.01 * hg.rank()
        hg.report(loss=loss, state=params)
"""


@pytest.mark.long
def test_a_jax_script_is_verified_by_the_state_that_it_reports(user: User) -> None:
    user.write("train.py", JAX)
    assert verified(user, "--workers", "2", "--", "right")["answer"] == "same"
    found = verified(user, "--workers", "2", "--", "apart", code=8)
    assert (found["answer"], found["cause"]) == ("differs", "apart")
    assert found["difference"]["tensors"] == ["0['b']"]


KERAS = """
import numpy as np
import headgate.keras as hg
strategy = hg.strategy()
import keras
keras.utils.set_random_seed(1)
x, y = np.random.normal(size=(64, 6)).astype("float32"), np.random.randint(0, 3, 64)
with strategy.scope():
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model = hg.prepare(model)
model.fit(x, y, batch_size=8, epochs=3, verbose=0)
"""


@pytest.mark.long
def test_a_keras_script_is_verified_by_its_variables(user: User) -> None:
    user.write("train.py", KERAS)
    user.variables["KERAS_BACKEND"] = "jax"
    found = verified(user, "--workers", "2")
    assert (found["answer"], found["double"]) == ("same", True)
