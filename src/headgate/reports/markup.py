"""HTML in which all text is escaped unless it was made here: names, output and command lines can contain anything."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from pathlib import Path

from headgate.errors import StorageError
from headgate.reports.words import say

_EMPTY = frozenset({"meta", "br", "col", "input"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: object, **attributes: object) -> Markup:
    """One element; text among its children is escaped, None left out, iterables taken item by item.

    An attribute of None or False is left out, one of True has no value; `class_` and `data_value` stand for `class` and
    `data-value`.
    """
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        given.append(f" {key}" if value is True else f' {key}="{html.escape(str(value))}"')
    end = "" if name in _EMPTY else f"</{name}>"
    return Markup(f"<{name}{''.join(given)}>{joined(children)}{end}")


def joined(children: Iterable[object]) -> Markup:
    """Children one after the other."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(html.escape(child))
        elif isinstance(child, Iterable):
            parts.append(joined(child))
        else:
            parts.append(html.escape(str(child)))
    return Markup("".join(parts))


def figure_of(
    value: float | None, unit: str = "", *, name: str = "span", text: str | None = None, key: str = ""
) -> Markup:
    """A number as people read it, with its raw value in `data-value` and what it is in `data-key`."""
    raw = None if value is None else repr(value)
    return element(name, say(value, unit) if text is None else text, data_value=raw, data_key=key or None)


def script_json(value: object) -> Markup:
    """JSON that no text in it can end the surrounding script element with."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def save(text: str, to: Path) -> Path:
    """Write a page: a file as a whole, in place of the one there, behind a link too; into what is no file, as a device
    or a pipe, for that is not ours to replace.

    Returns:
        `to`.

    Raises:
        StorageError: It cannot be written.
    """
    # Surrogates come from output that was not UTF-8; a page has to be.
    data = text.encode(errors="replace")
    file = to.resolve()
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if to.exists() and not to.is_file():
            to.write_bytes(data)
            return to
        beside.write_bytes(data)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StorageError(f"cannot write {to}: {error.strerror}; name another file with --output") from error
    return to
