"""Programs outside Headgate are named, and nothing is advised that their user alone may do, or that
would not help.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.diagnosis.made_up import MadeUp, recording

from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.attribution import OTHERS, LostTime, TimeEstimate
from headgate.diagnosis.neighbours import neighbours
from headgate.diagnosis.remedies import ProgramFacts, RemedyKind
from headgate.sampling.outside_programs import OutsideProgram

TRAIN = OutsideProgram("anna", "python train.py", 77, 0, 50.0, is_mine=True, may_renice=True)
MEEK = OutsideProgram("anna", "python train.py", 77, 19, 50.0, is_mine=True, may_renice=False)
FIRST = OutsideProgram("root", "init", 1, 0, 50.0, is_mine=True, may_renice=True)
HUB = OutsideProgram(
    "anna", "python -m hub", 5, 0, 50.0, is_mine=True, may_renice=True, is_hub=True
)
BOBS = OutsideProgram("bob", "python other.py", 78, 0, 60.0, is_mine=False, may_renice=False)


@pytest.mark.parametrize(
    ("programs", "kind", "renice"),
    [
        ((), RemedyKind.END_OTHER_PROGRAMS, False),
        ((TRAIN,), RemedyKind.END_PROGRAM, True),
        ((FIRST,), RemedyKind.END_OTHER_PROGRAMS, False),
        ((HUB,), RemedyKind.USE_ONE_HUB, False),
        ((MEEK,), RemedyKind.END_PROGRAM, False),
        ((BOBS, TRAIN), RemedyKind.ASK_OWNER, False),
    ],
)
def test_the_program_that_used_most_is_named(
    tmp_path: Path, programs: Sequence[OutsideProgram], kind: RemedyKind, renice: bool
) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0, end=20)})
    [alone] = accounts(run.jobs, run.nodes, run.seconds)
    lost = LostTime(OTHERS, "cores", TimeEstimate(5.0, 4.0, 6.0), "counted")
    around = replace(alone.around, programs=programs)
    [finding] = neighbours(replace(alone, losses=[lost], around=around))
    assert finding.facts.programs == tuple(programs)
    assert finding.remedy.kind is kind
    if finding.remedy.facts is not None:
        assert finding.remedy.facts == ProgramFacts(programs[0], renice)
