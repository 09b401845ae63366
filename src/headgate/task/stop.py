"""Exceptions that end a training script at a step boundary."""

from __future__ import annotations


class Stop(SystemExit):
    """Ends the script because its engine asked for it. Everything to be saved has been saved.

    A `SystemExit` with status 0: `finally` blocks and exit handlers run, `except Exception` does
    not swallow it, and nothing is printed. If a script swallows it nevertheless, the next step
    boundary raises it again.
    """

    def __init__(self) -> None:
        super().__init__(0)


class PeerLost(SystemExit):
    """Ends the script because another task of its job is gone and the others cannot continue:
    status 75, "try again".

    The engine restarts the job from its last checkpoint.
    """

    STATUS = 75

    def __init__(self, text: str) -> None:
        super().__init__(self.STATUS)
        self.text = text
