"""Recipients of messages about jobs and runs: a command, a URL, or an address of Apprise."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePath
from typing import Literal
from urllib.parse import urlsplit

from headgate.model.declarations import Kind, against_bounds, declared, documented
from headgate.model.reasons import Reason

MESSAGE_SECONDS = 10.0
"""Default seconds that one attempt to deliver a message may take."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")


class Occasion(StrEnum):
    """What a message is about."""

    END = "end"
    FAILURE = "failure"
    GOAL = "goal"
    HANG = "hang"
    VERDICT = "verdict"
    RUN = "run"
    TEST = "test"


Event = Literal["end", "failure", "goal", "hang", "verdict", "run"]
"""Occasions that a recipient can ask for."""
OF_A_JOB: tuple[Event, ...] = ("end", "failure", "goal", "hang")
"""Occasions of a recipient that a job names."""
OF_A_RUN: tuple[Event, ...] = ("failure", "hang", "run")
"""Occasions of a recipient of a whole run: hundreds of jobs end well without a word."""


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Recipient:
    """A recipient of messages; exactly one of `command`, `url` and `apprise` is given.

    `of_run` tells that it hears of all jobs of a run and of its end.
    """

    command: str | tuple[str, ...] | None = field(
        default=None,
        metadata=declared(
            "A command that gets the message as JSON on its standard input; text goes to "
            "`/bin/sh`, a list of words is started as it is.",
            kind=Kind.COMMAND,
        ),
    )
    url: str | None = field(
        default=None,
        metadata=declared(
            "An address that gets the message as JSON by POST; `${NAME}` stands for a variable.",
            kind=Kind.PATH,
        ),
    )
    apprise: str | None = field(
        default=None,
        metadata=declared(
            "An address of the library Apprise, for mail or chat; `${NAME}` stands for a variable.",
            kind=Kind.PATH,
        ),
    )
    events: tuple[Event, ...] = field(
        default=(),
        metadata=declared(
            "What is told: `end`, `failure`, `goal`, `hang`, `verdict`, and `run` for the end of "
            "the whole run; without it, what matters most."
        ),
    )
    secret: str | None = field(
        default=None,
        metadata=declared("The variable with the secret that signs messages to `url`."),
    )
    timeout: float = field(
        default=MESSAGE_SECONDS,
        metadata=declared(
            "How long one attempt may take, in seconds or with a unit.", kind=Kind.SECONDS, above=0
        ),
    )
    of_run: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        if isinstance(self.command, list):
            object.__setattr__(self, "command", tuple(self.command))
        given = [way for way in (self.command, self.url, self.apprise) if way]
        if len(given) != 1:
            raise ValueError("expected exactly one of `command`, `url` and `apprise`")
        if self.url is not None and urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError(f"found url {self.url!r}; expected https://... or http://...")
        if self.apprise is not None and not _SCHEME.fullmatch(self.apprise):
            raise ValueError(
                f"found apprise {self.apprise!r}; expected an address such as mailto://..."
            )
        if self.secret is not None and self.url is None:
            raise ValueError("found `secret` without `url`, whose messages it signs")
        if self.secret is not None and not self.secret.isidentifier():
            raise ValueError("`secret` is no name of a variable, which holds the secret")
        for name, value, expected in against_bounds(self):
            raise ValueError(f"`{name}` is {value!r}; expected {expected}")

    @classmethod
    def of(cls, text: str, of_run: bool = False) -> Recipient:
        """Parse `https://...`, another address (Apprise), or a command for the shell.

        Raises:
            ValueError: It is empty.
        """
        text = text.strip()
        way = "command"
        if text.startswith(("https://", "http://")):
            way = "url"
        elif _SCHEME.fullmatch(text):
            way = "apprise"
        return cls(**{way: text}, of_run=of_run)  # type: ignore[arg-type]  # each is text

    @property
    def name(self) -> str:
        """What it is called where others may read it: without parts that could be secret."""
        if self.url is not None:
            return urlsplit(self.url).hostname or "url"
        if self.apprise is not None:
            return f"{urlsplit(self.apprise).scheme}://"
        command = self.command or ""
        return PurePath(_first_word(command) if isinstance(command, str) else command[0]).name

    def wants(self, occasion: Occasion) -> bool:
        """Whether it is told of this."""
        return occasion in (self.events or (OF_A_RUN if self.of_run else OF_A_JOB))


def _first_word(text: str) -> str:
    try:
        return next(iter(shlex.split(text)), text)
    except ValueError:  # a quotation that does not end
        return text.split()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestJob:
    """The job of a run with the best value of their metric."""

    job: str
    metric: str
    value: float
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What a message tells, as facts.

    Args:
        occasion: What it is about.
        run: Id of the run; empty: of none.
        host: Name of the machine.
        at: Seconds since 1970.
        job: Name of the job; None: it is about the whole run.
        state: State of the job.
        reason: The reason of that state, or for the message.
        seconds: How long the job, or the run, has taken.
        step: The job's latest step.
        metric: Name of the metric that shows its progress.
        value: The latest value of that.
        verdict: What holds the job back most, and what did before, in the words of `explain`.
        jobs: Number of the run's jobs in each state.
        best: The best job of several.
        left_out: How many messages about jobs were left out before.
    """

    occasion: Occasion
    run: str = ""
    host: str = ""
    at: float = 0.0
    job: str | None = None
    state: str | None = None
    reason: Reason | None = None
    seconds: float | None = None
    step: int | None = None
    metric: str | None = None
    value: float | None = None
    verdict: tuple[str, ...] = ()
    jobs: Mapping[str, int] = field(default_factory=dict)
    best: BestJob | None = None
    left_out: int = 0
