"""Headgate's own policies keep the contract."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.policies import EqualPolicy, NoPolicy, Policy
from headgate.testing.policy import PolicyContract


class TestNone(PolicyContract):
    @pytest.fixture
    def make(self) -> Callable[[], Policy]:
        return NoPolicy


class TestEqual(PolicyContract):
    @pytest.fixture
    def make(self) -> Callable[[], Policy]:
        return EqualPolicy
