"""What part a task has in its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headgate.task.channel import Channel

WELCOME_SECONDS = 60.0
"""How long a task waits to be told what it is."""


def plan_of(channel: Channel) -> Mapping[str, Any]:
    """The plan that this task is part of; empty where it is alone.

    Raises:
        RuntimeError: The engine did not say.
    """
    if not channel.connected:
        return {}
    if not channel.wait_for(lambda: bool(channel.welcome), WELCOME_SECONDS) and channel.connected:
        raise RuntimeError(
            f"Headgate did not say within {WELCOME_SECONDS:g} s what part this task has in its job; "
            "see `headgate doctor`, or run the script without Headgate"
        )
    plan: Mapping[str, Any] = channel.welcome.get("plan") or {}
    alone = plan.get("strategy", "single") == "single" or (plan["strategy"] == "allreduce" and plan["workers"] == 1)
    return {} if alone else plan


def workers_gone(channel: Channel, workers: int) -> list[int]:
    """Indices of those of a job's `workers` that the engine no longer lists."""
    if not channel.peers:
        return []
    here = {member["index"] for member in channel.peers["members"] if member["role"] == "worker"}
    return [index for index in range(workers) if index not in here]
