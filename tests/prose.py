"""Sentences of a page in Markdown, so that a test can say how long they are.

A sentence ends at a full stop, a question mark or an exclamation mark before a space. A paragraph,
an item of a list and a cell of a table end one as well. Headings and blocks of code hold none. Code
within a line counts as no word, so that a list of it may be long; a link counts as its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INLINE_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
CODE = "CODE"
"""What stands in a sentence in place of code."""
ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
# Not after a shortened word, and only before what can begin a sentence: a capital, a figure, code,
# a quote, a bracket.
END = re.compile(
    r"(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\bal\.)(?<!\bvs\.)(?<=[.!?])([)\"”»*_]*)\s+(?=[\"“«(*_]*[A-Z0-9])"
)


@dataclass(frozen=True)
class Figures:
    """How long a page's sentences are, in words.

    Attributes:
        mean: Of sentences in paragraphs and lists; cells of tables are mostly no sentences and
            would flatter it.
        longest: The longest one, those in cells of tables included.
    """

    mean: float
    longest: str

    @property
    def most(self) -> int:
        return words(self.longest)


def words(sentence: str) -> int:
    """Its words: what is between spaces and has a letter or a figure."""
    return sum(any(map(str.isalnum, word)) and CODE not in word for word in sentence.split())


def figures(page: str) -> Figures:
    """How long the sentences of a page are that is given as Markdown."""
    running, cells = sentences(page)
    return Figures(
        fmean(map(words, running)) if running else 0.0,
        max([*running, *cells], key=words, default=""),
    )


def sentences(page: str) -> tuple[list[str], list[str]]:
    """The sentences of paragraphs and lists, and those in cells of tables."""
    text = FENCED.sub("\n\n", COMMENT.sub("", page))
    text = INLINE_CODE.sub(CODE, LINK.sub(r"\1", text))
    running: list[str] = []
    cells: list[str] = []
    for kind, lines in groupby(text.splitlines(), key=_kind):
        if kind == "table":
            cells += [
                part
                for line in lines
                for cell in line.strip(" |").split("|")
                for part in split(cell)
            ]
        elif kind == "text":
            for block in re.split(r"\n(?=\s*(?:[-*+]|\d+[.)])\s)", "\n".join(lines)):
                running += split(ITEM.sub("", block))
    return running, cells


def split(text: str) -> list[str]:
    """The sentences of one paragraph, item or cell."""
    return [part for part in END.sub(r"\1\n", " ".join(text.split())).split("\n") if words(part)]


def _kind(line: str) -> str:
    if not line.strip() or line.startswith("#"):
        return "nothing"
    return "table" if line.lstrip().startswith("|") else "text"
