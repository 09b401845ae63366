"""Odd command lines: every verb with its options, odd words, files that are none, and odd variables
of Headgate's own.

They are read and done in this process, as `headgate` does them, on the runs of a home of their own.
What would start tasks comes as far as a hub that is really asked, and refuses.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import click

import headgate.planning.jointly  # noqa: F401  # the numerics take a second, which is no input's
from headgate import cli
from headgate.hub.server import HubServer
from headgate.model import paths
from headgate.model.errors import HeadgateError
from headgate.recorded import runs

if TYPE_CHECKING:
    from tests.fuzz.fuzzing import Chance

CODES = frozenset(range(8))
"""Exit codes that there are (`headgate.model.errors`)."""
_VARIABLES = (
    "HEADGATE_HOME",
    "HEADGATE_IDLE_SECONDS",
    "HEADGATE_KEEP_RUNS",
    "HEADGATE_RAY_ENV",
    "HEADGATE_SSH_ENV",
    "HEADGATE_RAY_PATIENCE_SECONDS",
    "HEADGATE_SNAPSHOT_SECONDS",
    "COLUMNS",
    "CUDA_VISIBLE_DEVICES",
    "DOCKER_HOST",
    "PATH",
)
_WHERE = {
    "run": ["--engine", "--address", "--isolation"],
    "resume": ["--engine", "--address"],
    "plan": ["--engine", "--address"],
}
"""Options that reach out of this process: to a cluster or a daemon, which is waited for."""
_HUBS = frozenset({"run", "resume", "attach", "plan", "profile", "checkpoint", "resize", "stop"})
"""Verbs that may start a hub where their home is another one."""


_RUNS = ("20260101-120000-000ab", "20260102-120000-000ab")
_KNOWN = (
    *_RUNS,
    "2026",
    "20260101",
    "r",
    "a",
    "20260101/a",
    "20260102/a",
    "a/worker-0",
    "20260102/a/worker-0",
)
_USUAL = {
    **dict.fromkeys(("run", "plan", "profile"), ("train.py", "jobs.yaml", "true", "a.py")),
    "simulate": ("trace.csv", "home/runs/20260101-120000-000ab"),
    "lab": ("b-1", "lab/a", "nic=100Mbit", "cores=1", "memory=1GiB", "true"),
    "schema": ("jobs", "plan", "cluster"),
}
_VALUES = {
    "--run": ("2026", "20260102", *_RUNS),
    "--cluster": ("cluster.yaml", "lab"),
    "--plan": ("plan.yaml",),
    "--profile": ("profile.json", "./profile.json"),
    "--policy": ("equal", "srpt", "fifo", "headgate"),
    "--memory": ("2GiB", "1e3", "0"),
    "--since": ("5s", "1h"),
    "--checkpoint": ("a=home/runs/20260102-120000-000ab/jobs/a/checkpoints/step-7.pt",),
    "--what-if": ("nic=10Gbit", "+2 node of kind b"),
    "--stop-signal": ("SIGINT", "SIGRTMIN"),
    "--output": ("out.html", "/dev/null"),
    "--save": ("out.yaml",),
    "--python": ("python3",),
    "--isolation": ("process", "container"),
    "--speeds": ("speeds.csv",),
    "--interference": ("pairs.json",),
}


class CommandLines:
    """Command lines, and where they are typed.

    Args:
        folder: A new folder, where files of all kinds are made.
        store: A whole store of a run.
        files: Such as verbs take, by name.
    """

    def __init__(self, folder: Path, store: bytes, files: dict[str, str]) -> None:
        self._folder = folder
        folder.mkdir()
        self._home = folder / "home"
        self._files = {**files, **dict.fromkeys(("train.py", "a.py"), "print('loss 1')\n")}
        self._stores = (store, _stopped(store, folder / "stopped.sqlite"))
        for name in ("a.yaml", "b.py", "c.csv", "d.sqlite"):
            (folder / name).mkdir()
            (folder / f"loop-{name}").symlink_to(f"loop-{name}")
            (folder / f"gone-{name}").symlink_to("nowhere")
            os.mkfifo(folder / f"pipe-{name}")
            (folder / f"empty-{name}").touch()
            (folder / f"null-{name}").symlink_to(os.devnull)
            (folder / f"endless-{name}").symlink_to("/dev/zero")
            (folder / f"bytes-{name}").write_bytes(bytes(range(256)))
        (folder / os.fsdecode(b"odd-\xff.py")).write_text("print(1)\n")
        self._odd = sorted(path.name for path in folder.iterdir())
        self._verbs = list(_verbs(cli.headgate, []))

    def line(self, chance: Chance) -> None:
        """Type a line, and see that it ends with a code of Headgate's own and, where it failed,
        says why.

        Raises:
            HeadgateError: It was refused.
        """
        words, verb = self._words(chance)
        self._make_again(chance)
        changed = self._variables(chance, verb)
        with self._at_work(changed) as (output, errors):
            code = _code(words)
        if code == 0:
            return
        text = errors.read_text(errors="surrogateescape")  # arguments are printed as they are
        # a run's own code, as `attach` has it, comes with what it shows
        tells = text.strip() or output.stat().st_size
        if code not in CODES or "Traceback" in text or not tells:
            raise AssertionError(f"exit code {code} of {words} with {changed}: {text!r}")
        raise HeadgateError(text)

    def _make_again(self, chance: Chance) -> None:
        """Put everything back in place that a line may have changed."""
        for name, text in self._files.items():
            (self._folder / name).write_text(text)
        for name, store in zip(_RUNS, self._stores):
            run = self._home / "runs" / name
            (run / "jobs" / "a" / "checkpoints").mkdir(mode=0o700, parents=True, exist_ok=True)
            (run / "jobs" / "a" / "checkpoints" / "step-7.pt").write_bytes(b"PK")
            (run / "jobs" / "a" / "worker-0.log").write_bytes(b"loss 1\n\xff\x1b[2J\n")
            (run / "report.html").unlink(missing_ok=True)
            (run / runs.STORE).write_bytes(
                chance.damaged(store) if chance.random() < 0.05 else store
            )

    def _words(self, chance: Chance) -> tuple[list[str], str]:
        path, command = chance.choice(self._verbs)
        words, behind = list(path), list[str]()
        known = [each for each in command.params if isinstance(each, click.Option)]
        known = [each for each in known if not {*each.opts} & {*_WHERE.get(path[0], ())}]
        for option in chance.sample(known, min(len(known), chance.choice([0, 0, 1, 2, 4]))):
            words.append(chance.choice(option.opts))
            if not option.is_flag:
                words.append(self._value(chance, option))
        for argument in command.params:
            if isinstance(argument, click.Argument):
                count = (
                    chance.choice([0, 1, 1, 1, 2, 30])
                    if argument.nargs != 1
                    else chance.choice([0, 1, 1, 1, 1])
                )
                usual = _USUAL.get(path[0], _KNOWN)
                behind += [
                    chance.choice(usual) if chance.random() < 0.6 else self._argument(chance)
                ] * count
        words += behind
        if chance.random() < 0.1:
            words.insert(chance.randrange(len(words) + 1), chance.text())
        if chance.random() < 0.1:
            words += ["--", *(self._argument(chance) for _ in range(chance.randrange(3)))]
        return _harmless([*map(_typed, words)], path), path[0]

    def _value(self, chance: Chance, option: click.Option) -> str:
        if isinstance(option.type, click.Choice) and chance.random() < 0.8:
            return str(chance.choice(list(option.type.choices)))
        if (
            isinstance(option.type, click.types.IntRange | click.FloatRange)
            and chance.random() < 0.7
        ):
            return chance.choice(
                ["1", "2", "3", "0", "-1", "100", "1e9", "nan", "inf", "9" * 30, "1_0", "٣"]
            )
        usual = _VALUES.get(option.opts[-1], ())
        return chance.choice(usual) if usual and chance.random() < 0.7 else self._argument(chance)

    def _argument(self, chance: Chance) -> str:
        kind = chance.random()
        if kind < 0.3:
            return chance.choice([*self._files])
        if kind < 0.5:
            return chance.choice(self._odd)
        if kind < 0.7:
            return chance.choice([*_KNOWN, *(each for usual in _VALUES.values() for each in usual)])
        if kind < 0.8:
            odd = [
                "x" * 5000,
                "a/" * 3000,
                "/" + "b" * 300,
                "-" * 40,
                "--json=1",
                "-1",
                "[red]",
                "[/]",
                "%s",
                "{}",
            ]
            odd += [os.fsdecode(b"\xff\xfe"), "/proc/self/mem", "/dev/full", "/dev/null", "/", "."]
            return chance.choice(odd)
        return chance.text()

    def _variables(self, chance: Chance, verb: str) -> dict[str, str]:
        if chance.random() < 0.7:
            return {}
        name = chance.choice(
            [each for each in _VARIABLES if each != "HEADGATE_HOME" or verb not in _HUBS]
        )
        if name == "HEADGATE_HOME":
            odd = [
                "/proc/none",
                "/dev/null/x",
                "loop-a.yaml/x",
                "x" * 300,
                os.fsdecode(b"home-\xff"),
                "~/x",
            ]
            return {name: str(self._folder / chance.choice([*self._odd, *odd]))}
        return {name: _typed(self._argument(chance))}

    @contextmanager
    def _at_work(self, changed: dict[str, str]) -> Iterator[tuple[Path, Path]]:
        """What a process of `headgate` has: a folder, variables, and streams that are files, the
        output of which a strict UTF-8 terminal would take. The files of these.
        """
        folder = os.getcwd()
        before = dict(os.environ)
        output, errors = self._folder / "stdout", self._folder / "stderr"
        with ExitStack() as stack:
            stack.callback(os.chdir, folder)
            stack.callback(os.environ.update, before)
            stack.callback(os.environ.clear)
            os.chdir(self._folder)
            os.environ["HEADGATE_HOME"] = str(self._home)
            os.environ[runs.HUB] = str(self._home / "hub")
            os.environ.update(changed)
            stdin = stack.enter_context(open(os.devnull))
            stdout = stack.enter_context(open(output, "w", encoding="utf-8", errors="strict"))
            stderr = stack.enter_context(
                open(errors, "w", encoding="utf-8", errors="backslashreplace")
            )
            for name, stream in (("stdin", stdin), ("stdout", stdout), ("stderr", stderr)):
                stack.enter_context(mock.patch.object(sys, name, stream))
            stack.enter_context(mock.patch.object(paths, "PIPE_SECONDS", 0.0))
            yield output, errors

    @contextmanager
    def served(self) -> Iterator[None]:
        """With a hub that answers, and runs nothing."""
        hub = self._home / "hub"
        self._home.mkdir(mode=0o700)
        hub.mkdir(mode=0o700)
        lock = os.open(hub / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        listening, over = threading.Event(), threading.Event()

        async def serve() -> None:
            server = HubServer(cast(Any, idle_hub()))
            async with await asyncio.start_unix_server(
                server._client, runs.sockets(hub) / "hub.sock"
            ):
                listening.set()
                await asyncio.to_thread(over.wait)

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            assert listening.wait(60)
            yield
        finally:
            over.set()
            thread.join()
            os.close(lock)


def idle_hub() -> SimpleNamespace:
    """What a `HubServer` asks, of a hub that does nothing."""

    def refuse(*_: object, **__: object) -> None:
        raise HeadgateError("not here")

    async def submit(*_: object) -> None:
        refuse()

    hub = SimpleNamespace(
        busy=False,
        has_runs=True,
        policy="none",
        runs={"r": None},
        unreported={},
        submit=submit,
        watchers=SimpleNamespace(add=refuse),
        holder=SimpleNamespace(pause=submit, unpause=submit),
        proving=SimpleNamespace(begin=refuse),
        requests=SimpleNamespace(stop=refuse, checkpoint=refuse, change=refuse),
    )
    hub.set_policy = hub.warn = refuse
    return hub


def _stopped(store: bytes, path: Path) -> bytes:
    """The store of the same run whose job was stopped."""
    path.write_bytes(store)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(
            "UPDATE jobs SET state = 'stopped', spec = json_set(spec, '$.script', ?)",
            [str(path.parent / "a.py")],
        )
    return path.read_bytes()


def _verbs(group: click.Command, path: list[str]) -> Iterator[tuple[list[str], click.Command]]:
    """Every command, with the words that name it."""
    if not isinstance(group, click.Group):
        yield path, group
        return
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield from _verbs(command, [*path, name])


def _typed(word: str) -> str:
    """A word as the system hands it over: bytes, none of them 0."""
    return os.fsdecode(word.replace("\0", "").encode("utf-8", "surrogatepass"))


def _harmless(words: list[str], path: list[str]) -> list[str]:
    """The same words, but for what would change this machine or take its time by right."""
    # there is none in this home, and none should be made; `exec --json` takes a process
    if path[0] == "lab":
        return [word for word in words if word not in ("cluster.yaml", "--json")]
    if path[0] == "calibrate":
        return [*words, "--cluster", "nowhere"]  # else it measures
    if path[0] == "report":
        return [word for word in words if word != "--open"]
    if path[0] == "web":
        return [*words, "--key", "nowhere"]  # else it serves
    if path[0] == "mcp":
        return [*words, "nowhere"]  # the same
    if path[0] == "export":  # libraries of others take seconds to be imported
        slow = ("parquet", "tensorboard", "mlflow", "wandb", "trackio")
        return [word for word in words if not word.endswith(slow)]
    if path[0] == "logs":
        return [word for word in words if word not in ("-f", "--follow")]
    return words


def _code(words: list[str]) -> object:
    """The exit code of `headgate` with these words."""
    with mock.patch.object(sys, "argv", ["headgate", *words]):
        try:
            cli.main()
        except SystemExit as exit:
            return exit.code or 0
    return 0
