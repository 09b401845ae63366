"""How ends are told."""

from __future__ import annotations

from headgate.model.ending_text import ending_in_words
from headgate.model.endings import Doubt, Exit


def test_many_and_long_commands_are_named_in_short() -> None:
    commands = ("python " + "x" * 100, "b", "c", "d", "e")
    text = ending_in_words({"doubt": Doubt.LEFT_PROCESSES, "left": commands})
    assert (
        text
        == f"left 5 processes behind, which were ended with it: python {'x' * 53}…, b, c and 2 more"
    )


def test_an_exit_is_said_in_words_and_as_a_shell_counts() -> None:
    assert [Exit(code=3).in_words(), Exit(code=None, signal=11).in_words()] == [
        "exit code 3",
        "killed by SIGSEGV",
    ]
    assert Exit(code=None, signal=64 - 1).in_words() == "killed by signal 63"
    assert [
        Exit(code=3).shell_code,
        Exit(code=None, signal=9).shell_code,
        Exit(code=None).shell_code,
    ] == [3, 137, 127]
