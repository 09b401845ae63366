from __future__ import annotations

from tests.hub.user import speed, user

__all__ = ["speed", "user"]
