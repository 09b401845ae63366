from __future__ import annotations

from tests.dockerd import daemon
from tests.hub.slowly import slow
from tests.hub.user import speed, user

__all__ = ["daemon", "slow", "speed", "user"]
