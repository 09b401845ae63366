"""Scripts that know nothing of Headgate, observed while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch
from tests.torch.conftest import run_alone
from tests.torch.plain_scripts import SCRIPTS
from torch.utils.data import dataloader

from headgate.engines.launch import inject, observation
from headgate.task.environment import TaskEnvironment
from headgate.task.observed_calls import CallObserver
from headgate.task.observed_steps import Marks, ObservedSteps
from headgate.task.observing import ScriptObserver
from headgate.testing import wait
from headgate.testing.listener import ChannelListener
from headgate.torch import observed_arithmetic
from headgate.torch.observed_arithmetic import StepArithmetic

KINDS = Path(__file__).with_name("plain_scripts.py")


def start(
    folder: Path,
    *command: str,
    channel: ChannelListener,
    paths: tuple[str, ...] = (),
    **more: str,
) -> subprocess.Popen[str]:
    """An observed script. `paths` follow on its PYTHONPATH."""
    injected = inject(folder / "inject")
    path = [str(observation(injected)), str(injected)]
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    granted = {"HEADGATE_OBSERVE": "steps", "HEADGATE_THREADS": f"1:{','.join(threads)}"}
    observed = channel.environment(**granted)
    return subprocess.Popen(
        [sys.executable, *command],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*path, *paths]),
            **dict.fromkeys(threads, "1"),
            **observed,
            **more,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def finish(process: subprocess.Popen[str]) -> str:
    try:
        output, errors = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each kind of script computes, under plain Python and observed."""
    folder = tmp_path_factory.mktemp("kinds")
    with ChannelListener(folder, welcome={"threads": 1}) as channel:
        observed = json.loads(finish(start(folder, str(KINDS), channel=channel)))
        [plain] = [line for line in run_alone(KINDS, folder).splitlines() if line[:1] == "{"]
        return {
            "plain": json.loads(plain),
            "observed": observed,
            "warnings": channel.of("note"),
        }


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_observed_script_computes_the_same_bits(name: str, results: dict[str, Any]) -> None:
    assert results["observed"][name][0] == results["plain"][name][0]


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_steps_of_a_script_are_those_it_takes(name: str, results: dict[str, Any]) -> None:
    assert results["observed"][name][1] == (SCRIPTS[name][1] or 0)


def test_nothing_warns_of_these_scripts(results: dict[str, Any]) -> None:
    assert results["warnings"] == []


TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
whole = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))

def train(model=model, workers=0):
    for features, targets in DataLoader(whole, batch_size=8, num_workers=workers):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step()
"""


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[ChannelListener]:
    with ChannelListener(tmp_path, welcome={"type": "welcome", "threads": 1}) as listener:
        yield listener


def steps_of(channel: ChannelListener) -> int:
    """How many steps a script has told, once it has hung up."""
    channel.finish()
    return max((message["step"] for message in channel.of("progress")), default=0)


def test_a_program_without_pytorch_imports_nothing_of_headgate(
    tmp_path: Path, channel: ChannelListener
) -> None:
    line = "import sys; print({'headgate', 'torch', 'typing'} & {m[:8] for m in sys.modules})"
    assert finish(start(tmp_path, "-c", line, channel=channel)) == "set()\n"


@pytest.mark.parametrize("name", ["torch", "tensorflow", "keras", "jax", "optax"])
def test_an_unknown_version_of_a_framework_is_not_observed_with_one_warning(
    name: str, tmp_path: Path, channel: ChannelListener
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / f"{name}.py").write_text("__version__ = '99'\n")
    line = f"import {name}; print({name}.__version__)"
    assert finish(start(tmp_path, "-c", line, channel=channel, paths=(str(own),))) == "99\n"
    [warning] = channel.wait_for("note")
    assert warning["text"].startswith("its steps are not observed: ")


FORMS = {
    "optimized": ["-OO", "script.py"],
    "safe path": ["-P", "script.py"],
    "developed": ["-X", "dev", "-X", "importtime", "script.py"],
    "debugged": ["-m", "pdb", "-c", "continue", "-c", "quit", "script.py"],
    "profiled": ["-m", "cProfile", "-o", "profile", "script.py"],
    "counted as by coverage": ["-m", "trace", "--count", "--coverdir", "covered", "script.py"],
    "under debugpy": ["-m", "debugpy", "--listen", "127.0.0.1:0", "script.py"],
    "run as a module": ["-m", "script"],
}
AMONG_PROCESSES = """
import multiprocessing, torch
if __name__ == "__main__":
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        print(pool.apply(abs, (-7,)))
"""
AS_A_NOTEBOOK = """
import nbclient
from nbformat import v4
notebook = v4.new_notebook(cells=[v4.new_code_cell("import torch; print(torch.__version__)")])
nbclient.NotebookClient(notebook, kernel_name="python3").execute()
print(notebook.cells[0].outputs[0].text)
"""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] if name == "under debugpy" else [])
        for name in FORMS
    ],
)
def test_a_script_under_another_tool_goes_on_as_before(
    name: str, tmp_path: Path, channel: ChannelListener
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "torch.py").write_text("__version__ = '99'\n")
    script = tmp_path / "script.py"
    script.write_text("import random, sys, torch\nprint(sys.argv[0], random.Random(0).random())\n")
    paths = (str(own), str(tmp_path))
    plain = subprocess.run(
        [sys.executable, *FORMS[name]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert finish(start(tmp_path, *FORMS[name], channel=channel, paths=paths)) == plain.stdout
    channel.wait_for("note")  # its hooks were tried


@pytest.mark.parametrize(
    ("text", "prints"),
    [(AMONG_PROCESSES, "7\n"), pytest.param(AS_A_NOTEBOOK, "99\n\n", marks=pytest.mark.long)],
)
def test_fork_servers_and_notebooks_go_on_as_before(
    text: str, prints: str, tmp_path: Path, channel: ChannelListener
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "torch.py").write_text("__version__ = '99'\n")
    (tmp_path / "script.py").write_text(text)
    assert finish(start(tmp_path, "script.py", channel=channel, paths=(str(own),))) == prints
    channel.wait_for("note")  # its hooks were tried


@pytest.mark.parametrize("options", [["-S"], ["-I"], ["-E"]])
def test_python_starts_with_any_options(
    tmp_path: Path, channel: ChannelListener, options: list[str]
) -> None:
    assert finish(start(tmp_path, *options, "-c", "print(1)", channel=channel)) == "1\n"


def test_an_archive_with_a_sitecustomize_that_executes_itself_is_looked_at(
    tmp_path: Path, channel: ChannelListener
) -> None:
    again = (
        "import os, sys\nif 'again' not in sys.argv:\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])\n"
    )
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("mine = True\n")
    (own / "torch.py").write_text("__version__ = '99'\n")
    check = "import sitecustomize, torch\nprint(sitecustomize.mine)\n"
    with ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", f"{again}{ASKS}{check}")
    process = start(tmp_path, "app.zip", channel=channel, paths=(str(own),))
    assert finish(process) == "True\n"
    channel.wait_for("note")  # its hooks were tried


def test_the_process_that_trains_is_observed_and_no_worker_of_its_loader(
    tmp_path: Path, channel: ChannelListener
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""{TRAIN}
import multiprocessing
multiprocessing.set_start_method("spawn")
if __name__ == "__main__":
    fork = multiprocessing.get_context("fork").Process(target=train, args=(model, 1))
    fork.start()
    fork.join()
""")
    finish(start(tmp_path, str(script), channel=channel))
    assert steps_of(channel) == 8
    assert [message["observes"] for message in channel.of("hello")] == [True]


ASKS = """
import importlib.util
assert importlib.util.find_spec("torch") is not None
"""
GROUP = (
    TRAIN
    + """
import os, sys
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def waited(train, *about):
    observer = getattr(sys.modules.get("headgate.task.observing"), "observer", None)
    if observer is None or not observer.is_on:
        return train(*about)
    spans, ended = {}, observer.steps._ended
    observer.steps._ended = lambda steps, marks: (marks.add_to(spans), ended(steps, marks))
    train(*about)
    observer.steps._ended = ended
    if observer.is_on:
        sys.stderr.write(f"{spans['wait'] > 0.0} {len(spans)}\\n")  # of two processes, whole

def exchange(parameter):
    dist.all_reduce(parameter.grad)

def work(rank):
    global optimizer
    meeting = f"file://{os.path.abspath(sys.argv[1])}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    whole.tensors[0].add_(rank)
    waited(train, DistributedDataParallel(model))
    hooks = [p.register_post_accumulate_grad_hook(exchange) for p in model.parameters()]
    waited(train)
    for hook in hooks:
        hook.remove()
    if "sharded" in sys.argv:
        from torch.distributed.fsdp import fully_shard
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        train()  # it leads from now on
        waited(train)
    weights = [getattr(p, "full_tensor", p.detach)().tolist() for p in model.parameters()]
    if rank == 0:
        print(weights)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.start_processes(work, nprocs=2, start_method=sys.argv[2])
"""
)


@pytest.mark.parametrize(
    ("words", "phases", "steps"),
    [((), 2, 16), pytest.param(("sharded",), 3, 32, marks=pytest.mark.long)],
)
def test_processes_of_a_group_compute_the_same_bits_and_tell_what_they_wait_for(
    words: tuple[str, ...], phases: int, steps: int, tmp_path: Path, channel: ChannelListener
) -> None:
    script = tmp_path / "script.py"
    script.write_text(GROUP)
    observed = start(tmp_path, str(script), "a", "spawn", *words, channel=channel)
    output, errors = observed.communicate(timeout=300)
    assert output == run_alone(script, tmp_path, "b", "fork", *words), errors
    assert errors.count("True 6") in (phases, 2 * phases)  # of a process, or of both
    assert steps_of(channel) == steps
    assert channel.of("note") == []


def test_an_error_of_the_observation_ends_it_with_a_warning(
    tmp_path: Path, channel: ChannelListener
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""{TRAIN}
train()
from headgate.task.observed_steps import ObservedSteps
def fetched(self, *about):
    raise ValueError("planted")
ObservedSteps.fetched = fetched
train()
print("trained")
""")
    assert finish(start(tmp_path, str(script), channel=channel)) == "trained\n"
    assert steps_of(channel) == 8
    [warning] = channel.of("note")
    assert warning["warns"]
    assert "planted" in warning["text"]


ODD = (
    """
import copy, inspect, os, pickle, signal, sys, time
import torch
assert "headgate.task.channel" not in sys.modules  # nor what else only a step needs
"""
    + TRAIN
    + """
from torch.utils.data.dataloader import _BaseDataLoaderIter

class Own(torch.optim.SGD):
    def step(self, scale, *, closure=None):
        self.param_groups[0]["lr"] = 0.1 * scale
        return super().step(closure)

def train(model, optimizer, *args):
    for features, targets in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), targets).backward()
        optimizer.step(*args)
    print(model.weight.tolist())

loader = DataLoader(whole, batch_size=8)
for call in (optimizer.step, torch.autograd.backward, nn.Module.eval, torch.set_num_threads):
    try:
        print(call.__name__, inspect.signature(call))
    except ValueError:
        print(call.__name__)
train(model, optimizer)
train(*copy.deepcopy((model, optimizer)))
model, optimizer, loader = pickle.loads(pickle.dumps((model, optimizer, loader)))
pickle.dumps([torch.autograd.backward, nn.Module.eval, torch.save])
train(model, Own(model.parameters(), lr=0.1), 0.5)

following, calls = _BaseDataLoaderIter.__next__, []
_BaseDataLoaderIter.__next__ = lambda batches: calls.append(1) or following(batches)
own = torch.optim.SGD(model.parameters(), lr=0.1)
own.step = lambda step=own.step: calls.append(2) or step()
train(model, own)
_BaseDataLoaderIter.__next__ = following
print(calls)

sys.settrace(lambda *about: None)
signal.signal(signal.SIGALRM, lambda *about: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.003)
train(model, optimizer)
signal.setitimer(signal.ITIMER_REAL, 0)
sys.settrace(None)
for name in [name for name in os.environ if name.startswith("HEADGATE")]:
    del os.environ[name]
os.mkdir(sys.argv[1])
os.chdir(sys.argv[1])
sys.stdout.flush()
child = os.fork()
if not child:
    train(model, optimizer)
    sys.stdout.flush()
    os._exit(3)
print(os.waitpid(child, 0)[1])
train(model, optimizer)
sys.stdout.flush()
os.closerange(3, 64)
files = [open(str(number), "w+b", buffering=0) for number in range(16)]
time.sleep(1.1)  # until a message is due
train(model, optimizer)
for file in files:
    file.write(b"mine")
    file.seek(0)
    assert file.read() == b"mine"
print(torch.rand(1).item())
"""
)


def test_an_odd_script_goes_on_as_before(tmp_path: Path, channel: ChannelListener) -> None:
    script = tmp_path / "script.py"
    script.write_text(ODD)
    observed = finish(start(tmp_path, str(script), "observed", channel=channel))
    assert observed == run_alone(script, tmp_path, "plain")
    assert steps_of(channel) > 0  # it was observed
    assert channel.of("note") == []


def test_a_profile_holds_on_to_no_model_and_no_data(
    tmp_path: Path, channel: ChannelListener
) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import gc, weakref
import torch
from torch.utils.data import DataLoader, TensorDataset

def trained():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    whole = TensorDataset(torch.randn(256, 4))
    for [features] in DataLoader(whole, batch_size=4):
        model(features).sum().backward()
        optimizer.step()
    return weakref.ref(model), weakref.ref(whole)

references = trained()
gc.collect()
print([reference() for reference in references])
""")
    process = start(tmp_path, str(script), channel=channel, HEADGATE_OBSERVE="steps,profile")
    assert finish(process) == "[None, None]\n"
    assert steps_of(channel) == 64
    [profile] = channel.of("profile")
    assert profile["profile"]["dataset"]["bytes_per_sample"] == 16


def test_a_compiled_model_is_compiled_as_without_observation(
    tmp_path: Path, channel: ChannelListener
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""{TRAIN}
from torch._dynamo.utils import counters

@torch.compile(backend="eager", fullgraph=True)
def evaluated(features):
    model.eval()
    results = model(features)
    model.train()
    return results

train(torch.compile(model, backend="eager"))
model.eval()  # its end is looked for from now on
evaluated(whole.tensors[0])
print(dict(counters["graph_break"]), counters["stats"]["unique_graphs"])
""")
    words = "-W", "error::UserWarning", str(script)
    process = start(tmp_path, *words, channel=channel, HEADGATE_OBSERVE="steps,profile")
    assert finish(process) == "{} 2\n"
    assert steps_of(channel) == 8
    [message] = channel.of("costs")
    assert message["costs"] == {"compiled": True, "autocast": None, "channels_last": None}


def test_a_script_tells_how_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_arithmetic, "has_compiled", lambda: False)
    arithmetic = StepArithmetic()
    model = torch.nn.Conv2d(2, 2, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert arithmetic.goes_on(2)
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.ones(1, 2, 4, 4))
    assert not arithmetic.goes_on(3)
    told = arithmetic.facts([optimizer])
    assert (told["autocast"], told["channels_last"]) == ("bfloat16", True)


def test_loaders_may_feed_the_steps_of_another_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    kind: Any = dataloader._BaseDataLoaderIter
    monkeypatch.setattr(kind, "__next__", kind.__next__)
    ended: list[Marks] = []
    environment = TaskEnvironment.read()
    calls, script = CallObserver(environment), ScriptObserver(torch, frozenset(), environment)
    calls.steps = ObservedSteps(lambda _, marks: ended.append(marks))
    script.watch_loaders(dataloader)
    script.hand_over(calls.around_next)
    for _ in dataloader.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 4)), 8):
        calls.steps.computes()
        calls.steps.call_ended()
    assert [(marks.names, marks.samples) for marks in ended] == [
        (["other", "input", "other", "compute"], 8)
    ] * 2


def test_a_script_with_calls_is_not_observed_besides(
    tmp_path: Path, channel: ChannelListener
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import headgate.torch as hg\n{TRAIN}\nhg.prepare(model, optimizer)\ntrain()\n"
    )
    finish(start(tmp_path, str(script), channel=channel))
    channel.finish()
    assert [message["observes"] for message in channel.of("hello")] == [False]


def test_a_script_follows_threads_until_it_sets_its_own_and_takes_turns(
    tmp_path: Path, channel: ChannelListener
) -> None:
    script, own, ends = tmp_path / "script.py", tmp_path / "own", tmp_path / "ends"
    script.write_text(f"""{TRAIN}
import pathlib
import numpy
from threadpoolctl import threadpool_info
while torch.get_num_threads() != 2:
    train()
assert {{pool["num_threads"] for pool in threadpool_info()}} == {{2}}
torch.set_num_threads(1)
pathlib.Path("own").touch()
while not pathlib.Path("ends").exists():
    train()
print(torch.get_num_threads())
""")
    process = start(tmp_path, str(script), channel=channel, HEADGATE_TURNS=str(tmp_path))
    channel.wait_for("progress", seconds=120)  # once it has imported PyTorch
    channel.send({"type": "threads", "threads": 2})
    wait.until(own.exists, 60, "threads of its own")
    channel.send({"type": "threads", "threads": 2})
    assert channel.wait_for("threads")[0]["threads"] == 1

    with open(tmp_path / "gpu-0", "w") as lock:

        def has_turn() -> bool:
            try:
                flock(lock, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                return True
            flock(lock, LOCK_UN)
            return False

        channel.send({"type": "gate", "fraction": 0.9, "turns": ["gpu-0"]})
        wait.until(has_turn, 60, "a turn")
    ends.touch()
    assert finish(process) == "1\n"
