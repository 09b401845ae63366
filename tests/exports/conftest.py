from __future__ import annotations

from tests.hub.user import speed, user
from tests.reports.conftest import distributed, store

__all__ = ["distributed", "speed", "store", "user"]
