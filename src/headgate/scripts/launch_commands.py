"""Launchers that a command may name, such as `torchrun --nproc-per-node 2 train.py`."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from headgate.model.errors import UsageError
from headgate.model.job_choices import Contract
from headgate.model.jobs import Job
from headgate.scripts.program import words_of

_PYTHON = re.compile(r"python(\d+(\.\d+)*t?)?")


@dataclass(frozen=True, slots=True)
class Launcher:
    """The command line of a launcher.

    Args:
        contract: Its contract with the processes that it starts.
        numbers: Options whose product is the number of workers.
        ignored: Options with a value about rendezvous and supervision, which Headgate ignores.
        flags: The same, without a value.
        variables: For each option, the script's variable that it sets to its value.
        settings: For each option without a value, the variable that it sets, and the value.
        module: Options by which it starts a module instead of a script.
        named: Options followed by the name of a variable of the script and its value; each with a
            prefix of the name.
        handed: Options for a variable of the script, `NAME` or `NAME=VALUE`.
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
    """Options with one dash or two."""
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


@dataclass(frozen=True, slots=True)
class ParsedLauncher:
    """A command without its launcher.

    Args:
        name: The launcher, as the command names it.
        contract: The contract of the launcher.
        command: The command that the launcher would have started.
        workers: How many processes it would have started; None: one for each GPU or core.
        env: Other variables that it would have set.
        ignored: Its options that have no effect.
    """

    name: str
    contract: Contract
    command: tuple[str, ...]
    workers: int | None
    env: Mapping[str, str]
    ignored: Collection[str]


def parse_launcher(job: Job) -> ParsedLauncher | None:
    """Take the launcher from a job's command. None if the command has none, or if the job keeps it.

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
    """Whether the word is the name of a launcher, installed or not."""
    return word in {words[0] for words in _BY_WORDS if words[0] != "-m"}


def _python_beside(launcher: str) -> str:
    """The interpreter in the launcher's folder; `python` if that is the first one on the PATH."""
    own_path, first = shutil.which(launcher), shutil.which("python")
    if own_path is None or first is None or Path(own_path).parent == Path(first).parent:
        return "python"
    beside = Path(own_path).parent / "python"
    return str(beside) if os.access(beside, os.X_OK) else "python"


def _parse(
    job: Job, name: str, launcher: Launcher, python: Sequence[str], words: Sequence[str]
) -> ParsedLauncher:
    """Separate a launcher's options from the rest of a command."""
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
    """Number of workers that a launcher would start; with elastic nodes, the fewest. None: one for
    each GPU or core.
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
