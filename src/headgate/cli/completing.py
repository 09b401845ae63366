"""Completion in a shell (TAB) of names of runs, jobs, policies, engines and isolations, and of
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

_MOST_RUNS = 50
"""Number of latest runs whose jobs are completed."""


class _Completed(click.types.StringParamType):
    """Text with completions."""

    def __init__(self, names: Callable[[str], Iterable[str]] | None, files: bool) -> None:
        self._names = names
        self._files = files

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names: list[str] = []
        with suppress(Exception):  # nothing is known then: a shell's line is no place for messages
            names = list(self._names(incomplete)) if self._names is not None else []
        completion_items = [
            CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)
        ]
        return [
            *completion_items,
            *(
                [CompletionItem(incomplete, type="file")]
                if self._files and not completion_items
                else []
            ),
        ]


def completed(command: click.Command) -> click.Command:
    """A verb whose options and arguments are completed by their names."""
    for param in command.params:
        # click completes files for its own type of path
        if isinstance(param.type, click.types.StringParamType):
            names, files = _BY_NAME.get(str(param.name)), _takes_a_file(param)
            if command.name == "explain" and param.name == "run":  # which may be a job's name alone
                names = _runs_and_jobs
            if names is not None or files:
                param.type = _Completed(names, files)
    if isinstance(command, click.Group):
        for verb in command.commands.values():
            completed(verb)
    return command


def _takes_a_file(param: click.Parameter) -> bool:
    metavar = str(param.metavar or "")
    return param.name in _FILES or any(word in metavar for word in ("FILE", "PATH"))


_FILES = {"targets", "scripts", "file", "trace", "output", "save"}


def _runs(_: str = "") -> list[str]:
    from headgate.recorded import runs

    return [folder.name for folder in reversed(runs.listing()[-_MOST_RUNS:])]


def _jobs(incomplete: str) -> list[str]:
    from headgate.model.identifiers import run_and_job
    from headgate.recorded import runs

    run, _ = run_and_job(incomplete)
    folders = [
        folder for folder in reversed(runs.listing()[-_MOST_RUNS:]) if run in ("", folder.name)
    ]
    names = [job.name for folder in folders for job in sorted((folder / "jobs").iterdir())]
    return [f"{run}/{name}" for name in names] if run else names


def _runs_and_jobs(incomplete: str) -> list[str]:
    return [*_runs(), *_jobs(incomplete)]


def _policies(_: str) -> list[str]:
    from headgate.policies import BUILT_IN

    return list(BUILT_IN)


def _engines(_: str) -> list[str]:
    from headgate.engines.base import LOCAL
    from headgate.engines.engine_options import declared

    return [LOCAL.name, *declared()]


def _isolations(_: str) -> list[str]:
    from headgate import isolation

    return list(isolation.names())


def _labs(_: str) -> list[str]:
    from headgate import lab

    return list(lab.names())


_BY_NAME: dict[str, Callable[[str], Iterable[str]]] = {
    "run": _runs,
    **dict.fromkeys(("names", "first", "second"), _runs),
    **dict.fromkeys(("job", "jobs", "neighbour"), _jobs),
    "policy": _policies,
    "policies": _policies,
    "engine": _engines,
    "isolation": _isolations,
    "cluster": _labs,
}


def quietly(act: Callable[[], Any]) -> Any:
    """Answer a shell. If anything fails, complete nothing and print nothing."""
    try:
        return act()
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001
        raise SystemExit(0) from None
