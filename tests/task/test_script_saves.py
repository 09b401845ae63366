"""Checkpoints of scripts' own: which files are whole."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import h5py
import pytest

from headgate.engines.launch import inject, observation
from headgate.task.script_saves import damage, later_beside

SOURCE = Path(__file__).parents[2] / "src"


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data.pkl", b"state" * 100)


def tensors(path: Path) -> None:
    listed = json.dumps({"w": {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]}}).encode()
    path.write_bytes(struct.pack("<Q", len(listed)) + listed + bytes(256))


def weights(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("w", data=list(range(1000)))


def newer_weights(path: Path) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("w", data=list(range(1000)))


def state(path: Path) -> None:
    path.write_text(json.dumps({"global_step": 500, "log_history": list(range(100))}))


MAKE = {
    "model.pt": archive,
    "model.safetensors": tensors,
    "model.weights.h5": weights,
    "newer.h5": newer_weights,
    "trainer_state.json": state,
}


@pytest.mark.parametrize("name", MAKE)
def test_a_file_that_is_cut_short_is_not_whole(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    MAKE[name](path)
    assert damage(str(path)) is None
    path.write_bytes(path.read_bytes()[:-10])
    assert damage(str(path)) == "is cut short"


def test_a_folder_is_whole_if_all_its_files_are(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-500"
    assert damage(str(folder)) == "is gone"
    folder.mkdir()
    assert damage(str(folder)) == "is empty"
    for name, make in MAKE.items():
        make(folder / name)
    assert damage(str(folder)) is None
    (folder / "model.pt").write_bytes(b"PK\x03\x04")
    assert damage(str(folder)) == "is damaged: model.pt is cut short"


def test_what_orbax_has_not_finished_is_not_whole(tmp_path: Path) -> None:
    item = tmp_path / "3" / "default.orbax-checkpoint-tmp"
    item.mkdir(parents=True)
    state(item / "part.json")
    assert damage(str(tmp_path / "3")) == "was not finished"


def test_a_later_checkpoint_beside_the_newest_whole_one_is_found(tmp_path: Path) -> None:
    whole = tmp_path / "checkpoint-90"
    for name in ("checkpoint-90", "checkpoint-80", "runs-100", "last"):
        (tmp_path / name).mkdir()
    assert later_beside(str(whole)) is None
    (tmp_path / "checkpoint-100").mkdir()
    assert later_beside(str(whole)) == str(tmp_path / "checkpoint-100")
    assert later_beside(str(tmp_path / "last")) is None


STATES = """
import torch

model = torch.nn.Linear(4, 1)
state = model.state_dict()
torch.save({"model": state, "step": 3}, "model.pt")
torch.save(dict(state), "copied.pt")
torch.save({"state": {"net": state}}, "deep.pt")
torch.save({"w": torch.ones(2, requires_grad=True)}, "leaf.pt")
torch.save(model, "whole.pt")
with open("file.pt", "wb") as file:
    torch.save(state, file)
torch.save({"loss": torch.ones(9), "meta": {"lr": 0.1}, "pairs": {"x": torch.ones(2)}}, "curve.pt")
torch.save(torch.ones(9), "features.pt")
"""


def test_results_are_no_checkpoints(tmp_path: Path) -> None:
    saved = {path for path, begins in run(STATES, tmp_path, **observing(tmp_path)) if not begins}
    assert saved == {"model.pt", "copied.pt", "deep.pt", "leaf.pt", "whole.pt", "file.pt"}


SCRIPT = """
from headgate.task.script_saves import SaveWatcher

watcher = SaveWatcher()
watcher.open()

def save(path, outer=lambda: None):
    outer()
    open(path, "w").write("state")

saves = watcher.around(save, lambda path, *_: path)
saves("first.pt")
saves("first.pt")
saves("new.tmp")
os.replace("new.tmp", "new.pt")
open("other.tmp", "w").close()
os.replace("other.tmp", "other.txt")
saves("whole.pt", lambda: saves("part.pt"))
for step in (10, 20):
    os.makedirs(f"out/checkpoint-{step}")
    saves(f"out/checkpoint-{step}/model.bin")
    saves(f"out/checkpoint-{step}/optimizer.pt")

def fails():
    raise OSError("the disk is full")

os.makedirs("out/checkpoint-30")
saves("out/checkpoint-30/model.bin")
for path in ("out/checkpoint-30/optimizer.pt", "failed.pt"):
    try:
        saves(path, fails)
    except OSError:
        pass
saves("out/checkpoint-30/scheduler.pt")
watcher.around(lambda file: None, lambda file: file)(open("opened.pt", "w"))
watcher.around(lambda file: None, lambda file: file)("s3://bucket/last.pt")
watcher.around(lambda file: None, lambda file: file)("memory://last.pt")
watcher.around(lambda file: None, lambda file: file)(__import__("io").BytesIO())
"""
REPORTED = [
    ("first.pt", False),
    ("first.pt", True),
    ("first.pt", False),
    ("new.tmp", False),
    ("new.pt", False),
    ("whole.pt", False),
    ("out/checkpoint-10", False),
    ("out/checkpoint-20", False),
    ("checkpoint-30: the disk is full", None),
    ("failed.pt: the disk is full", None),
    ("out/checkpoint-30", True),
    ("opened.pt", True),
    ("opened.pt", False),
    ("s3://bucket/last.pt", False),
]


KERAS = """
import sys

sys.modules["sklearn"] = sys.modules["tensorflow"] = None  # Keras would import both
import keras, numpy
import orbax.checkpoint

model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
saves = [
    keras.callbacks.ModelCheckpoint("model-{epoch}.keras"),
    keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True),
]
model.fit(numpy.ones((8, 2)), numpy.ones((8, 1)), epochs=2, callbacks=saves, verbose=0)
orbax.checkpoint.PyTreeCheckpointer().save(os.path.abspath("orbax/3"), {"weights": numpy.ones(4)})
"""


def observing(folder: Path) -> dict[str, str]:
    """The variables with which a script is observed."""
    path = os.pathsep.join(map(str, (observation(inject(folder / "inject")), SOURCE)))
    return {"HEADGATE_OBSERVE": "steps", "PYTHONPATH": path}


def run(script: str, folder: Path, **more: str) -> list[tuple[str, bool | None]]:
    """What a script reports: the path, and whether its writing only begins. None: an error, and
    that a save has failed.
    """
    reported: list[tuple[str, bool | None]] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(folder / "channel"))
        server.listen(64)
        environment = {
            **os.environ,
            "HEADGATE_CHANNEL": f"unix:{folder / 'channel'}",
            "HEADGATE_TASK": "run/job/worker-0",
            "HEADGATE_KEY": "secret",
            **more,
        }
        command = [sys.executable, "-c", f"import os{script}"]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        server.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                connection, _ = server.accept()
                with connection, connection.makefile() as lines:
                    messages = [json.loads(line) for line in lines]
                for message in messages:
                    if "begins" in message:
                        path = message["path"].removeprefix(f"{folder}/")
                        reported.append((path, message["begins"]))
                    elif message["type"] == "checkpoint_failed":
                        reported.append((message["error"], None))
    return reported


def test_saves_are_reported_when_they_are_whole(tmp_path: Path) -> None:
    assert run(SCRIPT, tmp_path) == REPORTED


@pytest.mark.slow
def test_checkpoints_of_keras_and_orbax_are_seen(tmp_path: Path) -> None:
    reported = run(KERAS, tmp_path, KERAS_BACKEND="jax", **observing(tmp_path))
    for name in ("model-1.keras", "1.weights.h5", "model-2.keras", "2.weights.h5", "orbax/3"):
        assert (name, False) in reported
        assert damage(str(tmp_path / name)) is None
