"""Finds the launcher that a script is written for, if its imports and calls plainly say it. The
script is read, never run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from headgate.model.job_choices import Contract

LIBRARIES = frozenset({"torch", "keras", "jax"})
"""Headgate's libraries that a script may train with."""
TRAINERS = {
    "accelerate": ("Accelerator",),
    "transformers": ("Trainer", "Seq2SeqTrainer", "TrainingArguments", "Seq2SeqTrainingArguments"),
    "trl": (
        "SFTTrainer",
        "DPOTrainer",
        "GRPOTrainer",
        "RewardTrainer",
        "KTOTrainer",
        "ORPOTrainer",
    ),
    "sentence_transformers": ("SentenceTransformerTrainer", "SentenceTransformerTrainingArguments"),
    "lightning": ("Trainer", "Fabric", "LightningCLI"),
    "pytorch_lightning": ("Trainer", "LightningCLI"),
    "lightning_fabric": ("Fabric",),
    "ignite": ("Parallel", "auto_model"),
}
"""Classes that train in as many processes as torchrun's variables say. Without these variables they
train in one.
"""
_SPAWNS = ("torch.multiprocessing.spawn", "torch.multiprocessing.start_processes")
_PROCESSES = ("torch.multiprocessing.Process", "multiprocessing.Process")
_GROUPS = (
    *("deepspeed.init_distributed", "deepspeed.initialize", "torch.distributed.init_process_group"),
    *(
        "torch.nn.parallel.DistributedDataParallel",
        "torch.distributed.device_mesh.init_device_mesh",
    ),
    *("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed.fsdp.fully_shard"),
)
_LIBRARIES = [["headgate", name] for name in sorted(LIBRARIES)]
_OF_MPI = ("mpi4py", "horovod")
_DIVIDES = re.compile(
    r"\.(fully_shard|\w*FullyShardedDataParallel\w*|FSDPStrategy|DeepSpeedStrategy)$|^deepspeed\."
)
_ASKS = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK"})
_LOCAL_RANK = frozenset({"--local_rank", "--local-rank"})


@dataclass(frozen=True, slots=True)
class DetectedLauncher:
    """The launcher that a script is written for.

    Args:
        contract: The contract of this launcher; None: the script starts its processes itself.
        why: The evidence in the script, as words that follow «its script».
        needs: Whether a single worker needs the contract too.
        serves: Whether some of its processes are parameter servers.
        divides: Whether its workers divide the model among them, instead of each holding a whole
            one.
        sets: The variable that it always sets itself, so that all processes would have the same
            rank; empty: none.
    """

    contract: Contract | None
    why: str
    needs: bool = True
    serves: bool = False
    divides: bool = False
    sets: str = ""


def detect(tree: ast.AST) -> DetectedLauncher | None:
    """The launcher that a script is written for. None if it is not plain, or if the script uses a
    library of Headgate's.
    """
    launcher = _detect(tree)
    return replace(launcher, sets=_sets(tree)) if launcher is not None else None


def _detect(tree: ast.AST) -> DetectedLauncher | None:
    names = _Names(tree)
    if any(
        name == "headgate" or name.split(".")[:2] in _LIBRARIES for name in names.known.values()
    ):
        return None
    if (package := next(filter(names.needed().__contains__, _OF_MPI), None)) is not None:
        return DetectedLauncher("mpi", f"imports {package}", needs=False)
    called = set(names.called())
    divides = any(_DIVIDES.search(name) for name in called) or _passes_strategy(tree)
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    for spawn in (*_SPAWNS, *(_PROCESSES if called.intersection(_GROUPS) else ())):
        if spawn in called:
            return DetectedLauncher(None, f"starts its processes itself, by {spawn}")
    for group in _GROUPS:
        if group in called:
            contract: Contract = (
                "deepspeed" if group.startswith("deepspeed") and texts & _LOCAL_RANK else "torchrun"
            )
            return DetectedLauncher(
                contract, f"calls {group}", needs=not names.asks(), divides=divides
            )
    if "jax.distributed.initialize" in called:
        return DetectedLauncher("jax", "calls jax.distributed.initialize")
    for strategy, serves in (
        ("MultiWorkerMirroredStrategy", False),
        ("ParameterServerStrategy", True),
    ):
        for place in ("", "experimental."):
            if f"tensorflow.distribute.{place}{strategy}" in called:
                return DetectedLauncher(
                    "tensorflow", f"uses tf.distribute.{place}{strategy}", False, serves
                )
    for package, classes in TRAINERS.items():
        for name in classes:
            if any(
                full_name.startswith(f"{package}.") and full_name.endswith(f".{name}")
                for full_name in called
            ):
                return DetectedLauncher(
                    "torchrun", f"uses {name} of {package}", needs=False, divides=divides
                )
    return None


def _sets(tree: ast.AST) -> str:
    """The first of `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `TF_CONFIG` that a script always sets in
    its environment.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and ast.unparse(target.value) in (
                    "os.environ",
                    "environ",
                ):
                    name = target.slice.value if isinstance(target.slice, ast.Constant) else None
                    if name == "TF_CONFIG" or (
                        name in _ASKS and isinstance(node.value, ast.Constant)
                    ):
                        return str(name)
        if not isinstance(node, ast.If | ast.Try | ast.FunctionDef) and (name := _sets(node)):
            return name
    return ""


def _passes_strategy(tree: ast.AST) -> bool:
    """Whether a script passes FSDP or DeepSpeed to a trainer: `strategy="fsdp"`,
    `deepspeed="zero.json"`.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant):
            if node.arg in ("fsdp", "deepspeed") and node.value.value:
                return True
            if node.arg == "strategy" and str(node.value.value).startswith(("fsdp", "deepspeed")):
                return True
    return False


class _Names:
    """The full names behind the names in a script, by its imports."""

    def __init__(self, tree: ast.AST) -> None:
        self._tree = tree
        self.known: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self.known[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                self.known |= {
                    alias.asname or alias.name: f"{node.module}.{alias.name}"
                    for alias in node.names
                }

    def called(self) -> Iterator[str]:
        """The full names of all functions and classes that the script calls."""
        return (
            self._full(node.func) for node in ast.walk(self._tree) if isinstance(node, ast.Call)
        )

    def needed(self) -> set[str]:
        """The packages that the script imports and cannot do without."""
        tries = (node for node in ast.walk(self._tree) if isinstance(node, ast.Try))
        optional = {id(node) for tried in tries for node in ast.walk(tried)}
        imports = [node for node in ast.walk(self._tree) if id(node) not in optional]
        plain = {
            alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names
        }
        parts = {
            node.module or ""
            for node in imports
            if isinstance(node, ast.ImportFrom) and node.level == 0
        }
        return {name.partition(".")[0] for name in plain | parts}

    def asks(self) -> bool:
        """Whether it checks if it has a rank, and so runs without one too: `os.environ.get("RANK",
        -1)`, `"RANK" in os.environ`.
        """
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and self._full(node.func) in (
                "os.environ.get",
                "os.getenv",
            ):
                asked = node.args[0] if node.args else None
            elif isinstance(node, ast.Compare) and any(
                isinstance(op, ast.In | ast.NotIn) for op in node.ops
            ):
                asked = node.left if self._full(node.comparators[0]) == "os.environ" else None
            else:
                continue
            if isinstance(asked, ast.Constant) and asked.value in _ASKS:
                return True
        return False

    def _full(self, node: ast.expr) -> str:
        """The full name that an expression stands for; empty if it is no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.known.get(node.id, node.id), *reversed(parts)])
