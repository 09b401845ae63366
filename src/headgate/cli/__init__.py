"""The command `headgate`: a file for each verb, imported when it is used; parsing and printing
only.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from headgate import __version__
from headgate.cli import streams
from headgate.config import settings
from headgate.model.errors import HeadgateError
from headgate.model.units import say_text

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VERBS = {
    "run": "Run scripts or the jobs of a file.",
    "attach": "Watch a run that was detached.",
    "ps": "List the runs.",
    "status": "Show how the jobs of a run stand.",
    "usage": "Show what the users of a shared machine have had.",
    "reserve": "Reserve GPUs or memory of a shared machine.",
    "results": "Compare what the jobs of a run came to, as of a sweep.",
    "logs": "Print the output of a job.",
    "mcp": "Serve Headgate to programs that act for a user.",
    "web": "Serve a page of what runs, and why it is slow.",
    "metrics": "Show what was measured: CPU, memory, loss, speed.",
    "explain": "Say what held each job back, and which neighbour slowed it.",
    "events": "List what a run's controller was told and decided, and why.",
    "compare": "Say what differs between two runs, and where the time went.",
    "stacks": "Show where each task of a running job stands.",
    "predict": "Predict how a job's loss goes on, and when the job ends.",
    "checkpoint": "Have running jobs save a checkpoint.",
    "resize": "Give a running job more or fewer workers.",
    "set": "Change the priority, cores or workers of a running job.",
    "pause": "Pause jobs: they keep their memory, or give it back.",
    "unpause": "Let paused jobs go on.",
    "stop": "Stop jobs, with a checkpoint.",
    "resume": "Go on with a run that was stopped or interrupted.",
    "report": "Write a run's report as one HTML page.",
    "export": "Write a run for other tools: tables, traces, trackers.",
    "replay": "Feed a run's events to today's controller, and compare.",
    "rm": "Delete runs that have ended.",
    "plan": "Say how many tasks a script should have, and where.",
    "profile": "Measure what a script's model costs.",
    "verify": "Compare what several workers train with what one does.",
    "calibrate": "Measure how fast this machine, a lab or a cluster is.",
    "simulate": "Compare policies on a trace, without running its jobs.",
    "study": "Measure a grid of experiments, with intervals and a noise floor.",
    "lab": "Make several nodes inside this machine, to try things on.",
    "config": "Show your settings and where each comes from, or change them.",
    "arbiter": "Divide a machine between its users, as root.",
    "service": "Have runs go on when this machine was started again.",
    "doctor": "Show this machine, and what Headgate cannot control on it.",
    "schema": "Print the JSON schema of a kind of file: job, plan, settings.",
}


_COMPLETES = "_HEADGATE_COMPLETE"
"""The variable that a shell sets to ask for completions."""
_VERBS_OF_OTHERS = {
    **dict.fromkeys(("list", "ls", "history"), "ps"),
    **dict.fromkeys(("queue", "jobs", "squeue", "show", "info"), "status"),
    **dict.fromkeys(("top", "watch", "follow", "monitor"), "attach"),
    **dict.fromkeys(("kill", "scancel"), "stop --kill"),
    **dict.fromkeys(("cancel", "abort", "terminate", "end"), "stop"),
    **dict.fromkeys(("delete", "remove", "del", "clean"), "rm"),
    **dict.fromkeys(("start", "submit", "sbatch", "launch", "exec", "train", "sweep"), "run"),
    **dict.fromkeys(("restart", "continue", "retry", "rerun"), "resume"),
    **dict.fromkeys(("tail", "output", "cat"), "logs"),
    **dict.fromkeys(("why", "diagnose", "describe"), "explain"),
    **dict.fromkeys(("best", "leaderboard", "scores"), "results"),
    "diff": "compare",
    "forecast": "predict",
    "eta": "predict",
    "save": "checkpoint",
    "scale": "resize",
    **dict.fromkeys(("hold", "suspend", "freeze"), "pause"),
    **dict.fromkeys(("unhold", "thaw", "unfreeze"), "unpause"),
    **dict.fromkeys(("renice", "update", "change", "reprioritize"), "set"),
    "gpus": "doctor",
    "check": "doctor",
    **dict.fromkeys(("settings", "configure", "preferences"), "config"),
    **dict.fromkeys(("sreport", "sacct", "accounting"), "usage"),
    **dict.fromkeys(("book", "reservation"), "reserve"),
    "help": "--help",
    "version": "--version",
}
"""Names of verbs in other programs, and the verbs of Headgate."""


class _ReaderGoneError(Exception):
    """Standard output has no reader any more."""


class _Verbs(click.Group):
    """Lists the verbs without importing them."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would end with an error
            raise _ReaderGoneError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        command = importlib.import_module(f"headgate.cli.{name}").command
        if isinstance(command, click.Command) and _COMPLETES in os.environ:
            from headgate.cli.completing import completed

            return completed(command, name)
        return command if isinstance(command, click.Command) else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        named = [name for name in VERBS if name.startswith(incomplete)]
        verbs = [CompletionItem(name, help=VERBS[name]) for name in named]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if _COMPLETES in os.environ:
            from headgate.cli.completing import named_after

            names = named_after(name, args[1:], lambda: self.get_command(ctx, name))
            if names is not None:
                return name, names, args[1:]
        if name not in VERBS and not name.startswith("-"):
            close = [_VERBS_OF_OTHERS[name]] if name in _VERBS_OF_OTHERS else []
            close = close or [verb for verb in VERBS if verb.startswith(name)]
            close = close or difflib.get_close_matches(name, VERBS, n=1)
            meant = f" Did you mean {' or '.join(close)}?" if close else ""
            meant = f" To run it: headgate run {name}" if os.path.isfile(name) else meant
            ctx.fail(f"No such command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Log what Headgate does to standard error; -vv: every detail.",
)
@click.version_option(__version__, prog_name="headgate")
def headgate(verbose: int) -> None:
    """Run deep-learning training jobs side by side on a shared machine.

    `headgate COMMAND --help` explains a command and shows examples.

    \b
    Example: headgate run train.py
             headgate run jobs.yaml
             headgate run train.py -- --epochs 5
    """
    stated = None
    if not verbose and "HEADGATE_LOG" not in os.environ:
        with contextlib.suppress(HeadgateError):  # the verb says what is wrong with the settings
            stated = settings.of_file().get("log")
        if stated is None:
            return  # and `logging` is not imported
    import logging

    from headgate.model import log_levels

    if verbose:  # a hub that it starts logs as well
        os.environ[log_levels.VARIABLE] = log_levels.of_verbosity(verbose)
    log_levels.configure(stated)
    logging.getLogger(__name__).info("headgate %s, process %d", __version__, os.getpid())


def main() -> None:
    """Run the command. An error that Headgate raises on purpose becomes one message and an exit
    code.
    """
    streams.prepare()
    if _COMPLETES in os.environ:
        from headgate.cli.completing import quietly

        quietly(lambda: headgate(prog_name="headgate", complete_var=_COMPLETES))
    try:
        code = headgate(standalone_mode=False, prog_name="headgate")
        # A closed reader (`headgate ps | head`) may only be noticed when standard output is closed.
        sys.stdout.flush()
    except HeadgateError as error:
        click.echo(f"headgate: {say_text(str(error))}", err=True)
        code = error.exit_code
    except click.UsageError as error:
        error.show()
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except (_ReaderGoneError, BrokenPipeError):  # as `head` goes that has seen enough
        streams.abandon()
        code = 0
    except OSError as error:
        streams.abandon()
        click.echo(f"headgate: {_system_error(error)}", err=True)
        code = HeadgateError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _system_error(error: OSError) -> str:
    """The system's error in one line."""
    if error.filename is None and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
    ):
        return f"cannot write: {error.strerror}; have the output go to where there is space"
    if error.filename is None and error.errno == errno.ENOENT:  # of what is relative to it
        return "the folder that you are in is gone; go to another one"
    return str(error) or repr(error)
