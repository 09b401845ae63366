"""Tables that no worker holds: their first values, their lookups, and what training comes to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from tests.torch.ps import embeddings
from torch import nn

from headgate.model.plans import Plan
from headgate.testing import wait
from headgate.torch import sparse_layers
from headgate.torch.ps import optimizers
from headgate.torch.ps.tables import lookups
from headgate.torch.ps.tables.initializers import Operation, filled
from headgate.torch.ps.tables.lazy_tensor import LazyTensor, table_for
from headgate.torch.ps.tables.remote_table import TableError
from headgate.torch.ps.tables.rows import Rows
from headgate.torch.ps.tables.shard import Shard
from headgate.torch.ps.tables.steps import Steps, merged
from headgate.torch.sparse_layers import each_row_once

SCRIPT = Path(embeddings.__file__)
SOURCE = Path(__file__).parents[3] / "src"
SAME = ["sgd", "sgd-double-twice", "adagrad-double", "adam-bag", "sgd-bag-double-none"]
SCALED = ["sgd-double-scaled", "adam-scaled"]
SUMMED = ["sgd-double-sum"]


@pytest.fixture
def on_servers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Sparse layers are made as in a worker of a plan with servers, while the list says True."""
    for kind in (nn.Embedding, nn.EmbeddingBag):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    answer = [True]
    sparse_layers.watch(lambda: answer[0], table_for)
    return answer


def both(on_servers: list[bool], make: Callable[[], Any]) -> tuple[torch.Tensor, LazyTensor]:
    """The weight that one process makes, and the one that a worker makes; what is drawn next has to
    be the same.
    """
    made = []
    for deferred in (False, True):
        on_servers[0] = deferred
        torch.manual_seed(5)
        made.append((make().weight, torch.rand(3)))
    assert torch.equal(made[0][1], made[1][1])
    return made[0][0].detach(), made[1][0]


@pytest.mark.parametrize(
    ("init", "rows", "width", "dtype", "servers"),
    [
        *product(
            ("none", "uniform", "xavier", "constant", "copied"),
            (1000, 3),
            (7,),
            (torch.float32, torch.float64),
            (1, 3),
        ),
        *[("uniform", 17, 1, torch.float32, 3), ("xavier", 17, 1, torch.float64, 1)],
        # drawn in blocks: a row longer than a block, and more rows than one has
        *[("uniform", 9, 300_000, torch.float32, 3), ("xavier", 1_500_003, 1, torch.float64, 3)],
    ],
)
def test_first_values_are_bit_by_bit_those_of_one_process(
    init: str, rows: int, width: int, dtype: torch.dtype, servers: int, on_servers: list[bool]
) -> None:
    def make() -> nn.Module:
        layer = nn.Embedding(rows, width, sparse=True, padding_idx=1, dtype=dtype)
        with torch.no_grad():
            if init == "uniform":
                layer.weight.uniform_(-0.1, 0.1).mul_(3)
            elif init == "xavier":
                nn.init.xavier_normal_(layer.weight)
                layer.weight[2:].clamp_(-0.5, 0.5)
            elif init == "constant":
                nn.init.constant_(layer.weight, 0.25)
            elif init == "copied":
                layer.weight[0].copy_(torch.arange(width))
        return layer

    wanted, weight = both(on_servers, make)
    assert (
        isinstance(weight, nn.Parameter)
        and weight.shape == wanted.shape
        and weight.dtype == wanted.dtype
    )
    initial = torch.full_like(wanted, float("nan"))
    place = Rows(rows, servers)
    for server in range(servers):
        operations = [
            Operation.received(operation.sent()) for operation in weight._deferred.operations
        ]
        values = filled(operations, place, server, width, weight._deferred.first_dtype)
        for row, local, count in place.runs(server, 0, place.count(server)):
            initial[row : row + count] = values[local : local + count]
    assert torch.equal(initial, wanted)


@pytest.mark.parametrize("servers", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [0, 1, 5, 1000, 33_000_000])
def test_rows_lie_on_servers_evenly_and_each_on_one(rows: int, servers: int) -> None:
    place = Rows(rows, servers)
    counts = [place.count(server) for server in range(servers)]
    assert sum(counts) == rows
    if rows >= 1000:
        assert max(counts) / (rows / servers) < 1.05
    some = (
        torch.unique(torch.randint(0, rows, (500,))) if rows else torch.empty(0, dtype=torch.int64)
    )
    for server in range(servers):
        owned = some[place.owner(some) == server]
        for row, local in zip(owned.tolist(), place.local(owned).tolist()):
            assert next(place.runs(server, local, local + 1)) == (row, local, 1)


def test_a_layer_can_be_moved_to_another_type_before_it_is_used(on_servers: list[bool]) -> None:
    wanted, weight = both(on_servers, lambda: nn.Embedding(50, 3, sparse=True).double())
    assert weight.dtype == torch.float64
    operations = weight._deferred.operations
    assert torch.equal(filled(operations, Rows(50, 1), 0, 3, weight._deferred.first_dtype), wanted)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda layer: layer.weight.sum(), "sum on the weight of a sparse layer"),
        (lambda layer: layer.weight @ torch.ones(3), "no worker holds it"),
        (lambda layer: layer(torch.tensor([1])), "call headgate.torch.prepare"),
        (lambda layer: layer.weight.detach().clone(), "no worker holds it"),
        (lambda layer: __import__("copy").deepcopy(layer), "copy.deepcopy"),
        (lambda layer: nn.Embedding(5, 2, sparse=True, max_norm=1.0), "leave max_norm out"),
        (
            lambda layer: nn.Embedding(5, 2, sparse=True, scale_grad_by_freq=True),
            "scale_grad_by_freq",
        ),
    ],
)
def test_what_needs_all_rows_is_one_clear_error(
    use: Callable[[Any], Any], reason: str, on_servers: list[bool]
) -> None:
    layer = nn.Embedding(10, 3, sparse=True)
    with pytest.raises(TableError, match=reason):
        use(layer)


def test_other_layers_and_other_plans_are_left_alone(on_servers: list[bool]) -> None:
    assert type(nn.Embedding(5, 2).weight) is nn.Parameter
    given = nn.Embedding(5, 2, sparse=True, _weight=torch.ones(5, 2))
    assert type(given.weight) is nn.Parameter
    on_servers[0] = False
    assert type(nn.EmbeddingBag(5, 2, sparse=True).weight) is nn.Parameter


def push(rows: list[int], share: float | None = 0.5, used: bool = True) -> dict[str, Any]:
    gradients = torch.ones(len(rows), 1) * (1.0 if share is None else share)
    return {
        "rows": torch.tensor(rows, dtype=torch.int32),
        "gradients": gradients,
        "fraction": share,
        "used": used,
    }


def test_contributions_that_are_there_stand_for_those_that_are_missing() -> None:
    step = merged([push([1, 2], share=0.25)])
    assert step is not None
    assert step[1].tolist() == [[1.0], [1.0]]
    assert merged([push([1], share=None)]) is not None
    assert merged([push([], used=False), push([], used=False)]) is None


def test_a_step_that_no_row_of_a_server_is_part_of_counts_there_too() -> None:
    shard = Shard(Rows(6, 2), 1, torch.zeros(3, 1))
    weight = nn.Parameter(torch.zeros(3, 1))
    from headgate.torch.ps import optimizers

    shard.optimize(optimizers.recipe(torch.optim.SparseAdam([weight], lr=0.1)), {})
    for _ in range(3):
        shard.apply(torch.empty(0, dtype=torch.int32), torch.empty(0, 1), {})
    assert shard.fields()["step"] == 3


# --- whole trainings ------------------------------------------------------------------------------


def alone(folder: Path, *cases: str, **added: str) -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")
    }
    subprocess.run(
        [sys.executable, SCRIPT, folder, *cases],
        env={**environment, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **added},
        check=True,
    )


def together(folder: Path, plan: Plan, *cases: str) -> list[dict[str, Any]]:
    """Train as a job; the notes of its servers and workers."""
    with Gang(folder, plan, [sys.executable, str(SCRIPT), str(folder), *cases]) as gang:
        gang.start()
        gang.finish()
        return [note for name in gang.names for note in gang.of(name, "note")]


def far(value: Any, wanted: Any, bound: float, where: str = "") -> dict[str, float]:
    """Tensors that are further from what they should be than `bound`, as a relative norm."""
    if isinstance(wanted, torch.Tensor):
        difference = (value.double() - wanted.double()).norm() / wanted.double().norm().clamp_min(
            1e-30
        )
        return (
            {where: float(difference)} if difference > bound or value.dtype != wanted.dtype else {}
        )
    if isinstance(wanted, dict):
        assert value.keys() == wanted.keys(), where
        return {
            w: d
            for key in wanted
            for w, d in far(value[key], wanted[key], bound, f"{where}.{key}").items()
        }
    if isinstance(wanted, (list, tuple)):
        return {
            w: d
            for n, (f, w_) in enumerate(zip(value, wanted))
            for w, d in far(f, w_, bound, f"{where}.{n}").items()
        }
    assert value == wanted, where
    return {}


def compare(folder: Path, case: str) -> dict[str, float]:
    read = [
        torch.load(folder / f"{who}-{case}.pt", weights_only=True) for who in ("worker-0", "plain")
    ]
    return far(read[0], read[1], 1e-10 if "double" in case else 1e-5, case)


@pytest.mark.parametrize(
    ("workers", "servers", "cases"),
    [
        pytest.param(2, 2, SAME[1:2], marks=pytest.mark.long),
        pytest.param(2, 2, [*SAME, *SCALED], marks=pytest.mark.long),
        pytest.param(3, 1, [*SAME[:2], *SUMMED, *SCALED], marks=pytest.mark.long),
    ],
)
def test_workers_that_step_together_come_to_what_one_process_comes_to(
    workers: int, servers: int, cases: list[str], tmp_path: Path
) -> None:
    alone(tmp_path, *cases)
    unlike = (9, 3) if workers == 2 else None
    together(
        tmp_path,
        Plan(strategy="ps", workers=workers, servers=servers, batch_per_worker=unlike),
        *cases,
    )
    assert {where: by for case in cases for where, by in compare(tmp_path, case).items()} == {}


@pytest.mark.long
def test_a_worker_that_waits_for_nobody_comes_to_it_too(tmp_path: Path) -> None:
    alone(tmp_path, "adam-bag")
    plan = Plan(strategy="ps", workers=1, servers=2, batch_per_worker=None, synchronous=False)
    together(tmp_path, plan, "adam-bag")
    assert compare(tmp_path, "adam-bag") == {}


STAGES = [
    Plan(strategy="ps", workers=2, servers=2, batch_per_worker=None),
    Plan(strategy="allreduce", workers=2, batch_per_worker=None),
    Plan(strategy="ps", workers=1, servers=2, batch_per_worker=None, synchronous=False),
    Plan(strategy="single", workers=1, batch_per_worker=None),
    Plan(strategy="ps", workers=3, servers=1, batch_per_worker=None),
]
"""Each goes on from the checkpoint of the one before."""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_checkpoint_of_any_strategy_is_resumed_under_any_other(tmp_path: Path) -> None:
    case, epochs = "adam-bag", {"EPOCHS": "12"}
    alone(tmp_path, case, **epochs)
    done = 0
    resume: dict[str, str] = {}
    for number, plan in enumerate(STAGES):
        last = number == len(STAGES) - 1
        epoch = 2 * (number + 1)
        folder = tmp_path / str(number)
        folder.mkdir()
        variables = {**epochs, **resume, **({} if last else {"WAIT_AT": str(epoch)})}
        with Gang(
            folder, plan, [sys.executable, str(SCRIPT), str(tmp_path), case], variables
        ) as gang:
            gang.start()
            if not last:
                gang.wait_for("worker-0", "progress")
                for index in range(plan.workers):
                    gang.send(f"worker-{index}", {"type": "stop"})
                (tmp_path / f"epoch-{epoch}").touch()
            gang.finish()
            if not last:
                saved = gang.of("worker-0", "checkpoint")[-1]
                assert done < saved["step"] <= 5 * (epoch + 1)
                done, resume = saved["step"], {"HEADGATE_RESUME": saved["path"]}
    assert compare(tmp_path, case) == {}


@pytest.mark.long
def test_a_worker_that_joins_takes_part_in_the_steps_of_tables(tmp_path: Path) -> None:
    case = "adagrad-double"
    alone(tmp_path, case)
    plan = Plan(strategy="ps", workers=1, servers=2, batch_per_worker=None)
    with Gang(
        tmp_path, plan, [sys.executable, str(SCRIPT), str(tmp_path), case], {"WAIT_AT": "4"}
    ) as gang:
        gang.start()
        gang.wait_for("worker-0", "progress")  # it is there to be asked for a checkpoint
        gang.start("worker-1", joins=True)
        gang.wait_for("worker-1", "joining")
        (tmp_path / "epoch-4").touch()
        gang.finish()
        assert "join" in [saved["why"] for saved in gang.of("worker-0", "checkpoint")]
        assert (
            gang.of("worker-1", "progress")[-1]["step"]
            == gang.of("worker-0", "progress")[-1]["step"]
            == 50
        )
    assert compare(tmp_path, case) == {}


@pytest.mark.long  # tests of `Steps`, which follow, have its decisions
def test_a_table_does_not_wait_for_a_worker_that_may_be_left_out(tmp_path: Path) -> None:
    case = "sgd-double"
    plan = Plan(strategy="ps", workers=3, servers=1, batch_per_worker=None, backup_workers=1)
    # Never are there more steps between two of them than servers keep sums of: it would be too far
    # behind to go on.
    variables = {"WAIT_AT": "2 4", "EPOCHS": "5"}
    with Gang(
        tmp_path, plan, [sys.executable, str(SCRIPT), str(tmp_path), case], variables
    ) as gang:
        gang.start()

        def are_at(step: int, *workers: str) -> bool:
            return all(
                (progress := gang.of(worker, "progress")) and progress[-1]["step"] >= step
                for worker in workers
            )

        wait.until(lambda: are_at(10, "worker-0", "worker-1", "worker-2"), 120)
        os.kill(gang.pid("worker-2"), signal.SIGSTOP)
        (tmp_path / "epoch-2").touch()
        wait.until(lambda: are_at(20, "worker-0", "worker-1"), 120)
        os.kill(gang.pid("worker-2"), signal.SIGCONT)
        wait.until(lambda: are_at(20, "worker-2"), 120)
        (tmp_path / "epoch-4").touch()
        gang.finish()
        assert any(
            "gradients of sparse tables came too late" in n["text"]
            for n in gang.of("server-0", "note")
        )


class Pushed:
    """A request that pushes rows for a step."""

    def __init__(self, worker: int, step: int) -> None:
        self.worker = worker
        self.content = {"step": step, "members": [0, 1, 2]}


def due(
    steps: Steps, present: frozenset[int], needed: int | None = None
) -> tuple[list[int], bool] | None:
    pushes = steps.next(present, needed)
    return (
        None if pushes is None else ([request.worker for request in pushes.requests], pushes.counts)
    )


def test_a_late_push_is_part_of_no_later_step() -> None:
    steps, all_three = Steps(), frozenset({0, 1, 2})
    for worker, step in ((0, 1), (1, 1), (0, 2)):
        steps.push(Pushed(worker, step))  # type: ignore[arg-type]
    assert due(steps, all_three, 2) == ([0, 1], True)
    steps.push(Pushed(2, 1))  # type: ignore[arg-type]
    assert due(steps, all_three, 2) == ([2], False)
    assert due(steps, all_three, 2) is None  # step 2 still has one push only
    steps.push(Pushed(2, 2))  # type: ignore[arg-type]
    assert due(steps, all_three, 2) == ([0, 2], True)
    assert (steps.taken, steps.late) == (2, 1)


def test_a_step_that_waits_for_a_worker_which_is_gone_is_taken_without_it() -> None:
    steps = Steps()
    for worker in (0, 1):
        steps.push(Pushed(worker, 1))  # type: ignore[arg-type]
    assert due(steps, frozenset({0, 1, 2})) is None
    assert due(steps, frozenset({0, 1})) == ([0, 1], True)


LARGE = """
import os, resource
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
batch, rows = int(os.environ["BATCH"]), int(os.environ["ROWS"])
table = nn.EmbeddingBag(rows, 1, sparse=True, mode="sum")
data = TensorDataset(torch.randint(0, rows, (4 * batch, 8)), torch.rand(4 * batch, 1))
loader = DataLoader(data, batch)
table, optimizer, loader = hg.prepare(table, torch.optim.SGD(table.parameters(), lr=0.1), loader)
for _ in hg.epochs(1):
    for indices, wanted in loader:
        loss = nn.functional.mse_loss(table(indices), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
tables = hg._door.session._worker._link.tables
tables.settle()
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print("grown", grown, "in", sum(tables.caller.bytes_in), "out", sum(tables.caller.bytes_out))
"""


@pytest.mark.long
def test_no_worker_allocates_the_table_and_bytes_follow_the_batch(tmp_path: Path) -> None:
    measured = {}
    grown = {}
    for batch, rows in ((250, 1_000_000), (250, 33_000_000), (1000, 33_000_000)):
        folder = tmp_path / f"{batch}-{rows}"
        folder.mkdir()
        (folder / "large.py").write_text(LARGE)
        plan = Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None)
        with Gang(
            folder,
            plan,
            [sys.executable, "large.py"],
            {"BATCH": str(batch), "ROWS": str(rows)},
            warm=None,
        ) as gang:
            gang.start()
            gang.finish()
            _, memory, _, came, _, went = gang.output("worker-0").split()[-6:]
            steps = gang.of("worker-0", "spans")
        assert steps
        # rows that are looked up are pulled in the midst of forward, their gradients pushed
        for step in steps:
            spans = {span["name"]: span for span in step["spans"]}
            used = 8 * batch
            assert 0.99 * 4 * used < spans["pull"]["bytes_in"] < 5 * used
            assert 0.99 * 12 * used < spans["push"]["bytes_out"] < 14 * used
            assert spans["forward"]["begin"] <= spans["pull"]["begin"]
            assert sum(span["seconds"] for span in spans.values()) == pytest.approx(step["seconds"])
            assert all(transfer["peer"] == "server-0" for transfer in step["transfers"])
        measured[batch] = int(came), int(went)
        grown[batch, rows] = int(memory)
    assert grown[250, 33_000_000] - grown[250, 1_000_000] < 25e6 < 32_000_000 * 4
    rows = 4 * 1000 * 8
    assert 4 * rows < measured[1000][0] < 4.5 * rows  # a value for each row that is pulled
    assert 12 * rows < measured[1000][1] < 13 * rows  # its number twice, and a gradient
    assert 3 < measured[1000][1] / measured[250][1] < 4.1


MIXED = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.dense = nn.EmbeddingBag(20_000, 32, sparse=True), nn.Linear(32, 400)

    def forward(self, rows):
        return self.dense(self.table(rows))

model = Model()
loader = DataLoader(TensorDataset(torch.randint(0, 20_000, (640, 16))), 64)
model, optimizer, loader = hg.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for _ in hg.epochs(1):
    for (rows,) in loader:
        optimizer.zero_grad()
        hg.mean(model(rows).square().mean().item())  # a round that belongs to no step
        model(rows).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_servers_receive_what_workers_send(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(MIXED)
    plan = Plan(strategy="ps", workers=2, servers=2, batch_per_worker=None)
    with Gang(tmp_path, plan, [sys.executable, "mixed.py"], {}) as gang:
        gang.start()
        gang.finish()
        sent = {
            task: gang.of(task, "spans")
            for task in ("worker-0", "worker-1", "server-0", "server-1")
        }
    steps = set.intersection(
        *({message["step"] for message in messages} for messages in sent.values())
    )
    assert len(steps) >= 3
    moved: Counter[tuple[str, str]] = Counter()
    for task, messages in sent.items():
        for way in ("bytes_in", "bytes_out"):
            spans = [
                span
                for message in messages
                if message["step"] in steps
                for span in message["spans"]
            ]
            moved[task.partition("-")[0], way] += sum(span[way] or 0 for span in spans)
    assert moved["server", "bytes_in"] == pytest.approx(moved["worker", "bytes_out"], rel=0.02)
    assert moved["server", "bytes_out"] == pytest.approx(moved["worker", "bytes_in"], rel=0.02)


@pytest.mark.parametrize("width", [1, 3])
def test_gradients_of_summed_rows_are_those_of_torch(width: int) -> None:
    torch.manual_seed(1)
    numbers = torch.randint(0, 7, (5, 4))
    values = torch.randn(7, width, dtype=torch.float64, requires_grad=True)
    factors = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, width, dtype=torch.float64)
    sums = lookups._SumOfRows.apply(values, numbers, factors)  # type: ignore[no-untyped-call]
    expected = nn.functional.embedding_bag(numbers, values, mode="sum", per_sample_weights=factors)
    torch.testing.assert_close(sums, expected)
    slopes = [
        torch.autograd.grad((result * weights).sum(), (values, factors))
        for result in (sums, expected)
    ]
    for mine, theirs in zip(*slopes):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize(
    "options", [{"lr": 0.1}, {"lr": 0.1, "maximize": True}, {"lr": 0.1, "momentum": 0.9}]
)
@pytest.mark.parametrize("width", [1, 3])
def test_rows_that_are_named_twice_are_stepped_as_by_the_optimizer(
    width: int, options: dict[str, Any]
) -> None:
    start, rows, gradients = (
        torch.randn(9, width),
        torch.tensor([2, 5, 2, 8]),
        torch.randn(4, width),
    )
    weight = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([weight], **options)
    shard = Shard(Rows(9, 1), 0, start.clone())
    shard.optimize(optimizers.recipe(optimizer), {})
    for _ in range(2):
        weight.grad = torch.sparse_coo_tensor(
            rows[None], gradients, weight.shape, check_invariants=False
        )
        optimizer.step()
        shard.apply(rows.to(torch.int32), gradients, {})
    torch.testing.assert_close(shard.values, weight.detach())


@pytest.mark.parametrize("shape", [(1,), (7, 5), (0,), (3, 0), (2000,)])
@pytest.mark.parametrize("rows", [1, 40, 2**40])
def test_different_rows_of_a_batch_are_those_of_torch(shape: tuple[int, ...], rows: int) -> None:
    indices = torch.randint(0, rows, shape)
    distinct = lookups._distinct(indices, rows - 1)
    for mine, theirs in zip(distinct, torch.unique(indices, return_inverse=True)):
        assert torch.equal(mine, theirs)
        assert mine.dtype == torch.int64


@pytest.mark.parametrize(
    ("rows", "again"), [([2, 5, 8], False), ([2, 5, 5], True), ([5, 2, 8], True), ([], False)]
)
def test_a_gradient_whose_rows_ascend_is_not_sorted_again(rows: list[int], again: bool) -> None:
    values = torch.randn(len(rows), 3)
    index = torch.tensor([rows], dtype=torch.int64)
    gradient = torch.sparse_coo_tensor(index, values, (9, 3), check_invariants=False)
    coalesced = each_row_once(gradient)
    assert coalesced.is_coalesced()
    assert (coalesced._values().data_ptr() == values.data_ptr()) is not again
    assert torch.equal(coalesced.to_dense(), gradient.to_dense())
