"""Makes standard output and error take any text, and survive the loss of their readers."""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata

_ERRORS = "headgate"
_SPELT = {
    **dict.fromkeys("–—−‐‑", "-"),
    **dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True)),
    **dict.fromkeys("│┃┆┊", "|"),
    **dict.fromkeys("─━┄┈", "-"),
    "…": "...",
    "→": "->",
    "←": "<-",
    "×": "x",
    "·": ".",
    "±": "+-",
    "≥": ">=",
    "≤": "<=",
    "≈": "~",
    "«": '"',
    "»": '"',
    "„": '"',
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "µ": "u",
    "μ": "u",
    "°": " deg",
    "✓": "+",
    "✗": "x",
    "•": "*",
    "∞": "inf",
    "Σ": "sum",
    "σ": "sigma",
}
"""Replacements for letters that a terminal cannot encode."""


def prepare() -> None:
    """Make both streams accept any text. A locale or `PYTHONIOENCODING` may lack letters. A path
    that is not UTF-8 is printed as its bytes.
    """
    codecs.register_error(_ERRORS, _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _spelt(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    letters = error.object[error.start : error.end]
    return b"".join(_encoded(letter, error.encoding) for letter in letters), error.end


def _encoded(letter: str, encoding: str) -> bytes:
    if "\udc80" <= letter <= "\udcff":
        return bytes([ord(letter) - 0xDC00])
    plain = (
        _SPELT.get(letter)
        or unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
        or "?"
    )
    return plain.encode(encoding, "replace")


def abandon() -> None:
    """Write no more to standard output, whose reader has gone. Python would try again at its
    end.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
