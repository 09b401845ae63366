"""Every way of setting a parameter, under every strategy, comes to what it comes to in one process,
or is refused by name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from tests.torch import placed
from tests.torch.conftest import run_alone

from headgate.model.plans import Plan

PLANS = {
    "allreduce": Plan(strategy="allreduce", workers=2, batch_per_worker=(5, 3)),
    "ps": Plan(strategy="ps", workers=2, servers=2, batch_per_worker=(5, 3)),
    "async": Plan(strategy="ps", workers=1, servers=2, batch_per_worker=None, synchronous=False),
}
ALWAYS = {"added_later": "before headgate.torch.prepare|Add it before prepare"}
SEVERAL = {"max_norm": "Leave max_norm out"}
NO_WHOLE_TABLE = (
    "drawn_until_it_fits",
    "orthogonal",
    "parametrized",
    "set_storage",
    "shared_memory",
)
"""Ways that read all values of a table, or its storage."""
AT_ONCE = (
    "data",
    "data_copy",
    "from_numpy",
    "new_parameter",
    "by_setattr",
    "state_dict",
    "assigned_state_dict",
)
"""Ways that give a table on servers all its values at once."""
ON_SERVERS = {
    "tied_by_data": "layer.weight = other.weight",
    **{f"sparse_before {way}": "make the layer sparse=False" for way in NO_WHOLE_TABLE},
    **{
        f"sparse_after {way}": (
            "before headgate.torch.prepare|make the layer sparse=False|exchange it before"
        )
        for way in placed.WAYS
        if way not in (*AT_ONCE, "as_vector", "frozen")
    },
}
WITHOUT_WAITING = {
    f"dense_after {way}": "run a synchronous plan"
    for way in placed.WAYS
    # A new parameter is none of the optimizer's, whatever the plan; and these change no value.
    if way not in ("new_parameter", "by_setattr", "assigned_state_dict", "parametrized", "frozen")
    and way not in ("set_storage", "shared_memory")
}
DRAWN = {
    f"{kind} {way}": "weights are not the same any more"
    for kind in ("dense_after", "sparse_after")
    for way in ("drawn", "drawn_until_it_fits", "orthogonal")
}
REFUSED: dict[str, dict[str, str]] = {
    "allreduce": {**ALWAYS, **SEVERAL, **DRAWN},
    "ps": {**ALWAYS, **SEVERAL, **DRAWN, **ON_SERVERS},
    "async": {**ALWAYS, **ON_SERVERS, **WITHOUT_WAITING, "max_norm": "run a synchronous plan"},
}
"""For each strategy what is refused, and words of what the error says."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("alone")
    run_alone(placed.__file__, folder, str(folder))
    results: dict[str, Any] = torch.load(folder / "plain.pt", weights_only=True)
    return results


@pytest.mark.long
@pytest.mark.parametrize("strategy", PLANS)
def test_a_parameter_that_is_set_in_any_way_is_trained_or_refused_by_name(
    strategy: str, alone: dict[str, Any], tmp_path: Path
) -> None:
    plan, refused = PLANS[strategy], REFUSED[strategy]
    with Gang(tmp_path, plan, [sys.executable, placed.__file__, str(tmp_path)]) as gang:
        gang.start()
        gang.finish()
    wrong = {}
    for worker in (f"worker-{index}" for index in range(plan.workers)):
        for name, result in torch.load(tmp_path / f"{worker}.pt", weights_only=True).items():
            if name in refused or isinstance(alone[name], str):
                expected = isinstance(result, str) and any(
                    words in result for words in refused.get(name, alone[name]).split("|")
                )
            else:
                expected = not isinstance(result, str) and _same(result, alone[name])
            if not expected:
                wrong[f"{name} in {worker}"] = result
    assert wrong == {}


def _same(tensors: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return [tensor.shape for tensor in tensors] == [tensor.shape for tensor in wanted] and all(
        bool((a - b).norm() <= 1e-10 * b.norm()) for a, b in zip(tensors, wanted)
    )
