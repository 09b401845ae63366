"""What the shares of the tasks of a node come to."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.shares import Share, entitled, fill, threads


@settings(deadline=None)
@given(
    cores=st.floats(0.1, 64.0),
    claims=st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3),
        st.tuples(st.floats(1.0, 1e4), st.floats(0.01, 64.0)),
        max_size=8,
    ),
)
def test_filling_is_max_min_fair(cores: float, claims: dict[str, tuple[float, float]]) -> None:
    result = fill(cores, claims)
    assert result.keys() == claims.keys()
    total = sum(cap for _, cap in claims.values())
    assert math.isclose(sum(result.values()), min(cores, total), rel_tol=1e-6) or not claims
    rates = [
        result[name] / weight
        for name, (weight, cap) in claims.items()
        if result[name] < cap * (1 - 1e-9)
    ]
    for name, (weight, cap) in claims.items():
        assert result[name] <= cap * (1 + 1e-9)
        # Whoever got less than its cap got as much a unit of weight as anybody.
        assert not rates or result[name] / weight <= min(rates) * (1 + 1e-6)


def counted(cores: float, *shares: Share) -> list[int]:
    named = {str(place): share for place, share in enumerate(shares)}
    return list(threads(cores, named, entitled(cores, named)).values())


def weights(*parts: float) -> list[Share]:
    return [Share(cpu_weight=part) for part in parts]


@pytest.mark.parametrize(
    ("cores", "shares", "expected"),
    [
        (2.0, weights(100), [2]),
        (1.5, weights(100), [2]),  # all that there is
        (1.2, weights(100), [1]),
        (0.1, weights(100), [1]),
        (4.0, [Share(cpu_cap_cores=1.5)], [2]),
        (2.0, [Share(cpu_weight=300, cpu_cap_cores=1.5), Share(cpu_weight=100)], [2, 1]),
        (2.0, [Share(), Share()], [2, 2]),  # without weights
        (2.0, weights(171, 29), [1, 1]),
        (2.0, weights(190, 10), [2, 1]),  # of its second core a twentieth is missing
        (4.0, weights(340, 60), [3, 1]),
        (4.0, weights(375, 25), [3, 1]),
        (4.0, weights(390, 10), [4, 1]),
        (8.0, weights(100, 100), [4, 4]),
        (4.0, weights(100, 100, 100), [2, 1, 1]),  # no core idles
        (8.0, weights(100, 100, 100), [3, 3, 2]),
        (8.0, weights(100, 150, 100), [2, 4, 2]),  # 2.3, 3.4, 2.3: who lacks least of one more
        (2.0, weights(*[100] * 10), [1] * 10),
        (3.0, [*weights(100, 100), Share(cpu_weight=100, cpu_cap_cores=0.2)], [1, 1, 1]),
        (4.0, [*weights(100, 100), Share(cpu_weight=100, cpu_cap_cores=0.2)], [2, 2, 1]),
        (4.0, [Share(cpu_weight=100, cpu_cap_cores=1.2), *weights(80, 400)], [1, 1, 2]),
    ],
)
def test_threads_have_a_core_each(cores: float, shares: list[Share], expected: list[int]) -> None:
    assert counted(cores, *shares) == expected


@settings(deadline=None)
@given(cores=st.floats(0.1, 64.0), parts=st.lists(st.floats(1.0, 1e4), min_size=1, max_size=12))
def test_there_are_threads_for_all_cores_and_hardly_more(cores: float, parts: list[float]) -> None:
    count = counted(cores, *weights(*parts))
    assert min(count) >= 1
    assert math.floor(cores) <= sum(count) <= cores + len(parts)
