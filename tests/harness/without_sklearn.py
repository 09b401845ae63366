"""Imported before Keras, this says that scikit-learn is not there: Keras imports it for wrappers
that no test uses, which takes a third of its time.
"""

from __future__ import annotations

import sys

sys.modules["sklearn"] = None  # type: ignore[assignment]
