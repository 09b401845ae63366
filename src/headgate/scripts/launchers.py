"""Replaces other launchers.

A command may begin with one, for example `torchrun --nproc-per-node 2 train.py`. A script may be
written for one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from headgate.model.errors import UsageError
from headgate.model.job_choices import Contract
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.units import counted
from headgate.scripts import contracts
from headgate.scripts.distributed_scripts import TRAINERS
from headgate.scripts.facts import ScriptFacts
from headgate.scripts.launch_commands import ParsedLauncher
from headgate.scripts.program import words_of

_OF_TORCHRUN = ("torch", *TRAINERS, "deepspeed")
_READERS: Mapping[Contract, tuple[str, ...]] = {
    "torchrun": _OF_TORCHRUN,
    "deepspeed": _OF_TORCHRUN,
    "tensorflow": ("tensorflow", "keras", "tf_keras"),
    "jax": ("jax", "flax", "keras"),
    "mpi": ("mpi4py", "horovod", *_OF_TORCHRUN),
}
"""Packages that read the variables of a contract."""
_HIDE_ONE = (
    "hydra",
    "fairseq",
    "mmengine",
    "mmcv",
    "detectron2",
    "composer",
    "torchtune",
    "nemo",
    "torchtnt",
)
"""Packages that may start a trainer without naming it in the script."""
_RULES = (
    "--batch per-worker (each worker has the script's batch) or --batch global (the script divides "
    "it), and Headgate chooses how many"
)
_SERVING = "--strategy ps --async --servers M --workers N, at least 2, as the first is the chief"


def has_launcher(job: Job, facts: ScriptFacts) -> bool:
    """Whether a job's workers would find each other by another launcher's contract, not by a
    library of Headgate's.
    """
    if job.launch is not None:
        return job.contract is not None
    return facts.launcher is not None or facts.source.launcher is not None


def options_of_several(job: Job, facts: ScriptFacts) -> str:
    """The options, after `--workers N`, with which a job of one task runs as several workers."""
    if not has_launcher(job, facts):
        return " --strategy allreduce"
    written = facts.source.launcher if job.launch is None else None
    return " --strategy ps --async --servers 1" if written is not None and written.serves else ""


def without_strategy(facts: ScriptFacts) -> str:
    """The message about a job with several workers whose way to train together is unknown."""
    refusal = "found no --strategy; expected --strategy allreduce, or --strategy ps with --servers"
    if facts.source.libraries:
        return refusal
    hides = sorted((facts.all_packages or frozenset()).intersection((*_OF_TORCHRUN, *_HIDE_ONE)))
    imports = f", and its script imports {' and '.join(hides)}" if hides else ""
    return (
        f"found no --strategy{imports}; expected --launch torchrun where a library such as "
        "Lightning, ignite or transformers joins the workers, or --strategy allreduce, or ps with "
        "--servers, where headgate.torch does"
    )


def divides_memory(job: Job, facts: ScriptFacts) -> bool:
    """Whether a job's workers divide the model among them, as with FSDP and DeepSpeed, as far as
    its script or its arguments show.
    """
    written = facts.source.launcher
    asks_for_it = any(re.match(r"--?(fsdp|deepspeed)\b", word) for word in words_of(job))
    return asks_for_it or (written is not None and written.divides)


def resolved(job: Job, facts: ScriptFacts) -> tuple[Job, str]:
    """Settle the contract of a job and take the launcher out of its command. Return the job and a
    note for its user.

    If a script is written for a launcher but also runs without it, it gets the variables only with
    several workers.

    Args:
        job: A job with absolute paths.
        facts: Facts about its script.

    Raises:
        UsageError: The settings of the job contradict each other.
    """
    notes: list[str] = []
    names_rules = False
    if (command := facts.launcher) is not None:
        job = _without(job, command, facts)
        many = job.plan.workers if job.plan is not None else 1
        how = f"starts {counted(many, 'worker', '')}"
        number_hint = (
            "" if command.workers is not None or many > 1 else "; --workers sets their number"
        )
        unused = f"; it ignores {', '.join(command.ignored)}" if command.ignored else ""
        if job.plan is None and job.batch is not None:
            how, number_hint = "chooses how many workers it starts", ""
        notes.append(f"Headgate takes the place of {command.name}, and {how}{number_hint}{unused}")
    elif job.launch is None and (written := facts.source.launcher) is not None:
        several = job.evaluator or (job.plan is not None and job.plan.tasks > 1)
        chosen = (
            job.plan is None
            and job.batch is not None
            and job.limits.workers[1] != 1
            and not written.serves
        )
        if several and written.contract is None:
            raise UsageError(
                f"job {job.name!r}: its script {written.why}; run it in one task, or say "
                "--launch torchrun"
            )
        if several and written.sets:
            raise UsageError(
                f"job {job.name!r}: its script {written.why}, and sets {written.sets} itself, so "
                "that each of its workers would take itself for the same one; have it set "
                f"{written.sets} only where that is not set, or run it in one task"
            )
        if several and written.serves and job.plan is not None and job.plan.strategy != "ps":
            raise UsageError(f"job {job.name!r}: its script {written.why}; expected {_SERVING}")
        if several or written.needs or chosen:
            job = replace(job, launch=written.contract)
        if written.contract is not None:
            cure = "" if several or chosen else ", and can train in several workers: "
            if cure:
                names_rules = not written.serves
                cure += f"--workers N, or {_RULES}" if names_rules else _SERVING
            notes.append(f"its script {written.why}{cure}")
    if job.evaluator and job.contract != "tensorflow":
        raise UsageError(
            f"job {job.name!r}: found an evaluator, which TensorFlow alone has; expected "
            "launch: tensorflow"
        )
    if job.contract is None:
        return job, "; ".join(notes)
    if job.plan is None and job.batch is None and not names_rules:
        notes.append(f"say {_RULES}")
    _check(job, job.contract, facts)
    tells = f"each worker gets {contracts.in_words(job.contract)} (--launch none: no variables)"
    return job, "; ".join([*notes, tells])


def doubt(job: Job, facts: ScriptFacts) -> str:
    """Why a job's script may not fit its contract, to warn its user; empty: no reason is known.

    Args:
        job: A job after `resolved`.
        facts: Facts about its script.
    """
    names = facts.all_packages
    if job.contract is None or names is None:
        return ""
    if not names.isdisjoint((*_READERS[job.contract], *_HIDE_ONE)):
        return ""
    if contracts.names_one(facts.source.text.decode(errors="replace")):
        return ""
    return (
        f"launch is {job.contract}, but its script imports none of "
        f"{', '.join(_READERS[job.contract])}, and names no variable of a launcher: several "
        "workers would each run all of it alone, unless an imported or started program joins "
        "them; leave launch out if it trains in one process"
    )


def _check(job: Job, contract: Contract, facts: ScriptFacts) -> None:
    if facts.source.libraries:
        raise UsageError(
            f"job {job.name!r}: its script uses a library of Headgate's, by which workers find "
            f"each other; leave launch {contract} out"
        )
    plan = job.plan
    if plan is None:
        return
    of_tensorflow = contract == "tensorflow"
    for is_wrong, fault, cure in (
        (
            plan.strategy == "ps" and not of_tensorflow,
            f"parameter servers for a job with launch {contract}, which has none",
            f"--strategy allreduce --workers {plan.workers}",
        ),
        (
            plan.strategy == "ps"
            and (plan.workers < 2 or plan.synchronous or plan.staleness is not None),
            "a plan that TensorFlow's parameter servers cannot follow",
            _SERVING,
        ),
        (
            plan.workers > 1 and contract == "mpi" and job.isolation == "container",
            "workers of MPI in containers, between which MPI cannot share memory",
            "isolation: process, or one worker",
        ),
        (
            plan.batch_per_worker is not None and job.batch != "per-worker",
            f"`batch_per_worker` for a job with launch {contract}",
            "none",
        ),
    ):
        if is_wrong:
            raise UsageError(f"job {job.name!r}: found {fault}; expected {cure}")


def _without(job: Job, command: ParsedLauncher, facts: ScriptFacts) -> Job:
    plan = job.plan
    if plan is None and (command.workers or 1) > 1:
        plan = Plan(strategy="allreduce", workers=command.workers or 1, batch_per_worker=None)
    job = replace(job, run=command.command, args=(), env={**command.env, **job.env}, plan=plan)
    return (
        job
        if job.launch is not None or facts.source.libraries
        else replace(job, launch=command.contract)
    )
