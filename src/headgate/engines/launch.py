"""Makes the exact launch of a task."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import headgate
from headgate.isolation.base import HOST_IMAGE, Launch
from headgate.isolation.process_attributes import Attributes
from headgate.model.cluster import Place
from headgate.model.endings import Checkpoint
from headgate.model.errors import StorageError, UsageError
from headgate.model.identifiers import TaskId, TaskName
from headgate.model.jobs import Job
from headgate.model.mounts import Mount
from headgate.model.roles import Addresses
from headgate.model.stop_signals import signal_number
from headgate.model.trackers import JOB_TAG, Destination, Tracker
from headgate.scripts import contracts, resume_arguments
from headgate.scripts.contracts import LaunchedGroup
from headgate.scripts.facts import ScriptFacts
from headgate.scripts.program import program
from headgate.task.grants import TURNS
from headgate.task.observing import VARIABLE as OBSERVE
from headgate.task.recording import VARIABLE as RECORD
from headgate.task.thread_pools import MKL, OPENBLAS, OPENMP
from headgate.task.thread_pools import VARIABLE as THREADS

_THREAD_VARIABLES = (
    *(OPENMP, MKL, OPENBLAS, "NUMEXPR_MAX_THREADS"),
    *("NUMBA_NUM_THREADS", "RAYON_NUM_THREADS", "POLARS_MAX_THREADS"),
)
COLUMNS = "120"
"""Terminal width for the output of tasks, unless another is set. Otherwise bars and tables are
cut.
"""
_TERMINAL = "xterm-256color"
_MOST_DIGITS = 5
"""Most digits of a number of threads. More is a mistake, and neither the hub nor its records could
hold as many threads.
"""


def is_foreign(job: Job) -> bool:
    """Whether its tasks see the files of an image, and not those of the machine."""
    return job.image not in (None, HOST_IMAGE)


def interpreter(job: Job, path: str | None) -> str:
    """The Python that runs the job's program: the job's own, or the first `python` (then `python3`)
    on `path`. For an image, whose files are not visible here: the job's own, or `python`.

    Raises:
        UsageError: There is none.
    """
    program_run = program(job)
    named = program_run.python if program_run is not None else None
    if is_foreign(job):
        return named or "python"
    for name in (named,) if named else ("python", "python3"):
        if os.sep in name:
            name = os.path.join(job.workdir, name)
        if (on_path := shutil.which(name, path=path)) is not None:
            return on_path
    wanted = named or "python"
    raise UsageError(
        f"job {job.name!r}: found no {wanted!r} on the PATH; name an interpreter with `python:`"
    )


def command(job: Job, path: str | None, first: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Program and arguments of the job.

    Args:
        path: The PATH to find a script's interpreter on.
        first: Arguments of a Python program before its own.
    """
    if job.script is not None:
        return (interpreter(job, path), job.script, *first, *job.args)
    if first and (program_run := program(job)) is not None and not isinstance(job.run, str):
        words = (*(job.run or ()), *job.args)
        at = len(words) - len(program_run.args)
        return (*words[:at], *first, *words[at:])
    if isinstance(job.run, str):
        # "$@" passes the arguments through the shell unparsed.
        return (
            "/bin/sh",
            "-c",
            f'{job.run.rstrip()} "$@"' if job.args else job.run,
            "sh",
            *job.args,
        )
    return (*(job.run or ()), *job.args)


def server_command(python: str, libraries: Collection[str] = ()) -> tuple[str, ...]:
    """Program and arguments of a parameter server: TensorFlow's for a script that imports
    `headgate.keras`, otherwise Headgate's.

    Args:
        python: The interpreter of the job's script.
        libraries: Headgate's libraries that the script imports.
    """
    server = "headgate.keras.server" if "keras" in libraries else "headgate.torch.ps"
    return (python, "-m", server)


def snapshot_of(task: TaskId) -> str:
    """Name of a server's snapshot in its job's folder of checkpoints, for a restart on another
    node; empty for a worker.
    """
    return f"{task.name}.copy" if task.name.is_server else ""


def inject(folder: Path) -> Path:
    """A folder for a task's PYTHONPATH with `headgate` and nothing else of its environment. It also
    makes a folder with only `zmq`, see `transport`.

    Raises:
        StorageError: The folder cannot be made.
    """
    package = Path(headgate.__file__).parent
    injected = folder / headgate.__version__
    _link(injected / "headgate", package)
    _link(observation(injected) / "sitecustomize.py", package / "task" / "sitecustomize.py")
    if (spec := find_spec("zmq")) is not None and spec.origin is not None:
        zmq = Path(spec.origin).parent
        _link(transport(injected) / "zmq", zmq)
        # from a wheel; a package built on this machine uses its libraries
        if (libraries := zmq.with_name("pyzmq.libs")).is_dir():
            _link(transport(injected) / libraries.name, libraries)
    return injected


def observation(injected: Path) -> Path:
    """The folder, next to that of `inject`, whose module has Python observe a script that calls
    none of Headgate's libraries.
    """
    return injected.with_name(f"{injected.name}-observe")


def transport(injected: Path) -> Path:
    """The folder, next to that of `inject`, from which a task without its own pyzmq may import
    it.
    """
    return injected.with_name(f"{injected.name}-zmq")


def files_of(injected: Path) -> list[str]:
    """The paths of `inject` that a task sees: both folders, and the targets of their links."""
    folders = [
        injected_files
        for injected_files in (injected, observation(injected), transport(injected))
        if injected_files.is_dir()
    ]
    return [
        *map(str, folders),
        *(str(link.resolve()) for folder in folders for link in folder.iterdir()),
    ]


def _link(link: Path, target: Path) -> None:
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink() or link.resolve() != target.resolve():
            fresh = link.with_name(f"{link.name}.{os.getpid()}")
            fresh.symlink_to(target)
            fresh.replace(link)
    except OSError as error:
        raise StorageError(f"cannot make {link}: {error.strerror}") from error


def launch(
    task: TaskId,
    job: Job,
    facts: ScriptFacts,
    *,
    environment: Mapping[str, str],
    threads: int,
    injected: Path,
    checkpoints: Path,
    resume: Checkpoint | None,
    gpus: tuple[int, ...] | None = None,
    gpu_names: Mapping[int, str] | None = None,
    mode: str = "run",
    place: Place | None = None,
    turns: Path | None = None,
    attributes: Attributes | None = None,
    group: LaunchedGroup | None = None,
    addresses: Addresses | None = None,
    observe: Collection[str] = (),
    importable: bool = True,
    stdin: int | None = None,
    daemon: str = "",
) -> Launch:
    """The launch of a task. Its engine adds the address of the channel. A worker runs the job's
    command; a parameter server runs under the interpreter of the job's script.

    Args:
        facts: Facts about the task's script.
        environment: The submitter's environment.
        threads: Initial number of compute threads. Variables set by the user take precedence.
        injected: Folder from `inject`.
        checkpoints: Folder of the job's checkpoints.
        resume: The checkpoint to resume from.
        gpus: Indices of the visible GPUs; None: all.
        gpu_names: Their names in `CUDA_VISIBLE_DEVICES`, if these are not their indices.
        mode: `run` or `profile`.
        place: The place on this machine where it runs; None: the machine itself.
        attributes: Attributes of its process, from the terminal that submitted the job; None: those
            of the hub.
        turns: Folder of the lock files for turns on this machine's GPUs; None: its engine has
            another folder, or there are no turns.
        group: The workers of the attempt, if its job has another launcher's contract.
        addresses: Addresses of the attempt's tasks, if its job is made of roles.
        observe: How to observe it, because it calls none of Headgate's libraries: `STEPS` and
            `PROFILE` of `headgate.task.observing`; empty: not at all.
        importable: Whether it may import `headgate`. It may not if its environment has another
            package of that name.
        stdin: Descriptor of its standard input; None: none.
        daemon: Address of the container daemon; empty: that of its engine.

    Raises:
        UsageError: There is no such interpreter.
    """
    own_checkpoint = resume if resume is not None and resume.own else None
    if own_checkpoint is not None and (resumes_by := resume_arguments.way(job, facts)) is not None:
        job = resume_arguments.resumed(job, resumes_by, own_checkpoint.path)
    if addresses is not None and (role := job.role_of(task.name)) is not None:
        job = _addressed(job.of_role(role), addresses, task.name)
    first, wrapper = tuple[str, ...](), tuple[str, ...]()
    trains = addresses is None
    if group is not None and (contract := job.contract) is not None:
        variables = contracts.variables(contract, group, task.name)
        job = replace(job, env={**contracts.without_others(job.env), **variables})
        environment = contracts.without_others(environment)
        first = contracts.arguments(contract, group, task.name)
        wrapper = contracts.wrapper(contract, group, task.name)
    env = _with_defaults(
        job, facts.source.called, environment, threads, trains and task.name.is_server
    )
    if importable:
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(injected), env.get("PYTHONPATH")]))
    if observe or RECORD in env:
        env["PYTHONPATH"] = f"{observation(injected)}{os.pathsep}{env['PYTHONPATH']}"
    if observe:
        env[OBSERVE] = ",".join(sorted(observe))
    if "PWD" not in job.env and not _is_folder(env.get("PWD"), job.workdir):
        env["PWD"] = job.workdir
        env.pop("OLDPWD", None)
    for name in ("HEADGATE_RESUME", "HEADGATE_STEPS"):
        env.pop(name, None)
    env |= _library_variables(
        task, injected, checkpoints, None if own_checkpoint is not None else resume, mode
    )
    if own_checkpoint is not None:
        env["HEADGATE_STEPS"] = str(own_checkpoint.step)
    if any(Destination.of(text).tracker is Tracker.MLFLOW for text in job.track):
        # MLflow gives these tags to runs that the script opens
        env.setdefault("MLFLOW_RUN_CONTEXT", json.dumps({JOB_TAG: task.job}))
    if gpus is not None:
        env |= _with_gpus(gpus, gpu_names or {}, env)
    path = env.get("PATH")
    # the script can read what it has written
    reads, writes = _files(
        facts, injected, checkpoints, None if own_checkpoint is not None else resume
    )
    if turns is not None and gpus != ():
        env[TURNS] = str(turns)
        writes = (*writes, str(turns))
    if gpu_names and gpus != ():
        env = {**_leaving_memory(env), **env}
    serves = trains and task.name.is_server and group is None  # else its script does
    argv = (
        server_command(interpreter(job, path), facts.source.libraries)
        if serves
        else command(job, path, first)
    )
    if wrapper:
        argv = (interpreter(job, path), "-m", *wrapper, *argv)
    return Launch(
        task=task,
        argv=argv,
        env=env,
        cwd=job.workdir,
        threads=threads,
        place=place,
        isolation=job.isolation or "",
        image=job.image or HOST_IMAGE,
        runtime=job.runtime,
        daemon=daemon,
        reads=reads,
        writes=writes,
        mounts=tuple(map(Mount.of, job.mounts)),
        keeps=str(checkpoints.parent / "outside" / str(task.name)),
        gpus=gpus,
        stop_signal=signal_number(job.stop_signal),
        attributes=attributes,
        stdin=stdin,
        tty=job.tty,
        private=job.private,
    )


def _is_folder(path: str | None, folder: str) -> bool:
    """Whether a path leads to a folder, possibly by links."""
    try:
        return path is not None and os.path.samefile(path, folder)
    except OSError:
        return path == folder


def _addressed(job: Job, addresses: Addresses, task: TaskName) -> Job:
    """A job that runs the command of a role, with the addresses of the other tasks in it."""

    def filled(text: str) -> str:
        return addresses.fill(text, task)

    run: str | tuple[str, ...] | None = None
    if isinstance(job.run, str):
        run = filled(job.run)
    elif job.run:
        run = tuple(map(filled, job.run))
    env = {**addresses.variables(task), **{name: filled(text) for name, text in job.env.items()}}
    return replace(job, run=run, args=tuple(map(filled, job.args)), env=env)


def _with_defaults(
    job: Job,
    called: Collection[str],
    environment: Mapping[str, str],
    threads: int,
    serves: bool,
) -> dict[str, str]:
    """A job's environment, with defaults for the number of threads and how they wait."""
    env = {} if is_foreign(job) else dict(environment)
    stated = {**env, **job.env}
    own = [name for name in (OPENMP, MKL, OPENBLAS) if name not in stated and OPENMP not in stated]
    env[THREADS] = f"{threads}:{','.join(own)}"
    for variable, count in _thread_counts(called, stated, threads).items():
        env.setdefault(variable, count)
    if "OMP_WAIT_POLICY" not in env and (serves or "torch" not in called):
        # Threads that spin long while they wait steal cores from other jobs. Threads that never
        # spin slow a single job by 40 % if its operations are small. GCC's OpenMP, which PyTorch
        # brings, spins for this count before it sleeps.
        env["OMP_WAIT_POLICY"] = "PASSIVE"
        env.setdefault("GOMP_SPINCOUNT", "2000")
    env.setdefault("PYTHONUNBUFFERED", "1")
    env.setdefault("COLUMNS", COLUMNS)
    if job.tty:
        env["TERM"] = _TERMINAL
    return {**env, **job.env}


def stated_threads(job: Job, task: TaskName) -> int | None:
    """The number of OpenMP threads that the job, or the task's role in it, sets; None: the granted
    number.
    """
    role = job.role_of(task)
    return _count((job.of_role(role) if role is not None else job).env)


def _count(env: Mapping[str, str]) -> int | None:
    """The valid number of OpenMP threads in an environment; None: none."""
    stated = env.get(OPENMP, "")
    return (
        int(stated) if stated.isdecimal() and len(stated) <= _MOST_DIGITS and int(stated) else None
    )


def _thread_counts(called: Collection[str], env: Mapping[str, str], threads: int) -> dict[str, str]:
    """The number of threads that each library starts with: that of OpenMP, which the user may have
    set. MKL may have less, if set. TensorFlow has at least two for operations that wait.
    """
    count = _count(env) or threads
    thread_settings = dict.fromkeys(_THREAD_VARIABLES, str(count))
    thread_settings |= {
        "TF_NUM_INTRAOP_THREADS": str(count),
        "TF_NUM_INTEROP_THREADS": str(max(2, count)),
    }
    # `headgate.jax` sets it when its task begins, to the present grant.
    if "NPROC" not in env and "jax" not in called:
        thread_settings["PJRT_NPROC"] = str(count)
    return thread_settings


def _with_gpus(
    gpus: tuple[int, ...], called: Mapping[int, str], env: Mapping[str, str]
) -> dict[str, str]:
    """Variables about a task's GPUs."""
    names = [called.get(gpu, str(gpu)) for gpu in gpus]
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(names)}
    if names and not any(name.isdigit() for name in names):
        visible["HEADGATE_GPUS"] = ",".join(map(str, gpus))
    if "CUDA_VISIBLE_DEVICES" not in env and "CUDA_DEVICE_ORDER" not in env:
        # by index; CUDA's own order begins with the fastest
        visible["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return visible


def _leaving_memory(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that make a task allocate GPU memory as it needs it. By default JAX and TensorFlow
    allocate most of it at once, and leave none to jobs that they take turns with.
    """
    states = any(f"XLA_PYTHON_CLIENT_{name}" in env for name in ("ALLOCATOR", "MEM_FRACTION"))
    return {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} | (
        {} if states else {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    )


def _library_variables(
    task: TaskId, injected: Path, checkpoints: Path, resume: Checkpoint | None, mode: str
) -> dict[str, str]:
    variables = {
        "HEADGATE_TASK": task,
        "HEADGATE_CHECKPOINTS": str(checkpoints),
        "HEADGATE_MODE": mode,
        "HEADGATE_ZMQ": str(transport(injected)),
    }
    return variables if resume is None else {**variables, "HEADGATE_RESUME": resume.path}


def _files(
    facts: ScriptFacts, injected: Path, checkpoints: Path, resume: Checkpoint | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths that a task reads, and those that it writes, besides its folder and those that the
    job names.
    """
    reads = [str(facts.file.parent)] if facts.file is not None else []
    reads += [*files_of(injected), *([resume.path] if resume is not None else [])]
    return tuple(reads), (str(checkpoints.parent),)
