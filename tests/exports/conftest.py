from __future__ import annotations

import sys
from types import ModuleType

from tests.hub.user import speed, user
from tests.reports.conftest import distributed, store

__all__ = ["distributed", "speed", "store", "user"]

sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))
"""Has TensorBoard's readers do without TensorFlow, which takes a minute to import."""
