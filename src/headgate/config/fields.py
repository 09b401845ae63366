"""Types of values in users' files: texts, commands, seconds, bytes, rates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from headgate.model import units
from headgate.model.declarations import Kind, are_texts
from headgate.model.job_checks import NAME_PATTERN, NO_NUL, VARIABLES, is_variable
from headgate.model.plans import Strategy
from headgate.model.shares import FRACTIONS, is_fraction
from headgate.model.stop_signals import SIGNALS, signal_name
from headgate.model.sweeps import PARAMETER, is_parameter, swept_values
from headgate.model.trackers import Destination, Tracker
from headgate.output.expressions import check_expression


def _workers(value: object) -> tuple[int, int | None]:
    match = (
        re.fullmatch(r"(\d+)(?:(\.\.)(\d+)?)?", str(value).strip())
        if not isinstance(value, bool)
        else None
    )
    if match is None or int(match[1]) < 1:
        raise ValueError("expected a number of workers such as 4, or a range such as 1..8 or 2..")
    low = int(match[1])
    if not match[2]:
        return low, low
    high = int(match[3]) if match[3] else None
    if high is not None and high < low:
        raise ValueError(f"the range ends before it begins; expected {high}..{low}")
    return low, high


def _share(value: object) -> str:
    text = value.replace(" ", "") if isinstance(value, str) else ""
    if not is_fraction(text):
        raise ValueError(f"expected {FRACTIONS}")
    return text


def _stop_signal(value: object) -> str:
    if not isinstance(value, str | int):
        raise ValueError(f"expected {SIGNALS}")
    try:
        return signal_name(value)
    except ValueError:
        raise ValueError(f"expected {SIGNALS}") from None


def _name(value: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        raise ValueError(
            "expected letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"
        )
    return value


def _text(value: str) -> str:
    if "\0" in value:
        raise ValueError(NO_NUL)
    return value


def _variable(value: str) -> str:
    if not is_variable(value):
        raise ValueError(VARIABLES)
    return _text(value)


def _command(value: object) -> object:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError("expected a command as text, or a list of its words")
    if not words[0].strip():
        raise ValueError("expected a command, found none")
    for word in words:
        _text(word)
    return value if isinstance(value, str) else tuple(words)


def _forerunners(value: object) -> object:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("expected the name of a job, or a list of names")
    return tuple(names) if isinstance(value, list) else value


def _trackers(value: object) -> tuple[str, ...]:
    return tuple(
        str(_destination(tracker)) for tracker in (value if isinstance(value, list) else [value])
    )


def _destination(value: object) -> Destination:
    keys: dict[str, Any] = value if isinstance(value, dict) else {"to": value}
    if not all(isinstance(text, str) for text in keys.values()) or not (
        {"to"} <= keys.keys() <= {"to", "output"}
    ):
        raise ValueError("expected the name of a tracker, or {to: tensorboard, output: runs/}")
    return Destination.of("=".join(filter(None, (keys["to"], keys.get("output")))))


def _parameter(value: str) -> str:
    if not is_parameter(value):
        raise ValueError(f"expected {PARAMETER}")
    return value


def _swept(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not are_texts(texts):
        raise ValueError("expected a value, a list of values, or a range such as 0..9")
    return swept_values(list(map(_text, texts)))


def _batch(value: object) -> object:
    sizes = value if isinstance(value, list) and value else [value]
    if not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        raise ValueError("expected a number of samples, or one for each worker: [32, 16]")
    return value


def _expression(value: str) -> str:
    if (wrong := check_expression(value)) is not None:
        raise ValueError(wrong)
    return value


def example(kind: str | list[str], value: str) -> WithJsonSchema:
    """The schema of a value that can be written in several ways, with an example."""
    return WithJsonSchema({"type": kind, "examples": [value]})


TYPED = {"type": ["string", "number", "boolean"]}
Plain = Annotated[str, AfterValidator(_text)]
Text = Annotated[Plain, WithJsonSchema(TYPED)]
Variable = Annotated[str, AfterValidator(_variable)]
Name = Annotated[Text, AfterValidator(_name)]
Command = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_command),
    WithJsonSchema({"anyOf": [TYPED, {"type": "array", "items": TYPED, "minItems": 1}]}),
]
Seconds = Annotated[
    float, BeforeValidator(units.seconds), Field(ge=0), example(["number", "string"], "5s")
]
Bytes = Annotated[
    int, BeforeValidator(units.size), Field(gt=0), example(["integer", "string"], "2GiB")
]
Memory = Annotated[int, BeforeValidator(units.memory), example(["integer", "string"], "2GiB")]
Count = Annotated[
    int, BeforeValidator(units.count), Field(gt=0), example(["integer", "string"], "124M")
]
AtOnce = Annotated[
    int | Literal["auto"], BeforeValidator(units.at_once), example(["integer", "string"], "auto")
]
Rate = Annotated[float, BeforeValidator(units.rate), Field(gt=0), example("string", "200Mbit")]
Forerunners = Annotated[
    str | tuple[str, ...],
    BeforeValidator(_forerunners),
    WithJsonSchema(
        {
            "anyOf": [TYPED, {"type": "array", "items": TYPED, "minItems": 1}],
            "examples": ["a", ["a", "b"]],
        }
    ),
]
# Not only text: a number stays a number, so that messages show it as written.
Share = Annotated[Any, BeforeValidator(_share), example("string", "1/3")]
StopSignal = Annotated[Any, BeforeValidator(_stop_signal), example(["string", "integer"], "SIGINT")]
Workers = Annotated[
    tuple[int, int | None], BeforeValidator(_workers), example(["integer", "string"], "1..8")
]
_BATCH = {
    "anyOf": [
        {"type": "integer"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "null"},
    ]
}
_TRACKER = {
    "anyOf": [
        {"type": "string", "examples": list(Tracker)},
        {
            "type": "object",
            "properties": {"to": {"enum": list(Tracker)}, "output": {"type": "string"}},
            "required": ["to"],
            "additionalProperties": False,
        },
    ]
}
Trackers = Annotated[
    tuple[str, ...],
    BeforeValidator(_trackers),
    WithJsonSchema({"anyOf": [*_TRACKER["anyOf"], {"type": "array", "items": _TRACKER}]}),
]
Batch = Annotated[int | list[int], BeforeValidator(_batch), WithJsonSchema(_BATCH)]
Parameter = Annotated[str, AfterValidator(_parameter)]
Parameters = dict[
    Parameter,
    Annotated[
        tuple[str, ...],
        BeforeValidator(_swept),
        WithJsonSchema({"anyOf": [TYPED, {"type": "array", "items": TYPED, "minItems": 1}]}),
    ],
]
Combinations = list[Annotated[dict[Parameter, Text], Field(min_length=1)]]
OF_KINDS: Mapping[Kind, Any] = {
    Kind.NAME: Name,
    Kind.PATH: Plain,
    Kind.COMMAND: Command,
    Kind.FORERUNNERS: Forerunners,
    Kind.SECONDS: Seconds,
    Kind.MEMORY: Memory,
    Kind.COUNT: Count,
    Kind.RATE: Rate,
    Kind.SHARE: Share,
    Kind.SIGNAL: StopSignal,
    Kind.WORKERS: Workers,
    Kind.STRATEGY: Strategy,
    Kind.BATCH: Batch,
    Kind.TRACKERS: Trackers,
    Kind.AT_ONCE: AtOnce,
    Kind.PARAMETERS: Parameters,
    Kind.COMBINATIONS: Combinations,
    Kind.EXPRESSION: Annotated[str, AfterValidator(_expression)],
}
"""How values of each kind are written in files."""
