"""Headgate's own policies keep the contract."""

from __future__ import annotations

import re
from collections.abc import Callable
from inspect import getdoc

import pytest

from headgate import policies
from headgate.policies import Policy
from headgate.testing.policy import PolicyContract

NAMES = (*policies.BUILT_IN, "flowcon:faithful", "flowcon:memory=8e9,disk=1e8,network=1e8,itval=5")


def test_each_policy_is_told_its_own_name() -> None:
    assert [policies.make(name).name for name in NAMES] == list(NAMES)


@pytest.mark.parametrize("name", policies.BUILT_IN)
def test_each_policy_says_what_it_is_for(name: str) -> None:
    said = getdoc(type(policies.make(name))) or ""
    heads = [line.split(":")[0] for line in said.splitlines()]
    assert [heads.count(head) for head in ("Objective", "Rule", "Source")] == [1, 1, 1]
    assert re.search(r"^Use it\b", said, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
class TestPolicies(PolicyContract):
    histories = 6

    @pytest.fixture
    def make(self, name: str) -> Callable[[], Policy]:
        return lambda: policies.make(name)
