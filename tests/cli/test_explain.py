"""What `headgate explain` prints while it proves."""

from __future__ import annotations

import pytest

from headgate.cli.explain import _is_news


@pytest.mark.parametrize(("needed", "most"), [(8, 8), (23, 21), (512, 21)])
def test_a_proof_of_many_pauses_tells_of_some(needed: int, most: int) -> None:
    shown: dict[tuple[str, str], int] = {}
    pauses = [
        {"culprit": "b", "victim": "a", "pauses": done, "needed": needed}
        for done in range(1, needed + 1)
    ]
    told = [message["pauses"] for message in pauses if _is_news(message, shown)]
    assert told[0] == 1 and told[-1] == needed and min(needed, 20) <= len(told) <= most
    assert _is_news({"text": "what came of it"}, shown)
