"""Records go through JSON and come back as they were, also from other versions."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.model import actions, events, progress, records
from headgate.model.identifiers import JobId, TaskId, TaskName
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.progress_rule import ProgressRule
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.roles import Ready, Role
from headgate.model.shares import UNLIMITED, Share

KINDS = {
    kind.__name__: kind
    for union in (events.Event, actions.Action, events.Notice)
    for kind in get_args(union)
}
NUMBERS = st.floats(allow_nan=False)
POSITIVE = st.floats(min_value=1e-3, max_value=1e12)
NAMES = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
ROLES = st.builds(
    Role,
    name=NAMES,
    run=st.just("serve {port}") | st.just(("serve", "x")),
    ready=st.none() | st.just(Ready(port=True)) | st.just(Ready(line="up")),
    ends=st.booleans(),
)
PLANS = st.builds(
    Plan,
    strategy=st.just("allreduce"),
    workers=st.integers(2, 9),
    batch_per_worker=st.none() | st.integers(1, 64),
    cores_per_worker=st.none() | POSITIVE,
)
COMMON = {
    "name": NAMES,
    "env": st.dictionaries(NAMES, WORDS, max_size=3),
    "priority": POSITIVE,
    "after": st.none() | NAMES | st.lists(NAMES, min_size=1, max_size=3),
    "limits": st.builds(Limits, cores=st.none() | POSITIVE, workers=st.just((1, None))),
    "progress": st.builds(
        ProgressRule, patience=st.none() | st.integers(1, 9), script_stopping=st.none()
    ),
    "allow": st.frozensets(st.sampled_from(["async", "weak"])),
    "stop_signal": st.sampled_from(["SIGTERM", 10]),
}
JOBS = (
    st.builds(Job, script=NAMES, args=st.tuples(WORDS, WORDS), **COMMON)
    | st.builds(Job, run=st.just(("a", "b")) | st.just("a b"), plan=st.none() | PLANS, **COMMON)
    | st.builds(Job, roles=st.tuples(ROLES), **COMMON)
)
LIMITS = st.none() | POSITIVE | st.just(UNLIMITED)
SHARES = st.builds(
    Share,
    cpu_weight=st.none() | st.floats(1, 10_000),
    cpu_cap_cores=LIMITS,
    disk_bytes_per_second=LIMITS,
    gpu_fraction=st.none() | st.floats(0.01, 1),
)
FACTS = (
    st.none()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.lists(st.integers(0, 9))
)
REASONS = st.builds(Reason, st.sampled_from(ReasonKind), st.dictionaries(NAMES, FACTS, max_size=3))
for kind, values in (
    (float, NUMBERS),
    (Reason, REASONS | st.builds(Reason.of, st.sampled_from(ReasonKind), after=REASONS)),
    (Job, JOBS),
    (Plan, PLANS),
    (Share, SHARES),
    (JobId, st.builds(JobId.of, NAMES, NAMES)),
    (
        TaskId,
        st.builds(lambda run, job: JobId.of(run, job).task(TaskName("worker-0")), NAMES, NAMES),
    ),
):
    st.register_type_strategy(kind, values)


def _way_and_back(value: Any) -> Any:
    text = json.dumps(records.dump(value), allow_nan=False)
    return records.load(json.loads(text), KINDS)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_event_and_action_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    value = data.draw(st.from_type(KINDS[name]))
    back = _way_and_back(value)
    assert back == value
    assert type(back) is type(value)
    subject = actions.subject(back)
    assert type(subject) is type(actions.subject(value))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 0.1 + 0.2, 1e-320, -0.0])
def test_a_number_keeps_each_of_its_bits(number: float) -> None:
    loss = _way_and_back(progress.Progress(TaskId("r/a/worker-0"), 1, loss=number)).loss
    assert math.copysign(1.0, loss) == math.copysign(1.0, number)
    assert repr(loss) == repr(number)


@dataclass(frozen=True)
class Circle:
    radius: float
    shade: float | None = None
    lines: int = 1


def test_what_a_later_version_adds_is_ignored() -> None:
    data = {"type": "Circle", "radius": 1.0, "colour": "red"}
    assert records.load(data, {"Circle": Circle}) == Circle(1.0)


@pytest.mark.parametrize("json", [{}, {"type": "Line"}, {"type": "Circle"}])
def test_what_cannot_be_read_is_an_error_of_its_own(json: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Circle|knows no"):
        records.load(json, {"Circle": Circle})


def test_defaults_that_change_do_not_change_what_a_log_says() -> None:
    later = make_dataclass(
        "Circle",
        [
            ("radius", float, field(default=9.0)),
            ("shade", float | None, field(default=9.0)),
            ("lines", int, field(default=9)),
        ],
    )
    logged = records.dump(Circle(1.0))
    assert records.plain(records.load(logged, {"Circle": later})) == records.plain(Circle(1.0))


LEFT_OUT = {
    "NodeJoined": {"runs": ()},
    "NodeLeft": {"runs": (), "for_good": False},
    "JobSubmitted": {
        "nodes": (),
        "divides": False,
        "uses_gpus": "no",
        "key": "",
        "beside": (),
        "script": "",
    },
    "JobGivesBack": {"ends": False},
    "Progress": {"count": 1, "metrics": {}, "weight": 1.0, "parts": ()},
    "Usage": {
        "disk_bytes_per_second": 0.0,
        "network_bytes_per_second": 0.0,
        "gpu_memory_bytes": 0.0,
    },
    "GpuMemoryUsed": {"single": frozenset(), "closed": frozenset()},
    "Predicted": {"drops": (), "ends": True, "follows": True},
    "StopRequested": {"kill": False},
    "MoveRequested": {"waits": False},
    "PauseRequested": {"release": False, "urgent": ""},
    "UnpauseRequested": {"refused": False},
    "StartTask": {"joins": False},
    "StopTask": {"leaves": False},
    "Resize": {"restarts": False, "least_workers": 1},
    "Fault": {"restarts": False},
}
"""Fields that entries of earlier logs lack where they were as here; None is not listed."""


def test_a_log_of_an_earlier_version_means_what_it_did() -> None:
    defaults: dict[str, dict[str, Any]] = {}
    for name, kind in KINDS.items():
        for entry in fields(kind):
            default = entry.default if entry.default_factory is MISSING else entry.default_factory()
            if default is not MISSING and default is not None:
                defaults.setdefault(name, {})[entry.name] = default
    assert defaults == LEFT_OUT
