"""The arguments with which a script resumes from a checkpoint that it saved by itself."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.model.jobs import Job
from headgate.scripts.arguments import DeclaredOptions
from headgate.scripts.facts import ScriptFacts

CHECKPOINT = "{checkpoint}"
"""Stands for the path of the checkpoint."""
_NAMES = (
    *("resume_from_checkpoint", "resume_from_ckpt", "resume_checkpoint", "resume_ckpt"),
    *("resume_from", "resume_path", "resume_file", "ckpt_path", "resume"),
)
"""Options of well-known trainers, the clearest first. `--checkpoint` may be where one is saved."""
_BY_ITSELF = re.compile(
    rb"\bBackupAndRestore\(|\bget_last_checkpoint\(|resume_from_checkpoint\s*=\s*True\b"
    rb"|ckpt_path\s*=\s*[\"']last[\"']"
)
"""Calls with which a script looks for its own latest checkpoint."""


class ResumeSource(StrEnum):
    """How it is known how a script resumes."""

    STATED = "stated"
    """Its user says so."""
    DECLARED = "declared"
    """The script declares the option."""
    TRAINER = "trainer"
    """The trainer that it uses has the option."""
    BY_ITSELF = "by-itself"
    """It looks for its checkpoint by itself."""


@dataclass(frozen=True, slots=True)
class ResumeWay:
    """How a script resumes from its own checkpoint.

    Args:
        words: The arguments, with `CHECKPOINT` for its path; empty: the script finds it by itself.
        known: How that is known.
    """

    words: tuple[str, ...]
    known: ResumeSource

    @property
    def names_checkpoint(self) -> bool:
        """Whether the script is told which checkpoint to resume from."""
        return any(CHECKPOINT in word for word in self.words)

    def arguments(self, path: str) -> tuple[str, ...]:
        """The arguments for this checkpoint."""
        return tuple(word.replace(CHECKPOINT, path) for word in self.words)


def way(job: Job, facts: ScriptFacts) -> ResumeWay | None:
    """How the script of a job resumes from its own checkpoints; None: nothing tells."""
    if job.resume_with:
        return ResumeWay(tuple(shlex.split(job.resume_with)), ResumeSource.STATED)
    if job.resumes:
        return ResumeWay((), ResumeSource.STATED)
    source = facts.source
    if job.roles or source.libraries or facts.program is None:
        return None
    if source.options is not None and (words := _declared(source.options)):
        return ResumeWay(words, ResumeSource.DECLARED)
    if _looks_for_it(source.text):
        return ResumeWay((), ResumeSource.BY_ITSELF)
    words = _of_trainer(source.text)
    return ResumeWay(words, ResumeSource.TRAINER) if words else None


def resumed(job: Job, resumes_by: ResumeWay, path: str) -> Job:
    """A job that resumes from this checkpoint. An argument that it has already is replaced."""
    words = resumes_by.arguments(path)
    name = words[0].partition("=")[0] if words else ""
    takes_value = len(words) > 1
    run = _without(job.run, name, takes_value) if isinstance(job.run, tuple) else job.run
    return replace(job, run=run, args=(*_without(job.args, name, takes_value), *words))


def _without(words: Sequence[str], name: str, takes_value: bool) -> tuple[str, ...]:
    """The words of a command without this option and its value."""
    left: list[str] = []
    skips = False
    for word in words:
        if skips and not word.startswith("-"):
            skips = False
            continue
        skips = bool(name) and word == name and takes_value
        if name and (word == name or word.startswith(f"{name}=")):
            continue
        left.append(word)
    return tuple(left)


def _declared(options: DeclaredOptions) -> tuple[str, ...]:
    """The arguments by an option that the script declares; none: it declares none."""
    for name in _NAMES:
        for option in options.declared:
            long = [flag for flag in option.flags if flag.startswith("--") and "/" not in flag]
            if name in option.names and long:
                return (long[-1],) if option.is_switch else (long[-1], CHECKPOINT)
    return ()


def _looks_for_it(code: bytes) -> bool:
    return _BY_ITSELF.search(code) is not None


def _of_trainer(code: bytes) -> tuple[str, ...]:
    """The arguments of the trainer that a script uses; none: no known one takes any."""
    if b"LightningCLI(" in code:
        return ("--ckpt_path", CHECKPOINT)
    if b"HfArgumentParser" in code and b"resume_from_checkpoint" in code:
        return ("--resume_from_checkpoint", CHECKPOINT)
    if b"hydra.main" in code and b"ckpt_path" in code:
        return (f"ckpt_path={CHECKPOINT}",)
    return ()
