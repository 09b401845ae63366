"""What a job that calls a function is told, and where it leaves what comes of it."""

from __future__ import annotations

CALL = "HEADGATE_CALL"
"""Variable that names the file of the call."""
RESULT = "result.pkl"
"""File of the result: in the job's folder; on a node without that, in its folder of checkpoints."""
