"""The trainings of `caused.py` with Headgate's calls."""

from __future__ import annotations

import caused

import headgate.torch as hg

if __name__ == "__main__":
    caused.main(hg)
