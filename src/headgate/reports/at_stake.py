"""What a stop of a job would lose, in words."""

from __future__ import annotations

import os
import shlex

from headgate.model.units import say_seconds
from headgate.recorded.at_stake import AtStake


def sentence(stake: AtStake, runs: bool) -> str:
    """What a stop now loses, or lost if the job no longer runs, and how the job goes on."""
    lost = say_seconds(stake.seconds)
    loses = f"a stop now loses {lost}" if runs else f"its end lost {lost}"
    step = f", step {stake.step}" if stake.step is not None else ""
    saved = f"{stake.job}: {loses}, since its script saved {os.path.basename(stake.path)}{step}"
    if stake.arguments is None:
        how = (
            "nothing tells how it resumes from that; say so with --resume-with, or with `resumes: "
            "true` if it looks for it by itself"
        )
    elif stake.arguments:
        how = f"it is started again with {shlex.join(stake.arguments)}"
    else:
        how = "it looks for that by itself"
    return f"{saved}; {how}{_rhythm(stake)}"


def _rhythm(stake: AtStake) -> str:
    if stake.every is None:
        return ""
    text = f"; it saves every {say_seconds(stake.every)}"
    if stake.advised is None or stake.takes is None:
        return text
    part = 100 * stake.takes / stake.advised
    return f"{text}, and every {say_seconds(stake.advised)} would take {part:.2g} % of its time"
