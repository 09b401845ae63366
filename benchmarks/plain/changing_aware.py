"""The jobs of `changing.py`, which tell of themselves by headgate.torch."""

from __future__ import annotations

import changing

import headgate.torch as hg

if __name__ == "__main__":
    changing.run(hg.prepare, lambda _, loss: hg.report(loss=loss))
