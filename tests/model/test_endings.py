"""How ends are told."""

from __future__ import annotations

from headgate.model.endings import Doubt
from headgate.model.reason_text import ending_in_words


def test_many_and_long_commands_are_named_in_short() -> None:
    commands = ("python " + "x" * 100, "b", "c", "d", "e")
    text = ending_in_words({"doubt": Doubt.LEFT_PROCESSES, "left": commands})
    assert (
        text
        == f"left 5 processes behind, which were ended with it: python {'x' * 53}…, b, c and 2 more"
    )
