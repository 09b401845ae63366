"""Brings a line of output into the plain form that `lines` reads: without its place in the code,
and with changes as new values.

Loggers print the function and line of code that called them: `__main__:train_step:142 - step 7`.
That is not step 142.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)} | {
    **dict.fromkeys((0x3001, 0xFF0C), ", "),
    0x3000: " ",
    0x3010: "[",
    0x3011: "]",
    0xFF1A: ": ",
    0xFF1B: "; ",
}
"""Full-width signs of East Asian scripts, in ASCII."""

# --- place in the code ----------------------------------------------------------------------------

_LINE = r"\d{1,6}(?![\w/])(?![.,-]\d)"
_FUNCTION = r"(?:[a-z_<>]\w{0,40}>?(?:\(\))?)"
_LIKE_A_FUNCTION = (
    r"(?:(?:[a-z_]\w{0,40}\.){1,6}\w{1,40}"  # of a module or class
    r"|_{0,2}(?:train|training|run|do|fit|log|compute|calc|get|eval|evaluate|validate|validation|one|process|perform"
    r"|inner|optimizer|forward|backward|closure|on|make)_\w{1,40}|train|fit|main|run|forward|[a-z]\w{0,40}_(?:fn|func|function|loop|hook|callback|start|end)|<module>|<lambda>)(?:\(\))?"
)
_LEVELS = r"(?:info|debug|warning|error|notice)"
_ENDS = rf"(?=\s{{0,4}}(?:[\])}}>|,]|[-–](?:\s|$)|:(?:\s|$|[a-z])|$|\s{_LEVELS}\b)|\s{{2}})"
_NO_MORE = r"(?!.{0,200}[a-z]:\d)"  # pairs that are written alike
_LOCATION = re.compile(
    rf"""(?<![\w./@=-])(?:
    (?:file\s"?)?(?:[\w.~-]{{0,40}}/){{0,12}}[\w.-]{{1,60}}\.(?:py|pyx|ipynb|cpp|cc|cu|go|rs|jl|java)"?(?:
      :{_LINE}(?:[\s:]{_FUNCTION}(?=[\])]))?
      |\({_LINE}\)
      |,?\sline\s{_LINE},?
      |[\s:]{_FUNCTION}:{_LINE}
      |\s{_LIKE_A_FUNCTION}\s{_LINE}
    )
    |[\w.<>]{{1,60}}:{{1,2}}(?!(?:epoch|step|iter|iteration|batch):\d{{1,9}}.{{1,200}}[a-z]:\d){_FUNCTION}:{{1,2}}{_LINE}{_ENDS}
    |[\w.<>]{{1,60}}::{_FUNCTION}:{{1,2}}{_LINE}
    |[\w.<>]{{1,60}}:{_LIKE_A_FUNCTION}:{_LINE}{_NO_MORE}
    |{_LIKE_A_FUNCTION}:{{1,2}}{_LINE}(?:(?=\])|{_ENDS}{_NO_MORE})
    |{_LIKE_A_FUNCTION}\[\d{{1,7}}\](?=:\s)
    |(?:\[{_LEVELS}\]:?|(?:{_LEVELS}|at|in):?|pid[=:]\s?\d{{1,9}},?)\s{{1,8}}{_LIKE_A_FUNCTION}:{_LINE}(?=\s){_NO_MORE}
    |\d\d:\d\d:\d\d(?:[.,]\d{{1,6}})?\s{{1,2}}{_LIKE_A_FUNCTION}\s{_LINE}\s[-|:](?=\s)
    |{_LIKE_A_FUNCTION}\s-\s{_LINE}\s-(?=\s)
    |line(?:no)?[=:\s]\s?{_LINE}(?=[\s,\])}}:]|$)
    )(?:\sin\s{_FUNCTION}(?=[\s:]))?""",
    re.VERBOSE,
)
_HERE = "\0"
_BRACKETED = re.compile(
    rf"(?:\[\s?(?:in\s|at\s|@)?{_HERE}\s?\]|(?:{_LIKE_A_FUNCTION}\s)?\((?:in\s|at\s|@)?{_HERE}\)|[<{{]{_HERE}[>}}])"
    rf"(?:\s{{1,2}}{_LIKE_A_FUNCTION}(?=:\s\D))?:?|@?{_HERE}"
)
_FUSED = re.compile(
    r":(?:(?<=[a-z_>)]:)|(?<=[a-z_]\d:))\d{1,6}(?![\w/]|[.,-]\d)"
)  # begins with a letter, so that it is found fast
_PROCESS = re.compile(r"\[(?<=\w\[)\d{1,7}\]:\s")
_TIMED = re.compile(r":(?<=\d:)\d\d(?:[.,]\d{1,6})? {1,2}[a-z_.]{3,60} \d")
_BETWEEN = re.compile(r" - \d{1,6} - ")
_MOST_LOCATIONS = 4

# --- changes --------------------------------------------------------------------------------------

_MOST_CHANGES = 8
_ARROWS = re.compile("[→⟶➜➔⇒»]")
_TO = re.compile(r" to (?=[-+\dni]|\.\d)")
_POINTS = re.compile(r">(?<=[-=~]>)(?=\s{0,8}(?:[-+\dni]|\.\d))")
_VALUE = r"[-+]?(?:\d[\d.,_]{0,24}(?:e[-+]?\d{1,3})?|\.\d{1,20}|nan|inf)%?"
_ARROW = r"(?:-{1,3}>|={1,2}>|~>|[→⟶➜➔⇒»])"
_VERB = (
    r"(?:(?:has|have|is|was)\s)?(?:(?:decreas|increas|improv|reduc|chang|dropp|lower|declin|updat|rais)(?:ed|es|e|ing)"
    r"|drops?|dropping|fell|falls?|down|up|rose|rises?|rising|(?:went|goes|going|moved|moves)(?:\s(?:up|down))?)"
)
_OLD = rf"{_VALUE}(?:\s\([a-z ]{{1,16}}\))?"
_CHANGE = re.compile(
    rf"(?P<is>[:=])?\s{{0,4}}(?:"
    rf"(?:\b{_VERB}\b\s{{0,2}}:?)?(?:\sby\s{_VALUE})?\s{{0,2}}[\[(]?\s{{0,2}}(?:from\s{{1,4}})?{_OLD}\s{{0,2}}{_ARROW}\s{{0,8}}"
    rf"|(?:\b{_VERB}\b\s{{0,2}}:?\s{{0,2}}\(?)?(?:\s?by\s{_VALUE})?\s{{0,2}}(?:from|by)\s{{1,4}}{_OLD}\s{{1,2}}(?:down\s|up\s)?to\s{{1,8}}"
    rf"|\b{_VERB}\b\s{{0,2}}:?\s{{0,2}}\(?{_OLD}\s{{1,2}}to\s{{1,8}}"
    rf"|\({_OLD}\s{{1,2}}to\s{{1,8}})(?P<new>{_VALUE})[\])]?"
)
_NOW = re.compile(rf"\swas\s{_OLD},?\s(?:(?:and|but)\s)?(?:is\s)?now\s(?P<new>{_VALUE})(?!\w)")
_CHANGED_TO = re.compile(rf"\s\b{_VERB}\b\s(?:down\s)?to\s{{1,4}}(?P<new>{_VALUE})(?!\w)")


def plain(line: str) -> str:
    """The line in plain form.

    Args:
        line: The line in lower case.
    """
    if not line.isascii():
        line = line.translate(_FULL_WIDTH)
    if _may_locate(line):
        located = _LOCATION.sub(_HERE, line, count=_MOST_LOCATIONS)
        if located is not line:
            line = _BRACKETED.sub(" ", located).lstrip()
    if " now " in line:
        line = _NOW.sub(r": \g<new>", line, count=_MOST_CHANGES)
    if _TO.search(line) or _POINTS.search(line) or (not line.isascii() and _ARROWS.search(line)):
        line = _CHANGED_TO.sub(
            r": \g<new>", _CHANGE.sub(_changed, line, count=_MOST_CHANGES), count=_MOST_CHANGES
        )
    return line


def _may_locate(line: str) -> bool:
    """Whether a line may contain its place in the code."""
    if ".py" in line or " line " in line or "lineno" in line:
        return True
    return any(form.search(line) is not None for form in (_FUSED, _PROCESS, _BETWEEN, _TIMED))


def _changed(change: re.Match[str]) -> str:
    return f"{change['is'] or ':'} {change['new']}"


LONGEST_LINE = 4096
"""Most characters of a line that are read."""
_ESCAPE = re.compile(
    r"\x1b(?:\[[0-9;?]{0,24}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78DEHM])"
)


def shown(line: str) -> Iterator[str]:
    """The line as a terminal would show it: its start, without colours, in each redrawn state."""
    if len(line) > LONGEST_LINE:
        line = line[:LONGEST_LINE]
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    if "\r" in line or "\b" in line:
        for state in line.replace("\b", "\r").split("\r"):
            if state.strip():
                yield state
    else:
        yield line
