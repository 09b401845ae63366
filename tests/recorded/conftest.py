"""The run of which every number is known, for the tests of what is read of it."""

from tests.reports.conftest import store

__all__ = ["store"]
