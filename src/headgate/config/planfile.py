"""Plan files: YAML in, a `Plan` out; every problem at once, each with its line, the value and the
cure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError, WithJsonSchema

from headgate.config import userfile
from headgate.config.userfile import Entry, Number, Place, UserFile, Whole
from headgate.model.plans import Plan, Strategy, problems

TEXTS = frozenset({"strategy", "worker_nodes", "server_nodes"})
"""Keys whose values are text."""


def _batch(value: object) -> object:
    sizes = value if isinstance(value, list) and value else [value]
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise ValueError("expected a number of samples, or one for each worker: [32, 16]")
    return value


_BATCH = {
    "anyOf": [
        {"type": "integer"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "null"},
    ]
}
Batch = Annotated[int | list[int], BeforeValidator(_batch), WithJsonSchema(_BATCH)]


class PlanEntry(Entry):
    """How a job is laid out, where its user says so: the fields of `headgate.Plan`."""

    strategy: Strategy
    """How the workers learn together: `single`, `allreduce` or `ps` (parameter servers)."""
    workers: Whole = 1
    """Number of workers."""
    batch_per_worker: Batch | None = None
    """Samples of each worker in a step: one number, or a list with one for each; without it, the
    script's own.
    """
    servers: Whole = 0
    """Number of parameter servers; 0 unless the strategy is `ps`."""
    synchronous: bool = True
    """Whether each step waits for all workers; only `ps` can do without."""
    backup_workers: Whole = 0
    """Number of workers whose gradients a synchronous step of `ps` need not wait for."""
    staleness: Whole | None = None
    """The most steps that an asynchronous worker may be ahead of the slowest; without it, no
    bound.
    """
    worker_nodes: list[str] = []
    """The name of each worker's node; empty: Headgate places them."""
    server_nodes: list[str] = []
    """The name of each parameter server's node; empty: Headgate places them."""
    cores_per_worker: Number | None = None
    """The most CPU cores of each worker; without it, what its node has."""
    cores_per_server: Number | None = None
    """The most CPU cores of each parameter server; without it, what its node has."""

    def plan(self) -> Plan:
        """The plan.

        Raises:
            ValueError: A value makes no sense with another (see `headgate.model.plans.problems`).
        """
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.model_dump().items()
        }
        return Plan(**fields)


def _is_text(place: Place) -> bool:
    return not TEXTS.isdisjoint(part for part in place if isinstance(part, str))


def schema() -> dict[str, Any]:
    """The JSON schema of a plan file."""
    return userfile.json_schema(PlanEntry, "Headgate plan file")


def check(file: UserFile, place: Place, data: object, wrong: Collection[Place]) -> bool:
    """Note what does not go together in a plan, as far as its values are well; whether all is.

    Args:
        file: The file that it is in.
        place: Where.
        data: What is there.
        wrong: Places of the file that are not well.
    """
    if not isinstance(data, dict):
        return False
    bad = {
        str(each[len(place)])
        for each in wrong
        if each[: len(place)] == place and len(each) > len(place)
    }
    entry = PlanEntry.model_validate(
        {"strategy": "single", **{key: value for key, value in data.items() if key not in bad}}
    )
    found = list(problems(entry, bad))
    for key, value, expected in found:
        file.problem((*place, key), f"found {value!r}", f"expected {expected}")
    return not bad and not found


def load(path: str) -> Plan:
    """The plan of a file.

    Raises:
        InvalidFileError: With every problem found.
        UsageError: The file cannot be read.
    """
    file = UserFile(path, _is_text)
    wrong: set[Place] = set()
    try:
        PlanEntry.model_validate(file.data)
    except ValidationError as error:
        wrong = {file.wrong(dict(each), {"": PlanEntry}) for each in error.errors()}
    check(file, (), file.data, wrong)
    file.check()
    return PlanEntry.model_validate(file.data).plan()
