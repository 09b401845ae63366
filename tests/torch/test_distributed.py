"""One script in several workers: what is agreed on, saved, divided and told, and what happens when
one dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.harness.gang import Gang

from headgate.model.plans import Plan
from headgate.torch import gradient_weights

SOURCE = Path(__file__).parents[2] / "src"
PREAMBLE = """
import json, os, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
import headgate.torch as hg
from headgate.task import saving

saving.SHARE = 0.0  # no checkpoint but those that are asked for, however long an epoch takes
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
index = int(os.environ.get("HEADGATE_TASK", "worker-0").rpartition("-")[2])

def say(what):
    hg._door.session._channel.send({"type": "waiting", "what": what})

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.001)

def show(model):
    print("weights", *(f"{p.sum().item():.13g}" for p in model.parameters()))
"""

USUAL = """
torch.manual_seed(0)
data = TensorDataset(torch.randn(50, 8), torch.randint(0, 3, (50,)))
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
readers = int(os.environ.get("READERS", "0"))
loader = DataLoader(
    data, batch_size=12, shuffle=True, num_workers=readers, persistent_workers=readers > 0
)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
model, optimizer, loader = hg.prepare(model, optimizer, loader, scheduler=scheduler)
for epoch in hg.epochs(4):
    for number, (features, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        hg.report(loss=loss)
        if os.environ.get("AWAIT") == f"{index} {epoch} {number}":
            say("an order")
            until(lambda: hg._door.session._channel.pending)
show(model)
"""


@contextmanager
def gang(folder: Path, body: str, workers: int, **environment: str) -> Iterator[Gang]:
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(PREAMBLE + textwrap.dedent(body))
    strategy: Any = environment.get("STRATEGY", "allreduce") if workers > 1 else "single"
    plan = Plan(
        strategy=strategy, workers=workers, servers=int(strategy == "ps"), batch_per_worker=None
    )
    with Gang(folder, plan, [sys.executable, str(script)], environment) as running:
        running.start()
        yield running


def plain(folder: Path, body: str, **more: str) -> str:
    script = folder / "plain.py"
    script.write_text(PREAMBLE + textwrap.dedent(body))
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")
    }
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        [sys.executable, script], env=environment, check=True, capture_output=True, text=True
    ).stdout


def weights(output: str) -> Any:
    (line,) = [line for line in output.splitlines() if line.startswith("weights")]
    return pytest.approx([float(word) for word in line.split()[1:]], rel=1e-9, abs=1e-9)


def stopped(folder: Path, workers: int, at: str, **environment: str) -> dict[str, Any]:
    """The checkpoint of a job that was stopped; one worker alone is asked to, at that worker, epoch
    and batch.
    """
    with gang(folder, USUAL, workers, AWAIT=at, **environment) as running:
        asked = f"worker-{at.split()[0]}"
        running.wait_for(asked, "waiting")
        running.send(asked, {"type": "stop"})
        running.finish()
        saved = [running.of(name, "checkpoint") for name in running.names]
    assert [len(found) for found in saved] == [1] + [0] * (workers - 1)
    found: dict[str, Any] = saved[0][0]
    assert found["why"] == "stop"
    return found


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_stopped_at_one_worker_stops_at_all_and_resumes_with_any_number_of_them(
    tmp_path: Path,
) -> None:
    several = stopped(tmp_path / "several", 2, "1 1 2", READERS="2")
    # Asked after its third batch, the worker says so with the fourth: all end after that.
    assert (several["epoch"], several["position"], several["step"]) == (1, 4, 9)
    alone = stopped(tmp_path / "alone", 1, "0 2 1", READERS="0")
    assert (alone["epoch"], alone["position"], alone["step"]) == (2, 2, 12)
    for name, saved, workers, readers in [
        ("more", several, 3, "2"),
        ("fewer", several, 1, "2"),
        ("now several", alone, 2, "0"),
    ]:
        expected = weights(plain(tmp_path, USUAL, READERS=readers))
        with gang(
            tmp_path / name, USUAL, workers, HEADGATE_RESUME=saved["path"], READERS=readers
        ) as running:
            running.finish()
            for worker in running.names:
                assert weights(running.output(worker)) == expected.expected, (name, worker)
                assert running.of(worker, "progress")[-1]["samples"] == 4 * 50


@pytest.mark.slow
def test_a_checkpoint_asked_of_any_worker_is_saved_by_the_first_alone(tmp_path: Path) -> None:
    with gang(tmp_path / "job", USUAL, 2, AWAIT="1 3 0") as running:
        running.wait_for("worker-1", "waiting")
        running.send("worker-1", {"type": "checkpoint"})
        running.finish()
        asked = [
            message
            for message in running.of("worker-0", "checkpoint")
            if message["why"] == "request"
        ]
        assert [(message["epoch"], message["position"]) for message in asked] == [(3, 2)]
        assert running.of("worker-1", "checkpoint") == []
        assert running.output("worker-0") == running.output("worker-1")


@pytest.mark.slow
def test_what_a_step_sent_is_told_with_its_spans(tmp_path: Path) -> None:
    with gang(tmp_path / "job", USUAL, 2) as running:
        running.finish()
        (spans, *_) = running.of("worker-0", "spans")
    by_name = {span["name"]: span for span in spans["spans"]}
    assert {"input", "forward", "backward", "push", "optimizer"} <= by_name.keys()
    assert sum(span["seconds"] for span in spans["spans"]) == pytest.approx(spans["seconds"])
    counts_bytes = 8 * gradient_weights.NUMBERS  # at the head of a round
    # and gradients, and the control vector
    size = counts_bytes + 8 * (8 * 16 + 16 + 16 * 3 + 3 + 4 + 12 + 4)
    assert (by_name["push"]["bytes_out"], by_name["push"]["bytes_in"]) == (size, size)
    assert {transfer["peer"] for transfer in spans["transfers"]} == {"worker-1"}
    pushes = [transfer["push"] for transfer in spans["transfers"]]
    assert [sent for _, _, sent in pushes] == [counts_bytes, size - counts_bytes]
    assert all(0 < begin < end < spans["seconds"] for begin, end, _ in pushes)


DYING = """
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(50, 8)), batch_size=10)
model = nn.Linear(8, 1)
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in hg.epochs(3):
    for number, (features,) in enumerate(loader):
        if epoch == 1 and number == 3:
            say("ready")
            if index == 1:
                time.sleep(60)
        model(features).mean().backward()
        optimizer.step()
"""


def test_a_worker_that_loses_another_ends_at_once_and_says_why(tmp_path: Path) -> None:
    with gang(tmp_path / "job", DYING, 3) as running:
        for name in running.names:
            running.wait_for(name, "waiting")
        begun = time.monotonic()
        running.kill("worker-1")
        assert [running.left(name) for name in ("worker-0", "worker-2")] == [75, 75]
        assert time.monotonic() - begun < 60  # and not minutes, after which Gloo gives up
        assert "worker-1 is gone in the middle of a step" in running.output("worker-0")
        assert "worker-1 is gone" in running.of("worker-2", "note")[-1]["text"]


ONCE = """
class Noted(Dataset):
    def __len__(self):
        return 52
    def __getitem__(self, number):
        with open(f"read-{index}.jsonl", "a") as file:
            print(json.dumps(number), file=file)
        return torch.full((3,), float(number)), torch.rand(())

class Own:
    def __iter__(self):
        order = torch.randperm(52).tolist()
        return (order[i : i + 10] for i in range(0, 52, 10))
    def __len__(self):
        return 6

model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1), nn.Dropout(0.5))
readers = DataLoader(Noted(), batch_sampler=Own(), num_workers=2)
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3), readers)
assert loader is readers and len(loader) == 6
mine = 0
for epoch in hg.epochs(2):
    for features, noise in loader:
        assert len(features) in (2, 4), len(features)
        model(features).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
print(torch.rand(()).item())
show(model)
"""


def test_workers_that_seed_nothing_begin_alike_and_read_each_sample_once(tmp_path: Path) -> None:
    with gang(tmp_path / "job", ONCE, 3) as running:
        running.finish()
        outputs = [running.output(name).splitlines() for name in running.names]
        read = [
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in running.folder.glob("read-*.jsonl")
        ]
    assert len({lines[-1] for lines in outputs}) == 1
    # what is drawn besides data is each worker's own
    assert len({lines[0] for lines in outputs}) == 3
    counts = {number: sum(found.count(number) for found in read) for number in range(52)}
    # The last batch has two samples, on which one worker trains, and the two others borrow them: in
    # both epochs.
    assert sum(counts.values()) == 2 * (52 + 2 * 2)
    assert min(counts.values()) == 2


NORMALISED = """
torch.manual_seed(0)
features, labels = torch.randn(48, 6), torch.randint(0, 3, (48,))
def made():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
def loss_of(model, mine):
    return nn.functional.cross_entropy(model(features[mine]), labels[mine])
def statistics(model):
    print("statistics", model[1].running_mean.tolist(), model[1].running_var.tolist())

model = made()
loader = DataLoader(TensorDataset(torch.arange(48)), batch_size=12)
taken = []
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in hg.epochs(2):
    for (mine,) in loader:
        taken.append(mine)
        optimizer.zero_grad()
        loss_of(model, mine).backward()
        optimizer.step()
show(model)
statistics(model)

# The same by hand: two models, each with statistics of its own half, that step by the mean of their
# gradients.
both = [made() for _ in range(2)]
for epoch in range(2):
    for batch in torch.arange(48).split(12):
        for each, half in zip(both, batch.split(6)):
            each.zero_grad()
            loss_of(each, half).backward()
        for pair in zip(*(each.parameters() for each in both)):
            mean = (pair[0].grad + pair[1].grad) / 2
            with torch.no_grad():
                for parameter in pair:
                    parameter -= 0.1 * mean
halves = [set(half.tolist()) for half in torch.arange(12).split(6)]
mine = both[halves.index(set(taken[0].tolist()))]
show(mine)
statistics(mine)
"""


@pytest.mark.slow
@pytest.mark.parametrize("servers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_normalisation_keeps_the_statistics_of_what_its_worker_saw(
    servers: int, tmp_path: Path
) -> None:
    strategy: Any = "ps" if servers else "allreduce"
    plan = Plan(strategy=strategy, workers=2, servers=servers, batch_per_worker=None)
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + NORMALISED)
    with Gang(tmp_path, plan, [sys.executable, str(script)]) as running:
        running.start()
        running.finish()
        outputs = [running.output(name).splitlines() for name in ("worker-0", "worker-1")]
    for found, statistics, expected, by_hand in outputs:
        assert weights(found) == weights(expected).expected
        assert numbers(statistics) == pytest.approx(numbers(by_hand), rel=1e-9)
    assert outputs[0][1] != outputs[1][1]


def numbers(line: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", line)]


GROUPS = """
import torch.distributed as dist
group = f"file://{os.getcwd()}/group-{index}"
dist.init_process_group("gloo", init_method=group, rank=0, world_size=1)
torch.manual_seed(0)
model = nn.Linear(8, 1)
try:
    hg.prepare(nn.parallel.DistributedDataParallel(model))
except RuntimeError as error:
    print(error)
loader = DataLoader(TensorDataset(torch.randn(20, 8)), batch_size=10)
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
try:
    hg.prepare(nn.Linear(1, 1), loss_reduction="sum")
except ValueError as error:
    print(error)
for epoch in hg.epochs(1):
    for (features,) in loader:
        model(features).mean().backward()
        optimizer.step()
total = torch.ones(())
dist.all_reduce(total)
print("own group", total.item())
"""


@pytest.mark.slow
def test_a_group_of_the_script_s_own_is_left_alone_and_a_wrapped_model_refused(
    tmp_path: Path,
) -> None:
    with gang(tmp_path / "job", GROUPS, 2) as running:
        running.finish()
        for name in running.names:
            output = running.output(name)
            assert "found a DistributedDataParallel; expected the model inside of it" in output
            assert "a model before was prepared with another" in output
            assert "own group 1.0" in output


STRAYING = """
class Straying:
    def __iter__(self):
        import numpy
        generator = numpy.random.default_rng()
        return (generator.integers(0, 1000, 10).tolist() for _ in range(50))
    def __len__(self):
        return 50

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(1000, 8)), batch_sampler=Straying())
model = nn.Linear(8, 1)
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in hg.epochs(1):
    for (features,) in loader:
        model(features).mean().backward()
        optimizer.step()
"""


@pytest.mark.long
def test_workers_whose_samplers_draw_apart_are_told_so(tmp_path: Path) -> None:
    with gang(tmp_path / "job", STRAYING, 2) as running:
        assert [running.left(name) for name in running.names] == [1, 1]
        for name in running.names:
            assert "the workers draw different batches" in running.output(name)


SELFSERVED = """
torch.manual_seed(0)
model = nn.Linear(8, 1)
model, optimizer = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(3):
    model(torch.ones(4, 8)).mean().backward()
    optimizer.step()
inputs = torch.full((4, 8), 1.0 + index * ("OWN" in os.environ))
gradients = torch.autograd.grad(model(inputs).mean(), model.parameters())
for parameter, gradient in zip(model.parameters(), gradients):
    parameter.grad = gradient
optimizer.step()
show(model)
"""


@pytest.mark.slow
def test_what_cannot_be_shared_is_said(tmp_path: Path) -> None:
    with gang(tmp_path / "job", SELFSERVED, 2) as running:
        running.finish()
        assert len({running.output(name) for name in running.names}) == 1
        notes = [message["text"] for message in running.of("worker-0", "note")]
    assert [note.partition(":")[0] for note in notes] == [
        "no loader was prepared",
        "the optimizer took a step without a backward",
    ]


@pytest.mark.long
def test_a_step_by_gradients_of_one_worker_is_refused(tmp_path: Path) -> None:
    with gang(tmp_path / "job", SELFSERVED, 2, OWN="1") as running:
        assert running.left("worker-0") == 1
        assert "takes a step with gradients that no backward made" in running.output("worker-0")


CAUGHT = """
torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 8), torch.randn(24, 1))
hidden, head = nn.Linear(8, 4), nn.Linear(4, 1)
model = nn.Sequential(hidden, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = hg.prepare(model, optimizer, DataLoader(data, batch_size=4))

def fails(gradient):
    raise RuntimeError("no memory")

for epoch in hg.epochs(2):
    for number, (features, targets) in enumerate(loader):
        optimizer.zero_grad()
        inside = hidden(features)
        if index == 0 and number == 2:
            inside.register_hook(fails)
        try:
            nn.functional.mse_loss(head(inside), targets).backward()
        except RuntimeError as error:
            if "no memory" not in str(error) and "SWALLOWS" not in os.environ:
                raise
            if "SAVES" in os.environ:
                hg._door.session._worker.as_lowest(True)
            continue
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("strategy", "more", "said"),
    [
        ("ps", {}, "a backward failed before (RuntimeError), and the script went on"),
        pytest.param(
            "ps",
            {"SWALLOWS": "1"},
            "a backward failed before (RuntimeError)",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "ps",
            {"SAVES": "1"},
            "a step failed in the middle of its exchange",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "allreduce", {}, "a backward failed before (RuntimeError)", marks=pytest.mark.long
        ),
    ],
)
def test_a_worker_that_goes_on_after_an_error_in_the_middle_of_a_step_is_told_so(
    strategy: str, more: dict[str, str], said: str, tmp_path: Path
) -> None:
    with gang(tmp_path / "job", CAUGHT, 2, STRATEGY=strategy, **more) as running:
        assert running.left("worker-0") == 1
        assert said in running.output("worker-0").strip().splitlines()[-1]


FAILING = """
if index == int(os.environ["FAILS"]):
    raise ValueError("no data here")
model = nn.Linear(8, 3)
hg._door.join()
say("about to prepare")
model, optimizer = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "fails"),
    [("allreduce", 0), pytest.param("allreduce", 1, marks=pytest.mark.long), ("ps", 0)],
)
def test_who_waits_in_prepare_for_a_worker_that_fails_ends_at_once(
    strategy: Any, fails: int, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(PREAMBLE + FAILING)
    servers: dict[str, Any] = (
        {} if strategy == "allreduce" else {"servers": 1, "synchronous": False}
    )
    plan = Plan(strategy=strategy, workers=2, batch_per_worker=None, **servers)
    with Gang(tmp_path, plan, [sys.executable, str(script)], {"FAILS": str(fails)}) as running:
        running.start()
        other = f"worker-{1 - fails}"
        running.wait_for(other, "waiting")
        assert running.left(f"worker-{fails}") == 1
        begun = time.monotonic()
        with contextlib.suppress(ConnectionError):  # it may have ended by now
            running.send(other, {"type": "stop"})  # as the hub does: the job has failed
        assert running.left(other) in (0, 75)  # it heard of the order first, or of the loss
        assert time.monotonic() - begun < 60  # and not minutes


READY_MADE = """
batches = [(torch.randn(6, 8), torch.randn(6, 1)) for _ in range(3)]
ready = DataLoader(batches, batch_size=1, collate_fn=lambda items: items[0])
model = nn.Linear(8, 1)
model, optimizer, ready = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), ready)
series = nn.LSTM(8, 2)
series, whole = hg.prepare(series, None, [torch.randn(6, 6, 8), torch.randn(6, 6, 8)])[::2]
for batch in whole:
    series(batch)[0].mean().backward()
"""


@pytest.mark.slow
def test_how_batches_are_divided_is_told_where_it_may_be_meant_otherwise(tmp_path: Path) -> None:
    with gang(tmp_path / "job", READY_MADE, 2) as running:
        running.finish()
        notes = [note["text"] for note in running.of("worker-0", "note")]
    assert any("batch_size=1" in text and "1 of them get nothing" in text for text in notes)
    (division,) = [text for text in notes if "along dimension 0 of (6, 6, 8)" in text]
    assert "LSTM(batch_first=False)" in division and "batch_dim=N" in division
