"""What `headgate explain` prints while it proves."""

from __future__ import annotations

import pytest

from headgate.cli.explain import _is_to_show
from headgate.client.proving import ProofNews


@pytest.mark.parametrize(("needed", "most"), [(8, 8), (23, 21), (512, 21)])
def test_a_proof_of_many_pauses_tells_of_some(needed: int, most: int) -> None:
    shown: dict[tuple[str, str], int] = {}
    news = [ProofNews("", "b", "a", done, needed) for done in range(1, needed + 1)]
    pauses = [progress.pauses for progress in news if _is_to_show(progress, shown)]
    assert pauses[0] == 1 and pauses[-1] == needed and min(needed, 20) <= len(pauses) <= most
    assert _is_to_show(ProofNews("what came of it"), shown)
