"""The page's templates. All text is escaped: names, output and command lines can contain
anything.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import (
    ChoiceLoader,
    Environment,
    FileSystemBytecodeCache,
    PackageLoader,
    StrictUndefined,
)
from jinja2.bccache import Bucket
from markupsafe import Markup

from headgate.model.units import counted, say_bits, say_bytes, say_seconds
from headgate.reports import words
from headgate.reports.figures import job_colour

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Markup", "render", "render_in", "script_json"]


class _Joined(PackageLoader):
    """Templates without line breaks and indents, so that only spaces between words remain."""

    def get_source(
        self, environment: Environment, template: str
    ) -> tuple[str, str, Callable[[], bool] | None]:
        source, path, is_fresh = super().get_source(environment, template)
        return "".join(line.strip() for line in source.splitlines()), path, is_fresh


class _Compiled(FileSystemBytecodeCache):
    """Compiled templates, kept where Python keeps this compiled module: compiling takes a quarter
    of a report's time.
    """

    def __init__(self) -> None:
        super().__init__(str(Path(cache_from_source(__file__)).parent), "template-%s.pyc")

    def dump_bytecode(self, bucket: Bucket) -> None:
        if not sys.dont_write_bytecode:
            with suppress(OSError):  # other users may own that folder
                super().dump_bytecode(bucket)


def render(template: str, **values: object) -> Markup:
    """Fill in a template of this folder's `templates/`.

    Raises:
        jinja2.UndefinedError: It uses a value that was not given.
    """
    return render_in("reports", template, **values)


def render_in(room: str, template: str, **values: object) -> Markup:
    """A template of a room's `templates/`, filled in; those of `reports` serve every room."""
    return Markup(_environment(room).get_template(template).render(values))


@cache
def _environment(room: str) -> Environment:
    rooms = dict.fromkeys((room, "reports"))
    loader = ChoiceLoader([_Joined(f"headgate.{name}") for name in rooms])
    made = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, bytecode_cache=_Compiled()
    )
    made.filters |= {"repr": repr, "grouped": "{:,}".format, "bits": say_bits, "bytes": say_bytes}
    made.filters |= {
        "seconds": say_seconds,
        "step_time": words.say_step_time,
        "moment": words.say_moment,
        "reason": words.say_reason,
    }
    made.filters |= {"coded": _coded, "listed": words.listed}
    made.globals |= {
        "say": words.say,
        "say_loss": words.say_loss,
        "counted": counted,
        "MISSING": words.MISSING,
    }
    made.globals["job_colour"] = lambda index: job_colour(index)[0]
    return made


def _coded(text: str) -> Markup:
    """A sentence with text between backticks set as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an odd backtick is part of the text
        parts = [text]
    code = Markup("<code>{}</code>")
    return Markup("").join(
        code.format(part) if index % 2 else part for index, part in enumerate(parts)
    )


def script_json(value: object) -> Markup:
    """JSON that cannot close the surrounding script element, whatever text it contains."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
