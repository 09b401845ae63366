"""Causes within a job, from recordings of which every number is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.diagnosis.made_up import MadeUp, recording, typed

from headgate.diagnosis.account import Account
from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.findings import Finding, FindingKind, SlowNicFacts
from headgate.diagnosis.remedies import NodesFacts, RemedyKind
from headgate.diagnosis.verdicts import verdict
from headgate.model.identifiers import TaskOfRun
from headgate.recorded.jobs import CoresSetting, RecordedTask
from headgate.recorded.recording import Recording
from headgate.recorded.steps import StepBreakdown
from headgate.recorded.usage import Signal
from headgate.reports.findings import why
from headgate.reports.remedies import next_step

INPUT = {"input": 0.06, "forward": 0.04}
STEP = {"forward": 0.04, "backward": 0.06}
SMALL = {"forward": 0.0004, "backward": 0.0006}
COSTS = {"flops_per_sample": 1e5, "batch": 4, "core_gflops": 50.0, "dense_bytes": 4000}


def recorded(path: Path, job: MadeUp, beside: Mapping[str, MadeUp] = {}, **known: Any) -> Recording:
    """A run of a job, of which this is known besides, and of those beside it."""
    path.mkdir(exist_ok=True)
    run = recording(path / "run.sqlite", {"a": job, **beside})
    return replace(run, jobs=(typed(run.jobs[0], known), *run.jobs[1:]))


def account(run: Recording) -> Account:
    return accounts(run.jobs, run.nodes, run.seconds)[0]


def adds_up(found: Account) -> bool:
    return sum(part.seconds for part in found.parts.values()) == pytest.approx(
        found.elapsed, rel=1e-3
    )


@pytest.mark.parametrize(
    ("name", "job", "known"),
    [
        ("loader", MadeUp(ran=1.1, ready=0.9, spans=INPUT), {}),
        ("decoding", MadeUp(ran=1.95, ready=0.9, spans=INPUT), {}),
        ("loader", MadeUp(ran=1.48, waited=0.6, ready=0.9, spans=INPUT), {}),
        ("decoding", MadeUp(ran=lambda t: 1.95 if t % 4 else 0.6, ready=0.9, spans=INPUT), {}),
        (
            "decoding",
            MadeUp(ran=2.0, waited=2.2, readings={"main_ready": 0.9, "helper_cores": 1.9}),
            {},
        ),
        (
            "own-threads",
            MadeUp(ran=2.0, waited=6.0, readings={"main_ready": 1.0, "helper_cores": 1.9}),
            {},
        ),
        # launched
        (
            "own-threads",
            MadeUp(ran=2.0, waited=2.2, readings={"main_ready": 0.0, "helper_cores": 4.2}),
            {},
        ),
        ("input", MadeUp(ran=0.4, ready=0.4, spans=INPUT), {}),
        # of which one holds a lock
        ("input", MadeUp(ran=1.15, ready=0.9, spans=INPUT, loader_workers=4), {}),
        ("evaluation", MadeUp(ran=1.0, spans=STEP), {"asides": {"evaluation": 12.0}}),
        (
            "garbage-collection",
            MadeUp(ran=1.0, spans=STEP),
            {"asides": {"garbage-collection": 12.0}},
        ),
        ("checkpoints", MadeUp(ran=1.0, spans=STEP), {"asides": {"saving": 12.0}}),
        (
            "healthy",
            MadeUp(ran=1.0, spans=STEP),
            {"asides": dict.fromkeys(("evaluation", "garbage-collection"), 1.0)},
        ),
        ("between-steps", MadeUp(ran=1.0, spans={**STEP, "other": 0.05}), {}),
        (
            "checkpoints",
            MadeUp(ran=1.0, spans={**STEP, "other": 0.05}),
            {"asides": {"saving": 12.0}},
        ),
        (
            "garbage-collection",
            MadeUp(ran=1.0, spans={**STEP, "other": 0.05}),
            {"asides": {"garbage-collection": 5.0}},
        ),
        (
            "between-steps",
            MadeUp(ran=1.0, spans={**STEP, "other": 0.05}),
            {"asides": {"garbage-collection": 2.0}},
        ),
        ("healthy", MadeUp(ran=1.0, spans={**STEP, "other": 0.05}, gpu=0.9), {}),
        ("copies", MadeUp(ran=1.0, spans={**STEP, "copy": 0.05}, gpu=0.9), {}),
        ("healthy", MadeUp(ran=1.0, spans={**STEP, "copy": 0.001}, gpu=0.9), {}),
        ("healthy", MadeUp(ran=1.0, spans={"forward": 0.01, "other": 0.09}), {}),
        ("small-steps", MadeUp(ran=1.0, spans=SMALL), {"profile": COSTS}),
        ("own-threads", MadeUp(ran=1.9, ready=0.95, spans=SMALL), {"profile": COSTS}),
        ("healthy", MadeUp(ran=1.0, spans=SMALL), {"profile": {**COSTS, "flops_per_sample": 1e7}}),
        ("healthy", MadeUp(ran=1.0, spans=SMALL), {"profile": {**COSTS, "core_gflops": None}}),
    ],
)
def test_a_cause_is_told_by_what_was_recorded_of_steps(
    tmp_path: Path, name: str, job: MadeUp, known: dict[str, Any]
) -> None:
    found = account(recorded(tmp_path, job, **known))
    told = verdict(found)
    assert told.kind == name, told
    assert told.cost.low <= told.cost.high
    assert adds_up(found)


def test_small_steps_are_told_with_how_they_compute_and_no_advice_that_they_follow(
    tmp_path: Path,
) -> None:
    ways = {"compiled": True, "autocast": "bfloat16", "channels_last": True}
    texts = []
    for name, profile in (("usual", COSTS), ("compiled", {**COSTS, **ways})):
        job = MadeUp(ran=1.0, spans=SMALL)
        found = account(recorded(tmp_path / name, job, profile=profile))
        told = verdict(found)
        texts += [why(told, found), next_step(told, found)]
    usual, advice, compiled, other_advice = texts
    assert "torch.compile" in advice and "torch.compile" not in other_advice
    assert "a takes" in usual
    assert "a (compiled, autocast to bfloat16, channels last) takes" in compiled


@pytest.mark.parametrize(("batches", "name"), [(64, "small-steps"), (4, "healthy")])
def test_small_batches_are_told_of_a_job_that_accumulates_gradients(
    tmp_path: Path, batches: int, name: str
) -> None:
    run = recorded(tmp_path, MadeUp(ran=1.0, spans=STEP), profile=COSTS)
    progress = run.jobs[0].progress
    many = replace(progress, samples=progress.step * 4 * batches)
    assert verdict(account(replace(run, jobs=(replace(run.jobs[0], progress=many),)))).kind == name


def test_what_a_task_timed_itself_is_not_taken_from_what_it_lost_to_a_neighbour(
    tmp_path: Path,
) -> None:
    run = recording(
        tmp_path / "run.sqlite",
        {"a": MadeUp(ran=0.5, waited=0.5, spans=STEP), "b": MadeUp(ran=1.5)},
    )
    found = account(
        replace(run, jobs=(replace(run.jobs[0], asides={"evaluation": 20.0}), run.jobs[1]))
    )
    assert found.parts["neighbours"].seconds == pytest.approx(20.0, rel=0.1)
    assert found.parts["evaluation"].seconds == pytest.approx(10.0, rel=0.1)
    assert adds_up(found)


def test_a_process_that_waits_for_those_it_started_waits_for_input(tmp_path: Path) -> None:
    run = recorded(tmp_path, MadeUp(ran=1.2, ready=0.95))
    (task,) = run.jobs[0].tasks
    ready = task.signal("cpu_ready")
    main = {**task.usage, "main_ready": replace(ready, value=np.full(len(ready), 0.2))}
    busy = replace(run.jobs[0], usage=main, tasks=(replace(task, usage=main),))
    found = account(replace(run, jobs=(busy,)))
    assert verdict(found).kind == "loader"
    assert found.parts["input"].seconds == pytest.approx(0.75 * 39, rel=0.05)
    several = {**main, "cpu_ready": replace(ready, value=np.full(len(ready), 0.8))}
    # two at a time, each for 0.8 of the time
    several["helper_cores"] = replace(ready, value=np.full(len(ready), 1.6))
    found = account(
        replace(run, jobs=(replace(busy, usage=several, tasks=(replace(task, usage=several),)),))
    )
    assert found.parts["input"].seconds == pytest.approx((0.96 - 0.2) * 39, rel=0.05)
    idle = {**main, "main_ready": replace(ready, value=np.full(len(ready), 0.001))}  # a launcher
    assert account(replace(run, jobs=(replace(busy, usage=idle),))).parts["input"].seconds == 0.0


# --- several tasks --------------------------------------------------------------------------------


def division(**seconds: float) -> StepBreakdown:
    step = sum(seconds.values())
    exposed = sum(seconds.get(name, 0.0) for name in ("push", "wait", "pull"))
    return StepBreakdown(10, step, seconds, None, None, None, exposed / step)


def several(
    path: Path,
    workers: Mapping[str, Mapping[str, float]],
    *,
    servers: tuple[str, ...] = (),
    sent: Mapping[str, float] = {},
    rates: Mapping[str, float] = {},
    own: Mapping[str, float] = {},
    waited: Mapping[str, float] = {},
    throttled: Mapping[str, float] = {},
    ran: Mapping[str, float] = {},
    cap: float | None = None,
    ready: float | None = None,
    sampled: bool = True,
    beside: Mapping[str, MadeUp] = {},
    synchronous: bool = True,
    **known: Any,
) -> Account:
    """The account of a job with a worker on each of these nodes, and servers on others.

    Args:
        workers: By node, the seconds of a step by span.
        sent: By node, bytes a second of its NIC.
        rates: By node, the rate of that NIC, otherwise 100.
        own: The same of the job's own task there alone.
        waited: By node, threads of the task that waited for a core.
        throttled: By node, core-seconds a second that its own limit held back.
        ran: By node, cores that the task used.
        cap: Cores of each task, which hold it back.
        ready: Part of the time in which each task was; None: as a task that computes.
        sampled: Whether steps were.
        beside: Other jobs.
        synchronous: Whether its plan is.
    """
    run = recorded(
        path, MadeUp(ran=0.5, spans=STEP, cap=cap, throttled=0.5 if cap else 0.0), beside
    )
    job, (only,) = run.jobs[0], run.jobs[0].tasks
    known_of = only.signal("cpu_ready")

    def over(value: float) -> Signal:
        return replace(known_of, value=np.full(len(known_of), value))

    def task(role: str, index: int, node: str, spans: Mapping[str, float] | None) -> RecordedTask:
        usage = {**only.usage, "cpu_waiting": over(waited.get(node, 0.0))}
        usage |= {"cpu_cores": over(ran[node])} if node in ran else {}
        usage |= {"tcp_in": over(own[node])} if node in own else {}
        usage |= {"cpu_ready": over(ready), "main_ready": over(ready)} if ready is not None else {}
        divided = division(**spans) if spans is not None and sampled else None
        return replace(
            only, id=TaskOfRun(f"a/{role}-{index}"), node=node, usage=usage, division=divided
        )

    tasks = [
        task("worker", index, node, spans) for index, (node, spans) in enumerate(workers.items())
    ]
    tasks += [task("server", index, node, None) for index, node in enumerate(servers)]
    nodes = tuple(
        replace(
            run.nodes[0],
            name=node,
            cores=2.0,
            nic_bytes_per_second=rates.get(node, 100.0),
            usage={
                "cpu_cores": over(0.5),
                "net_in": over(sent.get(node, 1.0)),
                "cpu_throttled": over(throttled.get(node, 0.0)),
            },
        )
        for node in (*workers, *servers)
    )
    whole = division(
        **{
            name: sum(each[name] for each in workers.values()) / len(workers)
            for name in next(iter(workers.values()))
        }
    )
    strategy = "ps" if servers or not synchronous else "allreduce"
    plan = {"strategy": strategy, "servers": len(servers), "synchronous": synchronous}
    divided = whole if sampled else None
    made = typed(job, {"tasks": tuple(tasks), "division": divided, "plan": plan, **known})
    return account(replace(run, jobs=(made, *run.jobs[1:]), nodes=nodes))


SCRIPT = {"script": "train.py"}
QUICK = {"forward": 0.02, "backward": 0.02, "push": 0.06}


def told(found: Account) -> Finding:
    assert adds_up(found)
    return verdict(found)


def test_a_straggler_is_told_by_its_own_part_of_a_step_though_all_steps_take_equally_long(
    tmp_path: Path,
) -> None:
    slow = {"forward": 0.02, "backward": 0.07, "push": 0.01}
    found = several(tmp_path, {"x": QUICK, "y": slow, "z": QUICK})
    verdict = told(found)
    assert verdict.kind is FindingKind.STRAGGLER
    assert (verdict.facts.task, verdict.facts.span) == ("worker-1", "backward")
    (loss,) = [loss for loss in found.losses if loss.resource == "straggler"]
    assert loss.to == "itself"
    assert loss.lost.seconds == pytest.approx(0.5 * 39, rel=0.1)


@pytest.mark.parametrize(
    ("slow", "waited"),
    [
        ({"forward": 0.04, "backward": 0.04, "optimizer": 0.01, "push": 0.01}, {}),
        ({"forward": 0.02, "backward": 0.07, "push": 0.01}, {"y": 0.5}),
    ],
)
def test_a_node_is_slow_whose_worker_is_slow_in_all_it_does_or_waits_for_cores_that_nobody_uses(
    tmp_path: Path, slow: dict[str, float], waited: dict[str, float]
) -> None:
    quick = {**QUICK, "optimizer": 0.005, "push": 0.055} if "optimizer" in slow else QUICK
    verdict = told(several(tmp_path, {"x": quick, "y": slow, "z": quick}, waited=waited))
    assert (verdict.kind, verdict.remedy.facts.nodes) == ("slow-node", ("x", "z"))
    assert not verdict.facts.limited


@pytest.mark.parametrize("optimizer", [0.005, 0.0], ids=["an optimizer as quick", "no optimizer"])
def test_a_worker_with_larger_batches_on_an_equal_node_is_a_straggler(
    tmp_path: Path, optimizer: float
) -> None:
    """Batches sorted by length: forward and backward take longer alike, and the optimizer does
    not.
    """
    quick, slow = (
        {**QUICK, "optimizer": optimizer},
        {"forward": 0.045, "backward": 0.045, "optimizer": optimizer},
    )
    verdict = told(several(tmp_path, {"x": quick, "y": {**slow, "push": 0.01}, "z": quick}))
    assert verdict.kind == "straggler"
    assert verdict.facts.larger_batches


@pytest.mark.parametrize(
    ("throttled", "ready", "part"),
    [(0.5, 1.0, 0.45), (4.0, 0.5, 0.4)],  # of one thread; of eight that run half of the time
)
def test_a_node_is_slow_whose_limit_holds_its_worker_back_wherever_in_a_step(
    tmp_path: Path, throttled: float, ready: float, part: float
) -> None:
    held = {"y": throttled, "x": 0.05, "z": 0.05}
    found = several(tmp_path, {"x": QUICK, "y": QUICK, "z": QUICK}, throttled=held, ready=ready)
    verdict = told(found)
    assert (verdict.kind, verdict.remedy.facts.nodes) == ("slow-node", ("x", "z"))
    assert verdict.facts.limited
    (loss,) = [loss for loss in found.losses if loss.resource == "straggler"]
    assert loss.lost.seconds == pytest.approx(part * 39, rel=0.1)


@pytest.mark.parametrize(
    "throttled", [{"y": 0.1, "x": 0.05, "z": 0.05}, {"x": 0.5, "y": 0.5, "z": 0.5}]
)
def test_limits_that_hold_all_nodes_alike_make_none_slow(
    tmp_path: Path, throttled: dict[str, float]
) -> None:
    assert (
        told(several(tmp_path, {"x": QUICK, "y": QUICK, "z": QUICK}, throttled=throttled)).kind
        == "communication"
    )


def test_a_straggler_stays_one_though_its_node_s_limit_holds_back_some_of_its_extra_work(
    tmp_path: Path,
) -> None:
    slow = {"forward": 0.02, "backward": 0.07, "push": 0.01}
    assert (
        told(several(tmp_path, {"x": QUICK, "y": slow, "z": QUICK}, throttled={"y": 0.3})).kind
        == "straggler"
    )


def test_what_a_neighbour_on_a_limited_node_took_does_not_make_the_node_slow(
    tmp_path: Path,
) -> None:
    """Its worker there is ready for half of the time, and waits for all but 0.1 of it for a core
    that `b` has.
    """
    workers, b = {"x": QUICK, "y": QUICK, "z": QUICK}, {"b": MadeUp(ran=0.4, node="y")}
    found = several(
        tmp_path,
        workers,
        throttled={"y": 0.5},
        waited={"y": 0.4},
        ready=0.5,
        ran={"y": 0.1},
        beside=b,
    )
    assert told(found).kind == "neighbour-cores"
    assert not [loss for loss in found.losses if loss.resource == "straggler"]


@pytest.mark.parametrize(
    ("spec", "setting"),
    [
        # divided among three
        ({"limits": {"cores": 1.5}}, CoresSetting("limits.cores", 1.5)),
        ({"plan": {"cores_per_worker": 0.5}}, CoresSetting("plan.cores_per_worker", 0.5)),
        (
            {"script": None, "roles": [{"name": "worker", "cores": 0.5}]},
            CoresSetting("roles.cores", 0.5, "worker"),
        ),
    ],
)
def test_a_job_of_several_tasks_is_told_what_its_part_of_its_own_limit_cost(
    tmp_path: Path, spec: Mapping[str, Any], setting: CoresSetting
) -> None:
    workers = {"x": QUICK, "y": QUICK, "z": QUICK}
    waited = dict.fromkeys(workers, 0.5)
    found = several(tmp_path, workers, waited=waited, cap=0.5, ready=1.0, spec={**SCRIPT, **spec})
    verdict = told(found)
    assert (verdict.kind, verdict.facts.setting) == (FindingKind.OWN_CAP, setting)
    own_setting = verdict.remedy.otherwise or verdict.remedy
    assert own_setting.settings == {setting.field: None}
    assert found.parts["cap"].seconds == pytest.approx(20, rel=0.05)


def test_of_a_job_of_roles_the_limit_of_the_one_that_was_held_back_is_named(tmp_path: Path) -> None:
    roles = [{"name": "actor", "cores": 0.7}, {"name": "learner", "cores": 0.5}]
    run = recorded(tmp_path, MadeUp(ran=0.5, waited=0.5, cap=0.5, throttled=0.5))
    job, (learner,) = run.jobs[0], run.jobs[0].tasks
    idle = {
        column: replace(signal, value=signal.value * 0.0)
        for column, signal in learner.usage.items()
    }
    tasks = (
        replace(learner, id=TaskOfRun("a/actor-0"), usage=idle),
        replace(learner, id=TaskOfRun("a/learner-0")),
    )
    verdict = told(
        account(replace(run, jobs=(typed(job, {"spec": {"roles": roles}, "tasks": tasks}),)))
    )
    assert verdict.kind == "own-cap"
    assert verdict.facts.setting == CoresSetting("roles.cores", 0.5, "learner")


def test_workers_that_wait_for_each_other_alike_have_no_straggler(tmp_path: Path) -> None:
    slower = {"forward": 0.021, "backward": 0.022, "push": 0.057}
    assert told(several(tmp_path, {"x": QUICK, "y": slower, "z": QUICK})).kind == "communication"


def test_a_server_whose_nic_is_full_is_one_too_few(tmp_path: Path) -> None:
    verdict = told(
        several(
            tmp_path,
            {"x": QUICK, "y": QUICK},
            servers=("s",),
            sent={"s": 90.0, "x": 45.0, "y": 45.0},
        )
    )
    assert (verdict.kind, verdict.remedy.settings) == ("servers", {"plan.servers": 2})


def test_what_a_server_s_own_traffic_cost_is_lost_once(tmp_path: Path) -> None:
    """To the server that is one too few, and not to the NIC as well."""
    run = several(
        tmp_path,
        {"x": QUICK, "y": QUICK},
        servers=("s",),
        sent={"s": 90.0},
        own={"s": 80.0, "x": 40.0},
    )
    lost = [loss for loss in run.losses if loss.resource in ("servers", "network")]
    assert [loss.resource for loss in lost] == ["servers"]
    assert sum(loss.lost.seconds for loss in lost) <= run.parts["communication"].seconds


@pytest.mark.parametrize(("own", "name"), [(80.0, "servers"), (40.0, "network")])
def test_only_the_job_s_own_traffic_on_the_nic_of_a_server_asks_for_another(
    tmp_path: Path, own: float, name: str
) -> None:
    sent = {"s": 95.0, "x": 30.0, "y": 30.0}
    run = several(tmp_path, {"x": QUICK, "y": QUICK}, servers=("s",), sent=sent, own={"s": own})
    assert told(run).kind == name


@pytest.mark.parametrize(
    ("rates", "own", "asynchronous", "name"),
    [
        ({"y": 20.0}, 18.0, False, "slow-nic"),
        ({"y": 80.0}, 72.0, False, "network"),  # nearly as fast as the others
        ({"y": 20.0}, 0.5, False, "communication"),  # slow, and idle
        ({"y": 20.0}, 18.0, True, "network"),
        ({"x": 0.0, "y": 0.0, "z": 0.0}, 18.0, False, "communication"),  # not known
    ],
)
def test_a_node_is_left_out_whose_nic_all_workers_wait_for(
    tmp_path: Path, rates: Mapping[str, float], own: float, asynchronous: bool, name: str
) -> None:
    each = {"x": QUICK, "y": QUICK, "z": QUICK}
    allow = {"allow": ["async"]} if asynchronous else {}
    spec = {**SCRIPT, "plan": {"strategy": "allreduce", "workers": 3}, **allow}
    found = several(
        tmp_path, each, rates=rates, own={"y": own}, spec=spec, synchronous=not asynchronous
    )
    verdict = told(found)
    assert verdict.kind == name
    if name == "slow-nic":
        assert verdict.facts == SlowNicFacts("y", 20.0, 100.0)
        assert verdict.remedy.settings == {"plan.workers": 2}
        assert verdict.remedy.facts == NodesFacts(("x", "z"), listed=False, parts=False)
        # Its NIC would take a fifth of the time, all others being as fast, and no more can be lost
        # than was exchanged.
        assert verdict.cost.low < 0.6 * 0.8 * 39 < verdict.cost.high


def test_a_network_that_is_as_full_at_the_workers_is_no_servers_fault(tmp_path: Path) -> None:
    sent = {"s": 90.0, "x": 85.0, "y": 85.0}
    assert (
        told(several(tmp_path, {"x": QUICK, "y": QUICK}, servers=("s",), sent=sent)).kind
        != "servers"
    )


LITTLE = {"forward": 0.01, "backward": 0.01, "push": 0.08}


@pytest.mark.parametrize(
    ("sent", "servers", "name"),
    [
        ({"s": 90.0, "x": 45.0, "y": 45.0}, ("s",), "servers"),
        ({"x": 85.0, "y": 85.0}, (), "network"),
        ({"x": 1.0, "y": 1.0}, (), "communication"),
    ],
)
def test_workers_that_exchange_for_longer_than_one_would_compute_are_told_that_one_is_faster(
    tmp_path: Path, sent: Mapping[str, float], servers: tuple[str, ...], name: str
) -> None:
    """Whatever they wait for: two workers of 20 ms and 80 ms of exchange have the speed of 40 ms in
    one.
    """
    run = several(
        tmp_path / "few",
        {"x": LITTLE, "y": LITTLE},
        servers=servers,
        sent=sent,
        own=sent,
        spec=SCRIPT,
    )
    finding = told(run)
    assert (finding.kind, finding.remedy.kind) == (name, RemedyKind.SINGLE_WORKER)
    assert finding.remedy.settings == {"plan.strategy": "single"}
    assert finding.remedy.speedup == pytest.approx(2.5)
    assert finding.remedy.otherwise is not None
    much = several(tmp_path / "much", {"x": QUICK, "y": QUICK, "z": QUICK}, spec=SCRIPT)
    assert told(much).remedy.kind is not RemedyKind.SINGLE_WORKER
    command = several(
        tmp_path / "command", {"x": LITTLE, "y": LITTLE}, spec={"run": ["python", "train.py"]}
    )
    assert told(command).remedy.kind is RemedyKind.SINGLE_WORKER
    weak = {**SCRIPT, "allow": ["weak"]}  # one worker would train with another batch
    other_batch = told(several(tmp_path / "weak", {"x": LITTLE, "y": LITTLE}, spec=weak))
    assert other_batch.remedy.kind is not RemedyKind.SINGLE_WORKER


@pytest.mark.parametrize(("mbytes", "name"), [(70.0, "network"), (0.5, "not-known")])
def test_what_the_nic_needs_is_no_riddle_in_a_script_without_sampled_steps(
    tmp_path: Path, mbytes: float, name: str
) -> None:
    """As in one for torchrun: its workers idle while their own bytes fill the NIC, or while they
    move next to none.
    """
    sent = {"x": mbytes, "y": mbytes}
    found = several(
        tmp_path, {"x": QUICK, "y": QUICK}, sent=sent, own=sent, ready=0.2, sampled=False
    )
    assert told(found).kind == name
    if name == "network":
        assert found.parts["communication"].seconds == pytest.approx(0.7 * 39, rel=0.1)


@pytest.mark.parametrize(
    ("touched", "name"), [(0.01, "dense-pulls"), (0.6, "communication"), (None, "communication")]
)
def test_tables_that_are_exchanged_whole_are_told_where_a_step_touches_few_rows(
    tmp_path: Path, touched: float | None, name: str
) -> None:
    profile = {"dense_bytes": 1000, "dense_table_bytes": 900, "dense_table_touched": touched}
    assert (
        told(several(tmp_path, {"x": QUICK, "y": QUICK}, servers=("s",), profile=profile)).kind
        == name
    )


# --- what a job reports ---------------------------------------------------------------------------


def reporting(
    path: Path, t: np.ndarray[Any, Any], asides: Mapping[str, float] = {}, **fields: Any
) -> Account:
    run = recorded(path, MadeUp(ran=1.0))
    empty = np.full(len(t), np.nan)
    known: dict[str, Any] = {
        "step": np.arange(len(t)) + 1.0,
        "epoch": empty,
        "samples": empty,
        "loss": empty,
        "not_number": np.zeros(len(t)),
        "metrics": {},
    }
    known |= {"count": np.ones(len(t)), **fields}
    progress = replace(run.jobs[0].progress, t=t, task=("a/worker-0",) * len(t), **known)
    return account(replace(run, jobs=(replace(run.jobs[0], progress=progress, asides=asides),)))


def test_evaluations_that_take_longer_than_an_epoch_are_told_apart_from_its_steps(
    tmp_path: Path,
) -> None:
    # An epoch of ten steps in a tenth of a second, told in two reports or with the validation after
    # it.
    starts = 1.1 * np.arange(10)
    t = np.sort(np.concatenate([starts + 0.05, starts + 1.1]))
    steps = np.sort(np.concatenate([10.0 * np.arange(10) + 5, 10.0 * np.arange(10) + 10]))
    known = reporting(tmp_path, t, step=steps, metrics={"val_loss": (starts + 1.1, np.ones(10))})
    assert known.parts["evaluation"].seconds == pytest.approx(10.0, rel=0.06)


def test_pauses_before_reports_of_an_evaluation_are_evaluation(tmp_path: Path) -> None:
    # Ten steps a tenth of a second apart, then three seconds of validation, ten times.
    t = np.concatenate([4.0 * epoch + 0.1 * np.arange(10) for epoch in range(10)])
    ends = np.array([4.0 * epoch + 0.9 + 3.0 for epoch in range(10)])
    found = reporting(tmp_path, t, metrics={"val_loss": (ends, np.ones(10))})
    assert found.parts["evaluation"].seconds == pytest.approx(29.0, rel=0.05)
    assert verdict(found).kind == "evaluation"
    assert (
        reporting(tmp_path / "no", t, metrics={"lr": (ends, np.ones(10))})
        .parts["evaluation"]
        .seconds
        == 0.0
    )


@pytest.mark.parametrize(
    ("falls", "name"),
    [
        (lambda t: np.exp(-t), "learned"),
        (lambda t: 1.0 / (1.0 + t), "healthy"),
        (lambda t: 1.0 - t / 80.0, "healthy"),
        (np.zeros_like, "healthy"),
        (lambda t: np.where(t < 30.0, np.exp(-t), np.exp(-t) - 0.3), "healthy"),
    ],
    ids=["converges", "falls slowly", "falls evenly", "learns nothing", "falls again"],
)
def test_a_loss_that_is_flat_beyond_its_noise_for_long_has_converged(
    tmp_path: Path, falls: Any, name: str
) -> None:
    t = np.linspace(0.0, 39.0, 2000)
    noise = np.random.default_rng(0).normal(0.0, 0.03, len(t))
    assert verdict(reporting(tmp_path, t, loss=2.0 + falls(t) + noise)).kind == name


@pytest.mark.parametrize(("seconds", "name"), [(8.0, "learned"), (25.0, "evaluation")])
def test_a_job_that_learns_nothing_more_need_not_become_a_little_faster(
    tmp_path: Path, seconds: float, name: str
) -> None:
    t = np.linspace(0.0, 39.0, 2000)
    loss = 2.0 + np.exp(-t) + np.random.default_rng(0).normal(0.0, 0.03, len(t))
    assert verdict(reporting(tmp_path, t, {"evaluation": seconds}, loss=loss)).kind == name


@pytest.mark.parametrize(("counts", "name"), [(4.0, "learned"), (1.0, "healthy")])
def test_a_report_counts_for_the_losses_it_is_the_mean_of(
    tmp_path: Path, counts: float, name: str
) -> None:
    t = np.linspace(0.0, 8.0, 80)
    noise = np.random.default_rng(0).normal(0.0, 0.002, len(t))
    assert (
        verdict(
            reporting(tmp_path, t, loss=0.03 + np.exp(-4 * t) + noise, count=np.full(80, counts))
        ).kind
        == name
    )


@pytest.mark.parametrize(
    ("lost", "name"),
    [
        (lambda t: t > 20.0, "diverged"),
        (lambda t: t >= 0.0, "diverged"),
        (lambda t: (t > 20.0) & (t < 30.0), "healthy"),
        (lambda t: t == t[-1], "healthy"),
    ],
    ids=["since the middle", "from the start", "for a while", "at last"],
)
@pytest.mark.parametrize("beside", [0.0, 8.0])
def test_a_loss_that_is_no_number_to_the_end_has_diverged_whatever_else_cost_time(
    tmp_path: Path, lost: Any, name: str, beside: float
) -> None:
    t = np.linspace(0.0, 39.0, 200)
    there = np.where(lost(t), np.nan, 1.0 / (1.0 + t))
    found = reporting(
        tmp_path, t, {"evaluation": beside}, loss=there, not_number=lost(t).astype(float)
    )
    told = verdict(found)
    assert told.kind == (name if name == "diverged" or not beside else "evaluation")
    if name == "diverged":
        assert told.cost.low == pytest.approx(39.0 - t[lost(t)][0], abs=2.0)
        assert told.facts.step == np.flatnonzero(lost(t))[0] + 1


def test_few_jobs_that_still_learn_a_little_are_said_to_have_converged(tmp_path: Path) -> None:
    t = np.linspace(0.0, 39.0, 1000)
    names = []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(0.0, 0.05, len(t))
        names.append(
            verdict(reporting(tmp_path / str(seed), t, loss=2.0 + 1.0 / (1.0 + t) + noise)).kind
        )
    assert names.count(FindingKind.LEARNED) <= 1


@pytest.mark.parametrize(
    ("spec", "kind", "settings"),
    [
        ({"script": "/a b/train.py"}, RemedyKind.SEE_PLANS, {}),
        ({"run": "train"}, RemedyKind.REDUCE_WORKERS, {"plan.workers": 1}),
        (
            {"script": "/t.py", "launch": "torchrun"},
            RemedyKind.REDUCE_WORKERS,
            {"plan.workers": 1},
        ),
        ({"script": "/t.py", "launch": "torchrun", "batch": "global"}, RemedyKind.SEE_PLANS, {}),
    ],
)
def test_other_plans_are_proposed_where_headgate_can_plan_the_job(
    tmp_path: Path, spec: dict[str, Any], kind: RemedyKind, settings: dict[str, int]
) -> None:
    finding = told(several(tmp_path, {"x": QUICK, "y": QUICK}, spec=spec))
    assert finding.kind is FindingKind.COMMUNICATION
    assert (finding.remedy.kind, finding.remedy.settings) == (kind, settings)


def test_tasks_that_share_cores_are_told_how_many_would_have_one_each(tmp_path: Path) -> None:
    run = recorded(tmp_path, MadeUp(ran=0.5, waited=0.5, spans=STEP))
    job, (one,) = run.jobs[0], run.jobs[0].tasks
    tasks = tuple(replace(one, id=TaskOfRun(f"a/worker-{index}")) for index in range(4))
    shared = account(
        replace(run, jobs=(typed(job, {"tasks": tasks, "spec": {"script": "/t.py"}}),))
    )
    assert told(shared).kind is FindingKind.OWN_TASKS
    assert told(shared).remedy.settings == {"plan.workers": 2}


@pytest.mark.parametrize(
    ("workers", "plan", "settings"),
    [
        (4, {"synchronous": False}, {"plan.workers": 2}),
        (4, {"synchronous": False, "staleness": 3}, {"plan.workers": 2}),
        (2, {"synchronous": False}, {}),  # a chief, and one that it directs
    ],
)
def test_fewer_workers_than_a_plan_of_tensorflow_s_can_have_are_not_proposed(
    tmp_path: Path, workers: int, plan: dict[str, Any], settings: dict[str, int]
) -> None:
    run = recorded(tmp_path, MadeUp(ran=0.5, waited=0.5, spans=STEP))
    job, (one,) = run.jobs[0], run.jobs[0].tasks
    names = ["server-0", *(f"worker-{index}" for index in range(workers))]
    tasks = tuple(replace(one, id=TaskOfRun(f"a/{name}")) for name in names)
    spec, plan = (
        {"script": "/t.py", "launch": "tensorflow"},
        {"strategy": "ps", "servers": 1, **plan},
    )
    shared = account(replace(run, jobs=(typed(job, {"tasks": tasks, "spec": spec, "plan": plan}),)))
    assert told(shared).kind is FindingKind.OWN_TASKS
    assert told(shared).remedy.settings == settings
