"""How ends are told."""

from __future__ import annotations

from headgate.model.endings import Doubt, Ending


def test_many_and_long_commands_are_named_in_short() -> None:
    commands = ("python " + "x" * 100, "b", "c", "d", "e")
    text = Ending(doubt=Doubt.LEFT_PROCESSES, left=commands).in_words()
    assert (
        text
        == f"left 5 processes behind, which were ended with it: python {'x' * 53}…, b, c and 2 more"
    )
