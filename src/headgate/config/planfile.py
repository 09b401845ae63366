"""Plan files: YAML in, a `Plan` out; every problem at once, each with its line, the value and the
cure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from headgate.config import userfile
from headgate.config.records import entry_of
from headgate.config.userfile import Place, UserFile
from headgate.model.plans import Plan, problems


class PlanEntry(entry_of(Plan, workers=1, batch_per_worker=None)):  # type: ignore[misc]  # its keys are the fields of Plan
    """How a job is laid out, where its user says so: the fields of `headgate.Plan`."""


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
        str(bad_place[len(place)])
        for bad_place in wrong
        if bad_place[: len(place)] == place and len(bad_place) > len(place)
    }
    entry = PlanEntry.model_validate(
        {"strategy": "single", **{key: value for key, value in data.items() if key not in bad}}
    )
    faults = list(problems(entry, bad))
    for key, value, expected in faults:
        file.problem((*place, key), f"found {value!r}", f"expected {expected}")
    return not bad and not faults


def load(path: str) -> Plan:
    """The plan of a file.

    Raises:
        InvalidFileError: With every problem found.
        UsageError: The file cannot be read.
    """
    file = UserFile(path, PlanEntry)
    wrong: set[Place] = set()
    try:
        PlanEntry.model_validate(file.data)
    except ValidationError as error:
        wrong = {file.record_error(dict(details)) for details in error.errors()}
    check(file, (), file.data, wrong)
    file.check()
    plan: Plan = PlanEntry.model_validate(file.data).record()
    return plan
