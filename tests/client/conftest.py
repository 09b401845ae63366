from __future__ import annotations

from tests.hub.slowly import slow
from tests.hub.user import speed, user

__all__ = ["slow", "speed", "user"]
