"""Plan files: YAML in, a `Plan` out; every problem at once, each with its line, the value and the cure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError, WithJsonSchema

from headgate.plans import Plan, Strategy, problems
from headgate.userfile import Entry, Number, Place, UserFile, Whole

TEXTS = frozenset({"strategy", "worker_nodes", "server_nodes"})
"""Keys whose values are text."""


def _batch(value: object) -> object:
    sizes = value if isinstance(value, list) and value else [value]
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise ValueError("expected a number of samples, or one for each worker: [32, 16]")
    return value


_BATCH = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}
Batch = Annotated[int | list[int], BeforeValidator(_batch), WithJsonSchema(_BATCH)]


class PlanEntry(Entry):
    """How a job is laid out, where its user says so: the fields of `headgate.Plan`."""

    strategy: Strategy
    workers: Whole = 1
    batch_per_worker: Batch | None = None
    servers: Whole = 0
    synchronous: bool = True
    backup_workers: Whole = 0
    staleness: Whole | None = None
    worker_nodes: list[str] = []
    server_nodes: list[str] = []
    cores_per_worker: Number | None = None
    cores_per_server: Number | None = None

    def plan(self) -> Plan:
        """The plan.

        Raises:
            ValueError: A value makes no sense with another (see `headgate.plans.problems`).
        """
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in self.model_dump().items()
        }
        return Plan(**fields)


def _is_text(place: Place) -> bool:
    return not TEXTS.isdisjoint(part for part in place if isinstance(part, str))


def schema() -> dict[str, Any]:
    """The JSON schema of a plan file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Headgate plan file",
    } | PlanEntry.model_json_schema()


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
    bad = {str(each[len(place)]) for each in wrong if each[: len(place)] == place and len(each) > len(place)}
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
