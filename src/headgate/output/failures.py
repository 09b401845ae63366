"""Finds in a script's output why it ended: the exception itself, not what frameworks print after
it.

Tracebacks are followed line by line: chained and grouped ones, and those of workers that their
parent prints again. They may be in boxes, or have a prefix on each line (ranks, actors, loggers).
What C++ and shells print as a process dies counts as well.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from headgate.output.plain_lines import shown

_LONGEST = 400  # characters of what is quoted
_SURVIVED = 30  # an error that so many lines were printed after is one that the script got over
_ERROR_MESSAGE = re.compile(
    r"(?i)(?:\[[\w./ -]{1,40}\]:?\s|[\w./-]{1,40}:\s){0,2}\W{0,4}"
    r"(?:fatal|critical|(?:fatal )?error)\s?[:!]\s{0,4}[^\s\d.-]"
)
"""A program's own error message: «Error: no such file», «train: fatal error: out of space»."""
_TRAILING_LINES = 3
"""Lines that a shell may print after a program has failed, for example «finished»."""
_MISSING_PROGRAM = re.compile(
    r"(?:[\w./-]{1,60}:(?:\d+:)?\s){1,3}.{0,200}"
    r"(?:not found(?:: \S+)?|No such file or directory|[Pp]ermission denied|cannot execute.{0,40})$"
)
"""Messages of shells and programs about a missing program or file."""
_LINE_OF_PROGRESS = 10  # counts as so many
_MOST_OPEN = 8
_MOST_FOREIGN = 5  # lines of others within a traceback
_MOST_OF_A_MESSAGE = 200  # lines among which what an exception says is looked for
_WRAPPED = 60  # rich wraps lines that are longer

_BEGINS = "Traceback (most recent call last)"
_HEADER = re.compile(
    r"(.*?)(?:Original |Exception Group )?Traceback \(most recent call last\)(:?)", re.DOTALL
)
_FRAME = re.compile(r'\s*(?:>\s*)?File "([^"]{1,300})", line (\d+)')
_SYNTAX = re.compile(r'  File "[^"]{1,300}", line \d+$')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.<>]{0,200})(\([\w.]{1,100}\))?(?:(:)(?:\s+(.*))?)?$")
_LEVELS = frozenset({"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL", "TRACE"})
_MARGIN = re.compile(r"(?:  )+[|+](?:-\+)? ?")
_GROUP = "sub-exception"
_MEMBER = re.compile(r"-+ \d+ -+$")
_BOX = ("│", "╭", "╰", "┃", "┏", "┗")
_LINKS = {
    "The above exception was the direct cause of the following exception:": "from",
    "During handling of the above exception, another exception occurred:": "while handling",
}
_CAUGHT = re.compile(r"Caught \w+ (in .+?)\.?$")
_UNSAID = re.compile(r".*(?::|calling .*\)\.)$")
_NO_CONTENT = re.compile(
    r"\s*(?:$|[-=*~^]{3,}|Detected at node|Node: |\[\[\{\{|.*defined at \(|File \"|\"{3})"
)
_FORMAL = re.compile(r"\{\{[^}]{0,200}\}\}\s*|\s*\[Op:\w+\](?: name: ?)?")
_IGNORED_HEADINGS = (
    "Exception ignored in",
    "Exception in thread",
    "Error in atexit",
    "Error in sys.excepthook",
    "--- Logging error",
)
"""Headings of tracebacks after which Python goes on."""

_WEAK_NAMES = frozenset(
    {
        *(
            "ChildFailedError",
            "CalledProcessError",
            "ProcessRaisedException",
            "ProcessExitedException",
            "RayTaskError",
        ),
        *(
            "RemoteTraceback",
            "_RemoteTraceback",
            "SimplifiedTraceback",
            "UnfilteredStackTrace",
            "FilteredStackTrace",
        ),
        *(
            "KeyboardInterrupt",
            "BrokenPipeError",
            "ConnectionResetError",
            "SystemExit",
            "DistBackendError",
        ),
    }
)
_WEAK_MESSAGES = re.compile(
    r"connection (?:closed|reset|refused)|broken pipe|socket timeout|\bpeer\b", re.IGNORECASE
)
"""Messages about the end of another process, which only count if there is no other failure."""

_NATIVE = re.compile(
    r"""(?:terminate\ called\ after\ throwing\ an\ instance\ of\ '(?P<type>[^']{1,200})'
    |(?P<plain>terminate\ called\ without.*|libc\+\+abi:.*|Fatal\ Python\ error:\ .*
        |(?:free|malloc|calloc|realloc|munmap_chunk|malloc_consolidate)\(\):\ .*
        |corrupted\ (?:size|double).*|double\ free\ or\ corruption.*
        |\*{3}\ (?:stack|buffer).*detected.*|thread\ '.*'\ panicked\ at.*
        |\S.*:\ Assertion\ [`'].*failed\.?)
    |F\d{4}\ [\d:.]+\ +\d+\ \S+\]\ (?P<glog>.+)
    |\d{4}-\d\d-\d\d\ [\d:.]+:\ F\ \S+\]\ (?P<tensorflow>.+)
    |\s*traceback\ :\ (?P<elastic>Signal\ \d+.+)
    |(?:\S.*:\ line\ \d+:\s+\d+\ )?(?P<shell>Killed|Segmentation\ fault|Aborted|Bus\ error
        |Illegal\ instruction|Floating\ point\ exception)
        (?:\s+\(core\ dumped\))?(?:\s\s+\S.*)?)$""",
    re.VERBOSE,
)
_THREADS = ("Current thread", "Thread 0x")
_WHAT = re.compile(r"\s*what\(\):\s+(.*)")


@dataclass(slots=True)
class _FoundFailure:
    """A failure in the output.

    `native`: the process died without a Python exception. `weak`: it only follows from the end of
    another process. `why` and `where`: its cause and place. `parts`: those of an exception group.
    """

    text: str
    weak: bool = False
    native: bool = False
    at: int = 0
    why: str = ""
    where: str = ""
    parts: list[str] = field(default_factory=list)

    def quote(self) -> str:
        text = self.text + (f": {'; '.join(self.parts)}" if self.parts else "")
        text += (f", {self.where}" if self.where else "") + (f" ({self.why})" if self.why else "")
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


@dataclass(slots=True)
class _Traceback:
    """A traceback that has begun.

    `prefix` is on each of its lines, unless only on the first. `found` is its exception while its
    message continues, for `rest` more lines at most.
    """

    prefix: str
    aside: bool = False
    boxed: bool = False
    certain: bool = False
    foreign: int = 0
    frame: str = ""
    in_frame: bool = False
    found: _FoundFailure | None = None
    rest: int = _MOST_OF_A_MESSAGE
    wraps: bool = False
    shape: re.Pattern[str] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = re.compile(re.sub(r"\d+", r"\\d+", re.escape(self.prefix[:200])))

    def body(self, line: str) -> str | None:
        """The line without the prefix; None if the line belongs to another traceback."""
        if (match := self.shape.match(line)) is not None:
            self.certain = True
            return line[match.end() :]
        if not self.certain and _FRAME.match(line):
            self.prefix, self.shape, self.certain = "", re.compile(""), True
            return line
        return None


class FailureReader:
    """Finds in a script's output the failure that ended it."""

    def __init__(self) -> None:
        self.last_line = ""
        self._open: list[_Traceback] = []
        self._strong: _FoundFailure | None = None
        self._weak: _FoundFailure | None = None
        self._latest: _FoundFailure | None = None
        self._link: tuple[str, str] | None = None  # how the next exception follows from which
        self._where = ""
        self._lines = 0
        self._grouped = False
        self._native: _FoundFailure | None = None  # whose next lines say more
        self._complaint = ("", -_SURVIVED)  # and when it was said

    @property
    def line(self) -> str:
        """The line that says what is wrong if there is no exception: the last error message,
        otherwise the last non-empty line.
        """
        complaint, at = self._complaint
        return complaint if complaint and self._lines - at <= _SURVIVED else self.last_line

    def feed(self, lines: Iterable[str]) -> None:
        """Take in further lines of output."""
        for line in lines:
            for text in shown(line):
                self._line(text.rstrip())

    def quote(self, *, signalled: bool = False) -> str | None:
        """One line that says why the script ended; None if unknown.

        Args:
            signalled: Whether a signal ended it, so that no Python exception did.
        """
        for failure in (self._strong, self._weak):
            if (
                failure is not None
                and self._lines - failure.at <= _SURVIVED
                and (failure.native or not signalled)
            ):
                return failure.quote()
        return None

    def last(self, shell: bool) -> str:
        """The failure at the end of the output; empty: there is none.

        Args:
            shell: Whether it is the output of a shell, whose exit status says little about the
                programs that it runs. Then a few lines may follow a failure, and the shell's own
                messages count.
        """
        most = _TRAILING_LINES if shell else 0
        for failure in (self._strong, self._weak):
            if failure is not None and self._lines - failure.at <= most:
                return failure.quote()
        complaint, at = self._complaint
        if shell and complaint and self._lines - at <= most:
            return complaint[:_LONGEST]
        return self.last_line[:_LONGEST] if shell and _MISSING_PROGRAM.match(self.last_line) else ""

    def _line(self, text: str) -> None:
        if self._grouped and text:
            margin = _MARGIN.match(text)
            self._grouped = margin is not None
            text = text[margin.end() :] if margin is not None else text
        before, self.last_line = self.last_line, text or self.last_line
        # a failure that was made but never raised
        if self._grouped and _MEMBER.match(before) and _EXCEPTION.match(text):
            self._open.append(_Traceback("", certain=True))
        if _BEGINS in text and self._begins(text, before):
            return
        for traceback in reversed(self._open):
            if (body := traceback.body(text)) is not None:
                self._within(traceback, body)
                return
        self._outside(text)

    def _begins(self, text: str, before: str) -> bool:
        header = _HEADER.match(text)
        assert header is not None
        prefix, boxed = header[1], not header[2]
        if boxed:
            if (corner := max(text.find("╭"), text.find("┏"))) < 0:
                return False  # of a sentence about tracebacks
            prefix = text[:corner]
        elif prefix.endswith("traceback : "):  # torchrun's summary indents it
            prefix = prefix[: len(prefix) - len(prefix.lstrip())]
        if "Exception Group" in text:
            self._grouped, prefix = True, _MARGIN.sub("", prefix, count=1)
            self._latest = None
        kept = [traceback for traceback in self._open if traceback.prefix != prefix]
        self._open = [
            *kept[1 - _MOST_OPEN :],
            _Traceback(prefix, before.lstrip().startswith(_IGNORED_HEADINGS), boxed),
        ]
        return True

    def _within(self, traceback: _Traceback, body: str) -> None:
        if traceback.found is not None:
            self._says(traceback, traceback.found, body)
        elif not body or body[0].isspace() or body.startswith((">", *_BOX)):
            if frame := _FRAME.match(body):
                traceback.frame = f"{os.path.basename(frame[1])}, line {frame[2]}"
        elif (exception := _EXCEPTION.match(body)) is None or exception[1] in _LEVELS:
            traceback.foreign += 1
            if traceback.foreign > _MOST_FOREIGN:
                self._open.remove(traceback)
            self._outside(body)
        else:
            self._raised(traceback, exception, body)

    def _raised(self, traceback: _Traceback, exception: re.Match[str], body: str) -> None:
        name, message = exception[1].rsplit(".", 1)[-1], _FORMAL.sub("", exception[4] or "").strip()
        failure = _FoundFailure(
            f"{name}{exception[2] or ''}" + (f": {message}" if exception[3] else ""),
            weak=name in _WEAK_NAMES or _WEAK_MESSAGES.search(message) is not None,
        )
        if traceback.aside:
            self._open.remove(traceback)
            return
        if not exception[3] and traceback.frame:
            failure.where = f"at {traceback.frame}"
        if caught := _CAUGHT.match(message):
            self._where, failure.weak = caught[1], True
        elif self._where:
            failure.where, self._where = self._where, ""
        group = self._latest
        if self._grouped and group is not None and _GROUP in group.text:
            group.parts += [failure.text] if _GROUP not in message else []
        else:
            self._keep(failure)
        if name == "RayTaskError":
            return  # the frames of the worker follow, and what was raised there
        traceback.wraps = traceback.boxed and len(body) > _WRAPPED
        if traceback.wraps or _UNSAID.match(failure.text):
            traceback.found = failure
        else:
            self._open.remove(traceback)

    def _says(self, traceback: _Traceback, failure: _FoundFailure, body: str) -> None:
        """Take a line below an exception that continues its message."""
        traceback.rest -= 1
        if body in _LINKS or traceback.rest == 0:
            self._open.remove(traceback)
            self._outside(body)
        elif traceback.wraps:
            failure.text += f" {body.strip()}"
            if len(body) <= _WRAPPED:
                self._open.remove(traceback)
        else:
            of_a_frame, traceback.in_frame = traceback.in_frame, _FRAME.match(body) is not None
            if _NO_CONTENT.match(body) or (of_a_frame and body[0].isspace()):
                return
            failure.text = _FORMAL.sub("", f"{failure.text} {body.strip()}")
            if not _UNSAID.match(failure.text):
                self._open.remove(traceback)

    def _keep(self, failure: _FoundFailure) -> None:
        if self._link is not None and self._link[1] != failure.text:
            failure.why = f"{self._link[0]} {self._link[1]}"
        self._link, self._latest = None, failure
        failure.at = self._lines
        if failure.weak:
            self._weak = failure
        else:
            self._strong = failure

    def _outside(self, text: str) -> None:
        if not text:
            return
        if text in _LINKS:
            latest = self._latest
            self._link = (
                (_LINKS[text], latest.text) if latest is not None and not latest.weak else None
            )
            return
        if (native := self._native) is not None and (
            text[0].isspace() or text.startswith(_THREADS)
        ):
            if cause := _WHAT.match(text):
                native.text += f": {cause[1]}"
            elif not native.where and (frame := _FRAME.match(text)):
                native.where = f"at {os.path.basename(frame[1])}, line {frame[2]}"
            return
        self._native = None
        if match := _NATIVE.match(text):
            words = next(words for words in match.groups() if words is not None)
            failure = self._native = _FoundFailure(
                words, weak=match["elastic"] is not None, native=True
            )
            self._keep(failure)
        elif _SYNTAX.match(text):
            self._open.append(_Traceback("", certain=True))
        elif not text[0].isspace():
            if _ERROR_MESSAGE.match(text):
                self._complaint = (text, self._lines)
            low = text[:200].lower()
            self._lines += _LINE_OF_PROGRESS if "loss" in low or "epoch" in low else 1
