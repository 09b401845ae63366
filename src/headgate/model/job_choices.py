"""Choices that fields of a job have."""

from __future__ import annotations

from typing import Literal

Contract = Literal["torchrun", "deepspeed", "tensorflow", "jax", "mpi"]
"""How the processes of a script find each other: the variables that a launcher gives each
process.
"""
Launched = Literal["torchrun", "deepspeed", "tensorflow", "jax", "mpi", "none"]
"""Valid values of a job's `launch`: a contract, or `none` for Headgate's own variables only."""
BatchRule = Literal["per-worker", "global"]
"""Whether each worker of another launcher's script takes the whole batch, or a part of it."""
VerifyRule = Literal["auto", "strict", "off"]
"""Whether to compare several workers with one: warn of a difference, stop at it, or do not
compare.
"""
Allowed = Literal["async", "weak"]
"""Changes to the mathematics that a plan may make."""
