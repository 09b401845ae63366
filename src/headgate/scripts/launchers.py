"""Takes the place of other launchers.

A command may name one, such as `torchrun --nproc-per-node 2 train.py`. A script may be written for
one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headgate.model.errors import UsageError
from headgate.model.jobs import Contract, Job
from headgate.model.plans import Plan
from headgate.scripts import contracts
from headgate.scripts.distributed_scripts import TRAINERS
from headgate.scripts.facts import ScriptFacts, facts_of
from headgate.scripts.program import words_of

_PYTHON = re.compile(r"python(\d+(\.\d+)*t?)?")


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a launcher is called.

    Args:
        contract: What it tells its processes.
        numbers: Options whose product is the number of workers.
        ignored: Options with a value for where workers meet and how they are watched over.
        flags: The same, of options without a value.
        variables: The variable of the script that each option sets to its value.
        settings: The variable that each option without a value sets, and to what.
        module: Options by which it starts a module instead of a script.
        named: Options followed by the name of a variable of the script and its value: what each
            puts before the name.
        handed: Options for a variable that the script gets, `NAME` or `NAME=VALUE`.
    """

    contract: Contract
    numbers: Collection[str]
    ignored: Collection[str] = ()
    flags: Collection[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    module: Collection[str] = ("-m", "--module")
    named: Mapping[str, str] = field(default_factory=dict)
    handed: Collection[str] = ()

    @property
    def valued(self) -> Collection[str]:
        """Options with a value."""
        return {*self.numbers, *self.ignored, *self.variables, *self.named, *self.handed}

    def sets(self, option: str, values: Sequence[str]) -> dict[str, str]:
        """The variables of the script that an option sets with its values."""
        if option in self.variables:
            return {self.variables[option]: values[0]}
        if option in self.named:
            return {self.named[option] + values[0]: values[1]}
        name, equals, value = values[0].partition("=")
        return {name: value} if option in self.handed and equals else {}


_TORCHRUN = Launcher(
    "torchrun",
    numbers=("--nnodes", "--nproc-per-node"),
    ignored=(
        *(
            "--rdzv-backend",
            "--rdzv-endpoint",
            "--rdzv-id",
            "--rdzv-conf",
            "--max-restarts",
            "--monitor-interval",
        ),
        *(
            "--start-method",
            "--event-log-handler",
            "--role",
            "--log-dir",
            "-r",
            "--redirects",
            "-t",
            "--tee",
        ),
        *(
            "--local-ranks-filter",
            "--duplicate-stdout-filters",
            "--duplicate-stderr-filters",
            "--node-rank",
        ),
        *(
            "--master-addr",
            "--master-port",
            "--local-addr",
            "--logs-specs",
            "--numa-binding",
            "--signals-to-handle",
        ),
        "--shutdown-timeout",
    ),
    flags=("--standalone", "--use-env", "--virtual-local-rank"),
)
_ACCELERATE = Launcher(
    "torchrun",
    numbers=("--num-processes",),
    ignored=(
        *(
            "--num-machines",
            "--machine-rank",
            "--main-process-ip",
            "--main-process-port",
            "--gpu-ids",
        ),
        *(
            "--rdzv-backend",
            "--rdzv-conf",
            "--max-restarts",
            "--monitor-interval",
            "--same-network",
        ),
    ),
    flags=("--multi-gpu", "-q", "--quiet", "--same-network"),
    variables={
        "--mixed-precision": "ACCELERATE_MIXED_PRECISION",
        "--dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
        "--gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
        "--num-cpu-threads-per-process": "OMP_NUM_THREADS",
    },
    settings={
        "--cpu": ("ACCELERATE_USE_CPU", "true"),
        "--debug": ("ACCELERATE_DEBUG_MODE", "true"),
    },
)
_DEEPSPEED = Launcher(
    "deepspeed",
    numbers=("--num-nodes", "--num-gpus"),
    ignored=("--master-addr", "--master-port", "--node-rank", "--hostfile", "-H", "--launcher"),
    flags=("--no-local-rank", "--force-multi"),
    module=("--module",),
)
_FABRIC = Launcher(
    "torchrun",
    numbers=("--num-nodes", "--devices"),
    ignored=("--node-rank", "--main-address", "--main-port"),
    variables={
        "--strategy": "LT_STRATEGY",
        "--precision": "LT_PRECISION",
        "--accelerator": "LT_ACCELERATOR",
    },
    module=(),
)


def _long(*names: str) -> tuple[str, ...]:
    """Options that go by one dash or two."""
    return tuple(dash + name for name in names for dash in ("-", "--"))


_MPIRUN = Launcher(
    "mpi",
    numbers=("-n", "-c", *_long("np")),
    ignored=(
        *(
            "-H",
            "-f",
            "-N",
            "-ppn",
            "-hosts",
            *_long("host", "hostfile", "machinefile", "npernode", "prefix"),
        ),
        *_long("bind-to", "map-by", "rank-by"),
    ),
    flags=(
        *(
            "-q",
            "-l",
            *_long("oversubscribe", "nooversubscribe", "allow-run-as-root", "quiet", "tag-output"),
        ),
        *_long("bynode", "byslot", "bycore", "report-bindings", "display-map"),
    ),
    module=(),
    named={**dict.fromkeys(_long("mca", "gmca"), "OMPI_MCA_"), "-genv": "", "-env": ""},
    handed=("-x",),
)
_BY_WORDS: Mapping[tuple[str, ...], Launcher] = {
    ("torchrun",): _TORCHRUN,
    ("-m", "torch.distributed.run"): _TORCHRUN,
    ("-m", "torch.distributed.launch"): replace(_TORCHRUN, contract="deepspeed"),
    ("accelerate", "launch"): _ACCELERATE,
    ("-m", "accelerate.commands.launch"): _ACCELERATE,
    ("deepspeed",): _DEEPSPEED,
    ("fabric", "run"): _FABRIC,
    ("lightning", "run"): _FABRIC,
    ("lightning", "run", "model"): _FABRIC,
    ("mpirun",): _MPIRUN,
    ("mpiexec",): _MPIRUN,
}
_LONGEST = 3
_OF_TORCHRUN = ("torch", *TRAINERS, "deepspeed")
_READERS: Mapping[Contract, tuple[str, ...]] = {
    "torchrun": _OF_TORCHRUN,
    "deepspeed": _OF_TORCHRUN,
    "tensorflow": ("tensorflow", "keras", "tf_keras"),
    "jax": ("jax", "flax", "keras"),
    "mpi": ("mpi4py", "horovod", *_OF_TORCHRUN),
}
"""Packages that read what a contract tells."""
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
"""Packages that may start a trainer which the script does not name."""
_RULES = (
    "--batch per-worker (each worker has the script's batch) or --batch global (the script divides "
    "it), and Headgate chooses how many"
)
_SERVING = "--strategy ps --async --servers M --workers N, at least 2, as the first is the chief"


@dataclass(frozen=True, slots=True)
class ParsedLauncher:
    """A command without its launcher.

    Args:
        name: The launcher, as the command names it.
        contract: The contract of the launcher.
        command: The command that the launcher would have started.
        workers: How many times it would have started it; None: one for each GPU or core.
        env: Other variables that it would have set.
        ignored: Options of it that nothing comes of.
    """

    name: str
    contract: Contract
    command: tuple[str, ...]
    workers: int | None
    env: Mapping[str, str]
    ignored: Collection[str]


def parse_launcher(job: Job) -> ParsedLauncher | None:
    """The command of a job without the launcher that it names; None if it names none, or if the job
    leaves it as it is.

    Raises:
        UsageError: Headgate does not support an option of the launcher.
    """
    if job.script is not None or job.launch == "none":
        return None
    words = words_of(job)
    python = words[:1] if words and _PYTHON.fullmatch(Path(words[0]).name) else ()
    rest = words[len(python) :]
    if words and not python:
        rest = (Path(words[0]).name, *words[1:])
    for length in range(_LONGEST, 0, -1):
        if (launcher := _BY_WORDS.get(rest[:length])) is not None and bool(python) == (
            rest[0] == "-m"
        ):
            name = " ".join((*python, *rest[:length]))
            return _parse(job, name, launcher, python or (_python_beside(words[0]),), rest[length:])
    return None


def is_named(word: str) -> bool:
    """Whether a command that begins with this word names a launcher, installed or not."""
    return word in {words[0] for words in _BY_WORDS if words[0] != "-m"}


def has_launcher(job: Job) -> bool:
    """Whether several workers of a job would find each other by another launcher's contract, not by
    a library of Headgate's.
    """
    if job.launch is not None:
        return job.contract is not None
    return parse_launcher(job) is not None or facts_of(job).source.launcher is not None


def without_strategy(job: Job) -> str:
    """What is said of a job with several workers where nothing says how they train together."""
    refusal = "found no --strategy; expected --strategy allreduce, or --strategy ps with --servers"
    facts = facts_of(job)
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
    """Whether the workers of a job divide the model's memory among them, as FSDP and DeepSpeed do,
    as far as its script or its arguments plainly say.
    """
    written = facts.source.launcher
    asks_for_it = any(re.match(r"--?(fsdp|deepspeed)\b", word) for word in words_of(job))
    return asks_for_it or (written is not None and written.divides)


def resolved(job: Job) -> tuple[Job, str]:
    """Settle the contract of a job and take the launcher out of its command. Return the job and a
    note for its user.

    If a script is written for a launcher but also runs without it, it gets the variables only with
    several workers.

    Args:
        job: A job with absolute paths.

    Raises:
        UsageError: The settings of the job contradict each other.
    """
    notes: list[str] = []
    names_rules = False
    facts = facts_of(job)
    if (command := parse_launcher(job)) is not None:
        facts = facts_of(replace(job, run=command.command, args=()))
        job = _without(job, command, facts)
        many = job.plan.workers if job.plan is not None else 1
        how = "starts 1 worker" if many == 1 else f"starts {many} workers"
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


def doubt(job: Job) -> str:
    """What its script has against the contract of a job, to warn its user; empty: nothing that is
    plain to see.

    Args:
        job: One that is `resolved`.
    """
    facts = facts_of(job)
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
        "workers would each run the whole of it alone, unless what it imports or starts joins "
        "them; leave launch out where it trains in one process"
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
    for is_wrong, what, cure in (
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
            raise UsageError(f"job {job.name!r}: found {what}; expected {cure}")


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


def _python_beside(launcher: str) -> str:
    """The interpreter with which a launcher is installed; `python` if that is the first one on the
    PATH.
    """
    own_path, first = shutil.which(launcher), shutil.which("python")
    if own_path is None or first is None or Path(own_path).parent == Path(first).parent:
        return "python"
    beside = Path(own_path).parent / "python"
    return str(beside) if os.access(beside, os.X_OK) else "python"


def _parse(
    job: Job, name: str, launcher: Launcher, python: Sequence[str], words: Sequence[str]
) -> ParsedLauncher:
    """Take a launcher's own words from a command."""
    left, counts, env, ignored = list(words), dict[str, str](), dict[str, str](), list[str]()
    contract, starts = launcher.contract, () if launcher.contract == "mpi" else tuple(python)
    as_module = False
    while left and left[0].startswith("-"):
        word, equals, value = left.pop(0).partition("=")
        option = word
        if word[:2] == "--" and word not in launcher.module:
            option = "--" + word[2:].replace("_", "-")
        if option in launcher.module:
            as_module = True
        elif option == "--no-python":
            starts = ()
        elif option in launcher.flags and not (equals or option in launcher.ignored):
            contract = "torchrun" if option in ("--no-local-rank", "--use-env") else contract
        elif option in launcher.settings:
            env |= [launcher.settings[option]]
        elif option in launcher.valued:
            count = 2 if option in launcher.named else 1
            values = [value] if equals else [left.pop(0) for _ in left[:count]]
            if len(values) < 1 + (option in launcher.named):
                raise UsageError(f"job {job.name!r}: {name} has {word} without a value")
            if option in launcher.numbers:
                counts[option] = values[0]
            elif option in launcher.ignored:
                ignored.append(word)
            env |= launcher.sets(option, values)
        else:
            raise UsageError(
                f"job {job.name!r}: found {word} of {name}, which Headgate does not support; leave "
                "it out, or run the command as it is, as one task, with --launch none"
            )
    if not left:
        raise UsageError(f"job {job.name!r}: {name} names no script; expected one")
    if launcher.contract == "mpi" and ":" in left:
        raise UsageError(
            f"job {job.name!r}: found several programs, parted by `:`, of {name}; expected one"
        )
    command = (*starts, *(("-m",) if as_module else ()), *left)
    return ParsedLauncher(name, contract, command, _workers(job, name, counts), env, ignored)


def _workers(job: Job, name: str, counts: Mapping[str, str]) -> int | None:
    """How many workers a launcher would start; with elastic nodes, the fewest. None: one for each
    GPU or core.
    """
    if not counts and name in ("mpirun", "mpiexec"):
        return None
    workers = 1
    for option, value in counts.items():
        least = value.partition(":")[0]
        if least in ("auto", "gpu", "cpu", "xpu"):
            return None
        if not least.isdecimal() or not int(least):
            raise UsageError(
                f"job {job.name!r}: found {option} {value} of {name}; expected a number "
                "of 1 or more"
            )
        workers *= int(least)
    return workers
