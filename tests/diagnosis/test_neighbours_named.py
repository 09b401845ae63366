"""Programs outside Headgate are named, and nothing is advised that their user alone may do, or that
would not help.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headgate.diagnosis.accounts import Account
from headgate.diagnosis.attribution import OTHERS, Loss, TimeEstimate
from headgate.diagnosis.neighbours import neighbours
from headgate.sampling.outside_programs import OutsideProgram

TRAIN = OutsideProgram("anna", "python train.py", 77, 0, 50.0, is_mine=True, may_renice=True)
MEEK = OutsideProgram("anna", "python train.py", 77, 19, 50.0, is_mine=True, may_renice=False)
FIRST = OutsideProgram("root", "init", 1, 0, 50.0, is_mine=True, may_renice=True)
HUB = OutsideProgram(
    "anna", "python -m hub", 5, 0, 50.0, is_mine=True, may_renice=True, is_hub=True
)
BOBS = OutsideProgram("bob", "python other.py", 78, 0, 40.0, is_mine=False, may_renice=False)


@pytest.mark.parametrize(
    ("programs", "who", "instead"),
    [
        ((), "Programs outside Headgate slowed a", "`top` shows what else runs; end it."),
        (
            (TRAIN,),
            "Programs outside Headgate (python train.py of user anna) slowed a",
            "End python train.py (process 77), or lower its priority: `renice 19 -p 77`.",
        ),
        ((FIRST,), "(init of user root)", "`top` shows what else runs; end it."),
        (
            (HUB,),
            "(python -m hub of user anna)",
            "That is another hub: submit its jobs to this one",
        ),
        (
            (MEEK,),
            "(python train.py of user anna)",
            "End python train.py (process 77), or run the job when that",
        ),
        (
            (BOBS, TRAIN),
            "(python other.py of user bob and others)",
            "Ask bob, whose python other.py it is (proc",
        ),
    ],
)
def test_the_program_that_used_most_is_named(
    programs: Sequence[OutsideProgram], who: str, instead: str
) -> None:
    parts = {part: TimeEstimate(0.0, 0.0, 0.0) for part in ("waiting",)}
    lost = Loss(OTHERS, "cores", TimeEstimate(5.0, 4.0, 6.0), "counted")
    account = Account(job="a", elapsed=20.0, parts=parts, losses=[lost], programs=programs)  # type: ignore[arg-type]
    [cause] = neighbours(account)
    assert who in cause.why
    assert cause.next.startswith(instead)
