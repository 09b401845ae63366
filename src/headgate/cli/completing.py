"""Completion in a shell (TAB) of names of runs, jobs, nodes, policies, engines and isolations, and
of files.

A shell waits for it at each TAB. So the names of runs and jobs come without the modules of verbs,
which take long to import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem

from headgate.model.identifiers import run_and_job
from headgate.recorded.folders import listing

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


class _NamesAfter(click.Command):
    """Stands for a verb whose names are completed. The verb itself completes its options."""

    def __init__(self, verb: str, itself: Callable[[], click.Command | None]) -> None:
        options = [click.Option([f"--{name}"], type=_Completed(_jobs, False)) for name in _JOB]
        run = click.Option(["--run"], type=_Completed(_runs, False))
        named = click.Argument(["named"], nargs=-1, type=_Completed(ARGUMENTS[verb], False))
        unknown = {"ignore_unknown_options": True}
        super().__init__(verb, context_settings=unknown, params=[run, *options, named])
        self._itself = itself

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        verb = self._itself()
        return verb.shell_complete(ctx, incomplete) if verb is not None else []


def named_after(
    verb: str, words: list[str], itself: Callable[[], click.Command | None]
) -> click.Command | None:
    """What completes names of runs and jobs after words of a command line.

    Args:
        verb: The verb.
        words: What follows it, up to the word that is completed.
        itself: Imports the verb.

    Returns:
        None: Only the verb can tell what may follow.
    """
    last = words[-1] if words else ""
    is_option = last.startswith("-") and last not in ("--run", *(f"--{name}" for name in _JOB))
    return None if verb not in ARGUMENTS or is_option or last == "=" else _NamesAfter(verb, itself)


def completed(command: click.Command, verb: str) -> click.Command:
    """A verb whose options and arguments are completed by their names.

    Args:
        command: The verb.
        verb: Its name, such as `lab exec`.
    """
    for param in command.params:
        # click completes files for its own type of path
        if isinstance(param.type, click.types.StringParamType):
            name = str(param.name)
            names, files = _BY_PLACE.get((verb, name), _BY_NAME.get(name)), _takes_a_file(param)
            if names is not None or files:
                param.type = _Completed(names, files)
    if isinstance(command, click.Group):
        for below in command.commands.values():
            completed(below, f"{verb} {below.name}")
    return command


def _takes_a_file(param: click.Parameter) -> bool:
    metavar = str(param.metavar or "")
    return param.name in _FILES or any(word in metavar for word in ("FILE", "PATH"))


_FILES = {"targets", "scripts", "file", "trace", "output", "save"}


def _runs(_: str = "") -> list[str]:
    return [folder.name for folder in reversed(listing()[-_MOST_RUNS:])]


def _jobs(incomplete: str) -> list[str]:
    run, _ = run_and_job(incomplete)
    folders = [folder for folder in reversed(listing()[-_MOST_RUNS:]) if run in ("", folder.name)]
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


def _nodes(_: str = "") -> list[str]:
    from headgate.lab import record

    labs = [record.read(name) for name in record.names()]
    return [node for lab in labs if lab is not None for node in lab.nodes]


def _several_nodes(incomplete: str) -> list[str]:
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{node}" for node in _nodes() if node not in before.split(",")]


def _studies(_: str) -> list[str]:
    from headgate.studies import journal

    return [folder.name for folder in reversed(journal.listing())]


def _jobs_of_users(_: str) -> list[str]:
    from headgate.client.machine import SharedMachine

    seen = SharedMachine().look()
    return [f"{job.user}:{job.name}" for job in seen.jobs if job.name is not None]


def _users(_: str) -> list[str]:
    from headgate.client.machine import SharedMachine

    return [user.user for user in SharedMachine().look().users]


_JOB = ("job", "neighbour")
"""Options that take the name of a job."""
_BY_NAME: dict[str, Callable[[str], Iterable[str]]] = {
    "run": _runs,
    **dict.fromkeys((*_JOB, "jobs"), _jobs),
    **dict.fromkeys(("policy", "policies"), _policies),
    "engine": _engines,
    "isolation": _isolations,
    "cluster": _labs,
    "node": _nodes,
    "nodes": _several_nodes,
    "study": _studies,
    "user": _users,
}
"""How options and arguments are completed, by their names."""
_BY_PLACE: dict[tuple[str, str], Callable[[str], Iterable[str]]] = {
    ("explain", "run"): _runs_and_jobs,  # which may be a job's name alone
    ("rm", "names"): _runs,
    ("simulate", "names"): _policies,
    **dict.fromkeys((("compare", "first"), ("compare", "second")), _runs),
    **dict.fromkeys((("study compare", "first"), ("study compare", "second")), _studies),
    **dict.fromkeys((("lab status", "name"), ("lab down", "name")), _labs),
    **dict.fromkeys(
        [(f"arbiter {act}", "jobs") for act in ("hold", "release", "first", "stop")], _jobs_of_users
    ),
}
"""And where the name alone does not tell."""
ARGUMENTS: dict[str, Callable[[str], Iterable[str]]] = {
    **dict.fromkeys(
        ("attach", "status", "events", "compare", "resume", "report", "export", "replay", "rm"),
        _runs,
    ),
    "results": _runs,
    "explain": _runs_and_jobs,
    **dict.fromkeys(
        (
            "logs",
            "metrics",
            "stacks",
            "predict",
            "checkpoint",
            "resize",
            "set",
            "stop",
            "pause",
            "unpause",
        ),
        _jobs,
    ),
}
"""How the arguments of verbs are completed whose names come without their modules."""


def quietly(act: Callable[[], Any]) -> Any:
    """Answer a shell. If anything fails, complete nothing and print nothing."""
    try:
        return act()
    except SystemExit:
        raise
    except BaseException:  # noqa: BLE001
        raise SystemExit(0) from None
