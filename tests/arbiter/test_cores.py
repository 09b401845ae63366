"""How the cores of a machine are divided between its users."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.arbiter.cores import CoreClaim, divide, weights

AMOUNTS = st.floats(0.0, 64.0)


@st.composite
def _claims(draw: st.DrawFn) -> dict[str, CoreClaim]:
    claims = {}
    for i in range(draw(st.integers(1, 6))):
        guaranteed = draw(st.one_of(st.just(0.0), AMOUNTS))
        largest = draw(st.one_of(st.just(math.inf), st.floats(max(guaranteed, 0.1), 128.0)))
        claims[f"u{i}"] = CoreClaim(draw(st.floats(0.1, 10.0)), guaranteed, largest, draw(AMOUNTS))
    return claims


def test_users_share_by_their_shares_when_all_want_all() -> None:
    parts = divide(12.0, {"ada": CoreClaim(shares=2.0), "bob": CoreClaim()})
    assert parts == {"ada": 8.0, "bob": 4.0}


def test_others_use_what_one_leaves() -> None:
    parts = divide(8.0, {"ada": CoreClaim(wanted=1.0), "bob": CoreClaim(), "eve": CoreClaim()})
    assert parts == {"ada": 1.0, "bob": 3.5, "eve": 3.5}


def test_a_user_without_shares_enough_gets_the_guaranteed_cores() -> None:
    claims = {"ada": CoreClaim(guaranteed=4.0), "bob": CoreClaim(shares=9.0)}
    assert divide(8.0, claims) == {"ada": 4.0, "bob": 4.0}
    by_user = weights(8.0, claims)
    assert by_user["ada"] == by_user["bob"]


def test_users_grow_into_what_nobody_wants() -> None:
    assert divide(8.0, {"ada": CoreClaim(wanted=1.0)}) == {"ada": 8.0}
    assert divide(8.0, {"ada": CoreClaim(wanted=1.0, largest=2.0)}) == {"ada": 2.0}
    assert divide(8.0, {}) == {}


@settings(max_examples=200, deadline=None)
@given(st.floats(1.0, 128.0), _claims())
def test_no_core_is_given_twice_or_left(cores: float, claims: dict[str, CoreClaim]) -> None:
    most = min(cores, sum(claim.largest for claim in claims.values()))
    parts = divide(cores, claims)
    assert sum(parts.values()) == pytest.approx(most, abs=1e-6)
    assert all(part <= claims[user].largest + 1e-9 for user, part in parts.items())


@settings(max_examples=200, deadline=None)
@given(st.floats(1.0, 128.0), _claims())
def test_no_user_is_below_the_guaranteed_part(cores: float, claims: dict[str, CoreClaim]) -> None:
    least = {user: min(claim.guaranteed, claim.wanted, cores) for user, claim in claims.items()}
    shrink = min(cores / max(sum(least.values()), 1e-9), 1.0)
    parts = divide(cores, claims)
    assert all(parts[user] >= shrink * least[user] - 1e-6 for user in claims)


@settings(max_examples=200, deadline=None)
@given(st.floats(1.0, 128.0), _claims())
def test_nobody_wants_who_has_less_than_another(cores: float, claims: dict[str, CoreClaim]) -> None:
    parts = divide(cores, claims)
    for user, claim in claims.items():
        if parts[user] >= min(claim.wanted, claim.largest, cores) - 1e-6:
            continue
        for other, part in parts.items():
            above = part / claims[other].shares > parts[user] / claim.shares + 1e-6
            assert not above or part <= claims[other].guaranteed + 1e-6
