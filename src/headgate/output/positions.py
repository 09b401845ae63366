"""The position of a line in the training: step, epoch and their totals, from forms without names.

Forms with names («epoch 3/10, step 120») are found with the values, in `lines`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TIME = r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_DATE = r"(?:\d{4}[-/]\d\d[-/]\d\d|\d\d[-/]\d\d(?:[-/](?:\d{4}|\d\d))?)"
_LEVEL = r"(?:info|debug|warning|warn|error|notice|success|critical|trace)"
_PREFIX = re.compile(
    rf"""\s{{0,16}}(?:
    # A timestamp.
    \[?{_DATE}[\st,_]+{_TIME}[^\]\s]{{0,8}}(?:\sutc)?(?:\]|(?:\s[\w.]{{1,40}})?\s{{0,2}}\]:?)?
    |\[?{_TIME}\]?|\d\d:\d\d(?=\s\|)
    |\[?[iwdef](?:\d{{4}}|\d{{8}}|\s\d{{6}}|\s{_DATE})?\s{_TIME}(?:\s+\d+)?(?:\s[\w./-]{{1,80}}:\d+)?\s{{0,2}}(?:\]|(?<=\s\s))
    # Of syslog.
    |[a-z]{{3}}\s{{1,2}}\d{{1,2}}\s{_TIME}\s\S{{1,60}}(?:\s[\w./-]{{1,60}}(?:\[\d{{1,7}}\])?)?\s{{0,2}}:
    # Of Python's logging.
    |{_LEVEL}:(?!(?:epoch|step|iter|iteration|loss|acc|lr):\s?\d)[\w.]{{1,60}}:(?!\s)
    |{_LEVEL}(?=[\s:|-]):?
    |level={_LEVEL}\b|msg="?
    # A rank, a host, a level; the program or thread.
    |\[\s?(?:(?:rank|default):?\s?\d+|\d+,\d+|[a-z][\w./-]{{0,60}}(?:\|[\w.]{{0,40}}(?::\d+)?)?)\s?\]:?(?:<std\w{{3}}>:)?
    |\((?:\w[\w.]{{0,40}}\s(?:pid|rank)=\d+[^)]{{0,60}}|[\w.]{{1,40}}:\d+)\):?
    |<[a-z][\w.]{{0,40}}>
    |\d{{1,4}}:\s(?=[a-z\[{{]|\d+/\d)(?!\s{{0,4}}learn)  # srun -l
    |[\w.]{{1,40}}-\d{{1,4}}\s{{1,4}}\||rank\s\d{{1,5}}:?(?=\s)
    |(?!(?:epoch|step|iter|iteration|loss|acc|batch|lr|train|val|test)\b)[a-z_][\w.=]{{0,40}}\s{{1,2}}[|│]
    |[a-z]{{3,40}}warning:|[a-z]{{1,20}}(?:_[a-z]{{1,20}}){{1,4}}:(?=\s\[)
    |(?:mainthread|mainprocess|(?:process|thread|worker)-\d{{1,6}}|pid[=:]\s?\d{{1,9}})(?=[\s:|-]):?
    # A logger, a function.
    |(?:root|tensorflow|absl|mmengine|mmdet|__main__|[a-z_]+(?:\.[a-z_]+)+):?(?=[\s\w\[])
    |(?!(?:epoch|step|iter|iteration|loss|batch|train|val|test)\s)[a-z_][\w.]{{0,40}}\s-\s{{1,4}}(?![\s\d.])
    |[a-z_][\w.]{{0,60}}\(\)(?:::?\d{{1,6}})?\s?:?
    |[a-z]{{1,20}}_(?:loop|step|epoch|batch|fn)@\d{{1,6}}\s?:?
    |\{{[^{{}}]{{0,400}}"(?:message|msg|event)":\s?"
    |>>|[-|:│┃║]
    )""",
    re.VERBOSE,
)
_MOST_PREFIXES = 8
_WITHOUT = (
    "epoch ",
    "epoch:",
    "epoch=",
    "epoch[",
    "step ",
    "step:",
    "step=",
    "loss:",
    "loss ",
    "loss=",
    "iter ",
    "train epoch",
)
"""Beginnings of lines that have nothing before their content."""

_PERCENT = r"(?:\s{0,2}(\(\s{0,2}\d{1,3}(?:\.\d{1,6})?\s{0,2}%\)))?"
_COUNTED = re.compile(
    rf"\[\s{{0,8}}(\d{{1,12}})\s{{0,2}}/\s{{0,2}}(\d{{1,12}}){_PERCENT}\s{{0,2}}\]"
)
_TWICE = re.compile(
    r"\[\s{0,4}(\d{1,9})\s{0,2}/\s{0,2}(\d{1,9})\s{0,2}\]\s{0,4}\[\s{0,8}(\d{1,12})\s{0,2}/\s{0,2}(\d{1,12})"
)
_EPOCH_AND_STEP = re.compile(r"\[\s{0,4}(\d{1,9}):\s{1,4}(\d{1,12})/(\d{1,12})\s{0,2}\]")
_TRAIN = re.compile(
    r"train(?:ing)?:?\s{1,8}(\d{1,6})(?:\s{0,2}/\s{0,2}(\d{1,6}))?" + _PERCENT + r"\s{0,4}\["
)
_AFTER_EPOCH = re.compile(
    r"[\s:|│┃║,;\])(+=─━═╮┐┓╗-]{1,24}(\d{1,12})\s{0,4}/\s{0,4}(\d{1,12})(?![\d./:-])"
)
_WITH_UNIT = re.compile(
    r"(?<![\d.:/-])(\d{1,12})\s{0,4}/\s{0,4}(\d{1,12})\s{0,2}(?:batch|iter|step|update|it\b)(?:e?s|ations?)?(?![\w/])"
)
_TQDM = re.compile(r"(?:\||\d%)\s{0,3}(\d{1,12})/(\d{1,12})\s{0,2}\[")
_UNIT = re.compile(r"(?:[\d.?]{1,9}([a-z]{2,12})/s|s/([a-z]{2,12}))(?=[,\]\s])")
_SAMPLES = frozenset(
    {
        *(
            "img",
            "imgs",
            "image",
            "images",
            "sample",
            "samples",
            "ex",
            "example",
            "examples",
            "seq",
            "sequences",
        ),
        *("sentence", "sentences", "doc", "docs", "graph", "graphs", "molecule", "molecules"),
    }
)
_TQDM_OVER_EPOCHS = re.compile(r"\s{0,4}epochs?\s{0,2}:?\s{0,4}\d{1,3}%\|")
_BARE = re.compile(
    r"\s{0,4}(?:(?:training|steps?|iterations?)\s{0,2}:?\s{0,4})?\d{1,3}%\|[^|]{0,400}\|\s{0,3}(\d{1,12})/(\d{1,12})\s{0,2}\["
)
_DRAWN = re.compile(
    r"(?:[━╸╺╴─]{3,}|[█▉▊▋▌▍▎▏░▒▓])[\s|│┃\]]{1,80}(?:\d{1,3}%[\s|│┃•]{1,6})?(\d{1,9})/(\d{1,9})(?=[\s|│┃•,;]|$)"
)
_KERAS = re.compile(r"\s{0,8}(\d{1,9})/(\d{1,9}|unknown)\s{1,4}(?:([━\[])|-\s|\d{1,6}m?s\s)")
_PAIR = re.compile(r"\s{0,4}\[\s{0,4}(\d{1,9})\s{0,2},\s{0,8}(\d{1,9})\s{0,2}\]")
_INDEX = re.compile(r"\s{0,4}\[(\d{1,9})(?:\s\|\s[\d.:]{1,12})?\](?=[\s:])")
_FIRST = re.compile(r"\s{0,4}(\d{1,9})/(\d{1,9})\s{0,2}(?:[,:;|-]|\()(?!\d)")
_FIRST_WORD = re.compile(r"\s{0,4}(\d{1,12})\s(?:step|iteration|iter|update)s?\s?[,:;|]")
_EPOCH_BEFORE = re.compile(
    r"\s{0,4}(?:\[\s{0,3}(\d{1,6})\s{0,2}/\s{0,2}(\d{1,6})\s{0,2}\]|(\d{1,6})/(\d{1,6}):|(\d{1,6})\|\d{1,12}\|(?=\s?loss))"
)
"""The epoch before a bar: `[3/10]`, `3/10:`, or `3|120|Loss` of torchtune."""
_EPOCH_AFTER = re.compile(r"(?<![\d/.])(\d{1,6})/(\d{1,6})[\s*|-]{1,4}epoch(?![s\d])")
_LEADING = re.compile(r"\s{0,8}(\d{1,9}):\s{1,4}(?=learn|[-\d.na]{1,24}, [-\d.na]{1,24} avg)")
_AFTER = re.compile(r"\bafter\s(\d{1,12})\s(?:step|iteration|batch|update)(?:e?s)?\b")
_SPEECH = re.compile(
    r"(?<![\w.])(\d{1,6})(?:/(\d{1,6}))?\s?epochs?(?::\w{1,12}:(?:\d{1,9}-)?(\d{1,9})batch|\sstarted|\sresults)"
)


class Position(NamedTuple):
    """The position of a line.

    `total`: the total of its count of steps or samples, in the epoch or in the training. `keras`:
    it is a progress bar of Keras. `drawn`: it is drawn as a bar, and does not end an epoch.
    """

    step: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    samples: int | None = None
    keras: bool = False
    drawn: bool = False


def content(line: str) -> int:
    """Index of a line's content after timestamps, levels, names of loggers and ranks."""
    at = 0
    if line.startswith(_WITHOUT):
        return at
    for _ in range(_MOST_PREFIXES):
        match = _PREFIX.match(line, at)
        if match is None or match.end() == at:
            break
        at = match.end()
    while 0 < at < len(line) and line[at].isspace():
        at += 1
    return at


def bare_bar(line: str) -> tuple[int, int] | None:
    """Count and total of a progress bar without a name, or with that of the training."""
    match = _BARE.match(line)
    return (int(match[1]), int(match[2])) if match is not None else None


def bar(line: str) -> tuple[int, int] | None:
    """Count and total of a progress bar."""
    bar = _TQDM.search(line) or _DRAWN.search(line)
    return (int(bar[1]), int(bar[2])) if bar is not None else None


def over_epochs(line: str) -> Position | None:
    """The position of a bar over epochs."""
    if "%" not in line or (count := _TQDM.search(line)) is None:
        return None
    if _TQDM_OVER_EPOCHS.match(line) or _unit(line, count.end()) in ("epoch", "epochs"):
        return Position(epoch=int(count[1]), epochs=int(count[2]))
    return None


def _unit(line: str, start: int) -> str | None:
    """The unit of a progress bar of tqdm: «12img/s», «2.1s/epoch». None without one."""
    unit = _UNIT.search(line, start, start + 60)
    return None if unit is None else unit[1] or unit[2]


def position(line: str, start: int, epoch_end: int, loss_end: int) -> Position:
    """The position of a line, from forms without names.

    Args:
        line: The line in lower case.
        start: Index of its content.
        epoch_end: End of the number of its epoch, found by name; 0: none.
        loss_end: End of its loss; 0: none.
    """
    if keras := _KERAS.match(line, start):
        total = int(keras[2]) if keras[2].isdigit() else None
        return Position(int(keras[1]), total, keras=True, drawn=keras[3] is not None)
    if "[" in line and (brackets := _in_brackets(line, start, epoch_end, loss_end)) is not None:
        return brackets
    if line[start : start + 8].lstrip()[:1].isdigit():
        if first := _FIRST.match(line, start):
            return Position(int(first[1]), int(first[2]))
        if first := _FIRST_WORD.match(line, start) or _LEADING.match(line, start):
            return Position(int(first[1]))
    if drawn := _DRAWN.search(line, epoch_end):
        return Position(int(drawn[1]), int(drawn[2]), drawn=True)
    if speech := _SPEECH.search(line, start):
        epochs = int(speech[2]) if speech[2] else None
        return Position(int(speech[3]) if speech[3] else None, None, int(speech[1]), epochs)
    if after := _AFTER.search(line, start):
        return Position(int(after[1]))
    counted = (_AFTER_EPOCH.match(line, epoch_end) if epoch_end else None) or _WITH_UNIT.search(
        line, start
    )
    return Position(int(counted[1]), int(counted[2])) if counted is not None else Position()


def _in_brackets(line: str, start: int, epoch_end: int, loss_end: int) -> Position | None:
    if bar := _TQDM.search(line):
        done, total = int(bar[1]), int(bar[2])
        epoch, epochs = _epoch_of_bar(line, start, bar.start()) if epoch_end == 0 else (None, None)
        if _unit(line, bar.end()) in _SAMPLES:
            return Position(None, total, epoch, epochs, samples=done, drawn=True)
        return Position(done, total, epoch, epochs, drawn=True)
    if epoch_end == 0:
        if both := _PAIR.match(line, start):
            return Position(int(both[2]), None, int(both[1]))
        if twice := _TWICE.search(line, start):
            return Position(int(twice[3]), int(twice[4]), int(twice[1]), int(twice[2]))
        if both := _EPOCH_AND_STEP.match(line, start):
            return Position(int(both[2]), int(both[3]), int(both[1]))
        if (drawn := _DRAWN.search(line, start)) and _EPOCH_BEFORE.match(line, start):
            epoch, epochs = _epoch_of_bar(line, start, drawn.start())
            return Position(int(drawn[1]), int(drawn[2]), epoch, epochs, drawn=True)
    train = _TRAIN.search(line, start) if epoch_end == 0 else None
    if place := _COUNTED.search(line, max(epoch_end, train.end() - 1 if train else start)):
        done, total = int(place[1]), int(place[2])
        if train is not None:
            return Position(done, total, int(train[1]), int(train[2]) if train[2] else None)
        # PyTorch's tutorials count samples: «[6400/60000 (11%)]», and «loss: 2.3  [   64/60000]».
        if place[3] or (loss_end and place.start() >= loss_end and not line[place.end() :].strip()):
            return Position(total=total, samples=done)
        return Position(done, total)
    if index := _INDEX.match(line, start):
        return Position(int(index[1]))
    return None


def _epoch_of_bar(line: str, start: int, end: int) -> tuple[int | None, int | None]:
    """Epoch and number of epochs, without a name, between the start of a line's content and its
    bar.
    """
    before = _EPOCH_BEFORE.match(line, start, end)
    if before is None and "epoch" in line:
        before = _EPOCH_AFTER.search(line, start, end)
    if before is None:
        return None, None
    epoch, *epochs = (int(number) for number in before.groups() if number is not None)
    return epoch, epochs[0] if epochs else None
