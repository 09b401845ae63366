"""Engine `ssh`: tasks on machines that the user reaches over ssh, without a cluster.

The hub starts `ssh` for each machine, and an agent at its other end, which Headgate brings along.
They speak over the standard input and output of `ssh`, so nothing listens on a network. On a
machine that users share, the agent asks the arbiter before a task starts.
`headgate.engines.remote` has the agent and the messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headgate.engines.engine_options import Declaration, Option

if TYPE_CHECKING:
    from headgate.engines.base import Engine, EngineSpec


def _make(spec: EngineSpec, home: Path) -> Engine:
    from headgate.engines.ssh.engine import SshEngine

    return SshEngine(spec.address, shared_files=spec.shared_files, speeds=home / "ssh-speeds.json")


ENGINE = Declaration(
    "ssh",
    _make,
    options=(
        Option("address", "the machines, as you name them to ssh: a,b", metavar="HOST,…"),
        Option("shared_files", "send no files, because the machines see this machine's files"),
    ),
    example="--address gpu1,gpu2",
)
