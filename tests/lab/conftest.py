from __future__ import annotations

from tests.lab.laboratory import laboratory

__all__ = ["laboratory"]
