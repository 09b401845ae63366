"""Connects to an engine's cluster, for commands that inspect it without running anything there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from headgate import engines
from headgate.engines.base import Engine, EngineSpec, Listener
from headgate.model.endings import Exit
from headgate.model.errors import UsageError
from headgate.model.identifiers import TaskId
from headgate.model.reason_text import in_words
from headgate.model.reasons import Reason
from headgate.recorded import runs


@contextmanager
def reached(spec: EngineSpec) -> Iterator[Engine]:
    """An existing cluster's engine, open within the context.

    Raises:
        UsageError: No cluster is named.
        HeadgateError: The cluster cannot be reached.
    """
    if not spec.address:
        raise UsageError(f"found --engine {spec} without --address; expected that of a cluster")
    engine = engines.make(spec, runs.home())
    try:
        engine.open(_Warnings())
        yield engine
    finally:
        engine.close()


class _Warnings(Listener):
    """Prints warnings. There are no tasks to report on."""

    def started(self, task: TaskId, pid: int) -> None: ...

    def output(self, task: TaskId, lines: Sequence[str]) -> None: ...

    def message(self, task: TaskId, message: Mapping[str, object]) -> None: ...

    def exited(self, task: TaskId, exit: Exit) -> None: ...

    def warned(self, task: TaskId | None, what: Reason | str) -> None:
        text = in_words(what) if isinstance(what, Reason) else what
        click.echo(f"note: {text}", err=True)

    def left(self, name: str, reason: str, for_good: bool = False) -> None:
        click.echo(f"note: node {name} is gone: {reason}", err=True)
