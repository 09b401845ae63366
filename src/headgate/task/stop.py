"""How a training script is ended at a step boundary."""

from __future__ import annotations


class Stop(SystemExit):
    """Ends the script because its engine asked for it; whatever had to be saved has been.

    A `SystemExit` with status 0: `finally` blocks and exit handlers run, `except Exception` does
    not swallow it, and nothing is printed. Where a script swallows it all the same, the next step
    boundary raises it again.
    """

    def __init__(self) -> None:
        super().__init__(0)


class PeerLost(SystemExit):
    """Ends the script because another task of its job is gone and the rest cannot go on: status 75,
    "try again".

    The engine starts the job again from its last checkpoint.
    """

    STATUS = 75

    def __init__(self, text: str) -> None:
        super().__init__(self.STATUS)
        self.text = text
