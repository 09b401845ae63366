"""What a job's script tells before it is started: which of Headgate's libraries it trains with, and
whether that library can do what the job's plan says.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from headgate.isolation.base import HOST_IMAGE
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.scripts import keras_scripts
from headgate.scripts.program import program, source
from headgate.task import cluster_variables, named_cluster

_MEETS_ELSEWHERE = re.compile(rb"tcp://|[\"']MASTER_PORT[\"']\s*\]\s*=[^=]")
_FILE = re.compile(r"[\w./+~-]+\.py\b")
LIBRARIES = frozenset({"torch", "keras", "jax"})
_FIT = (
    "its script trains by `fit` of Keras 3 over TensorFlow, which fails over several workers "
    "(it takes their tensors "
    "for plain ones); set KERAS_BACKEND=jax with --strategy allreduce, or "
    "TF_USE_LEGACY_KERAS=1 with tf_keras "
    "installed, or write the loop with strategy.run"
)


def libraries(script: Path) -> frozenset[str]:
    """Those of `headgate.torch`, `.keras` and `.jax` that a script imports, wherever in it; none
    where it cannot be read.
    """
    return frozenset(_imports(script)[0])


def called(script: Path) -> frozenset[str]:
    """Those of them that it does anything with: one that is only imported tells its threads
    nothing.
    """
    try:
        return _called(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()


def named_libraries(job: Job) -> frozenset[str]:
    """The libraries of Headgate's that a job's program imports, or a file that its command names,
    as a shell's does.
    """
    words = (job.run,) if isinstance(job.run, str) else job.run or ()
    named = {Path(job.workdir, name) for word in words for name in _FILE.findall(word)}
    if (file := source(job)) is not None:
        named.add(file)
    return frozenset().union(*(libraries(file) for file in named if file.is_file()))


def library(script: Path) -> str | None:
    """The library that a script trains with, where that is plain to see: it always imports this
    one, and no other.
    """
    anywhere, always = _imports(script)
    return anywhere[0] if len(anywhere) == 1 and anywhere == always else None


def meets_at_our_port(job: Job) -> bool:
    """Whether the workers of a job for torchrun may meet by a store of PyTorch's at the port that
    Headgate gives them.

    A script that names another address (`tcp://localhost:23456`, a `MASTER_PORT` of its own) lets
    its first worker listen there. One that imports the standard library alone may listen at the
    port itself.
    """
    run = program(job)
    if run is None or any("tcp://" in word for word in run.args):
        return False
    try:
        text = run.file.read_bytes() if run.file is not None else b""
        return not _MEETS_ELSEWHERE.search(text) and not (
            text and set(_roots(ast.parse(text))) <= sys.stdlib_module_names
        )
    except (OSError, SyntaxError, ValueError, RecursionError):
        return True


def plain_imports(job: Job) -> frozenset[str] | None:
    """The packages that a job's script imports; None where that does not tell all of it: it imports
    what lies beside it and may import more, runs other code, or cannot be read.

    Args:
        job: One with absolute paths.
    """
    script = source(job)
    try:
        text = b"" if script is None else script.read_bytes()
        names = imported(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if (
        script is None
        or names & {"", "importlib", "runpy"}
        or b"__import__" in text
        or b"exec(" in text
    ):
        return None
    folders = (script.parent, Path(job.workdir))
    beside = any(
        (folder / each).exists()
        for folder in folders
        for name in names
        for each in (name, f"{name}.py")
    )
    return None if beside else names


def shares_nothing(job: Job) -> bool:
    """Whether the workers of a job share nothing, as the imports of its script tell: it imports
    none of Headgate's libraries, and nothing that lies beside it and may import one.
    """
    names = plain_imports(job)
    return names is not None and "headgate" not in names


def workers_apart(job: Job, workers: int) -> Reason:
    """What is said of a job whose workers share nothing."""
    file = source(job)
    script = file.name if file is not None else None
    return Reason.of(ReasonKind.WORKERS_APART, job=job.name, workers=workers, script=script)


def check(job: Job, environment: Mapping[str, str]) -> None:
    """Whether the library of a job's script can do what the job's plan says, as far as that is
    plain to see.

    Args:
        job: One with absolute paths.
        environment: Of the person who submitted it, with the job's own: what its tasks have, but
            for those in an image, which have the latter alone.

    Raises:
        UsageError: It cannot, or that environment names another cluster; the message says why, and
            what works.
    """
    if job.plan is None or job.plan.strategy == "single" or (script := source(job)) is None:
        return
    environment = _seen(job, environment)
    refusal = (
        named_cluster(environment, job.plan.tasks)
        if job.plan.tasks > 1 and libraries(script)
        else ""
    )
    if refusal:
        raise UsageError(f"job {job.name!r}: {refusal}")
    found = library(script)
    backend = ""
    if found == "keras" and job.plan.tasks > 1:
        text = script.read_text(errors="replace")
        backend = keras_scripts.backend(text, environment)
        if backend == "tensorflow" and _fits_with_keras_3(job, text, environment):
            raise UsageError(f"job {job.name!r}: {_FIT}")
    for reason, cure in _against(found, backend, job.plan):
        raise UsageError(f"job {job.name!r}: {reason}; {cure}")


def other_cluster(job: Job, environment: Mapping[str, str]) -> str:
    """The variables that tell the tasks of a job of another cluster, as `task.cluster_variables`
    lists them.

    Headgate's libraries refuse them in several tasks. So Headgate chooses no plan of several tasks
    for such a job. A job whose workers find each other by another launcher's contract is not handed
    them.

    Args:
        job: One with absolute paths.
        environment: As in `check`.
    """
    return cluster_variables(_seen(job, environment)) if job.contract is None else ""


def _seen(job: Job, environment: Mapping[str, str]) -> Mapping[str, str]:
    """What of an environment, with the job's own, its tasks have."""
    return environment if job.image in (None, HOST_IMAGE) else job.env


def _against(library: str | None, backend: str, plan: Plan) -> Iterator[tuple[str, str]]:
    """What a library cannot do of a plan, and what works instead."""
    ps, allreduce = plan.strategy == "ps", f"run with --strategy allreduce --workers {plan.workers}"
    if library == "jax" and ps:
        yield "its script uses headgate.jax, and JAX has no parameter servers", allreduce
    if library == "keras" and backend == "torch":
        cure = (
            f"set KERAS_BACKEND=jax and {allreduce}, or write the loop in PyTorch with "
            "headgate.torch"
        )
        yield "its script uses headgate.keras, and Keras over torch trains in one task", cure
    if library == "keras" and ps and backend == "jax":
        yield (
            "its script uses headgate.keras over JAX, which has no parameter servers",
            f"{allreduce}, or TensorFlow",
        )
    if library == "keras" and ps and plan.synchronous:
        reason = (
            "its script uses headgate.keras, and workers of TensorFlow's parameter "
            "servers do not wait for another"
        )
        yield reason, f"allow that with --async, or {allreduce}"
    if library == "keras" and ps and plan.staleness is not None:
        reason = (
            "its script uses headgate.keras, and TensorFlow's parameter servers do not "
            "bound how far workers are"
        )
        yield f"{reason} apart", "leave --staleness out"
    if library in ("keras", "jax") and isinstance(plan.batch_per_worker, tuple):
        reason = (
            f"its script uses headgate.{library}, which gives all workers equal parts of a batch"
        )
        yield reason, "leave `batch_per_worker` out of the plan"


def _fits_with_keras_3(job: Job, text: str, environment: Mapping[str, str]) -> bool:
    """Whether a script over TensorFlow trains by `fit` of Keras 3, as far as that is plain to
    see.
    """
    run = program(job)
    if run is None or job.image not in (None, HOST_IMAGE) or not keras_scripts.fits(text):
        return False
    return keras_scripts.version(run.python, environment.get("PATH")).startswith("3.")


def _imports(script: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The libraries that a script imports anywhere, and those that it imports whatever else
    happens.
    """
    try:
        return _parsed(script.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return (), ()


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tree = ast.parse(text)
    anywhere = {name for node in ast.walk(tree) for name in _named(node)}
    always = {name for node in tree.body for name in _named(node)}
    return tuple(sorted(anywhere)), tuple(sorted(always))


@lru_cache(maxsize=64)
def _called(text: bytes) -> frozenset[str]:
    nodes = list(ast.walk(ast.parse(text)))
    read = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    bound = (each for node in nodes for each in _bound(node))
    return frozenset(library for library, name in bound if name in read or name == "*")


def _named(node: ast.AST) -> Iterator[str]:
    """The libraries that a statement imports."""
    return (library for library, _ in _bound(node))


def _bound(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The libraries that a statement imports, and what it calls each, or something of it."""
    names: list[tuple[str, str]] = []
    if isinstance(node, ast.Import):
        names = [(alias.name, alias.asname or alias.name.partition(".")[0]) for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        names = [
            (f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names
        ]
    for module, name in names:
        package, _, rest = module.partition(".")
        if package == "headgate" and (part := rest.partition(".")[0]) in LIBRARIES:
            yield part, name


def imported(text: bytes) -> frozenset[str]:
    """The packages that a script imports, wherever in it.

    Raises:
        SyntaxError, ValueError, RecursionError: It is no Python that can be read.
    """
    return frozenset(_roots(ast.parse(text)))


def _roots(tree: ast.AST) -> Iterator[str]:
    """The first part of each name that is imported; empty for one that is relative."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else (node.module or "").partition(".")[0]
