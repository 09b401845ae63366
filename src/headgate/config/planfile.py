"""Plan files: read a `Plan` from YAML, and report all problems at once with line, value and
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
    """A layout stated by the user: the fields of `headgate.Plan`."""


def schema() -> dict[str, Any]:
    """The JSON schema of a plan file."""
    return userfile.json_schema(PlanEntry, "Headgate plan file")


def check(file: UserFile, place: Place, data: object, wrong: Collection[Place]) -> bool:
    """Record contradictions within a plan, among its valid values. Returns whether there are none.

    Args:
        file: The file with the plan.
        place: Place of the plan in the file.
        data: The plan's data.
        wrong: Places of invalid values in the file.
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
    """Read the plan of a file.

    Raises:
        InvalidFileError: The file has problems; the error lists them all.
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
